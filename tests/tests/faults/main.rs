//! A failure of each system call that the library makes, one after the other, and a death and a
//! stop before each: the connection goes on over TCP or ends as TCP's would, its bytes are right,
//! and nothing is left behind.

mod inject;
mod limits;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread::sleep;

use system_tests::{
    Case, Deadline, Outcome, Ports, Proc, Skip, case, compile, millis, plain, secs, shortwire, skip,
};

use crate::inject::{Fault, Seen, inject, name};

/// Connections of a run: the first contact, one that uses its group, and one more.
const CONNS: &str = "3";

pub fn faulty(title: &str, test: impl FnOnce(&Case) -> Outcome) {
    case(title, |c| {
        if plain() {
            return skip("faults are in the library's calls");
        }
        let listens =
            std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
        if !listens.contains("user_notif") {
            return skip("seccomp here has no user notification");
        }
        test(c)
    });
}

/// `fault SIDE ...` with the library loaded, without a command around it.
pub fn program(side: &str, port: u16, rest: &[&str]) -> Result<Command, Skip> {
    let mut command = Command::new(compile("fault")?);
    command.arg(side).arg(port.to_string()).args(rest);
    command
        .env("LD_PRELOAD", shortwire().with_file_name("libshortwire.so"))
        .env("SHORTWIRE_AFTER", "2");
    // Where loopback fails ism would take over, with an arena of its own for each group: what is
    // held then is another sum.
    command.env("SHORTWIRE_PREFER", "loopback");
    Ok(command)
}

/// What a program still holds when its connections are closed.
#[derive(Clone, Copy, Debug)]
pub struct Holds {
    pub files: i64,
    pub arenas: i64,
    pub mappings: i64,
    /// Ends of pipes: bells, which are made where one end sleeps for the other.
    pub bells: i64,
    /// Epoll sets: that of the server, and one in which a thread watches its bells, which it has if
    /// it came to sleep often.
    pub sets: i64,
}

/// Pipes that the test itself leaves to its programs.
const INHERITED: i64 = 1;

impl Holds {
    pub fn said(by: &Proc) -> Option<Holds> {
        let said = by.stdout();
        let mut numbers =
            said.lines().find_map(|l| l.strip_prefix("holds "))?.split(' ').map(|n| n.parse().ok());
        let mut next = || numbers.next()?;
        Some(Holds {
            files: next()?,
            arenas: next()?,
            mappings: next()?,
            bells: next()?,
            sets: next()?,
        })
    }

    /// The addresses of an arena that has ended are kept for the next one; each attempt that fails
    /// has two. Of each further process that was met, the link group is kept for a while: two
    /// arenas, both ends of the bell that it is rung by, and one end of ours. Whether there was a
    /// sleep to ring for is chance.
    fn within(self, sound: Holds, further: i64) -> bool {
        self.files <= sound.files
            && self.arenas <= sound.arenas + 2 * further
            && self.mappings <= sound.mappings + 6 + 2 * further
            && self.bells <= INHERITED + 3 * (1 + further)
            && self.sets <= 2
    }
}

struct Run {
    server: Option<Holds>,
    client: Option<Holds>,
    /// Clients that the server had after the first.
    further: i64,
    seen: Seen,
    /// In words, what went wrong.
    wrong: Option<String>,
}

/// One run of server and client with the fault on one side.
fn run(c: &Case, ports: Ports, on_server: bool, at: usize, fault: Fault) -> Result<Run, Skip> {
    let (port, dies) = (ports.free(), fault == Fault::Kill);
    let rest = match fault {
        Fault::Kill => &[CONNS, "survive"][..],
        Fault::Signal => &[CONNS, "handler"],
        _ => &[CONNS],
    };
    let (mut server, mut client) = (program("server", port, rest)?, program("client", port, rest)?);
    let watcher = inject(if on_server { &mut server } else { &mut client }, at, fault);
    let mut server = c.start("server", &mut server);
    await_listener(&mut server, port);
    let mut client = c.start("client", &mut client);
    let (mut wrong, mut further) = (Vec::new(), 0);
    let mut ends = |name: &str, program: &mut Proc, may_die: bool| {
        let Some(status) = end_of(program) else {
            wrong.push(format!("{name} hangs"));
            return false;
        };
        if !(status.success() || may_die && status.signal() == Some(9)) {
            wrong.push(format!("{name}: {status}: {}", program.stderr().trim()));
        }
        status.success()
    };
    if dies && on_server {
        // Nobody answers the client's next connections.
        let alive = ends("server", &mut server, true);
        if alive {
            ends("client", &mut client, false);
        } else {
            client.wait(secs(60));
        }
        let said = client.stderr();
        if said.contains("wrong") || said.contains("hangs") || said.contains("nothing comes") {
            wrong.push(format!("client: {said}"));
        }
    } else if dies && !ends("client", &mut client, true) {
        // The server serves the next client as if nothing had been.
        further = feed(c, &mut server, port)?;
        ends("server", &mut server, false);
    } else {
        ends("client", &mut client, false);
        ends("server", &mut server, false);
    }
    let holds = (Holds::said(&server), Holds::said(&client));
    drop((server, client));
    Ok(Run {
        server: holds.0,
        client: holds.1,
        seen: watcher.end(),
        further,
        wrong: (!wrong.is_empty()).then(|| wrong.join("; ")),
    })
}

/// The end of a program, if it comes in time: one that hangs is found, and the walk goes on.
fn end_of(program: &mut Proc) -> Option<std::process::ExitStatus> {
    let end = Deadline::within(secs(60));
    while !end.is_over() {
        if let Some(status) = program.poll() {
            return Some(status);
        }
        sleep(millis(5));
    }
    program.signal(rustix::process::Signal::KILL);
    program.wait(secs(60));
    None
}

/// Clients for a server that has lost one, until it has had all that it waits for.
fn feed(c: &Case, server: &mut Proc, port: u16) -> Result<i64, Skip> {
    for fed in 0..4 {
        for _ in 0..20 {
            if !server.running() {
                return Ok(fed);
            }
            sleep(millis(1));
        }
        let mut client = c.start("next", &mut program("client", port, &["1", "survive"])?);
        // The last one finds nobody.
        client.wait(secs(60));
    }
    Ok(4)
}

fn await_listener(server: &mut Proc, port: u16) {
    let wanted = format!(":{port:04X}");
    let end = Deadline::within(secs(60));
    loop {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default()
            + &std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
        let listens = table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&wanted))
                && fields.nth(1) == Some("0A")
        });
        if listens || !server.running() {
            return;
        }
        assert!(!end.is_over(), "the server does not listen: {}", server.stderr());
        sleep(millis(1));
    }
}

/// Walks the points of one side, each in a run of its own, until there are no more.
fn walk(title: &str, ports: Ports, on_server: bool, faults: &[Fault], stride: usize) {
    faulty(title, |c| {
        let sound = run(c, ports, on_server, 0, Fault::None)?;
        assert_eq!(sound.wrong, None, "without a fault");
        let (server, client) = (sound.server.expect("its count"), sound.client.expect("its count"));
        assert!(server.arenas > 0 && client.arenas > 0, "memory was shared: {server:?} {client:?}");
        let (mut problems, mut walked) = (Vec::new(), 0);
        for &fault in faults {
            let mut past = 0;
            for at in (1..).step_by(stride) {
                let found = run(c, ports, on_server, at, fault)?;
                let Some((call, errno)) = found.seen.hit else {
                    // A single run may have made fewer calls than others do.
                    past += 1;
                    if past == 3 {
                        break;
                    }
                    continue;
                };
                (past, walked) = (0, walked + 1);
                let point = format!("{fault:?} at {at}, {} {errno}", name(call));
                if let Some(wrong) = found.wrong {
                    problems.push(format!("{point}: {wrong}"));
                }
                for (side, held, sound) in
                    [("server", found.server, server), ("client", found.client, client)]
                {
                    if let Some(held) = held
                        && !held.within(sound, found.further)
                    {
                        problems.push(format!(
                            "{point}: {side} holds {held:?}, without the fault {sound:?}"
                        ));
                    }
                }
            }
        }
        println!("{title}: {walked} points walked");
        assert!(
            problems.is_empty(),
            "{} of {walked} points:\n{}",
            problems.len(),
            problems.join("\n")
        );
        assert!(walked > 20, "only {walked} points");
        Ok(())
    });
}

const BOTH: [Fault; 2] = [Fault::Fail(0), Fault::Fail(1)];

#[test]
fn calls_fail_on_the_server_that_listens() {
    walk("server-low", Ports::Low, true, &BOTH, 1);
}

#[test]
fn calls_fail_on_the_client_that_calls() {
    walk("client-low", Ports::Low, false, &BOTH, 1);
}

#[test]
fn calls_fail_on_the_server_that_calls() {
    walk("server-high", Ports::High, true, &BOTH, 2);
}

#[test]
fn calls_fail_on_the_client_that_listens() {
    walk("client-high", Ports::High, false, &BOTH, 2);
}

/// What a program may need no more, and forbid itself, once it has its connections.
const BANS: [Fault; 3] = [
    Fault::Ban(libc::SYS_getsockopt, libc::EPERM),
    Fault::Ban(libc::SYS_epoll_ctl, libc::EPERM),
    Fault::Ban(libc::SYS_fstat, libc::EPERM),
];

#[test]
fn a_sandbox_is_entered_before_each_call() {
    walk("ban-server-low", Ports::Low, true, &BANS, 1);
    walk("ban-client-low", Ports::Low, false, &BANS, 1);
    walk("ban-server-high", Ports::High, true, &BANS, 1);
    walk("ban-client-high", Ports::High, false, &BANS, 1);
}

#[test]
fn killed_before_each_call() {
    walk("kill-server", Ports::Low, true, &[Fault::Kill], 2);
    walk("kill-client", Ports::Low, false, &[Fault::Kill], 2);
}

/// A handler that sends, looks and peeks on the connection that it has interrupted.
#[test]
fn a_handler_comes_before_each_call() {
    walk("handler-server", Ports::Low, true, &[Fault::Signal], 1);
    walk("handler-client", Ports::Low, false, &[Fault::Signal], 1);
}

#[test]
fn stopped_before_each_call() {
    walk("stop-server", Ports::Low, true, &[Fault::Stop], 1);
    walk("stop-client", Ports::Low, false, &[Fault::Stop], 1);
}
