//! Bytes in both directions at once, each checked by the receiver, through every way to move them.

use std::path::PathBuf;

use system_tests::probe::{need_devices, need_ipv6};
use system_tests::stream::Random;
use system_tests::{Case, Ports, Side, case, compile, millis, plain, secs};

const MIB: u64 = 1 << 20;

/// What one transfer moves each way; SHORTWIRE_TEST_MIB makes it longer.
fn usual() -> u64 {
    let mib = std::env::var("SHORTWIRE_TEST_MIB").ok().and_then(|v| v.parse().ok());
    mib.unwrap_or(64) * MIB
}

struct Transfer<'a> {
    program: PathBuf,
    driver: &'a str,
    op: &'a str,
    to_server: u64,
    to_client: u64,
    seed: u64,
    connections: u64,
    env: Vec<(&'a str, String)>,
}

impl Transfer<'_> {
    fn run(&self, c: &Case, ports: Ports) {
        let port = ports.free();
        let command = |side: &str| {
            let mut command = Side::Run.command(&self.program);
            command.args([side, &port.to_string(), self.driver, self.op]);
            command.args(
                [self.to_server, self.to_client, self.seed, self.connections]
                    .map(|n| n.to_string()),
            );
            command.envs(self.env.iter().map(|(name, value)| (name, value)));
            command
        };
        let mut server = c.serve("server", port, &mut command("server"));
        let mut client = c.start("client", &mut command("client"));
        for side in [&mut client, &mut server] {
            let said = side.success(secs(90));
            let right = said.lines().filter(|line| line.ends_with(" ok")).count() as u64;
            assert_eq!(right, self.connections, "{} {}: {said}", self.driver, self.op);
        }
    }
}

fn plan<'a>(driver: &'a str, op: &'a str) -> Result<Transfer<'a>, system_tests::Skip> {
    let (bytes, program) = (usual(), compile("transfer")?);
    Ok(Transfer {
        program,
        driver,
        op,
        to_server: bytes,
        to_client: bytes,
        seed: 7,
        connections: 1,
        env: Vec::new(),
    })
}

/// The given ways to move bytes under one driver, one after the other, with both roles in the
/// rendezvous.
fn ways(driver: &str, ops: &[&str]) {
    case(&format!("transfer-{driver}"), |c| {
        for (i, op) in ops.iter().enumerate() {
            let transfer = Transfer { seed: i as u64 + 1, ..plan(driver, op)? };
            transfer.run(c, if i % 2 == 0 { Ports::Low } else { Ports::High });
        }
        Ok(())
    });
}

#[test]
fn blocking_in_lockstep() {
    ways(
        "lockstep",
        &[
            "write", "send", "waitall", "peek", "lowat", "cork", "sendfile", "vec", "msg", "mmsg",
            "splice", "dontwait",
        ],
    );
}

#[test]
fn blocking_with_a_reading_and_a_writing_thread() {
    ways(
        "threads",
        &[
            "send", "waitall", "peek", "lowat", "cork", "sendfile", "vec", "mmsg", "splice",
            "dontwait",
        ],
    );
}

/// Marks set and waited for while the upgrade is under way, over and over: set just as the upgrade
/// lowers the kernel's, and above what the peer's window lets it send.
#[test]
fn low_water_marks_at_the_switch() {
    case("transfer-marks", |c| {
        Transfer {
            to_server: 100_000,
            to_client: 100_000,
            connections: 1000,
            ..plan("threads", "lowat")?
        }
        .run(c, Ports::High);
        Ok(())
    });
}

#[test]
fn poll() {
    ways("poll", &["write", "send", "peek", "cork", "sendfile"]);
}

#[test]
fn select() {
    ways("select", &["write", "vec"]);
}

#[test]
fn epoll_level() {
    ways("epoll", &["send", "msg", "sendfile", "splice"]);
}

#[test]
fn epoll_edge() {
    ways("edge", &["write", "send", "peek", "vec", "mmsg", "sendfile", "splice", "cork"]);
}

#[test]
fn a_gibibyte_each_way() {
    case("gibibyte", |c| {
        let bytes = 1024 * MIB;
        Transfer { to_server: bytes, to_client: bytes, ..plan("threads", "send")? }
            .run(c, Ports::High);
        Ok(())
    });
}

/// One side ends long before the other: the rest comes through a half-closed connection.
#[test]
fn half_closed_for_most_of_the_way() {
    case("half-closed", |c| {
        for (driver, to_server, to_client) in [
            ("threads", MIB, usual()),
            ("edge", usual(), 0),
            ("poll", 0, usual()),
            ("lockstep", 1, MIB),
        ] {
            Transfer { to_server, to_client, ..plan(driver, "send")? }.run(c, Ports::Low);
        }
        Ok(())
    });
}

#[test]
fn ipv6_and_mapped_addresses() {
    case("ipv6", |c| {
        need_ipv6()?;
        for family in ["6", "mapped"] {
            for ports in [Ports::Low, Ports::High] {
                let env = vec![("SWT_FAMILY", family.to_string())];
                Transfer { env, ..plan("edge", "send")? }.run(c, ports);
            }
        }
        Ok(())
    });
}

/// The device's copying path, which is otherwise for peers whose memory cannot be mapped.
#[test]
fn through_the_copying_path() {
    case("copying", |c| {
        for (driver, op) in [("threads", "send"), ("edge", "vec"), ("lockstep", "waitall")] {
            let env = vec![("SHORTWIRE_COPY", "1".to_string())];
            Transfer { env, ..plan(driver, op)? }.run(c, Ports::Low);
        }
        Ok(())
    });
}

/// Small and large rings: the wrap and the full ring come at other places.
#[test]
fn every_ring_size() {
    case("ring-sizes", |c| {
        for size in ["16K", "64K", "1M"] {
            let env = vec![("SHORTWIRE_DMB_SIZE", size.to_string())];
            Transfer { env, to_server: 16 * MIB, to_client: 16 * MIB, ..plan("threads", "vec")? }
                .run(c, Ports::High);
            let env = vec![("SHORTWIRE_DMB_SIZE", size.to_string())];
            Transfer { env, to_server: 16 * MIB, to_client: 16 * MIB, ..plan("edge", "write")? }
                .run(c, Ports::Low);
        }
        Ok(())
    });
}

/// A hundred switches at random offsets while both directions are busy: the two sides' thresholds
/// differ and change.
#[test]
fn a_hundred_switches_under_full_load() {
    case("switches", |c| {
        let (mut random, drivers) = (Random::new(1), ["threads", "edge", "poll", "epoll"]);
        for pair in 0..20 {
            let driver = drivers[pair % drivers.len()];
            let port = if random.below(2) == 0 { Ports::Low } else { Ports::High }.free();
            let (to_server, to_client) = (MIB + random.below(3 * MIB), MIB + random.below(3 * MIB));
            let mut side = |name: &str| {
                let after = 1 + random.below(if pair % 3 == 0 { 200 } else { 20 });
                let mut command = Side::Run.command(compile("transfer")?);
                command
                    .env("SHORTWIRE_AFTER", after.to_string())
                    .env("SHORTWIRE_AFTER_BYTES", "1G");
                command.args([name, &port.to_string(), driver, "send"]);
                command.args([to_server, to_client, pair as u64 * 100, 5].map(|n| n.to_string()));
                Ok(command)
            };
            let mut server = c.serve("server", port, &mut side("server")?);
            let mut client = c.start("client", &mut side("client")?);
            for end in [&mut client, &mut server] {
                let said = end.success(secs(60));
                assert_eq!(
                    said.lines().filter(|line| line.ends_with(" ok")).count(),
                    5,
                    "pair {pair} {driver}: {said}"
                );
            }
        }
        Ok(())
    });
}

/// Threads of both ends that open, use and end connections without regard for each other.
#[test]
fn a_storm_of_connections() {
    const WAYS: [&[(&str, &str)]; 4] = [
        &[],
        &[("SHORTWIRE_AFTER", "1"), ("SHORTWIRE_DMB_SIZE", "16K")],
        &[("SHORTWIRE_AFTER", "3"), ("SHORTWIRE_PREFER", "ism")],
        &[("SHORTWIRE_AFTER", "3"), ("SHORTWIRE_PREFER", "verbs")],
    ];
    case("storm", |c| {
        let storm = compile("storm")?;
        for way in WAYS {
            let device = way.iter().find(|(name, _)| *name == "SHORTWIRE_PREFER");
            need_devices(device.map_or("", |(_, device)| device))?;
            let port = Ports::Low.free();
            let number = port.to_string();
            let command = |args: &[&str]| {
                let mut command = Side::Run.command(&storm);
                command.args(args).envs(way.iter().copied());
                command
            };
            let mut server = c.serve("server", port, &mut command(&["server", &number]));
            let watch = c.watch(&[port]);
            let call = |_| c.start("client", &mut command(&["client", &number, "8", "4"]));
            // Connections are short, so a look sees few of them.
            watch.during(10, |_| {
                for mut client in [0, 1].map(call) {
                    println!("{way:?}: {}", client.success(secs(60)).trim());
                }
                Ok(())
            })?;
            assert!(watch.saw_smcd(10), "few connections left TCP");
            assert!(server.running(), "{}", server.stderr());
            server.stop();
        }
        Ok(())
    });
}

/// Without this, every test above could pass on TCP.
#[test]
fn transfers_do_go_through_shared_memory() {
    case("transfer-mode", |c| {
        for driver in ["threads", "edge", "lockstep"] {
            let program = compile("transfer")?;
            let port = Ports::Low.free();
            let command = |side: &str| {
                let mut command = Side::Run.command(&program);
                command.args([
                    side,
                    &port.to_string(),
                    driver,
                    "send",
                    "400000000000",
                    "400000000000",
                    "5",
                    "1",
                    "survive",
                ]);
                command
            };
            let mut server = c.serve("server", port, &mut command("server"));
            let mut client = c.start("client", &mut command("client"));
            let watch = c.watch(&[port]);
            watch.wait_smcd(2, secs(60));
            if plain() {
                std::thread::sleep(millis(100));
            }
            client.signal(rustix::process::Signal::KILL);
            client.wait(secs(60));
            server.success(secs(60));
        }
        Ok(())
    });
}
