//! Configuration files: rules keep programs and connections on TCP, what goes before what, and
//! files that cannot be used break nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use system_tests::{
    Case, Deadline, Ports, Proc, Side, Skip, case, millis, plain, python, secs, skip,
};

const SMCD: &str = "SMCD";
const RULE: u64 = 0x0999_1030;
const BAD_CONFIG: u64 = 0x0999_1031;
const OFF: u64 = 0x0999_1000;

/// Echoes until the end.
const SERVER: &str = "
import socket, sys, threading
def serve(c):
    while True:
        block = c.recv(100)
        if not block: break
        c.sendall(block)
def listen(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('127.0.0.1', port))
    s.listen(5)
    return s
def accept(s):
    while True:
        threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
# The first one comes last: clients are started when it listens.
all = [listen(int(p)) for p in reversed(sys.argv[1:]) if p.isdigit()]
for s in all[:-1]: threading.Thread(target=accept, args=(s,), daemon=True).start()
accept(all[-1])
";
/// Some echoes on each of its connections, then it waits to be looked at.
const CLIENT: &str = "
import socket, sys
all = [socket.create_connection(('127.0.0.1', int(p))) for p in sys.argv[1:] if p.isdigit()]
for i in range(200):
    for c in all:
        c.sendall(b'x' * 100)
        assert c.recv(100, socket.MSG_WAITALL) == b'x' * 100
print('done', flush=True)
sys.stdin.readline()
";

struct Pair {
    server: Proc,
    client: Proc,
    ports: [u16; 2],
}

/// How the server, or the client, is told.
#[derive(Default)]
struct Told<'a> {
    file: Option<&'a Path>,
    variables: &'a [(&'a str, &'a str)],
    args: &'a [&'a str],
}

fn pair(c: &Case, server: &Told, client: &Told) -> Result<Pair, Skip> {
    let ports = [Ports::Low.free(), Ports::High.free()];
    let python = python()?;
    let start = |script, told: &Told| {
        let mut command = Side::Run.command(&python);
        command.args(["-c", script]).args(ports.map(|port| port.to_string())).args(told.args);
        command.envs(told.variables.iter().copied());
        if let Some(file) = told.file {
            command.env("SHORTWIRE_CONFIG", file);
        }
        command
    };
    let server = c.serve("server", ports[0], &mut start(SERVER, server));
    let mut client = c.start("client", &mut start(CLIENT, client));
    client.wait_line("done", secs(60));
    Ok(Pair { server, client, ports })
}

impl Pair {
    /// Mode, or reason, of the connection to one of the ports, at the client and at the server.
    fn seen(&self, port: u16) -> [String; 2] {
        let rows = json(&["ss", "--json"]);
        let rows = rows["connections"].as_array().expect("a list");
        let at = |end: &str, pid: i32| {
            let address = format!("127.0.0.1:{port}");
            let own = rows.iter().find(|row| {
                row[end] == address.as_str()
                    && row["mode"] != "LISTEN"
                    && row["programs"][0]["pid"] == pid
            });
            let own = own.unwrap_or_else(|| panic!("no row for {address}: {rows:#?}"));
            if own["mode"] == SMCD { SMCD.to_string() } else { own["reason"].to_string() }
        };
        [at("peer", self.client.pid()), at("local", self.server.pid())]
    }

    /// Both ports at the client, once they are that.
    fn expect(&self, what: [&str; 2]) {
        let end = Deadline::within(secs(60));
        loop {
            let seen = self.ports.map(|port| self.seen(port)[0].clone());
            if seen == what {
                return;
            }
            assert!(!end.is_over(), "{seen:?}, not {what:?}");
            std::thread::sleep(millis(20));
        }
    }

    fn stop(mut self) {
        self.client.say("\n");
        self.client.success(secs(60));
        self.server.stop();
    }
}

fn shortwire(args: &[&str]) -> Command {
    let mut command = Command::new(system_tests::shortwire());
    command.args(args).env_remove("LD_PRELOAD");
    command
}

fn json(args: &[&str]) -> Value {
    let said = shortwire(args).output().expect("shortwire");
    serde_json::from_slice(&said.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {said:?}"))
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part)).concat()
}

fn written(c: &Case, name: &str, text: &str) -> PathBuf {
    let path = c.dir().join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("its mode");
    path
}

#[test]
fn rules_by_program_arguments_user_port_and_direction() {
    case("policy-rules", |c| {
        if plain() {
            return skip("without the library there are no rules");
        }
        let rule = RULE.to_string();
        let tcp = [rule.as_str(), rule.as_str()];
        let both = [SMCD, SMCD];
        for (said, expected) in [
            ("tcp", tcp),
            ("tcp program=python3*", tcp),
            ("tcp program=redis-server", both),
            ("tcp args=\"*--please tcp\"", tcp),
            ("tcp args=\"*--please share\"", both),
            ("tcp user=0", tcp),
            ("tcp user=4711", both),
            ("tcp peer=127.0.0.0/8", tcp),
            ("tcp peer=10.0.0.0/8", both),
            ("tcp direction=out", tcp),
            ("tcp direction=in", both),
            ("share program=python3*\ntcp", both),
            ("same-uid", both),
        ] {
            let file = written(c, "rules.conf", said);
            let args = &["--please", "tcp"];
            let client = Told { file: Some(&file), args, ..Told::default() };
            let pair = pair(c, &Told::default(), &client)?;
            println!("{said}");
            pair.expect(expected);
            pair.stop();
        }
        Ok(())
    });
}

/// One port stays TCP and the other does not, by a rule of the client's and by one of the server's;
/// both ends tell.
#[test]
fn rules_by_port_part_the_connections_of_one_program() {
    case("policy-ports", |c| {
        if plain() {
            return skip("without the library there are no rules");
        }
        for at_server in [false, true] {
            let python = python()?;
            let ports = [Ports::Low.free(), Ports::High.free()];
            let said = match at_server {
                true => format!("tcp local=:{} direction=in", ports[0]),
                false => format!("tcp port={}", ports[0]),
            };
            let file = written(c, "ports.conf", &said);
            let start = |script, told: bool| {
                let mut command = Side::Run.command(&python);
                command.args(["-c", script]).args(ports.map(|port| port.to_string()));
                if told {
                    command.env("SHORTWIRE_CONFIG", &file);
                }
                command
            };
            let server = c.serve("server", ports[0], &mut start(SERVER, at_server));
            let mut client = c.start("client", &mut start(CLIENT, !at_server));
            client.wait_line("done", secs(60));
            let pair = Pair { server, client, ports };
            let end = Deadline::within(secs(60));
            loop {
                let [first, second] = ports.map(|port| pair.seen(port));
                let told = first[usize::from(at_server)].clone();
                if told == RULE.to_string()
                    && second == [SMCD, SMCD]
                    && !first.contains(&SMCD.into())
                {
                    break;
                }
                assert!(!end.is_over(), "{first:?} {second:?}");
                std::thread::sleep(millis(20));
            }
            pair.stop();
        }
        Ok(())
    });
}

#[test]
fn what_goes_before_what() {
    case("policy-order", |c| {
        if plain() {
            return skip("without the library there are no rules");
        }
        let rule = RULE.to_string();
        let off = OFF.to_string();
        let tcp = written(c, "tcp.conf", "tcp\n");
        let share = written(c, "share.conf", "share\n");
        let set = written(c, "set.conf", "peer-policy = off\n");
        let home = c.dir().join("home");
        fs::create_dir_all(&home).expect("a folder");
        fs::copy(&tcp, home.join("shortwire.conf")).expect("a file");
        let home = home.to_str().expect("a name in ASCII");
        for (file, variables, expected) in [
            // The environment goes before rules and settings.
            (Some(&tcp), &[("SHORTWIRE_PEER_POLICY", "verified")][..], SMCD),
            (Some(&share), &[("SHORTWIRE_DISABLE", "1")], off.as_str()),
            (Some(&set), &[], off.as_str()),
            (Some(&set), &[("SHORTWIRE_PEER_POLICY", "verified")], SMCD),
            // The user's own file, and the named one before it.
            (None, &[("XDG_CONFIG_HOME", home)], rule.as_str()),
            (Some(&share), &[("XDG_CONFIG_HOME", home)], SMCD),
        ] {
            let file = file.map(PathBuf::as_path);
            println!("{file:?} {variables:?}");
            let pair = pair(c, &Told::default(), &Told { file, variables, args: &[] })?;
            pair.expect([expected; 2]);
            pair.stop();
        }
        Ok(())
    });
}

/// Programs run as ever, on TCP; `run`, `ss`, `doctor` and `config check` say why.
#[test]
fn files_that_cannot_be_used_break_nothing() {
    case("policy-broken", |c| {
        if plain() {
            return skip("without the library there are no rules");
        }
        let damaged = written(c, "damaged.conf", "spin = 20\nshare port=\n");
        let open = written(c, "open.conf", "share\n");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).expect("its mode");
        let long = written(c, "long.conf", &"#\n".repeat(40 << 10));
        let missing = c.dir().join("missing.conf");
        let bad = BAD_CONFIG.to_string();
        for (file, told) in [
            (&damaged, "damaged.conf:2: port cannot be \"\": give a port"),
            (&open, "others can write it: chmod go-w it"),
            (&long, "is longer than 64 KiB"),
            (&missing, "there is no such file"),
        ] {
            let client = Told { file: Some(file), ..Told::default() };
            let pair = pair(c, &Told::default(), &client)?;
            pair.expect([&bad; 2]);
            let said = pair.client.stderr();
            assert!(said.contains(told) && said.contains("stays TCP"), "run: {said}");
            let said = shortwire(&["doctor", &pair.client.pid().to_string()]).output();
            let said = said.expect("shortwire");
            assert_eq!(said.status.code(), Some(1), "{said:?}");
            assert!(text(&said).contains("configuration file cannot be used"), "{said:?}");
            pair.stop();
            let said = shortwire(&["config", "check"]).env("SHORTWIRE_CONFIG", file).output();
            let said = said.expect("shortwire");
            assert!(said.status.code() == Some(1) && text(&said).contains(told), "{said:?}");
        }
        // What is preloaded without `run` says nothing on standard error, which is the program's.
        let library = system_tests::shortwire().with_file_name("libshortwire.so");
        let said = Command::new("true")
            .env("LD_PRELOAD", library)
            .env("SHORTWIRE_CONFIG", &damaged)
            .output()
            .expect("true");
        assert!(said.status.success() && text(&said).is_empty(), "{said:?}");
        Ok(())
    });
}

#[test]
fn what_applies_is_shown_with_its_line() {
    case("policy-show", |c| {
        let file = written(
            c,
            "show.conf",
            "spin = 5\ntcp port=22\nshare program=sh args=\"-c *\" dmb-size=64K\ntcp program=sh\n",
        );
        let show = |args: &[&str]| {
            let said = shortwire(&["config", "show", "--json"])
                .args(args)
                .env("SHORTWIRE_CONFIG", &file)
                .env("SHORTWIRE_AFTER", "3")
                .env("XDG_CONFIG_HOME", c.dir())
                .output()
                .expect("shortwire");
            serde_json::from_slice::<Value>(&said.stdout).expect("JSON")
        };
        let said = show(&["sh", "-c", "true"]);
        assert_eq!(said["settings"][0]["variable"], "SHORTWIRE_AFTER", "{said:#}");
        assert_eq!(
            (&said["settings"][1]["value"], &said["settings"][1]["line"]),
            (&"64K".into(), &3.into())
        );
        assert_eq!(
            (&said["settings"][2]["name"], &said["settings"][2]["line"]),
            (&"spin".into(), &1.into())
        );
        assert_eq!(said["rules"][0]["value"], "tcp port=22");
        assert_eq!((&said["otherwise"]["line"], &said["tcp"]), (&3.into(), &false.into()));
        let said = show(&["sh"]);
        assert_eq!(
            (&said["otherwise"]["line"], &said["tcp"]),
            (&4.into(), &false.into()),
            "{said:#}"
        );
        Ok(())
    });
}
