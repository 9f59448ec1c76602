//! `shortwire capture` and `trace-packets`: files that Wireshark reads, ends of all kinds, and an
//! engine that they leave alone.

use std::process::Stdio;

use super::*;

/// Tags packets, and drops all of them behind a filter.
const NETWORK: &str = "links = [\"src.output -> tag.input\", \"tag.output -> filter.input\", \"filter.output -> sink.input\"]\n\
    [apps]\nsrc = \"Source\"\nsink = \"Sink\"\n[apps.tag]\nkind = \"Tagger\"\ntag = 7\n\
    [apps.filter]\nkind = \"PcapFilter\"\nfilter = \"udp port 53\"\n";

fn started(case: &Case) -> (Proc, String) {
    let path = file(case, NETWORK);
    let engine = engine(case, &path, &[]);
    let pid = engine.pid().to_string();
    (engine, pid)
}

/// The packets of a pcapng file, whose blocks are all whole.
fn frames_of(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("a capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (mut at, mut kinds, mut frames) = (0, Vec::new(), Vec::new());
    while at < bytes.len() {
        let length = word(at + 4) as usize;
        assert_eq!(word(at + length - 4) as usize, length, "the block at {at}");
        kinds.push(word(at));
        if word(at) == 6 {
            frames.push(bytes[at + 28..at + 28 + word(at + 20) as usize].to_vec());
        }
        at += length;
    }
    assert_eq!(kinds[..2], [0x0a0d_0d0a, 1], "a section, then its interface");
    assert_eq!(kinds.last(), Some(&5), "statistics at the end");
    frames
}

/// What tshark says of a file, if it is here.
fn tshark(path: &Path, fields: &[&str]) -> Option<String> {
    let mut command = Command::new("tshark");
    command.args(["-r"]).arg(path).args(["-T", "fields"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    match command.output() {
        Ok(said) => {
            let errors = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.status.success(), "tshark: {errors}");
            Some(String::from_utf8_lossy(&said.stdout).into_owned())
        }
        Err(_) => None,
    }
}

#[test]
fn a_capture_is_read_by_wireshark_with_names_and_times() {
    case("capture", |case| {
        let (engine, pid) = started(case);
        let path = case.dir().join("c.pcapng");
        let words = ["capture", &pid, "tag.output", "-c", "20", "-w"];
        case.start("capture", command(&words).arg(&path)).success(secs(60));
        let frames = frames_of(&path);
        assert!(frames.len() == 20 && frames.iter().all(|frame| frame[12..16] == [0x81, 0, 0, 7]));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("a clock").as_secs_f64();
        match tshark(&path, &["frame.interface_name", "frame.time_epoch", "vlan.id"]) {
            None => count_skip("what Wireshark says of a capture", &Skip("no tshark".into())),
            Some(text) => {
                assert_eq!(text.lines().count(), 20, "{text}");
                for line in text.lines() {
                    let parts: Vec<&str> = line.split('\t').collect();
                    assert_eq!((parts[0], parts[2]), ("tag.output -> filter.input", "7"));
                    let time: f64 = parts[1].parse().expect("seconds since 1970");
                    assert!((now - 120.0..now + 1.0).contains(&time), "{time}, now {now}");
                }
            }
        }
        ends_well(engine);
        Ok(())
    });
}

#[test]
fn a_capture_ends_well_by_signal_by_its_reader_and_by_its_engine() {
    case("capture-ends", |case| {
        let (mut engine, pid) = started(case);
        let path = case.dir().join("c.pcapng");
        // Ctrl-C: the file is whole.
        let mut capture =
            case.start("capture", command(&["capture", &pid, "src.output", "-w"]).arg(&path));
        capture.wait_line("capturing", secs(60));
        capture.signal(Signal::INT);
        capture.success(secs(60));
        frames_of(&path);
        // A reader that has enough.
        let mut writer = command(&["capture", &pid, "src.output"]);
        writer.env("SHORTWIRE_RUN_DIR", case.dir().join("run")).stdout(Stdio::piped());
        let mut writer = writer.spawn().expect("start");
        let mut start = [0; 4];
        writer.stdout.take().expect("a pipe").read_exact(&mut start).expect("a header");
        assert_eq!(start, [0x0a, 0x0d, 0x0d, 0x0a]);
        assert!(writer.wait().expect("an end").success());
        // A full disk is an error.
        let mut full =
            case.start("full", &mut command(&["capture", &pid, "src", "-w", "/dev/full"]));
        assert_eq!(full.wait(secs(60)).code(), Some(1));
        assert!(full.stderr().contains("No space left"), "{}", full.stderr());
        // One that is killed does not disturb the engine, nor one that is stopped.
        let mut killed = case.start("killed", command(&["capture", &pid, "src", "-w"]).arg(&path));
        killed.wait_line("capturing", secs(60));
        killed.signal(Signal::KILL);
        killed.wait(secs(60));
        let stopped = case.start("stopped", command(&["capture", &pid, "src", "-w"]).arg(&path));
        stopped.signal(Signal::STOP);
        let breaths = |case: &Case| {
            let top = json(case, &["engine", "top", &pid, "--json", "--interval", "200ms"]);
            top["processes"][0]["engines"][0]["breaths"].as_f64()
        };
        until("the engine breathes", || breaths(case) > Some(0.0));
        // The engine's end ends it.
        let mut last = case.start("last", command(&["capture", &pid, "src", "-w"]).arg(&path));
        last.wait_line("capturing", secs(60));
        engine.signal(Signal::INT);
        engine.success(secs(60));
        last.success(secs(60));
        stopped.signal(Signal::KILL);
        Ok(())
    });
}

#[test]
fn what_cannot_be_captured_is_told() {
    case("capture-refused", |case| {
        let (engine, pid) = started(case);
        let listed = case.start("list", &mut command(&["capture", &pid])).success(secs(60));
        assert!(listed.contains("tag.output -> filter.input"), "{listed}");
        let nobody = std::process::id().to_string();
        for (words, said) in [
            (["capture", &pid, "nothing", "-w", "x"], "no link is called 'nothing'"),
            (["capture", &pid, "output", "-w", "x"], "stands in several links"),
            (["capture", &pid, "src", "-w", "/nonexistent/x"], "cannot write /nonexistent/x"),
            (["capture", &nobody, "src", "-w", "x"], "runs no packet engine"),
        ] {
            let mut refused = case.start("refused", &mut command(&words));
            assert_eq!(refused.wait(secs(60)).code(), Some(1), "{words:?}");
            assert!(refused.stderr().contains(said), "{words:?}: {}", refused.stderr());
        }
        ends_well(engine);
        Ok(())
    });
}

#[test]
fn the_way_of_a_packet_shows_what_each_app_did() {
    case("trace-packets", |case| {
        let (engine, pid) = started(case);
        let found = json(case, &["trace-packets", &pid, "-c", "2", "--json"]);
        let packets = found["packets"].as_array().expect("packets");
        assert_eq!(packets.len(), 2, "{found}");
        for packet in packets {
            let steps = packet["steps"].as_array().expect("steps");
            let part = |name: &str| steps.iter().map(|step| step[name].clone()).collect::<Vec<_>>();
            assert_eq!(part("what"), ["enters", "moves", "ends"], "{packet}");
            let places = part("place");
            assert_eq!(&places[..2], ["src.output -> tag.input", "tag.output -> filter.input"]);
            assert_eq!(
                steps[1]["changes"],
                serde_json::json!(["60 -> 64 bytes: 81000007 put in at 12"])
            );
            let end = places[2].as_str().expect("text");
            assert!(end.starts_with("filter (PcapFilter); rejected +"), "{end}");
        }
        let mut none = case.start(
            "none",
            &mut command(&["trace-packets", &pid, "--duration", "300ms", "udp", "port", "9"]),
        );
        assert_eq!(none.wait(secs(60)).code(), Some(1), "{}", none.stderr());
        ends_well(engine);
        Ok(())
    });
}
