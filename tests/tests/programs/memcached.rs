use std::path::Path;
use std::process::Command;

use system_tests::{Ports, Side, case, need, prog, python, secs};

fn server(memcached: &Path, port: u16, threads: u32) -> Command {
    let mut command = Side::Run.command(memcached);
    command.args([
        "-l",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-U",
        "0",
        "-m",
        "256",
        "-t",
        &threads.to_string(),
    ]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    command
}

#[test]
fn memcached_with_a_checking_client() {
    for ports in [Ports::Low, Ports::High] {
        case(&format!("memcached-{ports:?}"), |c| {
            let (memcached, python, port) = (need("memcached")?, python()?, ports.free());
            let number = port.to_string();
            let mut server = c.serve("memcached", port, &mut server(&memcached, port, 2));
            let watch = c.watch(&[port]);
            let mut client = c.start(
                "client",
                Side::Run.command(&python).arg(prog("memcached_client.py")).args([&number, "600"]),
            );
            client.wait_line("done 2400", secs(60));
            watch.wait_smcd(8, secs(60));
            client.success(secs(60));
            server.stop();
            Ok(())
        });
    }
}

/// Handshakes of several threads with one peer, whose first contact is still under way.
#[test]
fn threads_that_call_at_the_same_time() {
    case("memcached-herd", |c| {
        let (memcached, python, port) = (need("memcached")?, python()?, Ports::Low.free());
        let mut server = c.serve("memcached", port, &mut server(&memcached, port, 4));
        for _ in 0..40 {
            let watch = c.watch(&[port]);
            let mut client = c.start(
                "client",
                Side::Run.command(&python).arg(prog("memcached_herd.py")).arg(port.to_string()),
            );
            client.wait_line("talked", secs(60));
            watch.wait_smcd(16, secs(60));
            client.say("\n");
            client.success(secs(60));
        }
        server.stop();
        Ok(())
    });
}
