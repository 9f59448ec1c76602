//! Libraries of different releases meet: copies of this build's, in whose files other releases
//! stand than it speaks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::{Case, Ports, case, compile, connections, plain, secs, shortwire, skip};

/// What stands in the file in front of the oldest and the newest release.
const MARK: &[u8] = b"shortwire releases: ";

/// A copy of the library that says it speaks these.
fn library(c: &Case, oldest: u8, newest: u8) -> PathBuf {
    let mut file =
        fs::read(shortwire().with_file_name("libshortwire.so")).expect("the library of make build");
    let at = file.windows(MARK.len()).position(|bytes| bytes == MARK).expect("its releases");
    file[at + MARK.len()..][..2].copy_from_slice(&[oldest, newest]);
    let path = c.dir().join(format!("releases-{oldest}-{newest}.so"));
    fs::write(&path, file).expect("a copy of the library");
    path
}

fn with(library: &Path, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library);
    command
}

/// What `ss` says of both ends of a connection that has talked for a while; each byte is checked by
/// who receives it.
fn states(c: &Case, [server, client]: [&Path; 2]) -> Vec<(bool, String)> {
    let many = compile("many").expect("a compiler");
    let port = Ports::High.free();
    let number = port.to_string();
    let mut listening = c.serve("server", port, &mut with(server, &many, &["server", &number]));
    let mut calling = c.start("client", &mut with(client, &many, &["talk", &number, "200"]));
    calling.wait_line("talked", secs(20));
    let seen = connections(&[port]);
    let of = |pid: i32| {
        let end = seen.iter().find(|end| end.pid == i64::from(pid)).expect("an end in ss");
        (end.smcd, end.state.clone())
    };
    let both = vec![of(listening.pid()), of(calling.pid())];
    calling.say("\n");
    calling.success(secs(20));
    listening.stop();
    both
}

#[test]
fn neighbours_upgrade_and_others_say_both_releases() {
    case("versions", |c| {
        if plain() {
            return skip("there are no releases without shortwire");
        }
        compile("many")?;
        let [first, second, third] = [(1, 1), (1, 2), (2, 3)].map(|(o, n)| library(c, o, n));
        for pair in [[&first, &first], [&first, &second], [&second, &first], [&second, &third]] {
            let both = states(c, pair.map(PathBuf::as_path));
            assert!(both.iter().all(|(smcd, _)| *smcd), "{pair:?}: {both:?}");
        }
        let (ours, theirs) =
            ("release 1 here, releases 2 to 3 there", "releases 2 to 3 here, release 1 there");
        for (pair, said) in [([&first, &third], [ours, theirs]), ([&third, &first], [theirs, ours])]
        {
            let both = states(c, pair.map(PathBuf::as_path));
            for ((smcd, state), said) in both.iter().zip(said) {
                assert!(!smcd && state.contains(said), "{pair:?}: {both:?}");
            }
        }
        Ok(())
    });
}

/// Of many connections in a set few have something to say: looks leave out those of which a peer tells, and
/// none of those of which it cannot. Later connections are not made by the messages of the first.
#[test]
fn whoever_announces_nothing_is_looked_at() {
    case("announcing", |c| {
        if plain() {
            return skip("there are no releases without shortwire");
        }
        let many = compile("many")?;
        let [first, second] = [(1, 1), (1, 2)].map(|(o, n)| library(c, o, n));
        for [server, client] in [[&second, &second], [&first, &second], [&second, &first]] {
            let port = Ports::High.free();
            let number = port.to_string();
            let mut listening =
                c.serve("server", port, &mut with(server, &many, &["server", &number]));
            for active in ["1", "7"] {
                let words = ["turns", &number, "60", active, "4000"];
                let mut calling = c.start("client", &mut with(client, &many, &words));
                calling.wait_line("talked", secs(120));
                let seen = connections(&[port]);
                let states: Vec<_> = seen.iter().map(|end| &end.state).collect();
                let smcd = seen.iter().filter(|end| end.smcd).count();
                assert!(smcd >= 100, "{smcd} of 120 ends are in shared memory: {states:?}");
                calling.say("\n");
                calling.success(secs(20));
            }
            listening.stop();
        }
        Ok(())
    });
}

#[test]
fn info_tells_builds_and_releases() {
    case("builds", |c| {
        let json =
            c.start("info", Command::new(shortwire()).args(["info", "--json"])).success(secs(20));
        let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(report["library"]["build"], report["build"], "one build: {json}");
        assert_eq!(report["library"]["releases"], serde_json::json!([1, 2]), "{json}");
        let version =
            c.start("version", Command::new(shortwire()).arg("--version")).success(secs(20));
        let build = report["build"].as_str().expect("a build");
        assert!(version.contains(&format!("(build {build})")), "{version}");
        Ok(())
    });
}
