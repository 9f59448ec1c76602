//! Connections between machines that share a bar: network namespaces stand for the machines, a file
//! for the bar, and each has its broker.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use system_tests::container::{Container, Pair};
use system_tests::device::{REDIS_KINDS, expect_fetched, expect_rates, gibibyte, nginx_conf};
use system_tests::{
    Case, Connection, Deadline, Proc, Side, Skip, Watch, case, connections, millis, need, secs,
    shortwire,
};

static NEXT: AtomicU32 = AtomicU32::new(0);
/// How often programs run until their ends have met: on a busy machine the patience of a connection, so
/// many operations, may be used up before the brokers have had their turns.
const TRIES: u32 = 5;
const PORT: u16 = 7000;
const BROKER: u16 = 7480;
/// Where members and blocks stand in a bar, and where the heap begins.
const MEMBERS: usize = 8192;
const BLOCKS: usize = MEMBERS + 1024 * 32;
const TABLE: usize = BLOCKS + BLOCKS_OF_ALL * 16;
const BLOCKS_OF_ALL: usize = 4096;

/// Echoes blocks of 1000 bytes.
const SERVER: &str = "
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('0.0.0.0', int(sys.argv[1])))
s.listen(5)
while True:
    c = s.accept()[0]
    try:
        while True:
            block = c.recv(1000, socket.MSG_WAITALL)
            if not block: break
            c.sendall(block)
    except OSError as e:
        print(type(e).__name__, flush=True)
    c.close()
";
/// Says how each turn of so many blocks ended, and waits to be told to take the next.
const CLIENT: &str = "
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.settimeout(30)
turn = 0
while True:
    try:
        for i in range(1500):
            block = bytes([(i + turn) % 251]) * 1000
            c.sendall(block)
            got = c.recv(1000, socket.MSG_WAITALL)
            if not got: raise EOFError
            assert got == block
            if i % 50 == 0: time.sleep(0.005)
        turn += 1
        print('turn', turn, flush=True)
    except (OSError, EOFError) as e:
        print('turn', type(e).__name__, flush=True)
    if not sys.stdin.readline(): break
";

/// Two machines; the server's address is the lower one, so that it is called and the client calls.
struct Machines {
    pair: Pair,
    bar: PathBuf,
    brokers: Vec<Proc>,
}

fn new_bar(path: &Path, len: u64) {
    let file = fs::File::create(path).expect("a file for the bar");
    file.set_permissions(fs::Permissions::from_mode(0o600)).expect("its rights");
    file.set_len(len).expect("its size");
}

fn start_broker(c: &Case, name: &str, at: &Container, bar: &Path) -> Proc {
    let mut command = at.command(Side::Plain, None, &shortwire());
    let mut broker = c.start(name, command.args(["broker", "--lease", "5", "--ivshmem"]).arg(bar));
    at.wait_listening(&mut broker, BROKER);
    broker
}

impl Machines {
    fn new(c: &Case, len: u64) -> Result<Machines, Skip> {
        let pair = Pair::new(c, false)?;
        let bar = c.dir().join(format!("bar-{}", NEXT.fetch_add(1, Relaxed)));
        new_bar(&bar, len);
        let brokers = vec![
            start_broker(c, "broker-client", &pair.client, &bar),
            start_broker(c, "broker-server", &pair.server, &bar),
        ];
        Ok(Machines { pair, bar, brokers })
    }

    /// A program that has the bar.
    fn command(&self, at: &Container, program: &Path) -> Command {
        let mut command = at.command(Side::Run, None, program);
        command.env("SHORTWIRE_IVSHMEM", &self.bar);
        command
    }

    /// Extents' blocks and members that are in use, as they stand in the bar.
    fn in_use(&self) -> (usize, usize) {
        let file = fs::File::open(&self.bar).expect("the bar");
        let mut table = vec![0; TABLE];
        file.read_exact_at(&mut table, 0).expect("its table");
        let count = |from: usize, to: usize, step| {
            (from..to).step_by(step).filter(|&at| table[at..at + 8] != [0; 8]).count()
        };
        (count(BLOCKS, TABLE, 16), count(MEMBERS, BLOCKS, 32))
    }

    fn server(&self, program: &Path) -> Command {
        self.command(&self.pair.server, program)
    }

    fn client(&self, program: &Path) -> Command {
        self.command(&self.pair.client, program)
    }
}

fn iperf3(c: &Case, at: &Machines, options: &[&str], ends: usize) -> Result<(), Skip> {
    for tries in 1.. {
        let watch = iperf3_for(c, at, options, 1 << tries)?;
        if watch.has_smcd(ends) || tries == TRIES {
            watch.expect_device("ivshmem", ends);
            break;
        }
    }
    Ok(())
}

fn iperf3_for(c: &Case, at: &Machines, options: &[&str], seconds: u64) -> Result<Watch, Skip> {
    let (iperf3, port) = (need("iperf3")?, PORT + 1);
    let number = port.to_string();
    let mut server = c.start("iperf3-server", at.server(&iperf3).args(["-s", "-1", "-p", &number]));
    at.pair.server.wait_listening(&mut server, port);
    let watch = c.watch(&[port]);
    let args = ["-c", at.pair.address, "-p", &number, "-t", &seconds.to_string()];
    let limit = secs(30 + seconds);
    c.start("iperf3", at.client(&iperf3).args(args).args(options)).success(limit);
    server.wait(secs(60));
    Ok(watch)
}

fn redis(c: &Case, at: &Machines) -> Result<(), Skip> {
    let port = (PORT + 2).to_string();
    let mut command = at.server(&need("redis-server")?);
    command
        .args([
            "--port",
            &port,
            "--save",
            "",
            "--appendonly",
            "no",
            "--protected-mode",
            "no",
            "--dir",
        ])
        .arg(c.dir());
    let mut server = c.start("redis-server", &mut command);
    at.pair.server.wait_listening(&mut server, PORT + 2);
    let watch = c.watch(&[PORT + 2]);
    for tries in 1.. {
        let args = ["-h", at.pair.address, "-p", &port, "-n", "50000", "-t", REDIS_KINDS];
        expect_rates(c, at.client(&need("redis-benchmark")?).args(args));
        if watch.has_smcd(50) || tries == TRIES {
            break;
        }
    }
    watch.expect_device("ivshmem", 50);
    // A server that lives on keeps no memory for a client that has ended where the bar was as good
    // as full.
    until("half of the bar is free", secs(60), || at.in_use().0 < BLOCKS_OF_ALL / 2);
    Ok(())
}

fn curl(c: &Case, at: &Machines) -> Result<(), Skip> {
    let port = PORT + 3;
    let (file, conf) = (gibibyte(c), nginx_conf(c, &port.to_string()));
    let mut server =
        c.start("nginx", at.server(&need("nginx")?).arg("-p").arg(c.dir()).arg("-c").arg(&conf));
    at.pair.server.wait_listening(&mut server, port);
    let watch = c.watch(&[port]);
    let url = format!("http://{}:{port}/big", at.pair.address);
    // More slowly where it had all, or made too many operations, before the brokers had their turns.
    let rates: [&[&str]; 3] = [&[], &["--limit-rate", "100M"], &["--limit-rate", "30M"]];
    for rate in rates {
        let mut command = at.client(&need("curl")?);
        expect_fetched(
            &mut c.start("curl", command.args(["-sS", "--fail", &url]).args(rate)),
            &file,
        );
        if watch.has_smcd(2) {
            break;
        }
    }
    watch.expect_device("ivshmem", 2);
    Ok(())
}

#[test]
fn programs() {
    case("ivshmem-programs", |c| {
        let at = Machines::new(c, 64 << 20)?;
        iperf3(c, &at, &[], 2)?;
        iperf3(c, &at, &["--bidir", "-P", "2"], 6)?;
        redis(c, &at)?;
        curl(c, &at)?;
        Ok(())
    });
}

/// A client and a server that have talked for one turn.
struct Talk {
    server: Proc,
    client: Proc,
    turns: usize,
}

impl Talk {
    fn start(c: &Case, at: &Machines) -> Result<Talk, Skip> {
        let (python, number) = (need("python3")?, PORT.to_string());
        let mut server = c.start("server", at.server(&python).args(["-c", SERVER, &number]));
        at.pair.server.wait_listening(&mut server, PORT);
        let client =
            c.start("client", at.client(&python).args(["-c", CLIENT, at.pair.address, &number]));
        let mut this = Talk { server, client, turns: 0 };
        this.turn("1");
        Ok(this)
    }

    /// The same, until both ends are upgraded.
    fn upgrade(c: &Case, at: &Machines) -> Result<Talk, Skip> {
        let mut said = Vec::new();
        for _ in 0..TRIES {
            let mut this = Talk::start(c, at)?;
            if this.upgraded() < 2 {
                this.another();
            }
            if this.upgraded() == 2 {
                return Ok(this);
            }
            said.extend(this.seen().into_iter().map(|end| end.state));
            this.end();
            until("all is free", secs(30), || at.in_use() == (0, 0));
        }
        panic!("two ends did not meet in {TRIES} tries: {said:?}");
    }

    fn turn(&mut self, expected: &str) {
        self.turns += 1;
        let turns = self.turns;
        until(&format!("turn {turns}"), secs(60), || {
            self.client.stdout().matches('\n').count() >= turns
        });
        assert_eq!(
            self.client.stdout().lines().nth(turns - 1),
            Some(format!("turn {expected}").as_str())
        );
    }

    fn another(&mut self) {
        self.client.say("\n");
        self.turn(&(self.turns + 1).to_string());
    }

    fn seen(&self) -> Vec<Connection> {
        connections(&[PORT])
    }

    /// How many of the two ends are upgraded.
    fn upgraded(&self) -> usize {
        self.seen().iter().filter(|c| c.smcd && c.device == "ivshmem").count()
    }

    /// Two ends stay TCP, and one of them says so of a broker: in one of several tries, since the
    /// patience of a connection may be used up before a broker has answered.
    fn expect_tcp(c: &Case, at: &Machines) -> Result<(), Skip> {
        let mut all = Vec::new();
        for _ in 0..TRIES {
            let this = Talk::start(c, at)?;
            let seen = this.seen();
            let said: Vec<String> = seen.iter().map(|c| c.state.clone()).collect();
            assert!(seen.len() == 2 && seen.iter().all(|c| !c.smcd), "{said:?}");
            this.end();
            if said.iter().any(|state| state.contains("broker")) {
                return Ok(());
            }
            all.extend(said);
        }
        panic!("no broker is in {all:?}");
    }

    fn end(mut self) {
        signal(&self.client, Signal::KILL);
        signal(&self.server, Signal::KILL);
        self.client.wait(secs(60));
        self.server.wait(secs(60));
    }
}

/// Signals a program in a container, whose parent is the one that was started here.
fn signal(program: &Proc, signal: Signal) {
    let own = program.pid();
    let children =
        fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        let _ = kill_process(child, signal);
    }
}

/// Waits until a condition holds that a program under way brings about.
fn until(what: &str, limit: Duration, holds: impl Fn() -> bool) {
    let end = Deadline::within(limit);
    while !holds() {
        assert!(!end.is_over(), "not within {limit:?}: {what}");
        sleep(millis(10));
    }
}

/// What `shortwire devices` says of the device there.
fn device(at: &Container, bar: &Path) -> String {
    let mut command = at.command(Side::Plain, None, &shortwire());
    let said = command.args(["devices"]).env("SHORTWIRE_IVSHMEM", bar).output().expect("shortwire");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    text.lines().find(|line| line.contains("ivshmem")).unwrap_or_default().to_string()
}

/// What a process had is free again once it has been killed and its peer has let go.
#[test]
fn what_the_killed_had_is_reclaimed() {
    case("ivshmem-killed", |c| {
        let at = Machines::new(c, 16 << 20)?;
        for victim in 0..3 {
            let mut talk = Talk::upgrade(c, &at)?;
            let (blocks, members) = at.in_use();
            assert!(blocks >= 2 && members == 2, "{blocks} blocks of {members} members");
            match victim {
                // The server dies, and the client hears of it.
                0 => {
                    signal(&talk.server, Signal::KILL);
                    talk.client.say("\n");
                    until("its end", secs(30), || talk.client.stdout().contains("Error"));
                }
                1 => signal(&talk.client, Signal::KILL),
                _ => {}
            }
            talk.end();
            until("all is free", secs(60), || at.in_use() == (0, 0));
        }
        Ok(())
    });
}

/// A machine that vanishes with its broker: what it had is free once its lease is over, and others
/// can use it.
#[test]
fn what_a_lost_machine_had_is_reclaimed() {
    case("ivshmem-lost", |c| {
        let mut at = Machines::new(c, 1 << 20)?;
        let talk = Talk::upgrade(c, &at)?;
        signal(&at.brokers[0], Signal::KILL);
        signal(&talk.client, Signal::KILL);
        at.brokers[0].wait(secs(60));
        // The server's machine goes on: its own part is freed when the connection ends, the other's
        // after its lease.
        until("all is free but what the server has", secs(30), || at.in_use().1 <= 1);
        talk.end();
        until("all is free", secs(60), || at.in_use() == (0, 0));
        at.brokers[0] = start_broker(c, "broker-again", &at.pair.client, &at.bar);
        Talk::upgrade(c, &at)?.end();
        Ok(())
    });
}

/// A second broker of a machine ends. False where the first one gave no sign of life for the two and a
/// half seconds that it was watched, and lost its place: then there is another one.
fn expect_no_second(c: &Case, at: &mut Machines) -> bool {
    let mut command = at.pair.client.command(Side::Plain, None, &shortwire());
    command.args(["broker", "--listen", "[::]:7481", "--ivshmem"]).arg(&at.bar);
    let mut second = c.start("second", &mut command);
    let end = Deadline::within(secs(60));
    while second.running() && !second.stdout().contains("listening") {
        assert!(!end.is_over(), "the second broker hangs");
        sleep(millis(10));
    }
    if !second.running() {
        let said = second.stderr();
        assert!(!second.wait(secs(60)).success());
        assert!(said.contains("a broker runs for this machine already"), "{said}");
        return true;
    }
    // The first one finds it in its place.
    assert!(!at.brokers[0].wait(secs(60)).success());
    signal(&second, Signal::TERM);
    second.wait(secs(60));
    at.brokers[0] = start_broker(c, "broker-2", &at.pair.client, &at.bar);
    false
}

/// Connections outlast the brokers, which end at a word and come back.
#[test]
fn brokers_come_and_go() {
    case("ivshmem-brokers", |c| {
        let mut at = Machines::new(c, 16 << 20)?;
        let mut talk = Talk::upgrade(c, &at)?;
        assert!(
            (0..TRIES).any(|_| expect_no_second(c, &mut at)),
            "the first broker loses its place"
        );
        for broker in &mut at.brokers {
            signal(broker, Signal::TERM);
            assert!(broker.wait(secs(60)).success(), "{}", broker.stderr());
        }
        let said = device(&at.pair.client, &at.bar);
        assert!(said.contains("no broker runs here"), "{said}");
        let before = at.in_use();
        // Longer than the lease: a machine that rests is not taken for dead.
        at.brokers = vec![start_broker(c, "broker-3", &at.pair.server, &at.bar)];
        sleep(secs(7));
        assert_eq!(at.in_use(), before);
        talk.another();
        assert_eq!(talk.upgraded(), 2);
        at.brokers.push(start_broker(c, "broker-4", &at.pair.client, &at.bar));
        assert!(device(&at.pair.client, &at.bar).contains("ready"));
        talk.another();
        talk.end();
        until("all is free", secs(60), || at.in_use() == (0, 0));
        Ok(())
    });
}

/// Without a broker at the other end, or with one of another bar, a connection is TCP and says why.
#[test]
fn without_a_common_bar_it_is_tcp() {
    case("ivshmem-none", |c| {
        let mut at = Machines::new(c, 16 << 20)?;
        let other = c.dir().join("other");
        new_bar(&other, 16 << 20);
        let mut server = at.brokers.pop().expect("the server's broker");
        signal(&server, Signal::TERM);
        assert!(server.wait(secs(60)).success());
        Talk::expect_tcp(c, &at)?;
        at.brokers.push(start_broker(c, "broker-other", &at.pair.server, &other));
        Talk::expect_tcp(c, &at)?;
        Ok(())
    });
}

/// A bar that is none, or is not what it was, is not used, and `devices` says why.
#[test]
fn bad_bars() {
    case("ivshmem-bad", |c| {
        let at = Machines::new(c, 16 << 20)?;
        let here = &at.pair.client;
        assert!(device(here, &at.bar).contains("ready"), "{}", device(here, &at.bar));
        let broker = |bar: &Path| {
            let mut command = here.command(Side::Plain, None, &shortwire());
            let said = command
                .args(["broker", "--listen", "[::]:7481", "--ivshmem"])
                .arg(bar)
                .output()
                .expect("a broker");
            assert!(!said.status.success());
            String::from_utf8_lossy(&said.stderr).into_owned()
        };
        let bad = c.dir().join("bad");
        for (len, content, why) in [
            (16 << 20, &b"another program's"[..], "holds something else"),
            (16 << 20, b"SHORTWB2", "holds something else"),
            ((16 << 20) - 4096, b"", "is not a power of two"),
            (0, b"", "is not a power of two"),
        ] {
            new_bar(&bad, len);
            let file = fs::File::options().write(true).open(&bad).expect("the bar");
            file.write_all_at(content, if content.starts_with(b"S") { 0 } else { 4096 })
                .expect("written");
            file.set_len(len).expect("its size");
            let said = broker(&bad);
            assert!(said.contains(why), "{said}");
            assert!(device(here, &bad).contains("unavailable"), "{}", device(here, &bad));
        }
        new_bar(&bad, 16 << 20);
        assert!(device(here, &bad).contains("no broker has used it yet"));
        fs::set_permissions(&bad, fs::Permissions::from_mode(0o666)).expect("its rights");
        assert!(broker(&bad).contains("may cut short"));
        assert!(device(here, &c.dir().join("nothing")).contains("no such file"));

        // Made for another size, and damaged, while both brokers run.
        let file = fs::File::options().write(true).open(&at.bar).expect("the bar");
        for (offset, why) in
            [(8, "made for"), (0, "holds something else"), (16, "holds something else")]
        {
            let mut word = [0; 8];
            fs::File::open(&at.bar)
                .and_then(|f| f.read_exact_at(&mut word, offset))
                .expect("a word");
            let wrong: &[u8; 8] = if offset == 16 { &[0; 8] } else { b"damaged!" };
            file.write_all_at(wrong, offset).expect("written");
            assert!(device(here, &at.bar).contains(why), "{}", device(here, &at.bar));
            let talk = Talk::start(c, &at)?;
            assert_eq!(talk.upgraded(), 0);
            talk.end();
            file.write_all_at(&word, offset).expect("written");
        }
        Talk::upgrade(c, &at)?.end();
        Ok(())
    });
}

/// Anything in the tables while programs run: their connections may end, or be TCP, and none of
/// them crashes.
#[test]
fn a_bar_that_is_overwritten() {
    case("ivshmem-overwritten", |c| {
        let mut random = system_tests::stream::Random::new(9);
        for round in 0..4 {
            let at = Machines::new(c, 16 << 20)?;
            let file = fs::File::options().write(true).open(&at.bar).expect("the bar");
            let mut talk = Talk::start(c, &at)?;
            // All of the table behind the guests; then what every arena begins with too.
            let (from, to) = (MEMBERS as u64, if round < 2 { TABLE as u64 } else { 16 << 20 });
            for _ in 0..2000 {
                let at = from + random.below((to - from) / 8) * 8;
                let word = if round % 2 == 0 { random.below(u64::MAX) } else { random.below(3) };
                file.write_all_at(&word.to_ne_bytes(), at).expect("written");
            }
            talk.client.say("\n");
            let (client, server) = (&mut talk.client, &mut talk.server);
            let end = Deadline::within(secs(60));
            while client.stdout().matches('\n').count() < 2 {
                assert!(
                    !end.is_over() && client.running() && server.running(),
                    "{}{}",
                    client.stderr(),
                    server.stderr()
                );
                sleep(millis(10));
            }
            talk.end();
        }
        Ok(())
    });
}

/// In place of a broker: answers calls as MODE says, and prints for each a line.
const LIAR: &str = "
import os, socket, sys, threading
mode = sys.argv[1]
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('::', 7480))
s.listen(50)
def message(kind, rest): return b'\\0\\x48SHORTWB1' + bytes([0, 0, 0, kind]) + rest.ljust(60, b'\\0')
def answer(c):
    try:
        said = c.recv(4096)
        print('called', len(said), flush=True)
        if mode == 'garbage': c.sendall(os.urandom(300))
        if mode == 'long': c.sendall(b'\\xff\\xff' + os.urandom(70000))
        if mode == 'half': c.sendall(message(2, os.urandom(60))[:30])
        if mode == 'challenge': c.sendall(message(2, os.urandom(60)))
        if mode == 'go': c.sendall(message(4, b'') * 3)
        if mode == 'echo': c.sendall(said)
        if mode == 'close': return c.close()
        while mode == 'flood': c.sendall(message(5, b''))
        while c.recv(4096): pass
    except OSError: pass
while True:
    threading.Thread(target=answer, args=(s.accept()[0],), daemon=True).start()
";

/// A broker that lies, floods or says nothing costs a connection nothing but the bar.
#[test]
fn a_broker_that_lies() {
    case("ivshmem-liar", |c| {
        let mut at = Machines::new(c, 16 << 20)?;
        let broker = at.brokers.pop().expect("the server's broker");
        signal(&broker, Signal::KILL);
        let python = need("python3")?;
        for mode in
            ["silent", "garbage", "long", "half", "challenge", "go", "echo", "close", "flood"]
        {
            let mut command = at.pair.server.command(Side::Plain, None, &python);
            let mut liar = c.start("liar", command.args(["-c", LIAR, mode]));
            at.pair.server.wait_listening(&mut liar, BROKER);
            let mut talk = Talk::start(c, &at)?;
            talk.another();
            assert_eq!(talk.upgraded(), 0, "{mode}");
            assert!(
                talk.client.running() && talk.server.running(),
                "{mode}: {}",
                talk.client.stderr()
            );
            liar.wait_line("called", secs(60));
            let calls = liar.stdout().lines().count();
            assert!((1..=4).contains(&calls), "{mode}: {calls} calls");
            talk.end();
            signal(&liar, Signal::KILL);
            liar.wait(secs(60));
        }
        Ok(())
    });
}

/// Calls a broker in every wrong way at once until there is a line, but for so many seconds at least, and
/// says when that is under way.
const CALLERS: &str = "
import os, socket, struct, sys, threading, time
own, there, stop = sys.argv[1], sys.argv[2], float(sys.argv[3]) + time.time()
over = threading.Event()
def message(kind, bar=0, rest=b''): return b'\\0\\x48SHORTWB1' + struct.pack('>IQ', kind, bar) + rest.ljust(52, b'\\0')
bar = struct.unpack('<Q', open(sys.argv[4], 'rb').read(24)[16:])[0]
def end(host, port): return bytes(10) + b'\\xff\\xff' + socket.inet_aton(host) + struct.pack('>H', port)
def hello(a, b): return message(1, bar, os.urandom(16) + a + b)
def call(what):
    while not over.is_set():
        try:
            c = socket.create_connection((there, 7480))
            c.settimeout(2)
            what(c)
            c.close()
        # One that had no turn for a second was sent away.
        except (OSError, IndexError): time.sleep(0.01)
def garbage(c): c.sendall(os.urandom(500)); c.recv(100)
def silent(c): c.recv(1)
def half(c): c.sendall(hello(end(own, 1), end(there, 2))[:40]); c.recv(100)
def foreign(c): c.sendall(hello(end('1.2.3.4', 5000), end(there, 7000))); assert c.recv(100)[13] == 6, 'refused'
def other(c): c.sendall(message(1, bar + 1, bytes(16) + end(own, 5000) + end(there, 7000))); assert c.recv(100)[13] == 6
def wrong(c):
    c.sendall(hello(end(own, 5000), end(there, 7000)))
    assert c.recv(100)[13] == 2, 'challenged'
    c.sendall(message(3, 0, os.urandom(16)))
    assert c.recv(100)[13] == 6, 'refused'
    print('refused', flush=True)
def once(what):
    try: call(what)
    except AssertionError as e: print('unexpected', what.__name__, e, flush=True)
all = [threading.Thread(target=once, args=(what,)) for what in [garbage, silent, half, foreign, other, wrong] * 3]
for t in all: t.start()
sys.stdin.readline()
time.sleep(max(0, stop - time.time()))
over.set()
for t in all: t.join()
print('done', flush=True)
";

/// Callers that lie, say garbage or nothing get nowhere, and do not keep others from meeting.
#[test]
fn callers_that_lie() {
    case("ivshmem-callers", |c| {
        let mut at = Machines::new(c, 16 << 20)?;
        let mut command = at.pair.client.command(Side::Plain, None, &need("python3")?);
        let mut callers = c.start(
            "callers",
            command.args(["-c", CALLERS, "10.9.0.2", at.pair.address, "6"]).arg(&at.bar),
        );
        callers.wait_line("refused", secs(60));
        Talk::upgrade(c, &at)?.end();
        callers.say("\n");
        callers.wait_line("done", secs(60));
        assert!(!callers.stdout().contains("unexpected"), "{}", callers.stdout());
        for broker in &mut at.brokers {
            signal(broker, Signal::INT);
            assert!(broker.wait(secs(60)).success(), "{}", broker.stderr());
        }
        Ok(())
    });
}
