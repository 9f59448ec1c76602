//! Static programs that others make, and what is attached to programs that are followed.

use rustix::process::Signal;
use system_tests::{Deadline, Proc, connections, millis, plain};

use super::*;

/// Rust's own library over musl, static-PIE, at both ends and against C with the library.
#[test]
fn rust_of_musl() {
    case("raw-rust-musl", |c| {
        const TARGET: &str = "x86_64-unknown-linux-musl";
        let rustc = need("rustc")?;
        let mut command = Command::new(&rustc);
        command.args(["--print", "target-libdir", "--target", TARGET]);
        let folder = command.output().expect("starting rustc").stdout;
        if !Path::new(String::from_utf8_lossy(&folder).trim()).is_dir() {
            return skip("no Rust for musl: `rustup target add x86_64-unknown-linux-musl`");
        }
        let mut command = Command::new(&rustc);
        command.args(["-O", "--edition", "2024", "--target", TARGET]).arg(prog("echo.rs"));
        let echo = built(c, "echo-rust", &mut command);
        let client = || {
            let mut command = raw(&echo);
            command.arg("client");
            command
        };
        pair(c, raw(&echo).arg("server"), &mut client(), &["12", "3000"], 12)?;
        let many = compile("many")?;
        pair(c, raw(&many).arg("server"), &mut client(), &["12", "3000"], 12)
    });
}

/// A web server and its client, both of one static program that a shell of it starts.
#[test]
fn busybox_serves_and_fetches() {
    case("raw-busybox", |c| {
        let (busybox, port) = (need("busybox")?, Ports::Low.free());
        let folder = c.dir().join("files");
        fs::create_dir(&folder).expect("a folder");
        for i in 0..20usize {
            let bytes: Vec<u8> = (0..i.pow(4) * 20).map(|at| (at * 31 + i) as u8).collect();
            fs::write(folder.join(i.to_string()), bytes).expect("a file");
        }
        let listen = format!("127.0.0.1:{port}");
        let mut server = raw(&busybox);
        let server = server.args(["httpd", "-f", "-p", &listen, "-h"]).arg(&folder);
        let mut server = c.serve("httpd", port, server);
        let runs = fs::read_link(format!("/proc/{}/exe", server.pid())).expect("a program");
        assert!(runs.ends_with("shortwire-raw"), "{}", runs.display());
        let text = "for i in $(seq 0 19); do \"$0\" wget -q -O \"$2/got\" \"http://$1/$i\" && \
                    \"$0\" cmp \"$2/got\" \"$2/$i\" && echo $i; done; readlink /proc/self/exe";
        let mut sh = raw(&busybox);
        let sh = sh.args(["sh", "-c", text]).arg(&busybox).args([&listen]).arg(&folder);
        let said = c.start("sh", sh).success(secs(60));
        let all: String = (0..20).map(|i| format!("{i}\n")).collect();
        let own = fs::canonicalize(&busybox).expect("a path");
        assert_eq!(said, format!("{all}{}\n", own.display()));
        assert!(server.running(), "the server has ended: {}", server.stderr());
        server.stop();
        Ok(())
    });
}

/// A server that is followed has `tool` attached for a while, with connections in use, which then go on.
fn attached(c: &Case, tool: impl Fn(&str) -> Command, has_seen: impl Fn(&Proc) -> bool) -> Outcome {
    let (herd, port) = (herd()?, Ports::Low.free());
    let number = port.to_string();
    let mut server = c.serve("server", port, raw(&herd).args(["server", &number]));
    let client = || c.start("client", raw(&herd).args(["client", &number, "20", "400"]));
    let finish = |mut client: Proc| assert!(client.success(secs(100)).contains("done"));
    let mut first = client();
    let end = Deadline::within(secs(60));
    while !plain() && connections(&[port]).iter().filter(|end| end.smcd).count() < 10 {
        assert!(!end.is_over(), "not ten ends are in shared memory");
        // On a busy machine it may be over before it is looked at.
        if !first.running() {
            finish(std::mem::replace(&mut first, client()));
        }
        std::thread::sleep(millis(20));
    }
    let pid = server.pid().to_string();
    let mut tool = c.start("tool", &mut tool(&pid));
    let end = Deadline::within(secs(60));
    loop {
        // Before the look: what it said last counts, too.
        let has_ended = tool.poll().is_some();
        if has_seen(&tool) {
            break;
        }
        if has_ended {
            let said = tool.stderr();
            return match said.contains("ermitted") {
                true => skip("nobody may be traced here"),
                false => panic!("{said}"),
            };
        }
        assert!(!end.is_over(), "{}", tool.stderr());
        std::thread::sleep(millis(20));
    }
    std::thread::sleep(millis(500));
    tool.signal(Signal::INT);
    // Where Go is in the middle of a vfork, strace waits for the parent, which waits for the child, which
    // waits for strace. Its user kills it then, and the kernel lets all three go. The limit, of which a busy
    // machine makes eight times as much, is short of what the client waits for an answer.
    let patience = Deadline::within(secs(8));
    while tool.poll().is_none() && !patience.is_over() {
        std::thread::sleep(millis(20));
    }
    tool.signal(Signal::KILL);
    tool.wait(secs(60));
    finish(first);
    for tries in 1..=MOST_CLIENTS {
        let watch = c.watch(&[port]);
        finish(client());
        if tries == MOST_CLIENTS {
            watch.expect_smcd(20);
        } else if watch.saw_smcd(20) {
            break;
        }
    }
    assert!(server.running(), "the server has ended: {}", server.stderr());
    server.stop();
    Ok(())
}

#[test]
fn strace_is_attached() {
    case("raw-strace", |c| {
        let (strace, calls) = (need("strace")?, c.dir().join("calls"));
        let tool = |pid: &str| {
            let mut command = Command::new(&strace);
            command.args(["-f", "-o"]).arg(&calls).args(["-p", pid]);
            command
        };
        // It is told of each thread, and has seen calls.
        let has_seen = |tool: &Proc| {
            let seen = fs::read_to_string(&calls).unwrap_or_default();
            tool.stderr().contains("attached") && seen.lines().count() > 10
        };
        attached(c, tool, has_seen)
    });
}

#[test]
fn gdb_is_attached() {
    case("raw-gdb", |c| {
        let gdb = need("gdb")?;
        let tool = |pid: &str| {
            let mut command = Command::new(&gdb);
            command.args(["-nx", "-batch", "-ex", "info threads", "-ex", "echo seen\\n"]);
            command.args(["-ex", "detach", "-p", pid]);
            command
        };
        attached(c, tool, |tool| tool.stdout().contains("seen"))
    });
}
