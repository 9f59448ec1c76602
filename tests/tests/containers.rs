//! Connections between containers: found through a directory that both see, told apart whatever the
//! addresses say, and plain TCP where that cannot be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use system_tests::container::Pair;
use system_tests::device::{REDIS_KINDS, expect_fetched, expect_rates, gibibyte, nginx_conf};
use system_tests::{
    Case, Connection, Deadline, Proc, Side, Skip, Watch, case, connections, millis, need, secs,
};

/// Says `same`, byte for byte, to everybody for so many rounds; then who it is.
const SERVER: &str = "
import socket, sys
port, name, peers = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('0.0.0.0', port))
s.listen(50)
for _ in range(peers):
    c = s.accept()[0]
    while True:
        n = 0
        said = b''
        while len(said) < 32:
            more = c.recv(32 - len(said))
            if not more: break
            said += more
        if len(said) < 32: break
        c.sendall(name.encode().ljust(64) if said.startswith(b'who') else b'the same answer to everybody'.ljust(64))
    c.close()
";
/// From one port of its own: rounds of the same question, at the time that it is told, one `more` for
/// each time that it is told so, then `who`.
const CLIENT: &str = "
import socket, sys
address, port, own, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
c = socket.socket()
c.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
c.bind(('0.0.0.0', own))
c.connect((address, port))
print('connected', flush=True)
sys.stdin.readline()
def ask(question):
    c.sendall(question.ljust(32))
    return c.recv(64, socket.MSG_WAITALL)
for _ in range(rounds):
    assert ask(b'the same question') == b'the same answer to everybody'.ljust(64)
print('asked', flush=True)
while sys.stdin.readline() == 'more\\n':
    assert ask(b'the same question') == b'the same answer to everybody'.ljust(64)
    print('asked', flush=True)
print('who', ask(b'who').decode().strip(), flush=True)
";

/// Answers one question with all that the other end takes.
const SOURCE: &str = "
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('0.0.0.0', int(sys.argv[1])))
s.listen(5)
c = s.accept()[0]
c.recv(100)
try:
    while True: c.sendall(bytes(1 << 16))
except OSError: pass
";
/// Asks one question and takes the answer as slowly as a disk would.
const SINK: &str = "
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.sendall(b'a question of some length'.ljust(80))
while True:
    c.recv(1 << 18)
    time.sleep(0.002)
";

const PORT: u16 = 7000;

/// A python that other users may run, too.
fn common_python() -> Result<PathBuf, Skip> {
    let path = PathBuf::from("/usr/bin/python3");
    if path.exists() {
        Ok(path)
    } else {
        system_tests::skip("no /usr/bin/python3 that every user can run")
    }
}

fn directory(c: &Case) -> PathBuf {
    let dir = c.dir().join("meet");
    fs::create_dir_all(&dir).expect("a directory to meet in");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("its rights");
    dir
}

fn serve(c: &Case, pair: &Pair, side: Side, dir: Option<&Path>, name: &str) -> Result<Proc, Skip> {
    let mut command = pair.server.command(side, dir, &need("python3")?);
    let mut server = c.start(name, command.args(["-c", SERVER, &PORT.to_string(), name, "1"]));
    pair.server.wait_listening(&mut server, PORT);
    Ok(server)
}

/// A server that begins to look for its client only after so many operations.
fn serve_after(c: &Case, pair: &Pair, operations: u32, dir: &Path) -> Result<Proc, Skip> {
    let mut command = pair.server.command(Side::Run, Some(dir), &need("python3")?);
    command.env("SHORTWIRE_AFTER", operations.to_string());
    let mut server =
        c.start("server", command.args(["-c", SERVER, &PORT.to_string(), "server", "1"]));
    pair.server.wait_listening(&mut server, PORT);
    Ok(server)
}

fn dial(
    c: &Case,
    pair: &Pair,
    side: Side,
    dir: Option<&Path>,
    own: u16,
    rounds: u32,
) -> Result<Proc, Skip> {
    dial_after(c, pair, (side, dir), own, rounds, 4)
}

/// A client that begins to look for its server only after so many operations.
fn dial_after(
    c: &Case,
    pair: &Pair,
    (side, dir): (Side, Option<&Path>),
    own: u16,
    rounds: u32,
    operations: u32,
) -> Result<Proc, Skip> {
    let mut command = pair.client.command(side, dir, &need("python3")?);
    command.env("SHORTWIRE_AFTER", operations.to_string());
    let numbers = [PORT.to_string(), own.to_string(), rounds.to_string()];
    let mut client = c.start("client", command.args(["-c", CLIENT, pair.address]).args(numbers));
    client.wait_line("connected", secs(60));
    Ok(client)
}

/// Lets clients talk at the same time, looks at the connections, and asks each whom it talks to.
fn talk(clients: &mut [Proc]) -> (Vec<Connection>, Vec<String>) {
    clients.iter_mut().for_each(|client| client.say("\n"));
    clients.iter_mut().for_each(|client| drop(client.wait_line("asked", secs(60))));
    let mut seen = connections(&[PORT]);
    // What the last operation of one end switched, the other end follows with its next.
    if upgraded(&seen) % 2 == 1 {
        clients.iter_mut().for_each(|client| client.say("more\n"));
        clients.iter_mut().for_each(|client| drop(client.wait_lines("asked", 2, secs(60))));
        seen = connections(&[PORT]);
    }
    clients.iter_mut().for_each(|client| client.say("\n"));
    let who = clients
        .iter_mut()
        .map(|client| client.wait_line("who", secs(60)).replace("who ", ""))
        .collect();
    clients.iter_mut().for_each(|client| drop(client.success(secs(60))));
    (seen, who)
}

fn upgraded(seen: &[Connection]) -> usize {
    seen.iter().filter(|c| c.smcd).count()
}

/// One pair talks; what `ss` says of its two ends meanwhile.
fn one_talk(c: &Case, pair: &Pair, dir: &Path, rounds: u32) -> Result<Vec<Connection>, Skip> {
    let mut server = serve(c, pair, Side::Run, Some(dir), "server")?;
    let (seen, who) = talk(&mut [dial(c, pair, Side::Run, Some(dir), 5000, rounds)?]);
    assert_eq!(who, ["server"]);
    server.success(secs(60));
    Ok(seen)
}

/// How often a pair is started for its ends to find each other: on a busy machine the patience of a
/// connection may be used up before the other end has had its turn.
const TRIES: usize = 5;

/// Pairs talk until the two ends of one have found each other.
fn expect_meeting(c: &Case, pair: &Pair, dir: &Path) -> Result<(), Skip> {
    for _ in 0..TRIES {
        if upgraded(&one_talk(c, pair, dir, 400)?) == 2 {
            return Ok(());
        }
    }
    panic!("no two ends found each other in {TRIES} tries");
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("the directory").next().is_none()
}

/// Waits until a condition holds that a program under way brings about.
fn until(what: &str, limit: Duration, holds: impl Fn() -> bool) {
    let end = Deadline::within(limit);
    while !holds() {
        assert!(!end.is_over(), "not within {limit:?}: {what}");
        sleep(millis(10));
    }
}

fn iperf3(
    c: &Case,
    pair: &Pair,
    dir: &Path,
    options: &[&str],
    seconds: u32,
) -> Result<Watch, Skip> {
    let (iperf3, port) = (need("iperf3")?, PORT + 1);
    let number = port.to_string();
    let mut command = pair.server.command(Side::Run, Some(dir), &iperf3);
    let mut server = c.start("iperf3-server", command.args(["-s", "-1", "-p", &number]));
    pair.server.wait_listening(&mut server, port);
    let watch = c.watch(&[port]);
    let mut command = pair.client.command(Side::Run, Some(dir), &iperf3);
    c.start(
        "iperf3",
        command.args(["-c", pair.address, "-p", &number, "-t", &seconds.to_string()]).args(options),
    )
    .success(secs(60));
    server.wait(secs(60));
    Ok(watch)
}

/// A program runs, and is told how often it has, until so many ends of its connections were upgraded.
fn expect_upgrades(
    what: &str,
    ends: usize,
    mut run: impl FnMut(usize) -> Result<Watch, Skip>,
) -> Result<(), Skip> {
    for tries in 0..TRIES {
        if run(tries)?.saw_smcd(ends) {
            return Ok(());
        }
    }
    panic!("{what}: {ends} ends did not find each other in {TRIES} tries");
}

/// iperf3, longer each time.
fn expect_streams(
    c: &Case,
    pair: &Pair,
    dir: &Path,
    (options, ends): (&[&str], usize),
) -> Result<(), Skip> {
    let what = format!("iperf3 {options:?}");
    expect_upgrades(&what, ends, |tries| iperf3(c, pair, dir, options, 2 << tries))
}

fn redis(c: &Case, pair: &Pair, dir: &Path) -> Result<Watch, Skip> {
    let port = (PORT + 2).to_string();
    let mut command = pair.server.command(Side::Run, Some(dir), &need("redis-server")?);
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
    pair.server.wait_listening(&mut server, PORT + 2);
    let watch = c.watch(&[PORT + 2]);
    let mut command = pair.client.command(Side::Run, Some(dir), &need("redis-benchmark")?);
    let args = ["-h", pair.address, "-p", &port, "-n", "50000", "-t", REDIS_KINDS];
    expect_rates(c, command.args(args));
    Ok(watch)
}

fn curl(c: &Case, pair: &Pair, dir: &Path, file: &Path) -> Result<Watch, Skip> {
    let port = PORT + 3;
    let conf = nginx_conf(c, &port.to_string());
    let mut command = pair.server.command(Side::Run, Some(dir), &need("nginx")?);
    let mut server = c.start("nginx", command.arg("-p").arg(c.dir()).arg("-c").arg(&conf));
    pair.server.wait_listening(&mut server, port);
    let watch = c.watch(&[port]);
    let url = format!("http://{}:{port}/big", pair.address);
    let mut command = pair.client.command(Side::Run, Some(dir), &need("curl")?);
    let mut client = c.start("curl", command.args(["-sS", "--fail", &url]));
    expect_fetched(&mut client, file);
    fs::remove_file(client.stdout_path()).expect("what came");
    Ok(watch)
}

/// The buffers between the two ends are always full, and the one that reads sends nothing.
#[test]
fn a_slow_reader() {
    case("containers-slow", |c| {
        let (pair, dir) = (Pair::new(c, false)?, directory(c));
        // Where the answers of a busy end come too late again and again, its connection stays TCP for
        // good, and only another one can be upgraded.
        for _ in 0..TRIES {
            let mut command = pair.server.command(Side::Run, Some(&dir), &need("python3")?);
            let mut source = c.start("source", command.args(["-c", SOURCE, &PORT.to_string()]));
            pair.server.wait_listening(&mut source, PORT);
            let mut command = pair.client.command(Side::Run, Some(&dir), &need("python3")?);
            command.args(["-c", SINK, pair.address, &PORT.to_string()]);
            let _sink = c.start("sink", &mut command);
            let end = Deadline::within(secs(20));
            while !end.is_over() {
                if system_tests::plain() || upgraded(&connections(&[PORT])) == 2 {
                    return Ok(());
                }
                sleep(millis(40));
            }
        }
        panic!("a slow reader and its source did not find each other in {TRIES} tries");
    });
}

/// Three programs over routed addresses, and over addresses that both ends see otherwise.
#[test]
fn programs() {
    for (nat, name) in [(false, "containers-routed"), (true, "containers-nat")] {
        case(name, |c| {
            let (pair, dir) = (Pair::new(c, nat)?, directory(c));
            expect_streams(c, &pair, &dir, (&[], 2))?;
            expect_streams(c, &pair, &dir, (&["--bidir", "-P", "2"], 8))?;
            expect_upgrades("redis", 50, |_| redis(c, &pair, &dir))?;
            let file = gibibyte(c);
            expect_upgrades("curl", 2, |_| curl(c, &pair, &dir, &file))
        });
    }
}

/// NAT that changes the client's port too: the name does not lead there, the bytes do.
#[test]
fn ports_that_change_on_the_way() {
    case("containers-ports", |c| {
        let (mut pair, dir) = (Pair::new(c, true)?, directory(c));
        pair.translate("masquerade fully-random")?;
        expect_streams(c, &pair, &dir, (&[], 2))?;
        expect_meeting(c, &pair, &dir)
    });
}

/// Two clients and two servers, all with the same addresses, ports and bytes, at the same time.
#[test]
fn the_same_addresses_at_the_same_time() {
    case("containers-twins", |c| {
        let dir = directory(c);
        let pairs = [Pair::new(c, false)?, Pair::new(c, false)?];
        let mut both = 0;
        // Not all of them find each other, fewer on a busy machine, but it is of those who do that
        // the test speaks.
        for own in 5000..5032 {
            if own >= 5008 && both >= 16 {
                break;
            }
            let mut servers = Vec::new();
            let mut clients = Vec::new();
            for (pair, name) in pairs.iter().zip(["one", "two"]) {
                servers.push(serve(c, pair, Side::Run, Some(&dir), name)?);
                clients.push(dial(c, pair, Side::Run, Some(&dir), own, 600)?);
            }
            let (seen, who) = talk(&mut clients);
            assert_eq!(who, ["one", "two"], "a client was led to the other's server");
            servers.iter_mut().for_each(|server| drop(server.success(secs(60))));
            both += upgraded(&seen);
        }
        assert!(both >= 16, "only {both} of 128 ends were upgraded");
        Ok(())
    });
}

/// The client of one pair and the server of the other are under Shortwire, and their peers are not:
/// they look alike in all that the addresses and bytes tell, and are none.
#[test]
fn halves_of_two_pairs_do_not_meet() {
    case("containers-halves", |c| {
        let dir = directory(c);
        let pairs = [Pair::new(c, false)?, Pair::new(c, false)?];
        for own in 5000..5008 {
            let mut servers = Vec::new();
            let mut clients = Vec::new();
            for (i, (pair, name)) in pairs.iter().zip(["one", "two"]).enumerate() {
                let (server, client) =
                    if i == 0 { (Side::Plain, Side::Run) } else { (Side::Run, Side::Plain) };
                servers.push(serve(c, pair, server, Some(&dir), name)?);
                clients.push(dial(c, pair, client, Some(&dir), own, 600)?);
            }
            let (seen, who) = talk(&mut clients);
            assert_eq!((upgraded(&seen), who), (0, vec!["one".to_string(), "two".to_string()]));
            servers.iter_mut().for_each(|server| drop(server.success(secs(60))));
        }
        Ok(())
    });
}

/// Listens in the directory under the port of the client (MODE answers, or says nothing), and calls
/// whoever listens there. Prints what it was told and given.
const STRANGER: &str = "
import array, os, select, socket, sys
mode, folder, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
def junk(n): return os.urandom(n)
heard = {}
def take(c):
    try: said, control, _, _ = c.recvmsg(4096, 4096)
    except BlockingIOError: return True
    except OSError: return False
    if not said: return False
    heard['descriptors'] = heard.get('descriptors', 0) + len(control)
    heard[said[:8]] = heard.get(said[:8], 0) + 1
    return True
def talk(c):
    if mode == 'silent': return
    try:
        if mode == 'garbage': c.send(junk(int.from_bytes(junk(1), 'big') + 1))
        if mode == 'flood':
            while True: c.send(b'SHORTWP1' + bytes([0,0,0,4]) + junk(36))
        if mode == 'convinced':
            c.send(b'SHORTWP1' + bytes([0,0,0,1, 0,0,0,0]) + bytes(16) + bytes([0,0,0,0,0,0,1,0]) * 2)
            c.send(b'SHORTWP1' + bytes([0,0,0,2, 0,0,0,0]) + junk(32))
            c.send(b'SHORTWP1' + bytes([0,0,0,5]) + bytes(36))
        if mode == 'descriptors':
            c.sendmsg([b'SHORTWP1' + bytes([0,0,0,1, 0,0,0,1]) + junk(32)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1]))])
    except OSError: pass
listeners = []
for i in range(3):
    l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    l.setblocking(False)
    l.bind('%s/%04x-0000-0000000%d' % (folder, port, i + 1))
    l.listen(8)
    listeners.append(l)
print('ready', flush=True)
open_, called = [], set()
# Until the test says a word, or is gone.
while not select.select([0], [], [], 0.002)[0]:
    for l in listeners:
        try: c = l.accept()[0]
        except OSError: continue
        heard['came'] = heard.get('came', 0) + 1
        c.setblocking(False)
        open_.append(c)
    for name in os.listdir(folder):
        if name in called or name[10:17] == '0000000': continue
        c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        c.setblocking(False)
        # Who has its name may not listen yet.
        try: c.connect(folder + '/' + name)
        except OSError: continue
        called.add(name)
        heard['called'] = heard.get('called', 0) + 1
        print('called', name, flush=True)
        open_.append(c)
    for c in open_: talk(c)
    open_ = [c for c in open_ if take(c)]
for l in listeners: os.unlink(l.getsockname())
print('heard', heard, flush=True)
";

fn stranger(c: &Case, by: &[&str], mode: &str, dir: &Path) -> Result<Proc, Skip> {
    let python = common_python()?;
    let mut command = Command::new(by.first().map_or(python.as_os_str(), |by| by.as_ref()));
    command.args(by.iter().skip(1));
    if !by.is_empty() {
        command.arg(&python);
    }
    let mut stranger =
        c.start("stranger", command.args(["-c", STRANGER, mode]).arg(dir).arg("5000"));
    stranger.wait_line("ready", secs(60));
    Ok(stranger)
}

fn ended(mut stranger: Proc) -> String {
    stranger.say("\n");
    stranger.wait_line("heard", secs(60))
}

/// Somebody of another user is there too, under the right name: it gets no word of the proof and no
/// descriptor.
#[test]
fn another_user_is_refused() {
    case("containers-user", |c| {
        let (pair, dir, setpriv) = (Pair::new(c, false)?, directory(c), need("setpriv")?);
        let setpriv = setpriv.to_str().expect("its path");
        // The rights of the sockets keep others out already: this one may pass over them.
        let rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"];
        let by =
            [setpriv, "--reuid=12345", "--regid=12345", "--clear-groups", rights[0], rights[1]];
        let stranger = stranger(c, &by, "garbage", &dir)?;
        let (mut found, mut calls) = (0, 0);
        for _ in 0..TRIES {
            let mut server = serve(c, &pair, Side::Run, Some(&dir), "server")?;
            // Late, so that the stranger calls the server first, if it is given time for it.
            let client = dial_after(c, &pair, (Side::Run, Some(&dir)), 5000, 3000, 1000)?;
            let (seen, who) = talk(&mut [client]);
            assert_eq!(who, ["server"]);
            server.success(secs(60));
            found = upgraded(&seen);
            let before = std::mem::replace(&mut calls, stranger.stdout().matches("called").count());
            if found == 2 && calls > before {
                break;
            }
        }
        let heard = ended(stranger);
        assert!(
            heard.contains("'called'") && !heard.contains("'came'"),
            "the stranger was called, or let in: {heard}"
        );
        assert!(!heard.contains("SHORTW"), "told the stranger: {heard}");
        assert!(
            !heard.contains("'descriptors'") || heard.contains("'descriptors': 0"),
            "gave to the stranger: {heard}"
        );
        assert_eq!(found, 2, "the ends did not find each other beside the stranger: {heard}");
        Ok(())
    });
}

/// Those of the same user who say something else than the truth, or nothing, cost no byte, and no
/// descriptor stays.
#[test]
fn liars() {
    case("containers-liars", |c| {
        let pair = Pair::new(c, false)?;
        for mode in ["silent", "garbage", "flood", "convinced", "descriptors"] {
            let dir = directory(c);
            // A liar that is given no time while the others talk meets nobody.
            let mut met = false;
            for _ in 0..TRIES {
                let stranger = stranger(c, &[], mode, &dir)?;
                // It looks for the client late: that meets the liar first.
                let mut server = serve_after(c, &pair, 60, &dir)?;
                let mut clients = [dial(c, &pair, Side::Run, Some(&dir), 5000, 3000)?];
                let (seen, who) = talk(&mut clients);
                assert_eq!(who, ["server"], "{mode}");
                // It may keep them on TCP; it may not stand between them.
                assert_ne!(upgraded(&seen), 1, "{mode}: one end believes in another");
                server.success(secs(60));
                let heard = ended(stranger);
                until("names are taken away", secs(60), || is_empty(&dir));
                met = heard.contains("'came'") || heard.contains("'called'");
                if met {
                    break;
                }
            }
            assert!(met, "{mode}: met nobody in {TRIES} tries");
        }
        Ok(())
    });
}

/// TCP, and both ends say why.
fn stays_tcp(c: &Case, pair: &Pair, dir: &Path, why: &str) -> Result<(), Skip> {
    let seen = one_talk(c, pair, dir, 100)?;
    assert_eq!(upgraded(&seen), 0, "{}", dir.display());
    let states: Vec<_> = seen.iter().map(|c| c.state.as_str()).collect();
    assert!(
        seen.len() == 2 && states.iter().any(|state| state.contains(why)),
        "{}: {states:?}",
        dir.display()
    );
    Ok(())
}

#[test]
fn directories_that_cannot_be_used() {
    case("containers-directories", |c| {
        let pair = Pair::new(c, false)?;
        let why = "rendezvous directory cannot be used";
        let path = |name: &str| c.dir().join(name);
        stays_tcp(c, &pair, &path("missing"), why)?;
        fs::write(path("file"), "").expect("a file");
        stays_tcp(c, &pair, &path("file"), why)?;
        for (name, options) in [("read-only", "ro"), ("full", "size=4k,nr_inodes=1")] {
            fs::create_dir(path(name)).expect("a directory");
            for side in [&pair.client, &pair.server] {
                side.sh(&format!("mount -t tmpfs -o {options} none {}", path(name).display()));
            }
            stays_tcp(c, &pair, &path(name), why)?;
        }
        // Each sees a directory of its own: nobody comes.
        let apart = path("apart");
        fs::create_dir(&apart).expect("a directory");
        pair.client.sh(&format!("mount -t tmpfs none {}", apart.display()));
        stays_tcp(c, &pair, &apart, "peer did not signal SMC")?;
        // Another user's, in which one may do nothing.
        let (closed, setpriv) = (path("closed"), need("setpriv")?);
        fs::create_dir(&closed).expect("a directory");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("its rights");
        let by = [
            setpriv.to_str().expect("its path"),
            "--reuid=12345",
            "--regid=12345",
            "--clear-groups",
        ];
        let python = common_python()?;
        let mut command = pair.server.wrapped(&by, Side::Run, Some(&closed), &python);
        let mut server =
            c.start("server", command.args(["-c", SERVER, &PORT.to_string(), "server", "1"]));
        pair.server.wait_listening(&mut server, PORT);
        let mut command = pair.client.wrapped(&by, Side::Run, Some(&closed), &python);
        let mut client = c.start(
            "client",
            command.args(["-c", CLIENT, pair.address, &PORT.to_string(), "5000", "100"]),
        );
        client.wait_line("connected", secs(60));
        let (seen, who) = talk(&mut [client]);
        assert_eq!((upgraded(&seen), who), (0, vec!["server".to_string()]));
        assert!(
            seen.iter().any(|c| c.state.contains(why)),
            "{:?}",
            seen.iter().map(|c| &c.state).collect::<Vec<_>>()
        );
        server.success(secs(60));
        Ok(())
    });
}

/// What a killed process leaves is removed by the next ones, once it is old; what somebody listens
/// on is not.
#[test]
fn stale_sockets_are_swept() {
    case("containers-stale", |c| {
        let (pair, dir) = (Pair::new(c, false)?, directory(c));
        // A server that waits to be found, and is killed.
        let server = serve(c, &pair, Side::Run, Some(&dir), "server")?;
        let mut client = dial(c, &pair, Side::Plain, None, 5001, 100)?;
        client.say("\n");
        client.wait_line("asked", secs(60));
        until("the server listens in the directory", secs(60), || !is_empty(&dir));
        drop((server, client));
        let stale: Vec<PathBuf> =
            fs::read_dir(&dir).expect("the directory").flatten().map(|e| e.path()).collect();
        assert_eq!(stale.len(), 1, "{stale:?}");
        let old = SystemTime::now() - secs(60);
        let touch = |path: &Path| {
            let seconds =
                old.duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs().to_string();
            let done =
                Command::new("touch").args(["-h", "-d", &format!("@{seconds}")]).arg(path).status();
            assert!(done.expect("touch").success());
        };
        touch(&stale[0]);
        // One that is old too, but held.
        let held = dir.join("0001-0000-00000001");
        let _listener = std::os::unix::net::UnixListener::bind(&held).expect("a socket");
        touch(&held);
        expect_meeting(c, &pair, &dir)?;
        assert!(!stale[0].exists(), "the killed server's socket is still there");
        assert!(held.exists(), "a socket was removed that somebody holds");
        fs::remove_file(&held).expect("its end");
        assert!(is_empty(&dir));
        Ok(())
    });
}

/// One end is killed after the upgrade: the other sees what TCP would show, and the directory is
/// clean.
#[test]
fn a_killed_end_is_noticed() {
    case("containers-killed", |c| {
        let (pair, dir) = (Pair::new(c, false)?, directory(c));
        let mut met = None;
        for _ in 0..TRIES {
            let mut server = serve(c, &pair, Side::Run, Some(&dir), "server")?;
            let mut client = dial(c, &pair, Side::Run, Some(&dir), 5000, 400)?;
            client.say("\n");
            client.wait_line("asked", secs(60));
            if upgraded(&connections(&[PORT])) == 2 {
                met = Some((server, client));
                break;
            }
            // Ends that did not find each other end well: the name of one that is killed while it
            // waits to be found would stay in the directory.
            client.say("\n");
            client.success(secs(60));
            server.success(secs(60));
        }
        let (server, mut client) = met.expect("two ends that find each other");
        drop(server);
        client.say("\n");
        // An empty answer: the end of the stream; or a reset.
        client.wait(secs(60));
        assert!(is_empty(&dir));
        Ok(())
    });
}

/// The worked example says of itself that it went well.
#[test]
fn example() {
    case("containers-example", |c| {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containers/namespaces.sh");
        for tool in ["unshare", "nsenter", "ip", "iperf3"] {
            need(tool)?;
        }
        if !rustix::process::geteuid().is_root() {
            return system_tests::skip("needs root, to make namespaces");
        }
        let is_upgraded = |line: &&str| line.contains("iperf3") && line.ends_with("SMCD");
        let mut said = String::new();
        for _ in 0..TRIES {
            let mut command = Command::new("sh");
            command.arg(&script).env("SHORTWIRE", system_tests::shortwire());
            said = c.start("example", &mut command).success(secs(120));
            if system_tests::plain() || said.lines().filter(is_upgraded).count() >= 2 {
                return Ok(());
            }
        }
        panic!("{said}");
    });
}

/// Reads a manifest: every mount is of a volume that is declared, and whoever is told of a
/// directory has it mounted.
const CHECK: &str = "
import sys
try: import yaml
except ImportError: sys.exit(77)
for path in sys.argv[1:]:
    with open(path) as file: top = yaml.safe_load(file)
    if top.get('kind') == 'Pod':
        pod = top['spec']
        volumes = {v['name'] for v in pod['volumes']}
        parts = pod['initContainers'] + pod['containers']
        mounts = [{m['mountPath']: m['name'] for m in part['volumeMounts']} for part in parts]
        told = [{e['name']: e['value'] for e in part.get('env', [])} for part in parts]
    else:
        volumes = set(top['volumes'])
        parts = list(top['services'].values())
        mounts = [dict(reversed(m.split(':')) for m in part['volumes']) for part in parts]
        told = [part['environment'] for part in parts]
    meeting = [t['SHORTWIRE_RENDEZVOUS'] for t in told if t]
    assert len(meeting) == 2 and len(set(meeting)) == 1, path
    for mount, env in zip(mounts, told):
        assert set(mount.values()) <= volumes, path
        assert not env or env['SHORTWIRE_RENDEZVOUS'] in mount, path
";

#[test]
fn manifests() {
    case("containers-manifests", |c| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containers");
        let files = ["pod.yaml", "compose.yaml"].map(|name| dir.join(name));
        let mut check =
            c.start("check", Command::new(need("python3")?).args(["-c", CHECK]).args(&files));
        match check.wait(secs(60)).code() {
            Some(77) => return system_tests::skip("python3 has no yaml"),
            code => assert_eq!(code, Some(0), "{}", check.stderr()),
        }
        Ok(())
    });
}
