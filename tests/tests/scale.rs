//! Many connections: idle ones cost nothing, short ones are all right.

use std::fs;
use std::io::Write;
use std::thread::sleep;

use system_tests::{Ports, Side, case, compile, millis, plain, secs, skip};

fn descriptors_allowed() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    line.split_whitespace().nth(3).and_then(|n| n.parse().ok()).unwrap_or(1024)
}

#[test]
fn a_thousand_idle_connections_cost_no_cpu() {
    case("thousand-idle", |c| {
        if descriptors_allowed() < 1100 {
            return skip("fewer than 1,100 open files allowed");
        }
        for ports in [Ports::Low, Ports::High] {
            let (port, many) = (ports.free(), compile("many")?);
            let mut server = c.serve("server", port, Side::Run.command(&many).args(["server", &port.to_string()]));
            let mut client =
                c.start("client", Side::Run.command(&many).args(["idle", &port.to_string(), "1000", "20"]));
            client.wait_line("ready", secs(60));
            let watch = c.watch(&[port]);
            watch.wait_smcd(2000, secs(20));
            drop(watch);
            sleep(millis(200));
            let before = (server.cpu_ticks(), client.cpu_ticks());
            sleep(secs(2));
            let spent = (server.cpu_ticks() - before.0, client.cpu_ticks() - before.1);
            assert!(spent.0 <= 1 && spent.1 <= 1, "idle for 2 s cost (server, client) {spent:?} clock ticks");
            client.say("\n");
            client.wait_line("again", secs(60));
            client.success(secs(30));
            server.stop();
        }
        Ok(())
    });
}

#[test]
fn ten_thousand_short_connections() {
    case("short", |c| {
        let mut times = Vec::new();
        for side in [Side::Plain, Side::Run] {
            let (port, many) = (Ports::Low.free(), compile("many")?);
            let mut server = c.serve("server", port, side.command(&many).args(["server", &port.to_string()]));
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
        let mut server = c.serve("server", port, Side::Run.command(&many).args(["server", &port.to_string()]));
        for _ in 0..10 {
            let mut client = c.start("client", Side::Run.command(&many).args(["idle", &port.to_string(), "100", "20"]));
            client.wait_line("ready", secs(30));
            client.say("\n");
            client.wait_line("again", secs(30));
            client.success(secs(30));
        }
        server.stop();
        Ok(())
    });
}
