//! Programs with rings of io_uring: what a ring names is on TCP, and the rest of the process in
//! shared memory. `progs/uring.c` has the operations; both its ends check every byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::probe::need_rings;
use system_tests::{
    Case, Connection, Deadline, Ports, Proc, Side, case, compile, connections, count_skip, need,
    need_library, plain, prog, secs, skip,
};

/// What becomes of the connection that a ring's operation names.
#[derive(Clone, Copy, PartialEq)]
enum Subject {
    Smcd,
    Tcp(&'static str),
    Gone,
}
use Subject::{Gone, Smcd, Tcp};

const NAMED: Subject = Tcp("io_uring");
/// Of a set whose readiness the kernel alone tells.
const SET: Subject = Tcp("past the library");

const OPERATIONS: &[(&str, Subject)] = &[
    ("readwrite", NAMED),
    ("vectors", NAMED),
    ("sendrecv", NAMED),
    ("messages", NAMED),
    ("zerocopy", NAMED),
    ("zeromsg", NAMED),
    ("poll", NAMED),
    ("splice", NAMED),
    ("linked", NAMED),
    ("copy", NAMED),
    ("child", NAMED),
    ("passed", Tcp("passed over a Unix socket")),
    ("fixed", NAMED),
    ("update", NAMED),
    ("updateop", NAMED),
    ("register2", NAMED),
    ("setpoll", SET),
    ("setwait", SET),
    ("control", Smcd),
    ("linkedctl", NAMED),
    ("close", Gone),
    ("linkedclose", Gone),
    ("shutdown", NAMED),
    ("waiting", NAMED),
    ("accept", Smcd),
];

fn of_port(all: &[Connection], port: &str) -> Option<Connection> {
    all.iter().find(|c| c.local.ends_with(&format!(":{port}"))).cloned()
}

/// Starts the peer and the program with its ring; what this has said when it is done.
fn run(
    c: &Case,
    program: &Path,
    operation: &str,
    more: &[(&str, &str)],
) -> (Proc, Proc, u16, String) {
    let port = Ports::Low.free();
    let start = |arguments: &[&str]| {
        let mut command = Side::Run.command(program);
        command.args(arguments).envs(more.iter().copied());
        command
    };
    let number = port.to_string();
    let peer = c.serve("peer", port, &mut start(&["peer", &number]));
    let mut user = c.start(operation, &mut start(&["use", &number, operation]));
    let end = Deadline::within(secs(60));
    while user.running() && !user.stdout().contains("done ") {
        assert!(!end.is_over(), "{operation} hangs: {}", user.stderr());
        std::thread::sleep(system_tests::millis(5));
    }
    let said = user.stdout();
    (peer, user, port, said)
}

/// The ports of subject, bystander and who came later, from what the program said.
fn ports(said: &str) -> Option<[String; 3]> {
    let line = said.lines().find_map(|line| line.strip_prefix("done "))?;
    let ports: Vec<String> = line.split(' ').map(String::from).collect();
    ports.try_into().ok()
}

fn finish(mut peer: Proc, mut user: Proc) {
    user.say("\n");
    user.success(secs(60));
    peer.stop();
}

fn operation(program: &Path, operation: &str, subject: Subject) {
    case(&format!("uring-{operation}"), |c| {
        need_rings()?;
        let (mut peer, user, port, said) = run(c, program, operation, &[]);
        let ports = ports(&said).unwrap_or_else(|| panic!("{said}\n{}", user.stderr()));
        if !plain() {
            let all = connections(&[port]);
            for of_others in &ports[1..] {
                let found = of_port(&all, of_others);
                assert!(found.is_some_and(|c| c.smcd), "{operation}: the others, {said}");
            }
            let found = of_port(&all, &ports[0]);
            let state = found.as_ref().map_or("", |c| &c.state);
            let as_expected = match (subject, &found) {
                (Smcd, Some(c)) => c.smcd,
                (Tcp(why), Some(c)) => !c.smcd && state.contains(why),
                (Gone, found) => found.is_none(),
                _ => false,
            };
            assert!(as_expected, "{operation}: the subject is {state:?}");
        }
        if subject == Gone {
            // Ended, not broken off, and whole.
            let told = said.lines().find_map(|line| line.strip_prefix("told ")).expect("a line");
            peer.wait_line(&format!("end {told}"), secs(60));
        }
        finish(peer, user);
        Ok(())
    });
}

/// The program, or a skip that is counted.
fn built(name: &str) -> Option<PathBuf> {
    compile(name).map_err(|why| count_skip(name, &why)).ok()
}

#[test]
fn what_a_ring_names_is_on_tcp_and_the_rest_in_memory() {
    let Some(program) = built("uring") else { return };
    for &(name, subject) in OPERATIONS {
        operation(&program, name, subject);
    }
}

/// liburing enters the kernel by instruction.
#[test]
fn rings_of_liburing_are_looked_at() {
    if let Err(why) = need_library("liburing.so.2") {
        return count_skip("liburing", &why);
    }
    let Some(program) = built("uring_lib") else { return };
    for &(name, subject) in OPERATIONS {
        operation(&program, name, subject);
    }
}

/// Each entry of the queue is looked at by one of them.
#[test]
fn two_threads_submit_to_one_ring() {
    let Some(program) = built("uring") else { return };
    for _ in 0..5 {
        operation(&program, "threads", Smcd);
    }
}

/// Connections from before the first ring are not known to be safe from it; later ones are.
#[test]
fn a_late_ring_takes_back_what_was_there() {
    case("uring-late", |c| {
        need_rings()?;
        let (peer, user, port, said) = run(c, &compile("uring")?, "late-sendrecv", &[]);
        let ports = ports(&said).unwrap_or_else(|| panic!("{said}\n{}", user.stderr()));
        if !plain() {
            let all = connections(&[port]);
            let smcd = ports.map(|port| of_port(&all, &port).is_some_and(|c| c.smcd));
            assert_eq!(smcd, [false, false, true], "{said}");
        }
        finish(peer, user);
        Ok(())
    });
}

/// As one from before an exec: its memory is not known here.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_ring_that_was_set_up_unseen_keeps_all_on_tcp() {
    case("uring-unseen", |c| {
        need_rings()?;
        let (peer, user, port, said) = run(c, &compile("uring")?, "late-unseen", &[]);
        assert!(ports(&said).is_some(), "{said}\n{}", user.stderr());
        if !plain() {
            let all = connections(&[port]);
            assert!(all.len() >= 6 && all.iter().all(|c| !c.smcd), "{said}");
        }
        finish(peer, user);
        Ok(())
    });
}

#[test]
fn rings_that_nobody_could_look_at_are_refused() {
    case("uring-refusals", |c| {
        if plain() {
            return skip("the kernel refuses none");
        }
        need_rings()?;
        let (peer, user, _, said) = run(c, &compile("uring")?, "refusals", &[]);
        let lines: Vec<&str> = said.lines().take(4).collect();
        let refused = ["2", "4000", "c000"].map(|f| format!("refused {f} Operation not permitted"));
        assert_eq!(lines[..3], refused, "{said}");
        assert_eq!(lines[3], "name Invalid argument", "{said}");
        // The one that is open: three parts of the program's and two of ours.
        assert!(said.contains("mapped 5\n"), "rings stay mapped: {said}");
        finish(peer, user);
        Ok(())
    });
}

#[test]
fn all_stays_tcp_or_there_is_no_ring_where_that_is_asked_for() {
    case("uring-modes", |c| {
        if plain() {
            return skip("there are no modes");
        }
        need_rings()?;
        let program = compile("uring")?;
        let (peer, user, port, said) =
            run(c, &program, "control", &[("SHORTWIRE_IO_URING", "stay")]);
        assert!(ports(&said).is_some(), "{said}\n{}", user.stderr());
        let all = connections(&[port]);
        assert!(!all.is_empty() && all.iter().all(|c| !c.smcd), "{said}");
        finish(peer, user);
        let (mut peer, mut user, _, said) =
            run(c, &program, "control", &[("SHORTWIRE_IO_URING", "deny")]);
        assert!(said.starts_with("no ring: Function not implemented"), "{said}");
        user.success(secs(60));
        peer.stop();
        Ok(())
    });
}

/// libuv hands the changes of its epoll set to a ring, by default in newer versions.
#[test]
fn node_with_a_ring_for_its_event_loop() {
    case("uring-node", |c| {
        let (node, port) = (need("node")?, Ports::High.free());
        let number = port.to_string();
        for (source, rounds) in [("http.js", "1500"), ("echo.js", "20000")] {
            let start = |arguments: &[&str]| {
                let mut command: Command = Side::Run.command(&node);
                command.arg(prog(source)).args(arguments).env("UV_USE_IO_URING", "1");
                command
            };
            let mut server = c.serve("server", port, &mut start(&["server", &number]));
            if !has_ring(server.pid()) {
                server.stop();
                return skip("this node makes no ring");
            }
            let watch = c.watch(&[port]);
            watch.during(3, |_| {
                let mut client = c.start("client", &mut start(&["client", &number, rounds]));
                let said = client.success(secs(100));
                assert!(said.contains("done"), "{said}");
                Ok(())
            })?;
            watch.expect_smcd(2);
            server.stop();
        }
        Ok(())
    });
}

fn has_ring(pid: i32) -> bool {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    all.filter_map(|fd| fs::read_link(fd.path()).ok())
        .any(|file| file == Path::new("anon_inode:[io_uring]"))
}
