//! Many connections: idle ones cost nothing, short ones are all right.

use std::fs;
use std::io::Write;
use std::thread::sleep;

use system_tests::{
    Connection, Deadline, Ports, Side, case, compile, connections, millis, plain, secs, skip,
};

fn descriptors_allowed() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    line.split_whitespace().nth(3).and_then(|n| n.parse().ok()).unwrap_or(1024)
}

/// What is measured in processor time: nothing else runs beside these.
mod alone {
    use super::*;

    #[test]
    fn a_thousand_idle_connections_cost_no_cpu() {
        case("thousand-idle", |c| {
            if descriptors_allowed() < 1100 {
                return skip("fewer than 1,100 open files allowed");
            }
            for ports in [Ports::Low, Ports::High] {
                let (port, many) = (ports.free(), compile("many")?);
                let mut server = c.serve(
                    "server",
                    port,
                    Side::Run.command(&many).args(["server", &port.to_string()]),
                );
                let mut client = c.start(
                    "client",
                    Side::Run.command(&many).args(["idle", &port.to_string(), "1000", "20"]),
                );
                client.wait_line("ready", secs(60));
                let watch = c.watch(&[port]);
                watch.wait_smcd(2000, secs(60));
                drop(watch);
                // Meanwhile they give their memory back, which costs each a few microseconds, once; but
                // where they got no processor it comes while they are looked at.
                let mut spent = (u64::MAX, u64::MAX);
                for _ in 0..5 {
                    sleep(secs(2));
                    let before = (server.cpu_ticks(), client.cpu_ticks());
                    sleep(secs(2));
                    spent = (server.cpu_ticks() - before.0, client.cpu_ticks() - before.1);
                    if spent.0 <= 1 && spent.1 <= 1 {
                        break;
                    }
                }
                assert!(
                    spent.0 <= 1 && spent.1 <= 1,
                    "idle for 2 s cost (server, client) {spent:?} clock ticks"
                );
                client.say("\n");
                client.wait_line("again", secs(60));
                client.success(secs(30));
                server.stop();
            }
            Ok(())
        });
    }
}

/// Connections that were busy and then rest hold a page each way: what their rings had come to is
/// given back.
#[test]
fn resting_connections_give_their_memory_back() {
    case("resting", |c| {
        if plain() {
            return skip("there is no shared memory without shortwire");
        }
        const COUNT: u64 = 200;
        let (port, many) = (Ports::Low.free(), compile("many")?);
        let number = port.to_string();
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &number]));
        let args = ["idle", &number, &COUNT.to_string(), "200", "2000"];
        let mut client = c.start("client", Side::Run.command(&many).args(args));
        client.wait_line("ready", secs(60));
        let watch = c.watch(&[port]);
        watch.wait_smcd(2 * COUNT as usize, secs(60));
        drop(watch);
        // Each moved 400,000 bytes each way, more than its rings.
        let end = Deadline::within(secs(60));
        let most = COUNT * 2 * 4096 + (1 << 20);
        for process in [&server, &client] {
            while arena_memory(process.pid()) > most {
                let held = arena_memory(process.pid()) / COUNT;
                assert!(!end.is_over(), "{held} bytes of rings for each idle connection");
                sleep(millis(50));
            }
        }
        client.say("\n");
        client.wait_line("again", secs(60));
        client.success(secs(30));
        server.stop();
        Ok(())
    });
}

/// Bytes of rings, own and peers', that a process has touched and that are still there.
fn arena_memory(pid: i32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut inside = false;
    let mut sum = 0;
    for line in maps.lines() {
        if line.contains("-") && line.contains(" rw") {
            inside = line.contains("shortwire-arena");
        } else if inside && let Some(size) = line.strip_prefix("Rss:") {
            sum += size.trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10;
        }
    }
    sum
}

#[test]
fn ten_thousand_short_connections() {
    case("short", |c| {
        let mut times = Vec::new();
        for side in [Side::Plain, Side::Run] {
            let (port, many) = (Ports::Low.free(), compile("many")?);
            let mut server =
                c.serve("server", port, side.command(&many).args(["server", &port.to_string()]));
            let said = c.client("client", side, &many, &["short", &port.to_string(), "10000"]);
            times.push(said.trim().to_string());
            server.stop();
        }
        // A figure for whoever looks; the bar is the benchmark's business.
        let mode = if plain() { "plain" } else { "shortwire run" };
        let _ = writeln!(std::io::stderr(), "plain: {}; {mode}: {}", times[0], times[1]);
        Ok(())
    });
}

/// Every connection upgraded and closed again: pooled buffers come back clean and none is lost.
#[test]
fn connections_upgraded_and_closed_in_turn() {
    case("turnover", |c| {
        let (port, many) = (Ports::High.free(), compile("many")?);
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &port.to_string()]));
        for _ in 0..10 {
            let mut client = c.start(
                "client",
                Side::Run.command(&many).args(["idle", &port.to_string(), "100", "20"]),
            );
            client.wait_line("ready", secs(30));
            if !plain() {
                let ends = connections(&[port]).iter().filter(|end| end.smcd).count();
                assert!(ends >= 100, "{ends} of 200 ends are upgraded");
            }
            client.say("\n");
            client.wait_line("again", secs(30));
            client.success(secs(30));
        }
        server.stop();
        Ok(())
    });
}

/// Beyond what a user's processes may have together connections stay on TCP, and say why; what a
/// killed one had comes back.
#[test]
fn a_users_processes_share_a_limit() {
    case("user-limit", |c| {
        if plain() {
            return skip("there is no shared memory without shortwire");
        }
        fs::create_dir(c.dir().join("run")).expect("a folder of its own");
        let (port, many) = (Ports::Low.free(), compile("many")?);
        let number = port.to_string();
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &number]));
        // 16 buffers for all, and each asks for 10.
        let start = |name: &str| {
            let mut command = Side::Run.command(&many);
            command.args(["idle", &number, "10", "50"]);
            command.envs([("SHORTWIRE_DMB_SIZE", "64K"), ("SHORTWIRE_MAX_MEMORY_USER", "1M")]);
            let mut client = c.start(name, &mut command);
            client.wait_line("ready", secs(60));
            let all = connections(&[port]);
            let shared = all.iter().filter(|c| c.pid == i64::from(client.pid()) && c.smcd).count();
            let refused = |c: &&Connection| {
                c.pid == i64::from(client.pid()) && c.state.contains("all processes of the user")
            };
            (shared, all.iter().filter(refused).count(), client)
        };
        let (shared, refused, mut first) = start("first");
        assert_eq!((shared, refused), (10, 0), "within the limit");
        let (shared, refused, mut second) = start("second");
        assert_eq!((shared, refused), (6, 4), "what is left of it");
        first.signal(rustix::process::Signal::KILL);
        first.wait(secs(60));
        let (shared, refused, mut third) = start("third");
        assert_eq!((shared, refused), (10, 0), "what the killed one had");
        for client in [&mut second, &mut third] {
            client.say("\n");
            client.wait_line("again", secs(60));
            client.success(secs(60));
        }
        server.stop();
        Ok(())
    });
}
