//! Services under the restrictions of their units, each by itself and all together, with clients of
//! another user: they share memory as they would without, or say truly why not. As root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use system_tests::{
    Case, Ports, Proc, Skip, case, compile, connections, need, plain, secs, shortwire, skip,
};

/// Users that the kernel need not know by name.
const SERVER: u32 = 23_401;
const CLIENT: u32 = 23_402;
const NOBODY: u32 = 65_534;

/// Answers each line with as many bytes, until its end; then the next caller.
const ECHO: &str = "
import socket, sys
s = socket.socket()
if sys.argv[2] != 'plain': s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(5)
while True:
    c = s.accept()[0]
    questions = 0
    while True:
        said = c.recv(100)
        if not said: break
        questions += 1
        c.sendall(said)
    print('served' if questions else 'called in vain', flush=True)
";
/// So many questions, then waits for a line.
const ASK: &str = "
import socket, sys, time
c = socket.socket()
if sys.argv[2] == 'shared':
    c.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    c.bind(('127.0.0.1', 0))
c.connect(('127.0.0.1', int(sys.argv[1])))
for i in range(1500):
    if i % 10 == 0: time.sleep(0.005)
    said = b'%050d' % i
    c.sendall(said)
    got = b''
    while len(got) < 50: got += c.recv(50 - len(got))
    assert got == said
print('asked', flush=True)
sys.stdin.readline()
";

/// Asks until there is a line, or the end, at standard input.
const ASK_LONG: &str = "
import select, socket, sys
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
print('port', c.getsockname()[1], flush=True)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    c.sendall(b'a question')
    assert c.recv(100) == b'a question'
";
/// Says under the name of the connection of these two ports that it is the client, and tries to
/// show its port when it is asked to.
const STRANGER: &str = "
import socket, sys, time, select
ports = sorted(int(p) for p in sys.argv[1:3])
client = int(sys.argv[2])
key = lambda p: ('0' * 20 + 'ffff7f000001%04x' % p)
name = '\\0shortwire/2/' + key(ports[0]) + key(ports[1])
c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
while True:
    try: c.connect(name); break
    except ConnectionRefusedError: time.sleep(0.001)
c.sendall(b'a message of no kind')
asked = None
while True:
    if asked:
        for options in ((socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            l = socket.socket()
            for option in options: l.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                l.bind(('127.0.0.1', client))
                l.listen()
                print('listens', flush=True)
                l.accept()[0].sendall(asked)
            except OSError: pass
    if not select.select([c], [], [], 0.001)[0]: continue
    said, control, _, _ = c.recvmsg(4096, 4096)
    if not said or control: print('got', len(control)); break
    if said[:8] == b'SHORTWP1':
        print('asked', flush=True)
        asked = said[16:24][::-1]
    else:
        print('told', said.hex(), flush=True)
        break
";

/// The library and the program that confines others, where every user can read them.
struct Tools {
    confine: PathBuf,
    library: PathBuf,
}

impl Tools {
    fn new(c: &Case) -> Result<Tools, Skip> {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can become another user");
        }
        if plain() {
            return skip("it is about the library");
        }
        let copy = |from: PathBuf, name: &str| {
            let to = c.dir().join(name);
            fs::copy(from, &to).expect("a copy");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("permissions");
            to
        };
        let library = shortwire().with_file_name("libshortwire.so");
        Ok(Tools {
            confine: copy(compile("confine")?, "confine"),
            library: copy(library, "preloaded.so"),
        })
    }

    /// A program of this user under these restrictions, with the library as a unit names it.
    fn command(&self, user: u32, restrictions: &[&str], program: &PathBuf) -> Command {
        let mut command = Command::new(&self.confine);
        command.args(restrictions).arg(format!("user={user}"));
        command.arg(format!("preload={}", self.library.display())).arg("--").arg(program);
        command.env_remove("LD_PRELOAD").env("SHORTWIRE_PORT_PROOF", "1");
        command
    }
}

/// A python that every user may run.
fn python() -> Result<PathBuf, Skip> {
    let path = PathBuf::from("/usr/bin/python3");
    if path.exists() { Ok(path) } else { skip("no /usr/bin/python3 that every user can run") }
}

/// The system calls that Debian's unit of Redis allows: @system-service but for two groups in it.
fn allowed_calls(c: &Case) -> Result<String, Skip> {
    let analyze = need("systemd-analyze")?;
    let group = |name: &str| -> Vec<String> {
        let said = Command::new(&analyze).args(["syscall-filter", name]).output();
        let said = String::from_utf8_lossy(&said.expect("systemd-analyze").stdout).into_owned();
        let names = said.lines().filter(|line| line.starts_with("    ")).map(str::trim);
        names.filter(|name| !name.starts_with('#')).map(String::from).collect()
    };
    fn flat(name: &str, group: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
        let parts = group(name).into_iter();
        parts
            .flat_map(|part| if part.starts_with('@') { flat(&part, group) } else { vec![part] })
            .collect()
    }
    let refused: Vec<String> =
        ["@privileged", "@resources"].iter().flat_map(|name| flat(name, &group)).collect();
    let mut allowed = flat("@system-service", &group);
    allowed.retain(|name| !refused.contains(name));
    if allowed.len() < 100 {
        return skip("systemd-analyze does not list system calls");
    }
    // What starts a service is no part of it.
    allowed.push("execve".into());
    let path = c.dir().join("calls");
    fs::write(&path, allowed.join("\n")).expect("a list");
    Ok(format!("calls={}", path.display()))
}

fn redis(c: &Case, tools: &Tools, port: u16, restrictions: &[&str]) -> Result<Proc, Skip> {
    let mut command = tools.command(SERVER, restrictions, &need("redis-server")?);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--dir"]).arg(c.dir());
    Ok(c.serve("redis-server", port, &mut command))
}

fn memcached(c: &Case, tools: &Tools, port: u16, restrictions: &[&str]) -> Result<Proc, Skip> {
    let mut command = tools.command(SERVER, restrictions, &need("memcached")?);
    command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    Ok(c.serve("memcached", port, &mut command))
}

/// What each restriction of Debian's units of Redis and memcached is here.
fn restrictions(c: &Case) -> Result<Vec<Vec<String>>, Skip> {
    let calls = allowed_calls(c)?;
    let one = ["families=inet,inet6,unix", "users", "mdwe", &calls];
    let mut all: Vec<Vec<String>> = one.iter().map(|one| vec![one.to_string()]).collect();
    all.push(Vec::new());
    all.push(one.map(String::from).to_vec());
    Ok(all)
}

#[test]
fn redis_under_each_restriction_of_its_unit() {
    for ports in [Ports::Low, Ports::High] {
        case("sandbox-redis", |c| {
            let (tools, benchmark) = (Tools::new(c)?, need("redis-benchmark")?);
            // Which end has the lower address is the same to each of them.
            let first = if ports == Ports::Low { 0 } else { 4 };
            for restrictions in restrictions(c)?.split_off(first) {
                let restrictions: Vec<&str> = restrictions.iter().map(String::as_str).collect();
                println!("{restrictions:?}");
                let port = ports.free();
                let mut server = redis(c, &tools, port, &restrictions)?;
                let watch = c.watch(&[port]);
                let mut command = tools.command(CLIENT, &[], &benchmark);
                command.args(["-p", &port.to_string(), "-c", "4", "-n", "100000000", "-t", "get"]);
                let mut client = c.start("redis-benchmark", &mut command);
                watch.wait_smcd(8, secs(60));
                client.signal(rustix::process::Signal::KILL);
                client.wait(secs(60));
                server.stop();
            }
            Ok(())
        });
    }
}

#[test]
fn memcached_under_each_restriction_of_its_unit() {
    case("sandbox-memcached", |c| {
        let (tools, python) = (Tools::new(c)?, python()?);
        for restrictions in restrictions(c)? {
            let restrictions: Vec<&str> = restrictions.iter().map(String::as_str).collect();
            println!("{restrictions:?}");
            let port = Ports::Low.free();
            let mut server = memcached(c, &tools, port, &restrictions)?;
            let watch = c.watch(&[port]);
            let mut command = tools.command(CLIENT, &[], &python);
            command.arg(system_tests::prog("memcached_client.py"));
            let mut client = c.start("client", command.args([&port.to_string(), "2500"]));
            // It stays connected until it has been seen.
            client.wait_line("done", secs(60));
            watch.wait_smcd(8, secs(60));
            client.success(secs(60));
            server.stop();
        }
        Ok(())
    });
}

/// Both ends, and what `ss` says of each when the client has asked.
fn talk(
    c: &Case,
    (server, client): (&mut Command, &mut Command),
    mode: &str,
) -> Vec<(i32, bool, String)> {
    let port = Ports::Low.free();
    let number = port.to_string();
    let mut server = c.serve("server", port, server.args(["-c", ECHO, &number, mode]));
    let mut client = c.start("client", client.args(["-c", ASK, &number, mode]));
    client.wait_line("asked", secs(60));
    let seen = connections(&[port]);
    let of = |pid: i32| {
        let found = seen.iter().find(|c| c.pid == i64::from(pid));
        found.map_or((pid, false, String::new()), |c| (pid, c.smcd, c.state.clone()))
    };
    let both = vec![of(server.pid()), of(client.pid())];
    client.say("\n");
    client.success(secs(60));
    server.wait_line("served", secs(60));
    // Nobody has called the server's port but its client.
    std::thread::sleep(system_tests::millis(20));
    assert!(!server.stdout().contains("in vain"), "{}", server.stdout());
    server.stop();
    both
}

/// A server that runs as `nobody`, which outside of user namespaces is a user as any other.
#[test]
fn nobody_is_a_user() {
    case("sandbox-nobody", |c| {
        let (tools, python) = (Tools::new(c)?, python()?);
        for users in [(NOBODY, CLIENT), (SERVER, NOBODY), (NOBODY, NOBODY)] {
            let mut server = tools.command(users.0, &[], &python);
            let mut client = tools.command(users.1, &[], &python);
            let seen = talk(c, (&mut server, &mut client), "usual");
            assert!(seen.iter().all(|(_, smcd, _)| *smcd), "{users:?}: {seen:?}");
        }
        Ok(())
    });
}

/// Services that open connections to other services, each in a sandbox of its own: the end that
/// opened it finds the other one's owner in /proc, and is known itself by its port.
#[test]
fn a_service_is_another_ones_client() {
    case("sandbox-client", |c| {
        let (tools, python) = (Tools::new(c)?, python()?);
        let unix = "families=inet,inet6,unix";
        for (at_server, at_client, mode) in [
            (&[][..], &[unix][..], "usual"),
            (&[unix], &[unix, "mdwe"], "usual"),
            (&["users", unix], &[unix], "usual"),
            // The port of the client proves nothing; /proc does.
            (&[unix], &[], "shared"),
        ] {
            let mut server = tools.command(SERVER, at_server, &python);
            let mut client = tools.command(CLIENT, at_client, &python);
            let seen = talk(c, (&mut server, &mut client), mode);
            assert!(
                seen.iter().all(|(_, smcd, _)| *smcd),
                "{at_server:?} {at_client:?} {mode}: {seen:?}"
            );
        }
        Ok(())
    });
}

/// Where nobody can say who the other end is: each says why, and what to do is in its words.
#[test]
fn who_cannot_be_known_stays_tcp_and_says_why() {
    case("sandbox-reasons", |c| {
        let (tools, python) = (Tools::new(c)?, python()?);
        let unix = "families=inet,inet6,unix";
        for (at_server, at_client, mode, why) in [
            // It is the port of the end that opened the connection that can be shown.
            (&[][..], &["users"][..], "usual", "no name in the user namespace"),
            (&[], &[unix, "noproc"], "usual", "a sandbox keeps this end from asking"),
            // A client that lets others share its address.
            (&["users"], &[], "shared", "no name in the user namespace"),
            (&[unix, "noproc"], &[], "shared", "a sandbox keeps this end from asking"),
        ] {
            let mut server = tools.command(SERVER, at_server, &python);
            let mut client = tools.command(CLIENT, at_client, &python);
            let seen = talk(c, (&mut server, &mut client), mode);
            assert!(seen.iter().all(|(_, smcd, _)| !smcd), "{seen:?}");
            // The other end has it in the Decline.
            assert!(
                seen.iter().all(|end| end.2.contains(why)),
                "{at_server:?} {at_client:?} {mode}: {seen:?}"
            );
        }
        for at in [0, 1] {
            // Buffers are files of memory, for which the limit on file sizes counts. The table of
            // connections is one, too, so the other end alone is sure to be seen.
            let limits = [&["fsize=1048576"][..], &[]];
            let mut server = tools.command(SERVER, limits[at], &python);
            let mut client = tools.command(CLIENT, limits[1 - at], &python);
            let seen = talk(c, (&mut server, &mut client), "usual");
            assert!(seen[1 - at].2.contains("out of memory"), "{at}: {seen:?}");
            let mut ends = [SERVER, CLIENT].map(|user| tools.command(user, &[], &python));
            ends[at].env("SHORTWIRE_PEER_POLICY", "same-uid");
            let [server, client] = &mut ends;
            let seen = talk(c, (server, client), "usual");
            assert!(
                seen.iter().all(|end| end.2.contains("only one's own is let in")),
                "{at}: {seen:?}"
            );
        }
        Ok(())
    });
}

/// Who is no user here can show no port that is not its own: who takes the client's place under the
/// connection's name is asked in vain, and gets nothing.
#[test]
fn a_stranger_cannot_show_the_port() {
    case("sandbox-stranger", |c| {
        let (tools, python) = (Tools::new(c)?, python()?);
        let port = Ports::Low.free().to_string();
        let number = port.parse().expect("a port");
        let mut server = tools.command(SERVER, &["users"], &python);
        let mut server = c.serve("server", number, server.args(["-c", ECHO, &port, "usual"]));
        let mut client = c.start("client", Command::new(&python).args(["-c", ASK_LONG, &port]));
        let own = client.wait_line("port", secs(60)).replace("port ", "");
        let mut stranger = Command::new(&tools.confine);
        stranger.arg(format!("user={}", CLIENT + 1)).arg("--").arg(&python);
        let said = c.start("stranger", stranger.args(["-c", STRANGER, &port, &own]));
        let said = { said }.success(secs(60));
        client.success(secs(60));
        server.stop();
        assert!(said.starts_with("asked\ntold ") && said.contains("09991021"), "{said}");
        Ok(())
    });
}
