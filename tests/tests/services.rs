//! Services as Cilium makes them: a program of the kernel leads connect() to one of two servers, and another lies in
//! getpeername(). Connections are in shared memory at both ends or TCP at both, and each question is answered by the server
//! that the kernel chose for its connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::container::Pair;
use system_tests::{
    Case, Connection, Ports, Proc, Side, Skip, case, compile, connections, plain, python, secs,
    skip,
};

/// Of two containers, until they have met.
const TRIES: usize = 5;

/// Answers each question with its name, the other end's port and the question.
const SERVER: &str = "
import socket, sys, threading
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(500)
def serve(c, peer):
    while True:
        said = c.recv(32, socket.MSG_WAITALL)
        if len(said) < 32: break
        c.sendall(f'{sys.argv[3]} {peer} {said.decode().strip()}'.encode().ljust(64))
    c.close()
while True:
    c, (_, peer) = s.accept()
    threading.Thread(target=serve, args=(c, peer), daemon=True).start()
";
/// Connections to a service, several at a time, each with questions that only its own server can answer so; then eight that stay.
/// The first answer, which came by TCP, says which server it is.
const CLIENT: &str = "
import socket, sys, threading
address, port, count, rounds = sys.argv[1], *map(int, sys.argv[2:5])
seen, wrong, lock = {}, [], threading.Lock()
stay, ended = threading.Barrier(9), threading.Event()
def talk(rounds, stays):
    c = socket.create_connection((address, port))
    own, first = c.getsockname()[1], None
    if c.getpeername() != (address, port): wrong.append(c.getpeername())
    for i in range(rounds):
        question = f'{own} {i}'
        c.sendall(question.encode().ljust(32))
        name, answer = c.recv(64, socket.MSG_WAITALL).decode().strip().split(' ', 1)
        first = first or name
        if (name, answer) != (first, f'{own} {question}'): wrong.append((first, name, answer, question))
    with lock: seen[first] = seen.get(first, 0) + 1
    if stays:
        stay.wait()
        ended.wait()
    c.close()
for _ in range(count // 4):
    threads = [threading.Thread(target=talk, args=(rounds, False)) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
for _ in range(8): threading.Thread(target=talk, args=(rounds * 40, True), daemon=True).start()
stay.wait()
assert not wrong, wrong[:5]
print('talked', *(f'{name}={n}' for name, n in sorted(seen.items())), flush=True)
sys.stdin.readline()
ended.set()
";

/// A control group of this test, which must be empty at its end.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Group, Skip> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let place = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let place = fields.next()?;
            (fields.next() == Some("cgroup2")).then(|| PathBuf::from(place))
        });
        let Some(place) = place else { return skip("no version 2 of control groups is mounted") };
        // Process numbers are those of a namespace, and others run here, too.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let group = place.join(format!("swt-{}-{}", now.tv_sec, now.tv_nsec));
        match fs::create_dir(&group) {
            Ok(()) => Ok(Group(group)),
            Err(why) => skip(format!("no control group can be made: {why}")),
        }
    }

    /// What puts a program into it.
    fn enter(&self) -> [String; 4] {
        let script = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", self.0.display());
        ["sh".into(), "-c".into(), script, "sh".into()]
    }

    fn command(&self, side: Side, program: &Path) -> Command {
        let inner = side.command(program);
        let [shell, rest @ ..] = self.enter();
        let mut command = Command::new(shell);
        command.args(rest).arg(inner.get_program()).args(inner.get_args()).env_remove("LD_PRELOAD");
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(system_tests::millis(10));
        }
        eprintln!("left behind: {}", self.0.display());
    }
}

/// The programs of the kernel, in force while it runs.
fn service(c: &Case, group: &Group, service: &str, backends: [String; 2]) -> Result<Proc, Skip> {
    let mut command = Command::new(compile("service.c")?);
    let mut service = c.start("service", command.arg(&group.0).arg(service).args(backends));
    loop {
        let said = service.stdout();
        if said.starts_with("ready") {
            return Ok(service);
        }
        if let Some(status) = service.poll() {
            match status.code() {
                Some(77) => return skip(service.stdout().trim().to_string()),
                _ => panic!("service: {status} {}", service.stderr()),
            }
        }
        std::thread::sleep(system_tests::millis(5));
    }
}

/// Lets the client talk, and counts ends in shared memory of the eight connections that stay: each has its other end.
fn talk(client: &mut Proc, service: &mut Proc, ports: &[u16]) -> usize {
    let said = client.wait_line("talked", secs(180));
    assert!(said.contains("one=") && said.contains("two="), "one server had all: {said}");
    let ends: Vec<_> = connections(ports)
        .into_iter()
        .filter(|end| end.smcd && end.state.starts_with("ACTIVE"))
        .collect();
    let is_server = |end: &&Connection| {
        let port = end.local.rsplit(':').next().and_then(|port| port.parse().ok());
        port.is_some_and(|port| ports.contains(&port))
    };
    let of_servers = ends.iter().filter(is_server).count();
    let told: Vec<_> = ends.iter().map(|end| format!("{} -> {}", end.local, end.peer)).collect();
    assert_eq!(ends.len(), 2 * of_servers, "one end believes in another: {told:#?}");
    client.say("\n");
    client.success(secs(60));
    service.wait(secs(60));
    let counted = service.wait_line("counted", secs(20));
    let counts: Vec<u64> = counted.split(' ').skip(1).filter_map(|n| n.parse().ok()).collect();
    assert!(
        counts.len() == 3 && counts.iter().all(|&count| count > 0),
        "no program ran: {counted}"
    );
    ends.len()
}

/// Servers and client in one network namespace. Only the kernel knows the other end's address, so
/// that this is TCP.
fn in_one_namespace(name: &str, address: &str, decoy: bool, servers_too: bool) {
    case(name, |c| {
        let (group, python) = (Group::new()?, python()?);
        let [port, one, two] = [Ports::Low, Ports::Low, Ports::Low].map(|kind| kind.free());
        let backends = [format!("127.0.0.2:{one}"), format!("127.0.0.3:{two}")];
        let mut service = service(c, &group, &format!("{address}:{port}"), backends)?;
        let serve = |address: &str, port: u16, name: &str| {
            let mut command = match servers_too {
                true => group.command(Side::Run, &python),
                false => Side::Run.command(&python),
            };
            c.serve(name, port, command.args(["-c", SERVER, address, &port.to_string(), name]))
        };
        let mut servers = vec![serve("127.0.0.2", one, "one"), serve("127.0.0.3", two, "two")];
        if decoy {
            servers.push(serve(address, port, "decoy"));
        }
        let mut command = group.command(Side::Run, &python);
        let mut client = c
            .start("client", command.args(["-c", CLIENT, address, &port.to_string(), "160", "12"]));
        talk(&mut client, &mut service, &[one, two, port]);
        drop(servers);
        Ok(())
    });
}

#[test]
fn a_service_elsewhere() {
    in_one_namespace("services-elsewhere", "10.96.0.1", false, false);
}

#[test]
fn a_service_whose_servers_are_under_the_programs_too() {
    in_one_namespace("services-all", "10.96.0.1", false, true);
}

/// At the service's address somebody listens, whom nobody is led to.
#[test]
fn a_service_at_an_address_of_this_machine() {
    in_one_namespace("services-decoy", "127.0.0.9", true, false);
}

/// Two pods: they meet in a directory, where addresses do not matter.
#[test]
fn between_containers() {
    case("services-containers", |c| {
        let (group, python) = (Group::new()?, python()?);
        let pair = Pair::new(c, false)?;
        let dir = c.dir().join("meet");
        fs::create_dir(&dir).expect("a directory to meet in");
        // Where the answers of a busy end come too late again and again, its connections stay TCP.
        for _ in 0..TRIES {
            let backends = [7001, 7002].map(|port| format!("{}:{port}", pair.address));
            let mut service = service(c, &group, "10.96.0.1:80", backends)?;
            let mut servers = Vec::new();
            for (name, port) in [("one", 7001), ("two", 7002)] {
                let mut command = pair.server.command(Side::Run, Some(&dir), &python);
                let mut server =
                    c.start(name, command.args(["-c", SERVER, "0.0.0.0", &port.to_string(), name]));
                pair.server.wait_listening(&mut server, port);
                servers.push(server);
            }
            let enter = group.enter();
            let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
            let mut command = pair.client.wrapped(&enter, Side::Run, Some(&dir), &python);
            let mut client =
                c.start("client", command.args(["-c", CLIENT, "10.96.0.1", "80", "16", "12"]));
            let upgraded = talk(&mut client, &mut service, &[7001, 7002]);
            drop(servers);
            if plain() || upgraded >= 2 {
                return Ok(());
            }
        }
        panic!("nobody met in the directory in {TRIES} tries");
    });
}
