//! A device goes away while programs run: its connections are reset at both ends, and the next ones
//! use another device.

use std::process::{Command, Output};

use system_tests::probe::need_copying;
use system_tests::{
    Case, Deadline, Outcome, Ports, Proc, Side, case, compile, connections, millis, need, plain,
    secs, skip,
};

/// Echoes on any number of connections, by threads that sleep in recv, and says how each ended.
const SERVER: &str = "
import os, socket, sys, threading
say = lambda what: os.write(1, what.encode() + b'\\n')
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(50)
def echo(c):
    try:
        while True:
            block = c.recv(1000, socket.MSG_WAITALL)
            if not block: break
            c.sendall(block)
        say('end')
    except OSError as e:
        say(type(e).__name__)
def accept():
    while True: threading.Thread(target=echo, args=(s.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
sys.stdin.readline()
";
/// Makes connections when it is told to, each for another way to sleep on it, and says how each
/// ended. A reset is told once: later there is the end, and a broken pipe.
const CLIENT: &str = "
import os, select, socket, sys, threading
say = lambda what: os.write(1, what.encode() + b'\\n')
def used():
    c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    for i in range(100):
        c.sendall(b'x' * 1000)
        assert c.recv(1000, socket.MSG_WAITALL) == b'x' * 1000
    return c
def by_recv(c): return c.recv(1)
def by_poll(c):
    p = select.poll(); p.register(c, select.POLLIN); p.poll()
    return c.recv(1)
def by_epoll(c):
    p = select.epoll(); p.register(c, select.EPOLLIN | select.EPOLLET)
    p.poll()
    return c.recv(1)
def by_use(c):
    while True:
        c.sendall(b'x' * 1000)
        if not c.recv(1000, socket.MSG_WAITALL): return b''
def run(wait, c):
    try:
        say('got %r' % wait(c))
    except OSError as e:
        say(type(e).__name__)
    try:
        say('later %r' % c.recv(1))
        c.send(b'x')
    except OSError as e:
        say('later ' + type(e).__name__)
kept = []
for line in sys.stdin:
    if line == 'end\\n': break
    for wait in by_recv, by_poll, by_epoll, by_use:
        c = used()
        kept.append(c)
        threading.Thread(target=run, args=(wait, c), daemon=True).start()
    say('ready')
os._exit(0)
";

/// A stream of which one end takes its time once it is told to, so that it never waits: a reader that
/// always finds bytes, or a writer that always finds room. Says when that begins, and how it ended.
const PACED: &str = "
import os, select, socket, sys, time
say = lambda what: os.write(1, what.encode() + b'\\n')
side, port = sys.argv[1], int(sys.argv[2])
if side == 'server':
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('127.0.0.1', port))
    s.listen(5)
    c = s.accept()[0]
    step = lambda size: len(c.recv(size))
else:
    c = socket.create_connection(('127.0.0.1', port))
    step = lambda size: c.send(b'x' * size)
paced = False
try:
    while step(1000 if paced else 65536):
        if paced: time.sleep(0.001)
        elif select.select([0], [], [], 0)[0]:
            paced = True
            say('paced')
    say('end')
except OSError as e:
    say(type(e).__name__)
while sys.stdin.readline() != 'end\\n': pass
";

fn shortwire(args: &[&str]) -> Output {
    Command::new(system_tests::shortwire()).args(args).output().expect("shortwire")
}

fn shown(args: &[&str]) -> serde_json::Value {
    serde_json::from_slice(&shortwire(args).stdout).expect("JSON")
}

fn remove(device: &str, from: &Proc) -> String {
    let said = shortwire(&["devices", "--remove", device, "--pid", &from.pid().to_string()]);
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// The devices of live upgraded connections on this port, each end for itself.
fn in_use(port: u16) -> Vec<String> {
    let ends = shown(&["ss", "--json"]);
    let rows = ends["connections"].as_array().expect("a list").iter();
    let on_port = |row: &&serde_json::Value| {
        ["local", "peer"]
            .iter()
            .any(|end| row[end].as_str().is_some_and(|a| a.ends_with(&format!(":{port}"))))
            && row["mode"] == "SMCD"
            && row["state"] == "ACTIVE"
            && row["detail"]["receives_through_ring"] == true
    };
    rows.filter(on_port)
        .map(|row| row["detail"]["device"].as_str().expect("a device").to_string())
        .collect()
}

fn states(device: &str, pid: i32) -> Vec<String> {
    let groups = shown(&["linkgroups", "--json"]);
    let groups = groups["linkgroups"].as_array().expect("a list").iter();
    let own = groups.filter(|group| group["pid"] == pid && group["device"] == device);
    own.map(|group| group["state"].as_str().expect("a state").to_string()).collect()
}

fn removal(title: &str, test: impl FnOnce(&Case, u16, Proc, Proc) -> Outcome) {
    case(title, |c| {
        if plain() {
            return skip("without the library there are no devices");
        }
        need_copying()?;
        let (python, port) = (need("python3")?, Ports::Low.free());
        let with = |script: &str| {
            let mut command = Side::Run.command(&python);
            command.env("SHORTWIRE_PREFER", "ism,loopback").args(["-c", script, &port.to_string()]);
            command
        };
        let server = c.serve("server", port, &mut with(SERVER));
        let client = c.start("client", &mut with(CLIENT));
        test(c, port, server, client)
    });
}

fn more(client: &mut Proc, rounds: usize, port: u16, device: &str) {
    client.say("more\n");
    client.wait_lines("ready", rounds, secs(60));
    let end = Deadline::within(secs(60));
    while in_use(port) != vec![device.to_string(); if device.is_empty() { 0 } else { 8 }] {
        assert!(
            !end.is_over(),
            "{device}: {:?}\n{:#}\n{}",
            in_use(port),
            shown(&["ss", "--json"]),
            client.stderr()
        );
        std::thread::sleep(millis(20));
    }
}

/// From either end, and one device after the other until none is left.
#[test]
fn connections_are_reset_and_the_next_device_is_used() {
    for from_server in [true, false] {
        removal(
            if from_server { "removal-server" } else { "removal-client" },
            |_, port, mut server, mut client| {
                more(&mut client, 1, port, "ism");
                for (round, (device, next)) in
                    [("ism", "loopback"), ("loopback", "")].into_iter().enumerate()
                {
                    let from = if from_server { &server } else { &client };
                    let said = remove(device, from);
                    assert!(
                        said.starts_with(&format!(
                            "{device} is gone from python3 ({})",
                            from.pid()
                        )),
                        "{said}"
                    );
                    for end in [&mut client, &mut server] {
                        end.wait_lines("ConnectionResetError", 4 * (round + 1), secs(60));
                        assert!(
                            !end.stdout().contains("got") && !end.stdout().contains("end"),
                            "{}",
                            end.stdout()
                        );
                    }
                    for later in ["later b''", "later BrokenPipeError"] {
                        client.wait_lines(later, 4 * (round + 1), secs(60));
                    }
                    let from = if from_server { server.pid() } else { client.pid() };
                    assert!(
                        states(device, from).iter().all(|state| state == "ENDING"),
                        "{:?}",
                        states(device, from)
                    );
                    let devices = shown(&["devices", "--json"]);
                    let row = devices["devices"].as_array().expect("a list").iter().find(|row| {
                        row["state"]
                            .as_str()
                            .is_some_and(|state| state == format!("removed from python3 ({from})"))
                    });
                    assert!(row.is_some(), "{devices:#}");
                    more(&mut client, round + 2, port, next);
                }
                client.say("end\n");
                server.say("\n");
                client.success(secs(60));
                server.success(secs(60));
                Ok(())
            },
        );
    }
}

/// Streams in full flow, which never sleep for long.
#[test]
fn streams_end_too() {
    case("removal-streams", |c| {
        if plain() {
            return skip("without the library there are no devices");
        }
        let program = compile("transfer")?;
        need_copying()?;
        for device in ["ism", "loopback"] {
            let port = Ports::High.free();
            let command = |side: &str| {
                let mut command = Side::Run.command(&program);
                let bytes = (1u64 << 40).to_string();
                command.env("SHORTWIRE_PREFER", device);
                command.args([
                    side,
                    &port.to_string(),
                    "threads",
                    "send",
                    &bytes,
                    &bytes,
                    "5",
                    "1",
                ]);
                command
            };
            let mut server = c.serve("server", port, &mut command("server"));
            let mut client = c.start("client", &mut command("client"));
            let end = Deadline::within(secs(60));
            while connections(&[port]).iter().filter(|end| end.smcd).count() < 2 {
                assert!(!end.is_over(), "no upgrade: {}", client.stderr());
                std::thread::sleep(millis(20));
            }
            remove(device, &server);
            for side in [&mut client, &mut server] {
                let status = side.wait(secs(60));
                // As TCP has it, whichever thread calls first has the reset, and the other finds
                // the end of the stream or the pipe broken. The first to tell ends the program.
                let told = side.stderr();
                let ways = ["Connection reset", "Broken pipe", "end of stream"];
                assert!(
                    !status.success() && ways.iter().any(|way| told.contains(way)),
                    "{status} {told}"
                );
            }
        }
        Ok(())
    });
}

/// Ends that find bytes, or room, whenever they look.
#[test]
fn streams_end_at_ends_that_never_wait() {
    case("removal-paced", |c| {
        if plain() {
            return skip("without the library there are no devices");
        }
        need_copying()?;
        let python = need("python3")?;
        for (device, slow) in
            [("ism", "reader"), ("loopback", "reader"), ("ism", "writer"), ("loopback", "writer")]
        {
            let port = Ports::High.free();
            let start = |side: &str| {
                let mut command = Side::Run.command(&python);
                command.env("SHORTWIRE_PREFER", device);
                command.args(["-c", PACED, side, &port.to_string()]);
                command
            };
            let mut server = c.serve("server", port, &mut start("server"));
            let mut client = c.start("client", &mut start("client"));
            // Paced before bytes come through the ring, they might take long to get there.
            let end = Deadline::within(secs(60));
            while in_use(port) != [device] {
                assert!(!end.is_over(), "{device} {slow}: {:?}", in_use(port));
                std::thread::sleep(millis(20));
            }
            let paced = if slow == "reader" { &mut server } else { &mut client };
            paced.say("pace\n");
            paced.wait_line("paced", secs(60));
            remove(device, paced);
            // Both are told, whichever of the two words their last call has for it.
            for side in [&mut server, &mut client] {
                let end = Deadline::within(secs(60));
                while !["ConnectionResetError", "BrokenPipeError"]
                    .iter()
                    .any(|word| side.stdout().contains(word))
                {
                    assert!(!end.is_over(), "{device} {slow}: {}", side.stdout());
                    std::thread::sleep(millis(20));
                }
                side.say("end\n");
                side.success(secs(60));
            }
        }
        Ok(())
    });
}

/// What there is nothing to take from, and what is no device here.
#[test]
fn mistakes_are_told() {
    for (args, told) in [
        (&["--remove", "ism", "--pid", "1"][..], "process 1 has no connections"),
        (&["--remove", "verbs", "--pid", "1"], "process 1 has no connections"),
        (&["--remove", "wire"], "invalid value 'wire'"),
        (&["--pid", "1"], "--remove"),
    ] {
        let said = shortwire(&[&["devices"], args].concat());
        let stderr = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && stderr.contains(told), "{args:?}: {stderr}");
    }
}
