//! Programs over the ism device: nothing but `--prefer` differs, and `shortwire ss` says so.

use std::fs;
use std::path::Path;
use std::process::Command;

use system_tests::device::{self, iperf3, prefer};
use system_tests::probe::{need_copying, need_copying_without_rights};
use system_tests::{Case, Deadline, Ports, Skip, case, compile, need, secs};

fn over_ism(program: &Path) -> Command {
    prefer("ism,loopback", program)
}

/// 64 MiB each way at once, every byte checked, through each way to wait and to move them.
#[test]
fn transfers() {
    let drivers: &[(&str, &[&str])] = &[
        ("lockstep", &["write", "waitall", "peek", "lowat", "cork", "sendfile", "vec", "splice"]),
        ("threads", &["send", "mmsg", "sendfile", "splice"]),
        ("poll", &["write", "sendfile"]),
        ("epoll", &["send", "msg"]),
    ];
    for (driver, ops) in drivers {
        case(&format!("ism-transfer-{driver}"), |c| {
            need_copying()?;
            let program = compile("transfer")?;
            for (i, op) in ops.iter().enumerate() {
                let port = if i % 2 == 0 { Ports::Low } else { Ports::High }.free();
                let command = |side: &str| {
                    let mut command = over_ism(&program);
                    let bytes = (64 << 20).to_string();
                    command.args([
                        side,
                        &port.to_string(),
                        driver,
                        op,
                        &bytes,
                        &bytes,
                        &(i + 1).to_string(),
                        "1",
                    ]);
                    command
                };
                let mut server = c.serve("server", port, &mut command("server"));
                let watch = c.watch(&[port]);
                let mut client = c.start("client", &mut command("client"));
                for side in [&mut client, &mut server] {
                    let said = side.success(secs(90));
                    assert_eq!(
                        said.lines().filter(|line| line.ends_with(" ok")).count(),
                        1,
                        "{driver} {op}: {said}"
                    );
                }
                // One that is over before it was looked at is none.
                watch.expect_device("ism", 0);
            }
            Ok(())
        });
    }
}

#[test]
fn iperf3_one_stream_and_both_ways() {
    case("ism-iperf3", |c| {
        iperf3(c, ["ism"; 2], &[])?.expect_device("ism", 2);
        iperf3(c, ["ism,loopback"; 2], &["--bidir"])?.expect_device("ism", 4);
        Ok(())
    });
}

/// What both have in common is used, in the order of whoever proposes; nothing in common leaves
/// TCP.
#[test]
fn devices_are_negotiated() {
    case("ism-negotiated", |c| {
        for (devices, device) in [
            (["ism,loopback", "loopback"], "loopback"),
            (["ism", "loopback,ism"], "ism"),
            (["", "ism"], "ism"),
            (["", ""], "loopback"),
        ] {
            iperf3(c, devices, &[])?.expect_device(device, 2);
        }
        iperf3(c, ["ism", "loopback"], &[])?.expect_tcp();
        Ok(())
    });
}

#[test]
fn redis_benchmark() {
    case("ism-redis", |c| {
        device::redis_benchmark(c, "ism,loopback")?.expect_device("ism", 50);
        Ok(())
    });
}

#[test]
fn curl_fetches_a_gibibyte() {
    case("ism-nginx", |c| {
        device::curl(c, "ism,loopback")?.expect_device("ism", 2);
        Ok(())
    });
}

/// Echoes blocks of 1000 bytes; what it does after the first hundred is its first argument.
const SERVER: &str = "
import ctypes, os, socket, sys
mode, port = sys.argv[1], int(sys.argv[2])
dumpable = lambda yes: ctypes.CDLL(None).prctl(4, yes, 0, 0, 0)
if mode == 'denied': dumpable(0)
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', port))
s.listen(5)
c = s.accept()[0]
def echo(blocks):
    for i in range(blocks):
        block = c.recv(1000, socket.MSG_WAITALL)
        if not block: return
        c.sendall(block)
echo(100)
if mode == 'fork':
    # A child that runs has told the peer who it is: without that a second passes until it is lost.
    told, tell = os.pipe()
    if os.fork():
        os.read(told, 1)
        os._exit(0)
    os.write(tell, b'.')
if mode == 'withdrawn': dumpable(0)
if mode == 'unseen': exec(sys.argv[3])
echo(1 << 30)
";
/// prctl(PR_SET_DUMPABLE, 0) by an instruction of its own, which no hook sees.
const UNSEEN: &str = "
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('b89d000000 bf04000000 31f6 0f05 c3'))
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
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
except ConnectionResetError:
    print('reset', flush=True)
sys.stdin.readline()
";

/// The states of a process's link groups.
fn link_groups(pid: i32) -> Vec<String> {
    let said = Command::new(system_tests::shortwire())
        .args(["linkgroups", "--json"])
        .output()
        .expect("shortwire");
    let all: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let groups =
        all["linkgroups"].as_array().expect("a list").iter().filter(|group| group["pid"] == pid);
    groups.map(|group| group["state"].as_str().expect("a state").to_string()).collect()
}

/// Runs both without the privilege to trace whatever they like; how the client ended, over which
/// device, and what became of its link groups.
fn echoed(c: &Case, mode: &str, devices: &str) -> Result<(String, Vec<String>, Vec<String>), Skip> {
    need_copying_without_rights()?;
    let (python, setpriv, port) = (need("python3")?, need("setpriv")?, Ports::Low.free());
    let number = port.to_string();
    let limited = |args: &[&str]| {
        // setpriv first: what Shortwire loads must not be asked of it.
        let mut command = Command::new(&setpriv);
        if rustix::process::geteuid().is_root() {
            command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]);
        }
        command
            .arg(system_tests::shortwire())
            .args(["run", "--prefer", devices, "--"])
            .arg(&python)
            .args(args);
        command
    };
    let mut server = c.serve("server", port, &mut limited(&["-c", SERVER, mode, &number, UNSEEN]));
    let mut client = c.start("client", &mut limited(&["-c", CLIENT, &number]));
    let end = Deadline::within(secs(60));
    while client.stdout().is_empty() {
        assert!(!end.is_over(), "the client hangs: {}", client.stderr());
        std::thread::sleep(system_tests::millis(10));
    }
    let seen = system_tests::connections(&[port])
        .into_iter()
        .filter(|c| c.smcd)
        .map(|c| c.device)
        .collect();
    let groups = link_groups(client.pid());
    client.say("\n");
    let said = client.success(secs(60)).trim().to_string();
    let _ = server.wait(secs(60));
    Ok((said, seen, groups))
}

/// The process that was written to ends, its child goes on.
#[test]
fn a_fork_child_takes_over() {
    case("ism-fork", |c| {
        let (said, devices, _) = echoed(c, "fork", "ism")?;
        assert_eq!(
            (said.as_str(), devices.as_slice()),
            ("all", &["ism".to_string(), "ism".to_string()][..])
        );
        Ok(())
    });
}

/// Without the right to write to the other process there is no ism. Before a process withdraws it,
/// its connections go back to TCP; where that was not seen they end.
#[test]
fn rights() {
    case("ism-rights", |c| {
        let (said, devices, _) = echoed(c, "denied", "ism,loopback")?;
        assert!(
            said == "all" && !devices.is_empty() && devices.iter().all(|d| d == "loopback"),
            "{said} {devices:?}"
        );
        let (said, devices, groups) = echoed(c, "denied", "ism")?;
        assert!(
            said == "all" && devices.is_empty() && groups.is_empty(),
            "{said} {devices:?} {groups:?}"
        );
        let (said, devices, _) = echoed(c, "withdrawn", "ism")?;
        assert!(said == "all" && devices.is_empty(), "{said} {devices:?}");
        let (said, _, groups) = echoed(c, "unseen", "ism")?;
        assert_eq!(said, "reset");
        assert!(
            groups.is_empty() || groups == ["ENDING"],
            "no new connection may join: {groups:?}"
        );
        Ok(())
    });
}

/// Two connections; after a hundred blocks on each the server cannot be written to any more.
const TWO_SERVER: &str = "
import ctypes, socket, sys, threading, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(5)
left = [100, 100]
def echo(c, i):
    try:
        while True:
            block = c.recv(1000, socket.MSG_WAITALL)
            if not block: return
            c.sendall(block)
            left[i] -= 1
    except OSError:
        pass
for i in range(2):
    threading.Thread(target=echo, args=(s.accept()[0], i), daemon=True).start()
while max(left) > 0: time.sleep(0.01)
exec(sys.argv[2])
time.sleep(60)
";
/// Uses the first of them on, and listens on the other.
const TWO_CLIENT: &str = "
import socket, sys
a, b = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for i in range(2)]
def echo(c, n):
    for i in range(n):
        c.sendall(b'x' * 1000)
        if not c.recv(1000, socket.MSG_WAITALL): return 'end'
for c in a, b: echo(c, 100)
for c, use in (a, lambda: echo(a, 1 << 30)), (b, lambda: b.recv(1)):
    c.settimeout(10)
    try:
        print(use())
    except OSError as e:
        print(type(e).__name__, flush=True)
sys.stdin.readline()
";

/// The device reaches the peer no more: the link group ends, and with it the connection that was at
/// rest.
#[test]
fn every_connection_of_a_lost_peer_ends() {
    case("ism-lost", |c| {
        need_copying_without_rights()?;
        let (python, setpriv, port) = (need("python3")?, need("setpriv")?, Ports::Low.free());
        let number = port.to_string();
        let limited = |script: &str| {
            let mut command = Command::new(&setpriv);
            if rustix::process::geteuid().is_root() {
                command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]);
            }
            command
                .arg(system_tests::shortwire())
                .args(["run", "--prefer", "ism", "--"])
                .arg(&python);
            command.args(["-c", script, &number, UNSEEN]);
            command
        };
        let mut server = c.serve("server", port, &mut limited(TWO_SERVER));
        let mut client = c.start("client", &mut limited(TWO_CLIENT));
        client.wait_line("ConnectionResetError", secs(60));
        let end = Deadline::within(secs(20));
        while client.stdout().matches('\n').count() < 2 {
            assert!(!end.is_over(), "{} {}", client.stdout(), client.stderr());
            std::thread::sleep(system_tests::millis(10));
        }
        let states = link_groups(client.pid());
        assert!(states == ["ENDING"], "{states:?}");
        client.say("\n");
        assert_eq!(client.success(secs(60)), "ConnectionResetError\nConnectionResetError\n");
        server.stop();
        Ok(())
    });
}

/// Both ends ask for a checksum: bytes pass it however they are moved, and so does what is sent
/// again after a way back.
#[test]
fn transfers_with_integrity() {
    case("ism-integrity", |c| {
        need_copying()?;
        let program = compile("transfer")?;
        for (driver, op) in
            [("lockstep", "write"), ("threads", "sendfile"), ("epoll", "send"), ("poll", "splice")]
        {
            let port = Ports::High.free();
            let command = |side: &str| {
                let mut command = over_ism(&program);
                let bytes = (32 << 20).to_string();
                command.args([side, &port.to_string(), driver, op, &bytes, &bytes, "5", "1"]);
                command.env("SHORTWIRE_INTEGRITY", "1");
                command
            };
            let mut server = c.serve("server", port, &mut command("server"));
            let watch = c.watch(&[port]);
            let mut client = c.start("client", &mut command("client"));
            for side in [&mut client, &mut server] {
                let said = side.success(secs(90));
                assert_eq!(
                    said.lines().filter(|line| line.ends_with(" ok")).count(),
                    1,
                    "{driver} {op}: {said}"
                );
            }
            watch.expect_device("ism", 0);
        }
        Ok(())
    });
}

/// Reads after the test has had its hands on what was sent.
const DAMAGED_SERVER: &str = "
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(5)
c = s.accept()[0]
for i in range(100): c.sendall(c.recv(1000, socket.MSG_WAITALL))
sys.stdin.readline()
try:
    print('got', c.recv(4000), flush=True)
except OSError as e:
    print(type(e).__name__, flush=True)
sys.stdin.readline()
";
const DAMAGED_CLIENT: &str = "
import socket, sys
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for i in range(100):
    c.sendall(b'x' * 1000)
    c.recv(1000, socket.MSG_WAITALL)
c.sendall(('-'.join(['to be', 'damaged']) * 100).encode())
print('sent', flush=True)
sys.stdin.readline()
";

/// Flips a bit of the first such text in shared memory of a process.
fn damage(pid: i32, text: &[u8]) {
    use std::os::unix::fs::FileExt;
    let memory = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .expect("its memory");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    for line in
        maps.lines().filter(|line| line.contains("rw-s") && line.contains("memfd:shortwire"))
    {
        let range = line
            .split_whitespace()
            .next()
            .and_then(|range| range.split_once('-'))
            .expect("a range");
        let [from, to] =
            [range.0, range.1].map(|hex| u64::from_str_radix(hex, 16).expect("an address"));
        let mut block = vec![0; 1 << 20];
        for at in (from..to).step_by(block.len() / 2) {
            let n =
                memory.read_at(&mut block[..((to - at) as usize).min(1 << 20)], at).unwrap_or(0);
            if let Some(found) = block[..n].windows(text.len()).position(|window| window == text) {
                let byte = [block[found] ^ 4];
                memory.write_all_at(&byte, at + found as u64).expect("writing there");
                return;
            }
        }
    }
    panic!("nothing to damage in\n{maps}");
}

/// What is damaged on the way resets the connection, and is told; without the checksum it would be
/// delivered.
#[test]
fn a_damaged_stream_is_reset() {
    case("ism-damaged", |c| {
        need_copying()?;
        let python = need("python3")?;
        for integrity in ["1", "0"] {
            let port = Ports::Low.free();
            let with = |script: &str| {
                let mut command = prefer("ism", &python);
                command.env("SHORTWIRE_INTEGRITY", integrity).args([
                    "-c",
                    script,
                    &port.to_string(),
                ]);
                command
            };
            let mut server = c.serve("server", port, &mut with(DAMAGED_SERVER));
            let mut client = c.start("client", &mut with(DAMAGED_CLIENT));
            client.wait_line("sent", secs(60));
            damage(server.pid(), b"to be-damagedto be-damaged");
            server.say("\n");
            let said = server.wait_line("", secs(60));
            let shown = |what: &[&str]| {
                let said =
                    Command::new(system_tests::shortwire()).args(what).output().expect("shortwire");
                serde_json::from_slice::<serde_json::Value>(&said.stdout).expect("JSON")
            };
            let groups = shown(&["linkgroups", "--json"]);
            let groups: Vec<_> = groups["linkgroups"].as_array().expect("a list").iter().collect();
            let of_server = |row: &&&serde_json::Value| row["pid"] == server.pid();
            let group = groups.iter().find(of_server).expect("its link group");
            assert_eq!(group["integrity"], integrity == "1");
            if integrity == "1" {
                assert_eq!(said, "ConnectionResetError");
                let all = shown(&["ss", "--json"]);
                let rows = all["connections"].as_array().expect("a list");
                let own = rows.iter().find(|row| {
                    row["programs"][0]["pid"] == server.pid() && row["reason"] == 0x0999_1019
                });
                assert!(own.is_some(), "{all:#}");
                assert!(shown(&["stats", "-a", "--json"])["SMCD"]["damaged"].as_u64() >= Some(1));
            } else {
                assert!(said.starts_with("got b'po be-damagedto be-damaged"), "{said}");
            }
            for side in [&mut server, &mut client] {
                side.say("\n");
                side.success(secs(60));
            }
        }
        Ok(())
    });
}
