//! `shortwire engine` and the commands around it: files, reloads, reports, counters that others
//! read, and bad ends.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use system_tests::{
    Case, Deadline, Proc, Skip, case, count_skip, millis, recording, secs, shortwire,
};

mod blaster;
mod look;
mod reload;
mod scripts;
mod top;
#[path = "../interfaces/wire.rs"]
#[allow(dead_code, reason = "shared with the tests of interfaces")]
mod wire;

const SOURCE_TO_SINK: &str =
    "links = [\"src.output -> sink.input\"]\n[apps]\nsrc = \"Source\"\nsink = \"Sink\"\n";

fn file(case: &Case, text: &str) -> PathBuf {
    let path = case.dir().join("network.toml");
    fs::write(&path, text).expect("a configuration");
    path
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(shortwire());
    command.args(words);
    command
}

/// Starts an engine and waits until it runs.
fn engine(case: &Case, path: &Path, more: &[&str]) -> Proc {
    let mut engine = case.start("engine", command(&["engine"]).arg(path).args(more));
    engine.wait_line("running:", secs(60));
    engine
}

/// What a command prints, as JSON; it must succeed.
fn json(case: &Case, words: &[&str]) -> Value {
    let text = case.start(words[0], &mut command(words)).success(secs(60));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}\n{text}"))
}

fn ends_well(mut engine: Proc) -> String {
    engine.signal(Signal::INT);
    engine.success(secs(60))
}

#[test]
fn a_run_ends_with_the_report() {
    case("report", |case| {
        let text = "links = [\"src.output -> sink.input\"]\n[apps.src]\nkind = \"Synth\"\npackets = 12345\n[apps.sink]\nkind = \"Sink\"\n";
        let path = file(case, text);
        let mut command = command(&["engine", "--until-finished", "--report", "load,links,apps"]);
        let said = case.start("engine", command.arg(path)).success(secs(60));
        assert!(
            said.contains("link report:\n              12,345 sent on src.output -> sink.input (loss rate: 0%)"),
            "{said}"
        );
        assert!(
            said.starts_with("load: time: ")
                && said.contains(" fps: ")
                && said.contains("apps report:"),
            "{said}"
        );
        Ok(())
    });
}

#[test]
fn a_duration_and_a_signal_end_a_run() {
    case("end", |case| {
        let path = file(case, SOURCE_TO_SINK);
        let mut timed = command(&["engine", "--duration", "0.3", "--busywait"]);
        assert!(case.start("timed", timed.arg(&path)).success(secs(60)).contains("link report"));
        for signal in [Signal::INT, Signal::TERM] {
            let mut engine = engine(case, &path, &["--report", "none"]);
            engine.signal(signal);
            assert_eq!(engine.success(secs(60)), "");
        }
        assert_eq!(
            fs::read_dir(case.dir().join("run")).map_or(0, Iterator::count),
            0,
            "counters are left"
        );
        Ok(())
    });
}

#[test]
fn mistakes_are_told_with_their_line_and_the_nearest_name() {
    case("mistakes", |case| {
        let text = "links = [\"src.output -> sink.imput\", \"src.a -> snk.input\"]\n[apps.src]\nkind = \"Sorce\"\n[apps.sink]\nkind = \"PcapWriter\"\nfille = \"x\"\n";
        let path = file(case, text);
        for option in ["--check", "--graph", "--report=links"] {
            let mut refused = case.start("engine", command(&["engine", option]).arg(&path));
            assert_eq!(refused.wait(secs(60)).code(), Some(1));
            let said = refused.stderr();
            for part in [
                "line 1:",
                "no such app 'snk'",
                "'sink'",
                "line 3:",
                "did you mean 'Source'",
                "line 6:",
                "'file'",
            ] {
                assert!(said.contains(part), "{part} is missing in {said}");
            }
        }
        let good = file(case, SOURCE_TO_SINK);
        let said =
            case.start("check", command(&["engine", "--check"]).arg(&good)).success(secs(60));
        assert!(said.contains("2 apps, 1 link on 1 thread"), "{said}");
        let graph =
            case.start("graph", command(&["engine", "--graph"]).arg(&good)).success(secs(60));
        assert!(graph.starts_with("digraph") && graph.contains("\"src\" -> \"sink\""), "{graph}");
        Ok(())
    });
}

#[test]
fn an_app_that_cannot_start_is_an_end_with_an_error() {
    case("unstartable", |case| {
        let broken = "[apps.src]\nkind = \"PcapReader\"\nfile = \"/nonexistent.pcap\"\n[apps.sink]\nkind = \"Sink\"\n";
        let alone = file(case, &format!("links = [\"src.output -> sink.input\"]\n{broken}"));
        let mut engine = case.start("engine", command(&["engine"]).arg(&alone));
        assert_eq!(engine.wait(secs(60)).code(), Some(1));
        let said = engine.stderr();
        assert!(said.contains("app 'src' could not start: nothing brings packets in"), "{said}");
        // Beside one that works it is told, and once more at the end.
        let both = file(
            case,
            &format!(
                "links = [\"src.output -> sink.input\", \"other.output -> sink.other\"]\n\
                 {broken}[apps.other]\nkind = \"Source\"\n"
            ),
        );
        let words = ["engine", "--duration", "0.2", "--report", "links"];
        let mut engine = case.start("engine", command(&words).arg(&both));
        assert_eq!(engine.wait(secs(60)).code(), Some(1));
        assert!(engine.stdout().contains("sent on other.output -> sink.other"));
        assert!(engine.stderr().ends_with("app 'src' could not start\n"), "{}", engine.stderr());
        let mut strict = case.start("engine", command(&words).arg("--strict").arg(&both));
        assert_eq!(strict.wait(secs(60)).code(), Some(1));
        assert!(!strict.stderr().contains("running:"), "{}", strict.stderr());
        assert!(strict.stderr().contains("--strict asks for all"), "{}", strict.stderr());
        Ok(())
    });
}

#[test]
fn lost_packets_and_damaged_inputs_are_an_end_with_an_error() {
    case("losses", |case| {
        let out = case.dir().join("out.pcap");
        let text = format!(
            "links = [\"src.output -> out.input\"]\n[apps.src]\nkind = \"Synth\"\npackets = 100000\n\
             [apps.out]\nkind = \"PcapWriter\"\nfile = \"{}\"\n",
            out.display()
        );
        let path = file(case, &text);
        // A file that may not grow is a full disk.
        let mut full = Command::new("sh");
        full.args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$@\"", "sh"]).arg(shortwire());
        let mut engine = case.start("full", full.args(["engine", "--until-finished"]).arg(&path));
        assert_eq!(engine.wait(secs(60)).code(), Some(1));
        let (report, said) = (engine.stdout(), engine.stderr());
        assert!(report.contains(" lost by out, behind its links\n"), "{report}");
        assert!(said.contains("not all packets passed: app 'out': cannot write"), "{said}");

        // The same without the limit, and then what it wrote with its end cut off.
        let whole = case.start("whole", command(&["engine", "--until-finished"]).arg(&path));
        let report = { whole }.success(secs(60));
        assert!(!report.contains("lost by"), "{report}");
        let capture = fs::read(&out).expect("a capture");
        fs::write(&out, &capture[..capture.len() - 3]).expect("a shorter one");
        let text = format!(
            "links = [\"in.output -> sink.input\"]\n[apps.in]\nkind = \"PcapReader\"\nfile = \"{}\"\n\
             [apps.sink]\nkind = \"Sink\"\n",
            out.display()
        );
        let damaged = file(case, &text);
        let mut engine =
            case.start("damaged", command(&["engine", "--until-finished"]).arg(&damaged));
        assert_eq!(engine.wait(secs(60)).code(), Some(1));
        let (report, said) = (engine.stdout(), engine.stderr());
        assert!(report.contains("99,999 sent on in.output -> sink.input"), "{report}");
        assert!(said.contains("not all packets passed: app 'in'"), "{said}");
        Ok(())
    });
}

#[test]
fn counters_are_seen_by_ps_and_top_and_prometheus() {
    case("counters", |case| {
        let mut engine = engine(case, &file(case, SOURCE_TO_SINK), &["--metrics", "127.0.0.1:0"]);
        let ps = json(case, &["ps", "--json"]);
        assert_eq!(ps["processes"][0]["pid"], engine.pid());
        assert_eq!(
            (&ps["processes"][0]["apps"], &ps["processes"][0]["links"]),
            (&2.into(), &1.into())
        );
        // An engine that gets no processor between the two looks of one `top` has no rates.
        until("the rates of a link, an app and an engine", || {
            let top = json(case, &["engine", "top", "--json", "--interval", "0.3"]);
            let process = &top["processes"][0];
            let link = &process["links"][0];
            assert_eq!(link["name"], "src.output -> sink.input");
            link["packets"].as_f64().expect("a rate") > 1000.0
                && process["apps"][1]["cycles_per_packet"].as_f64() > Some(0.0)
                && process["engines"][0]["latency_ns"]["p99"].as_u64() > Some(0)
        });
        let text = case
            .start("top", &mut command(&["engine", "top", "--once", "--interval", "100ms"]))
            .success(secs(60));
        assert!(
            text.contains("src.output -> sink.input") && text.contains("cycles/packet"),
            "{text}"
        );
        let line = engine.wait_line("metrics: http://", secs(60));
        let address =
            line.trim_start_matches("metrics: http://").trim_end_matches("/metrics").to_string();
        let body = get(&address, "/metrics");
        let sent = "shortwire_link_sent_packets_total{link=\"src.output -> sink.input\"} ";
        let value =
            |body: &str| body.lines().find_map(|line| line.strip_prefix(sent)?.parse::<u64>().ok());
        let first = value(&body).unwrap_or_else(|| panic!("no counter in {body}"));
        assert!(body.ends_with("# EOF\n"), "{body}");
        until("the counter grows", || value(&get(&address, "/metrics")) > Some(first));
        assert!(get(&address, "/other").contains("404"));
        ends_well(engine);
        assert_eq!(json(case, &["ps", "--json"])["processes"], Value::Array(vec![]));
        Ok(())
    });
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the metrics server");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn a_killed_engine_leaves_nothing_behind_ps_or_the_next_start() {
    case("killed", |case| {
        let path = file(case, SOURCE_TO_SINK);
        let run = case.dir().join("run");
        for cleaner in ["ps", "engine"] {
            let mut killed = engine(case, &path, &[]);
            killed.signal(Signal::KILL);
            killed.wait(secs(60));
            let left = run.join(killed.pid().to_string());
            assert!(left.exists(), "a killed process cannot clean up");
            if cleaner == "ps" {
                assert_eq!(json(case, &["ps", "--json"])["removed"][0], killed.pid());
            } else {
                ends_well(engine(case, &path, &[]));
            }
            assert!(!left.exists(), "{cleaner} left the counters of the killed process");
        }
        Ok(())
    });
}

#[test]
fn a_full_disk_is_told_and_the_rest_runs_on() {
    case("full-disk", |case| {
        if !rustix::process::geteuid().is_root() {
            return system_tests::skip("needs root, to mount a small file system");
        }
        let disk = case.dir().join("disk");
        fs::create_dir(&disk).expect("a directory");
        let mount = ["-t", "tmpfs", "-o", "size=256k", "none"];
        let mounted = Command::new("mount").args(mount).arg(&disk).status();
        if !mounted.is_ok_and(|status| status.success()) {
            return system_tests::skip("cannot mount a tmpfs here");
        }
        let text = format!(
            "links = [\"src.output -> tee.input\", \"tee.a -> writer.input\", \"tee.b -> sink.input\"]\n\
             [apps]\nsrc = \"Source\"\ntee = \"Tee\"\nsink = \"Sink\"\n\
             [apps.writer]\nkind = \"PcapWriter\"\nfile = \"{}\"\n",
            disk.join("x.pcap").display()
        );
        let mut engine = engine(case, &file(case, &text), &[]);
        let said = engine.wait_line("app 'writer'", secs(60));
        let packets = || {
            let top = json(case, &["engine", "top", "--json", "--interval", "0.2"]);
            let link = top["processes"][0]["links"].as_array().and_then(|links| {
                links.iter().find(|link| link["name"] == "tee.b -> sink.input").cloned()
            });
            link.expect("the link")["packets"].as_f64().expect("a rate")
        };
        until("the rest runs on", || packets() > 1000.0);
        engine.signal(Signal::INT);
        let (status, report) = (engine.wait(secs(60)), engine.stdout());
        let _ = Command::new("umount").arg(&disk).status();
        assert_eq!(status.code(), Some(1), "packets were lost");
        assert!(said.contains("No space left") && said.contains("x.pcap"), "{said}");
        assert!(report.contains("tee.b -> sink.input"), "{report}");
        Ok(())
    });
}

#[test]
fn a_crash_ends_one_thread_and_a_reload_starts_it_again() {
    case("crash", |case| {
        let network = |packets: u64| {
            format!(
                "links = [\"src.output -> sink.input\", \"src.more -> bad.input\"]\n[apps]\nsrc = \"Source\"\nsink = \"Sink\"\n\
                 [apps.bad]\nkind = \"Crash\"\nthread = 1\npackets = {packets}\n"
            )
        };
        let path = file(case, &network(100));
        let mut engine = engine(case, &path, &["--report", "links,apps"]);
        let said = engine.wait_line("thread 1 crashed", secs(60));
        assert!(
            said.contains("the others run on")
                && said.contains("app 'bad' panicked: as configured"),
            "{said}"
        );
        let sent = || reload::sent(case, "src.output -> sink.input");
        let before = sent();
        until("the rest runs on", || sent() > before + 10_000);
        file(case, &network(1 << 60));
        engine.signal(Signal::HUP);
        engine.wait_line("reloaded:", secs(60));
        let received = || {
            let top = json(case, &["engine", "top", "--json", "--interval", "0.05"]);
            let links = top["processes"][0]["links"].as_array().cloned().unwrap_or_default();
            links.iter().any(|link| {
                link["name"] == "src.more -> bad.input" && link["packets"].as_f64() > Some(0.0)
            })
        };
        until("the crashed thread is back", received);
        let report = ends_well(engine);
        assert!(report.contains("sent on src.more -> bad.input"), "{report}");
        // Nothing left to run for: an error, and an end.
        let alone = network(100).replace(
            "src = \"Source\"\nsink = \"Sink\"\n",
            "src = { kind = \"Source\", thread = 1 }\nsink = { kind = \"Sink\", thread = 1 }\n",
        );
        let mut ended = case.start("alone", command(&["engine"]).arg(file(case, &alone)));
        assert_eq!(ended.wait(secs(60)).code(), Some(1), "{}", ended.stderr());
        assert!(ended.stderr().contains("all threads have crashed"), "{}", ended.stderr());
        assert_eq!(
            fs::read_dir(case.dir().join("run")).map_or(0, Iterator::count),
            0,
            "counters are left"
        );
        Ok(())
    });
}

#[test]
fn top_and_ps_say_when_there_is_nothing() {
    case("nothing", |case| {
        let mut top = case.start("top", &mut command(&["engine", "top", "--once"]));
        assert_eq!(top.wait(secs(60)).code(), Some(0));
        assert_eq!(json(case, &["engine", "top", "--json"])["processes"], Value::Array(vec![]));
        assert!(top.stderr().contains("no packet engine runs here"), "{}", top.stderr());
        let said = case.start("ps", &mut command(&["ps"])).success(secs(60));
        assert!(said.contains("no packet engine runs here"), "{said}");
        let mut stranger = case.start("top", &mut command(&["engine", "top", "1", "--once"]));
        assert_eq!(stranger.wait(secs(60)).code(), Some(1));
        Ok(())
    });
}

/// Waits for a condition that another process brings about.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Deadline::within(secs(60));
    while !condition() {
        assert!(!end.is_over(), "still not: {what}");
        std::thread::sleep(millis(10));
    }
}
