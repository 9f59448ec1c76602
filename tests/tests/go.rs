//! Go programs that have the C library: the system calls that Go makes itself are followed.

use std::fs;
use std::path::Path;
use std::process::Command;

use system_tests::{Case, Outcome, Ports, Proc, Side, Watch, case, compile, need, prog, secs};

/// Server and clients, connected through shared memory for at least `ends` ends.
fn pair(
    c: &Case,
    settings: &[(&str, &str)],
    modes: [&str; 2],
    more: &[&str],
    ends: usize,
) -> Outcome {
    pair_of(c, &compile("herd.go")?, settings, modes, more, ends)
}

/// A client keeps its connections until so many ends were seen in shared memory, and then ends well.
fn held(client: &mut Proc, watch: &Watch, ends: usize) {
    client.wait_line("held", secs(100));
    watch.wait_smcd(ends, secs(60));
    client.say("\n");
    let said = client.success(secs(100));
    assert!(said.contains("done"), "{said}");
}

fn pair_of(
    c: &Case,
    herd: &Path,
    settings: &[(&str, &str)],
    modes: [&str; 2],
    more: &[&str],
    ends: usize,
) -> Outcome {
    for ports in [Ports::Low, Ports::High] {
        let (port, program) = (ports.free(), herd.as_os_str());
        let number = port.to_string();
        let mut server = c.serve(
            "server",
            port,
            Side::Run.command(program).args([modes[0], &number]).envs(settings.iter().copied()),
        );
        let watch = c.watch(&[port]);
        let client = Side::Run.command(program);
        let mut client = c.start(
            "client",
            { client }.args([modes[1], &number]).args(more).envs(settings.iter().copied()),
        );
        held(&mut client, &watch, ends);
        assert!(server.running(), "the server has ended: {}", server.stderr());
        server.stop();
    }
    Ok(())
}

#[test]
fn many_goroutines() {
    case("go-herd", |c| pair(c, &[], ["server", "client"], &["300", "60"], 100));
}

#[test]
fn one_processor_and_no_preemption() {
    let settings = [("GOMAXPROCS", "1"), ("GODEBUG", "asyncpreemptoff=1")];
    case("go-one", |c| pair(c, &settings, ["server", "client"], &["50", "100"], 20));
}

#[test]
fn few_goroutines_on_two_processors() {
    let settings = [("GOMAXPROCS", "2")];
    case("go-two", |c| pair(c, &settings, ["server", "client"], &["4", "1500"], 2));
}

#[test]
fn net_http() {
    case("go-http", |c| pair(c, &[], ["http", "get"], &["1500"], 1));
}

/// A program that exports Go's names for C, as older versions of Go link all of them: the
/// names of what it asks libc for are then ends of longer ones.
#[test]
fn exported_names() {
    case("go-exports", |c| {
        let (go, herd) = (need("go")?, c.dir().join("herd"));
        let mut build = Command::new(go);
        build.args(["build", "-p", "2", "-ldflags", "-linkmode=external -extldflags=-rdynamic"]);
        build
            .arg("-o")
            .arg(&herd)
            .arg(prog("herd.go"))
            .envs([("CGO_ENABLED", "1"), ("GOFLAGS", "")]);
        let said = build.output().expect("starting go");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        pair_of(c, &herd, &[], ["server", "client"], &["20", "600"], 10)
    });
}

/// The other end is a C program.
#[test]
fn beside_c() {
    case("go-and-c", |c| {
        let (herd, many) = (compile("herd.go")?, compile("many")?);
        let port = Ports::Low.free();
        let number = port.to_string();
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &number]));
        let watch = c.watch(&[port]);
        let mut client = Side::Run.command(&herd);
        let mut client = c.start("client", client.args(["client", &number, "20", "1500"]));
        held(&mut client, &watch, 10);
        server.stop();
        Ok(())
    });
}

/// One end alone, and both with the setting that says no: TCP, with the same bytes.
#[test]
fn alone_or_off() {
    case("go-alone", |c| {
        let herd = compile("herd.go")?;
        let off = |side: Side| {
            let mut command = side.command(&herd);
            command.env("SHORTWIRE_GO", "off");
            command
        };
        for (mut server, mut client) in [
            (Side::Run.command(&herd), Side::Plain.command(&herd)),
            (Side::Plain.command(&herd), Side::Run.command(&herd)),
            (off(Side::Run), off(Side::Run)),
        ] {
            let port = Ports::Low.free();
            let number = port.to_string();
            let mut server = c.serve("server", port, server.args(["server", &number]));
            let watch = c.watch(&[port]);
            let said = c
                .start("client", client.args(["client", &number, "20", "1500"]))
                .success(secs(100));
            assert!(said.contains("done"), "{said}");
            watch.expect_tcp();
            server.stop();
        }
        Ok(())
    });
}

/// The code of the program is one part of its memory, as without the library: profilers look functions up by
/// where in the file the part of the map begins that they are in.
#[test]
fn map_of_code_is_one_part() {
    case("go-map", |c| {
        let (herd, port) = (compile("herd.go")?, Ports::Low.free());
        let number = port.to_string();
        let mut server = Side::Run.command(&herd);
        let mut server = c.serve("server", port, server.args(["server", &number]));
        let map = fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("a map");
        let name = herd.to_string_lossy();
        let is_code = |line: &&str| line.contains(" r-xp ") && line.ends_with(&*name);
        assert_eq!(map.lines().filter(is_code).count(), 1, "{map}");
        assert!(map.contains("libshortwire.so"), "{map}");
        server.stop();
        Ok(())
    });
}
