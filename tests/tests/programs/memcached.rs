use system_tests::{Ports, Side, case, need, prog, python, secs};

#[test]
fn memcached_with_a_checking_client() {
    for ports in [Ports::Low, Ports::High] {
        case(&format!("memcached-{ports:?}"), |c| {
            let (memcached, python, port) = (need("memcached")?, python()?, ports.free());
            let number = port.to_string();
            let mut command = Side::Run.command(&memcached);
            command.args(["-l", "127.0.0.1", "-p", &number, "-U", "0", "-t", "2", "-m", "256"]);
            if rustix::process::geteuid().is_root() {
                command.args(["-u", "root"]);
            }
            let mut server = c.serve("memcached", port, &mut command);
            let watch = c.watch(&[port]);
            let mut client =
                c.start("client", Side::Run.command(&python).arg(prog("memcached_client.py")).args([&number, "600"]));
            let said = client.success(secs(60));
            assert!(said.contains("done 2400"), "{said}");
            watch.expect_smcd(8);
            server.stop();
            Ok(())
        });
    }
}
