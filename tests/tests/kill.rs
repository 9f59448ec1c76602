//! SIGKILL at random moments: the survivor sees what TCP would show it, with right data before, and
//! nothing leaks.

use std::thread::sleep;

use rustix::process::Signal;
use system_tests::stream::Random;
use system_tests::{
    Case, Deadline, Ports, Proc, Side, case, compile, connections, mapped_memory, millis,
    open_files, plain, secs,
};

const ENDLESS: &str = "400000000000";

fn command(
    side: &str,
    port: u16,
    driver: &str,
    op: &str,
    seed: u64,
) -> Result<std::process::Command, system_tests::Skip> {
    let mut command = Side::Run.command(compile("transfer")?);
    command.args([
        side,
        &port.to_string(),
        driver,
        op,
        ENDLESS,
        ENDLESS,
        &seed.to_string(),
        "1",
        "survive",
    ]);
    Ok(command)
}

fn expect_survival(survivor: &mut Proc, what: &str) {
    let said = survivor.success(secs(30));
    let how = said.lines().find_map(|line| line.strip_prefix("peer gone: "));
    let as_with_tcp = ["end of stream", "Connection reset by peer", "Broken pipe"];
    assert!(how.is_some_and(|how| as_with_tcp.contains(&how)), "{what}: the survivor said {said}");
}

/// Kills one side of a fresh pair after a random time; the survivor checks every byte until then.
fn kill_once(c: &Case, i: u64, random: &mut Random) -> system_tests::Outcome {
    let drivers = [
        ("threads", "send"),
        ("edge", "send"),
        ("poll", "write"),
        ("lockstep", "vec"),
        ("epoll", "msg"),
        ("threads", "peek"),
    ];
    let (driver, op) = drivers[i as usize % drivers.len()];
    let port = if i.is_multiple_of(2) { Ports::Low } else { Ports::High }.free();
    let mut server = c.serve("server", port, &mut command("server", port, driver, op, i)?);
    let mut client = c.start("client", &mut command("client", port, driver, op, i)?);
    client.wait_line("connected", secs(60));
    // The first moments, with the meeting and the switch in them, deserve half of the shots.
    let micros = if random.below(2) == 0 { random.below(3000) } else { random.below(50_000) };
    sleep(std::time::Duration::from_micros(micros));
    let (victim, survivor) =
        if random.below(2) == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
    victim.signal(Signal::KILL);
    victim.wait(secs(60));
    expect_survival(survivor, &format!("kill {i} ({driver} {op}) after {micros} us"));
    Ok(())
}

fn kills(name: &str, first: u64) {
    case(name, |c| {
        let mut random = Random::new(first + 1);
        (first..first + 50).try_for_each(|i| kill_once(c, i, &mut random))
    });
}

#[test]
fn two_hundred_kills_1() {
    kills("kills-1", 0);
}

#[test]
fn two_hundred_kills_2() {
    kills("kills-2", 50);
}

#[test]
fn two_hundred_kills_3() {
    kills("kills-3", 100);
}

#[test]
fn two_hundred_kills_4() {
    kills("kills-4", 150);
}

/// Waits until the server has closed its ends of connections whose clients are gone.
fn until_it_has_none(port: u16) {
    let end = Deadline::within(secs(30));
    while !plain() && !connections(&[port]).is_empty() {
        assert!(!end.is_over(), "the server keeps connections of killed clients");
        sleep(millis(20));
    }
}

/// A server that outlives many killed clients must not keep their memory or descriptors.
#[test]
fn a_server_keeps_nothing_of_killed_clients() {
    case("keeps-nothing", |c| {
        let (port, many) = (Ports::Low.free(), compile("many")?);
        let server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &port.to_string()]));
        let batch = |count: u32| {
            let mut clients: Vec<Proc> = (0..count)
                .map(|_| {
                    c.start(
                        "client",
                        Side::Run.command(&many).args(["idle", &port.to_string(), "5", "20"]),
                    )
                })
                .collect();
            for client in &mut clients {
                client.wait_line("ready", secs(60));
            }
            if !plain() {
                assert!(mapped_memory(server.pid()) > 0, "the server maps nothing of its clients");
            }
            for client in &mut clients {
                client.signal(Signal::KILL);
                client.wait(secs(60));
            }
            until_it_has_none(port);
            sleep(millis(300));
            (mapped_memory(server.pid()), open_files(server.pid()))
        };
        // The table of connections and the tools of the first upgrade stay.
        let (memory, files) = batch(5);
        let mut after = (1..8).fold(batch(5), |_, _| batch(5));
        // On a busy machine it lets go of the last ones later than that.
        let end = Deadline::within(secs(30));
        while (after.0 > memory + (1 << 20) || after.1 > files + 2) && !end.is_over() {
            sleep(millis(20));
            after = (mapped_memory(server.pid()), open_files(server.pid()));
        }
        let (memory_after, files_after) = after;
        assert!(
            memory_after <= memory + (1 << 20),
            "mapped memory grew from {memory} to {memory_after} bytes over 40 more killed clients"
        );
        assert!(
            files_after <= files + 2,
            "open files grew from {files} to {files_after} over 40 more killed clients"
        );
        Ok(())
    });
}

/// What a killed worker of a prefork server had of the family's table comes back when the next one
/// is forked.
#[test]
fn killed_workers_leave_their_places() {
    case("killed-workers", |c| {
        let (port, orphans) = (Ports::Low.free(), compile("orphans")?);
        let number = port.to_string();
        let args = |side: &str| [side, &number, "12", "20"].map(str::to_string);
        let watch = c.watch(&[port]);
        let mut server = c.serve("server", port, Side::Run.command(&orphans).args(args("server")));
        let mut client = c.start("client", Side::Run.command(&orphans).args(args("client")));
        server.wait_line("served", secs(60));
        watch.wait_smcd(1, secs(60));
        server.say("\n");
        client.success(secs(60));
        server.wait_line("over", secs(60));
        if !plain() {
            let left = connections(&[port]);
            assert!(left.is_empty(), "{} of 240 connections have kept their places", left.len());
        }
        assert!(server.running());
        Ok(())
    });
}

/// Killed while it is idle, not in a transfer: the peer's blocked wait must end.
#[test]
fn killed_while_both_sides_sleep() {
    case("killed-asleep", |c| {
        for victim_is_server in [true, false] {
            let (port, many) = (Ports::High.free(), compile("many")?);
            let mut server = c.serve(
                "server",
                port,
                Side::Run.command(&many).args(["server", &port.to_string()]),
            );
            let mut client = c.start(
                "client",
                Side::Run.command(&many).args(["idle", &port.to_string(), "3", "50"]),
            );
            client.wait_line("ready", secs(60));
            sleep(millis(100));
            if victim_is_server {
                server.signal(Signal::KILL);
                server.wait(secs(60));
                client.say("\n");
                let status = client.wait_open(secs(30));
                assert_eq!(
                    status.code(),
                    Some(2),
                    "the client must fail with an error: {}",
                    client.stderr()
                );
                assert!(
                    client.stderr().contains("end of stream")
                        || client.stderr().contains("errno 104")
                        || client.stderr().contains("errno 32"),
                    "{}",
                    client.stderr()
                );
            } else {
                client.signal(Signal::KILL);
                client.wait(secs(60));
                until_it_has_none(port);
                let end = Deadline::within(secs(30));
                loop {
                    let ticks = server.cpu_ticks();
                    sleep(millis(500));
                    if server.cpu_ticks() <= ticks + 1 {
                        break;
                    }
                    assert!(!end.is_over(), "the server spins after its client was killed");
                }
                server.stop();
            }
        }
        Ok(())
    });
}
