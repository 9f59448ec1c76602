//! Programs over the verbs device: nothing but `--prefer` differs, and `shortwire ss` says so.
//! Where there is no RDMA it is the provider in software that carries them.

use std::path::Path;
use std::process::Command;

use system_tests::device::{self, iperf3, prefer};
use system_tests::probe::need_copying;
use system_tests::{Case, Deadline, Ports, Skip, case, compile, need, secs};

fn over_verbs(program: &Path) -> Command {
    prefer("verbs,loopback", program)
}

fn transfer(
    c: &Case,
    driver: &str,
    op: &str,
    mebibytes: usize,
    integrity: bool,
) -> Result<(), Skip> {
    need_copying()?;
    let (program, port) = (compile("transfer")?, Ports::High.free());
    let command = |side: &str| {
        let mut command = over_verbs(&program);
        let bytes = (mebibytes << 20).to_string();
        command.args([side, &port.to_string(), driver, op, &bytes, &bytes, "3", "1"]);
        command.env("SHORTWIRE_INTEGRITY", if integrity { "1" } else { "0" });
        command
    };
    let mut server = c.serve("server", port, &mut command("server"));
    let watch = c.watch(&[port]);
    let mut client = c.start("client", &mut command("client"));
    for side in [&mut client, &mut server] {
        let said = side.success(secs(120));
        assert_eq!(
            said.lines().filter(|line| line.ends_with(" ok")).count(),
            1,
            "{driver} {op}: {said}"
        );
    }
    // One that is over before it was looked at is none.
    watch.expect_device("verbs", 0);
    Ok(())
}

/// 32 MiB each way at once, every byte checked, through each way to wait and to move them.
#[test]
fn transfers() {
    let drivers: &[(&str, &[&str])] = &[
        ("lockstep", &["write", "waitall", "peek", "lowat", "cork", "sendfile", "vec", "splice"]),
        ("threads", &["send", "mmsg", "sendfile", "splice"]),
        ("poll", &["write", "sendfile"]),
        ("epoll", &["send", "msg"]),
    ];
    for (driver, ops) in drivers {
        case(&format!("verbs-transfer-{driver}"), |c| {
            ops.iter().try_for_each(|op| transfer(c, driver, op, 32, false))
        });
    }
}

#[test]
fn transfers_with_integrity() {
    case("verbs-integrity", |c| {
        let ways =
            [("lockstep", "write"), ("threads", "sendfile"), ("epoll", "send"), ("poll", "splice")];
        ways.iter().try_for_each(|(driver, op)| transfer(c, driver, op, 16, true))
    });
}

#[test]
fn iperf3_one_stream_and_both_ways() {
    case("verbs-iperf3", |c| {
        iperf3(c, ["verbs"; 2], &[])?.expect_device("verbs", 2);
        iperf3(c, ["verbs,loopback"; 2], &["--bidir", "-P", "3"])?.expect_device("verbs", 8);
        Ok(())
    });
}

/// What both have in common is used, in the order of whoever proposes; nothing in common leaves
/// TCP. In software it is only what somebody asked for.
#[test]
fn devices_are_negotiated() {
    case("verbs-negotiated", |c| {
        iperf3(c, ["verbs,loopback", "loopback"], &[])?.expect_device("loopback", 2);
        iperf3(c, ["verbs", "ism,verbs"], &[])?.expect_device("verbs", 2);
        iperf3(c, ["verbs", "loopback"], &[])?.expect_tcp();
        Ok(())
    });
}

#[test]
fn redis_benchmark() {
    case("verbs-redis", |c| {
        device::redis_benchmark(c, "verbs,loopback")?.expect_device("verbs", 50);
        Ok(())
    });
}

#[test]
fn curl_fetches_a_gibibyte() {
    case("verbs-nginx", |c| {
        device::curl(c, "verbs,loopback")?.expect_device("verbs", 2);
        Ok(())
    });
}

/// Echoes blocks of 1000 bytes; what it does after the first hundred is its first argument.
const SERVER: &str = "
import os, signal, socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[2])))
s.listen(5)
c = s.accept()[0]
def echo(blocks):
    for i in range(blocks):
        block = c.recv(1000, socket.MSG_WAITALL)
        if not block: return
        c.sendall(block)
echo(100)
print('echoed', flush=True)
sys.stdin.readline()
if sys.argv[1] == 'fork' and os.fork(): os._exit(0)
if sys.argv[1] == 'killed': os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == 'exec': os.set_inheritable(c.fileno(), True); os.execv('/bin/cat', ['cat', '/proc/self/fd/%d' % c.fileno()])
echo(1 << 30)
";
/// Its client, which says how it ended, and waits to be looked at.
const CLIENT: &str = "
import socket, sys
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
try:
    for i in range(3000):
        block = bytes([i % 251]) * 1000
        c.sendall(block)
        assert c.recv(1000, socket.MSG_WAITALL) == block
    print('all', flush=True)
except (ConnectionError, AssertionError) as e:
    print(type(e).__name__, flush=True)
sys.stdin.readline()
";

/// How the client of a server that does this ended, and what its connection was before and after.
fn echoed(c: &Case, what: &str) -> Result<(String, usize, usize), Skip> {
    need_copying()?;
    let (python, port) = (need("python3")?, Ports::Low.free());
    let number = port.to_string();
    let over = |args: &[&str]| {
        let mut command = prefer("verbs", &python);
        command.args(args);
        command
    };
    let mut server = c.serve("server", port, &mut over(&["-c", SERVER, what, &number]));
    let mut client = c.start("client", &mut over(&["-c", CLIENT, &number]));
    server.wait_line("echoed", secs(60));
    let linked = || {
        let ends = system_tests::connections(&[port]).into_iter().filter(|c| c.smcd);
        ends.inspect(|c| assert_eq!(c.device, "verbs")).count()
    };
    let before = linked();
    server.say("\n");
    let end = Deadline::within(secs(30));
    while client.stdout().is_empty() {
        assert!(!end.is_over(), "the client hangs: {}", client.stderr());
        std::thread::sleep(system_tests::millis(10));
    }
    let after = linked();
    client.say("\n");
    let said = client.success(secs(60)).trim().to_string();
    let _ = server.wait(secs(60));
    Ok((said, before, after))
}

/// A fork child has no part in its parent's link: the connection is back on TCP when there are two
/// to hold it.
#[test]
fn a_fork_goes_back_to_tcp() {
    case("verbs-fork", |c| {
        assert_eq!(echoed(c, "fork")?, ("all".to_string(), 2, 0));
        Ok(())
    });
}

/// The end of a process ends its connections as the kernel would, and nobody waits for a link that
/// is no more.
#[test]
fn a_killed_peer_is_noticed() {
    case("verbs-killed", |c| {
        let (said, before, _) = echoed(c, "killed")?;
        assert!(
            before == 2
                && ["ConnectionResetError", "BrokenPipeError", "AssertionError"]
                    .contains(&said.as_str())
        );
        Ok(())
    });
}

/// The device is shown with what is behind it, and a link group with its fabric.
#[test]
fn it_is_shown() {
    case("verbs-shown", |c| {
        need_copying()?;
        let (iperf3, port) = (need("iperf3")?, Ports::Low.free());
        let number = port.to_string();
        let _server = c.serve(
            "server",
            port,
            prefer("verbs", &iperf3).args(["-s", "-B", "127.0.0.1", "-p", &number]),
        );
        let watch = c.watch(&[port]);
        // Until it has been looked at.
        let args = ["-c", "127.0.0.1", "-p", &number, "-t", "600"];
        let mut client = c.start("client", prefer("verbs", &iperf3).args(args));
        watch.wait_smcd(2, secs(60));
        let shown = |what: &[&str]| {
            let said =
                Command::new(system_tests::shortwire()).args(what).output().expect("shortwire");
            serde_json::from_slice::<serde_json::Value>(&said.stdout).expect("JSON")
        };
        let devices = shown(&["devices", "--json"]);
        let verbs =
            devices["devices"].as_array().expect("a list").iter().find(|d| d["type"] == "verbs");
        let verbs = verbs.expect("the device");
        let state = verbs["state"].as_str().expect("a state");
        let software = Path::new("/sys/class/infiniband")
            .read_dir()
            .map_or(true, |mut list| list.next().is_none());
        if software {
            assert_eq!(state, "software, if preferred: no RDMA device");
        }
        assert!(verbs["in_use"] == true && verbs["link_groups"].as_u64() >= Some(2), "{verbs:#}");
        let groups = shown(&["linkgroups", "--json"]);
        let of_client = |group: &&serde_json::Value| group["pid"] == client.pid();
        let group = groups["linkgroups"]
            .as_array()
            .expect("a list")
            .iter()
            .find(of_client)
            .expect("its link group");
        assert_eq!(
            (&group["device"], &group["state"]),
            (&"verbs".into(), &"READY".into()),
            "{group:#}"
        );
        client.signal(rustix::process::Signal::KILL);
        client.wait(secs(60));
        watch.expect_device("verbs", 2);
        Ok(())
    });
}
