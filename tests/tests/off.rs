//! `shortwire off` and `on` while programs run, and `--drain`: connections go back to TCP with
//! traffic on them, and every byte arrives.

use std::process::{Command, Output};

use system_tests::probe::need_copying;
use system_tests::{
    Case, Deadline, Ports, Proc, Side, case, compile, connections, millis, need, plain, python,
    secs, skip,
};

/// Sets values and gets them back on each of N connections, checks every byte, and says when it
/// has begun; then new ones when it is told to.
const REDIS: &str = "
import os, socket, sys, threading
port, n = int(sys.argv[1]), int(sys.argv[2])
stop = threading.Event()
def use(name, rounds):
    c = socket.create_connection(('127.0.0.1', port))
    f = c.makefile('rb')
    done = 0
    while not stop.is_set() and done != rounds:
        value = os.urandom(1 + int.from_bytes(os.urandom(2), 'big'))
        key = b'%s' % name.encode()
        c.sendall(b'*3\\r\\n$3\\r\\nSET\\r\\n$%d\\r\\n%s\\r\\n$%d\\r\\n%s\\r\\n' % (len(key), key, len(value), value))
        assert f.readline() == b'+OK\\r\\n'
        c.sendall(b'*2\\r\\n$3\\r\\nGET\\r\\n$%d\\r\\n%s\\r\\n' % (len(key), key))
        assert f.readline() == b'$%d\\r\\n' % len(value)
        assert f.read(len(value) + 2) == value + b'\\r\\n'
        done += 1
        if done == 100: os.write(1, b'begun\\n')
    if rounds < 0: os.write(1, b'checked %d\\n' % done)
    return c
threads = [threading.Thread(target=use, args=('k%d' % i, -1)) for i in range(n)]
for t in threads: t.start()
kept = []
for line in sys.stdin:
    if line == 'new\\n':
        kept.append(use('new', 99))
        os.write(1, b'used %d\\n' % len(kept))
    else: break
stop.set()
for t in threads: t.join()
os.write(1, b'end\\n')
";

/// Both ends of an idle connection sleep in epoll for ever, until bytes come: an echo server, and a
/// client that sends when it is told to.
const SLEEPER: &str = "
import os, select, socket, sys
port = int(sys.argv[2])
if sys.argv[1] == 'server':
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('127.0.0.1', port))
    s.listen(50)
    e = select.epoll()
    e.register(s, select.EPOLLIN)
    ends = {}
    while True:
        for fd, _ in e.poll():
            if fd == s.fileno():
                c = s.accept()[0]
                ends[c.fileno()] = c
                e.register(c, select.EPOLLIN)
            else:
                block = ends[fd].recv(1000)
                if block: ends[fd].sendall(block)
                else: ends.pop(fd).close()
e = select.epoll()
ends = {}
for i in range(5):
    c = socket.create_connection(('127.0.0.1', port))
    ends[c.fileno()] = c
    e.register(c, select.EPOLLIN)
e.register(0, select.EPOLLIN)
def round(n):
    for i in range(n):
        block = os.urandom(500)
        for c in ends.values(): c.sendall(block)
        due = {fd: b'' for fd in ends}
        while any(len(got) < 500 for got in due.values()):
            for fd, _ in e.poll():
                if fd: due[fd] += ends[fd].recv(1000)
        assert all(got == block for got in due.values())
round(100)
os.write(1, b'idle\\n')
while True:
    if any(fd == 0 for fd, _ in e.poll()): break
sys.stdin.readline()
round(100)
os.write(1, b'right\\n')
sys.stdin.readline()
";

fn shortwire(args: &[&str]) -> Output {
    let mut command = Command::new(system_tests::shortwire());
    command.args(args).env_remove("LD_PRELOAD").output().expect("shortwire")
}

fn said(args: &[&str], status: i32) -> String {
    let output = shortwire(args);
    let text = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part)).concat();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    text
}

/// The tests here switch everything off that they see: only where that is theirs alone.
fn alone() -> Result<(), system_tests::Skip> {
    // The first process of the namespaces that the check makes for each test.
    let first = std::fs::read_to_string("/proc/1/cmdline").unwrap_or_default();
    match first.contains("none /run") {
        true => Ok(()),
        false => skip("would switch off other people's programs: run it by `make check-system`"),
    }
}

/// Modes of the connections on a port: how many ends are in shared memory, and how many stay TCP
/// with these words.
fn modes(port: u16, words: &str) -> (usize, usize) {
    let all = connections(&[port]);
    let smcd = all.iter().filter(|end| end.smcd).count();
    (smcd, all.iter().filter(|end| !end.smcd && end.state.contains(words)).count())
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Deadline::within(secs(60));
    while !holds() {
        assert!(!end.is_over(), "not yet: {what}");
        std::thread::sleep(millis(20));
    }
}

/// Redis under its own clients: off, drain, on, all while it works.
#[test]
fn redis_is_switched_off_drained_and_switched_on_under_traffic() {
    case("off-redis", |c| {
        if plain() {
            return skip("without the library there is nothing to switch off");
        }
        alone()?;
        let (redis, python) = (need("redis-server")?, python()?);
        const CLIENTS: usize = 4;
        let port = Ports::Low.free();
        let number = port.to_string();
        let mut server = Side::Run.command(redis);
        server.args(["--port", &number, "--save", "", "--bind", "127.0.0.1"]);
        let mut server = c.serve("redis", port, &mut server);
        let mut client = Side::Run.command(python);
        client.args(["-c", REDIS, &number, &CLIENTS.to_string()]);
        let mut client = c.start("client", &mut client);
        client.wait_lines("begun", CLIENTS, secs(60));
        wait_for("upgraded", || modes(port, "").0 == 2 * CLIENTS);
        let new = |client: &mut Proc, n: usize| {
            client.say("new\n");
            client.wait_lines("used", n, secs(60));
        };

        let text = said(&["off"], 0);
        assert!(text.contains("Shortwire is off"), "{text}");
        new(&mut client, 1);
        // What goes through memory goes on, and what is new does not get there.
        wait_for("off", || modes(port, "switched off") == (2 * CLIENTS, 2));
        assert!(said(&["info"], 0).contains("switched off for"), "info");
        assert!(said(&["ss"], 0).contains("switched off for"), "ss");
        let text = said(&["doctor", &server.pid().to_string()], 1);
        assert!(text.contains("STOP  is switched off"), "{text}");

        let text = said(&["off", "--drain", "--wait", "60"], 0);
        assert!(text.contains("No connection is left in shared memory"), "{text}");
        // Also those count that were back before the first look.
        assert!(text.contains(&format!("({} were", 2 * CLIENTS)), "{text}");
        // By either end. Who has gone back says why a moment later.
        wait_for("back", || modes(port, "back to TCP") == (0, 2 * CLIENTS));
        new(&mut client, 2);
        wait_for("off behind the drain", || modes(port, "switched off") == (0, 4));

        assert!(said(&["on"], 0).contains("Shortwire is on"), "on");
        new(&mut client, 3);
        wait_for("on again", || modes(port, "").0 == 2);
        assert!(!said(&["ss"], 0).contains("switched off for"), "ss");
        client.say("stop\n");
        let text = client.success(secs(60));
        let checked: Vec<u64> =
            text.lines().filter_map(|line| line.strip_prefix("checked ")?.parse().ok()).collect();
        assert!(checked.len() == CLIENTS && checked.iter().all(|n| *n > 100), "{text}");
        server.stop();
        Ok(())
    });
}

/// Every byte of a stream in full flow is checked by who receives it, in both directions at once.
/// How much a machine moves before it is told to drain is not known beforehand: a stream that was through by then showed
/// nothing, and a longer one takes its place.
fn streams_are_drained(c: &Case, driver: &str, device: &str) -> Result<(), system_tests::Skip> {
    for gibibytes in [1u64, 4, 16] {
        if stream_is_drained(c, driver, device, gibibytes << 30)? {
            return Ok(());
        }
    }
    panic!("{driver} {device}: 16 GiB each way were through before the drain");
}

/// Whether it was drained before its end.
fn stream_is_drained(
    c: &Case,
    driver: &str,
    device: &str,
    bytes: u64,
) -> Result<bool, system_tests::Skip> {
    let program = compile("transfer")?;
    let port = Ports::Low.free();
    let bytes = bytes.to_string();
    let op = if driver == "lockstep" { "send" } else { "vec" };
    let start = |side: &str| {
        let mut command = Side::Run.command(&program);
        command.args([side, &port.to_string(), driver, op, &bytes, &bytes, "7", "1"]);
        command.env("SHORTWIRE_PREFER", device);
        command
    };
    let mut server = c.serve("server", port, &mut start("server"));
    let mut client = c.start("client", &mut start("client"));
    wait_for("upgraded", || modes(port, "").0 == 2 || !client.running());
    let pid = server.pid().to_string();
    let text = said(&["off", "--drain", "--wait", "60"], 0);
    println!("{driver} {device} {pid}: {text}");
    assert!(text.contains("No connection is left"), "{text}");
    let in_full_flow = client.running() && server.running();
    for side in [&mut client, &mut server] {
        let text = side.success(secs(240));
        assert_eq!(text.lines().filter(|line| line.ends_with(" ok")).count(), 1, "{text}");
    }
    said(&["on"], 0);
    Ok(in_full_flow)
}

#[test]
fn streams_in_full_flow_go_back_whole() {
    case("off-streams", |c| {
        if plain() {
            return skip("without the library there is nothing to switch off");
        }
        alone()?;
        for driver in ["threads", "poll", "select", "epoll", "edge", "lockstep"] {
            streams_are_drained(c, driver, "loopback")?;
        }
        need_copying()?;
        streams_are_drained(c, "epoll", "ism")
    });
}

/// Nothing moves on them: programs are woken, and sleep on when that is done.
#[test]
fn idle_connections_go_back_too() {
    case("off-idle", |c| {
        if plain() {
            return skip("without the library there is nothing to switch off");
        }
        alone()?;
        let python = python()?;
        let port = Ports::High.free();
        let start = |side: &str| {
            let mut command = Side::Run.command(&python);
            command.args(["-c", SLEEPER, side, &port.to_string()]);
            command
        };
        let mut server = c.serve("server", port, &mut start("server"));
        let mut client = c.start("client", &mut start("client"));
        client.wait_line("idle", secs(60));
        wait_for("upgraded", || modes(port, "").0 == 10);
        let text = said(&["off", "--drain", "--wait", "60"], 0);
        assert!(text.contains("No connection is left"), "{text}");
        wait_for("back", || modes(port, "back to TCP") == (0, 10));
        let ticks = client.cpu_ticks() + server.cpu_ticks();
        std::thread::sleep(secs(3));
        let used = client.cpu_ticks() + server.cpu_ticks() - ticks;
        assert!(used < 20, "asleep they used {used} ticks");
        client.say("go on\n");
        client.wait_line("right", secs(60));
        client.say("end\n");
        client.success(secs(60));
        server.stop();
        said(&["on"], 0);
        Ok(())
    });
}

#[test]
fn mistakes_are_told() {
    case("off-mistakes", |_| {
        for (args, told) in [
            (&["off", "--drain", "--pid", "1"][..], "process 1 has no connections"),
            (&["off", "--wait", "1"], "--drain"),
            (&["on", "--pid", "1"], "process 1 has no connections"),
        ] {
            let output = shortwire(args);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains(told), "{args:?}: {text}");
        }
        Ok(())
    });
}

/// Of one process alone, told by its number; its peer goes along, and others go on.
#[test]
fn one_program_is_drained_alone() {
    case("off-one", |c| {
        if plain() {
            return skip("without the library there is nothing to switch off");
        }
        let python = python()?;
        let pairs: Vec<(u16, Proc, Proc)> = [Ports::Low.free(), Ports::High.free()]
            .into_iter()
            .enumerate()
            .map(|(i, port)| {
                let start = |side: &str| {
                    let mut command = Side::Run.command(&python);
                    command.args(["-c", SLEEPER, side, &port.to_string()]);
                    command
                };
                let server = c.serve(&format!("server{i}"), port, &mut start("server"));
                let mut client = c.start(&format!("client{i}"), &mut start("client"));
                client.wait_line("idle", secs(60));
                wait_for("upgraded", || modes(port, "").0 == 10);
                (port, server, client)
            })
            .collect();
        let pid = pairs[0].1.pid().to_string();
        let text = said(&["off", "--drain", "--wait", "60", "--pid", &pid], 0);
        assert!(text.contains("(5 were: they are back on TCP, or closed)"), "{text}");
        for (i, (port, mut server, mut client)) in pairs.into_iter().enumerate() {
            client.say("go on\n");
            client.wait_line("right", secs(60));
            let expected = if i == 0 { 0 } else { 10 };
            wait_for("drained alone", || modes(port, "").0 == expected);
            client.say("end\n");
            client.success(secs(60));
            server.stop();
        }
        Ok(())
    });
}
