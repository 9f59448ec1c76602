//! The packet blaster, into files, memory and interfaces.

use super::wire::{Namespace, need_af_xdp};
use super::*;

/// How often figures are taken that a busy machine can spoil: it may leave a sender, a receiver or what
/// lies between them without a processor for longer than the run lasts.
const TRIES: usize = 5;

#[test]
fn what_is_made_up_can_be_captured_and_replayed() {
    case("blaster-pcap", |case| {
        let made = case.dir().join("made.pcap");
        let words = [
            "packetblaster",
            "synth",
            "--sizes",
            "64,128",
            "--flows",
            "3",
            "--count",
            "60",
            "--json",
            "--pcap",
        ];
        let summary = json(case, &[&words[..], &[made.to_str().expect("UTF-8")]].concat());
        assert_eq!(
            (&summary["packets"], &summary["bytes"]),
            (&60.into(), &(30 * 60 + 30 * 124).into())
        );
        let frames = recording::read(&made);
        assert_eq!(frames.len(), 60);
        let copy = case.dir().join("copy.pcap");
        let (made, copied) = (made.to_str().expect("UTF-8"), copy.to_str().expect("UTF-8"));
        json(case, &["packetblaster", "replay", made, "--no-loop", "--json", "--pcap", copied]);
        assert_eq!(recording::read(&copy), frames);
        Ok(())
    });
}

#[test]
fn short_captures_go_in_their_turn() {
    case("blaster-short", |case| {
        for frames in [1, 3, 200] {
            let short = recording::frames(frames);
            let (from, to) = (case.dir().join("short.pcap"), case.dir().join("long.pcap"));
            recording::write(&from, &short);
            let paths = [&from, &to].map(|path| path.to_str().expect("UTF-8"));
            let words =
                ["packetblaster", "replay", paths[0], "--count", "1000", "--json", "--pcap"];
            let summary = json(case, &[&words[..], &[paths[1]]].concat());
            assert_eq!((&summary["frames"], &summary["packets"]), (&frames.into(), &1000.into()));
            let turn: Vec<_> = short.iter().cycle().take(1000).cloned().collect();
            assert!(recording::read(&to) == turn, "{frames} frames");
        }
        Ok(())
    });
}

#[test]
fn a_rate_is_kept() {
    case("blaster-rate", |case| {
        let words = [
            "packetblaster",
            "synth",
            "--sink",
            "--rate",
            "100kpps",
            "--duration",
            "500ms",
            "--json",
        ];
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let summary = json(case, &words);
            // Never more than was asked for; a busy machine may give less.
            let packets = summary["packets"].as_u64().expect("packets");
            let most = 100_000.0 * summary["seconds"].as_f64().expect("seconds") + 1.0;
            assert!(packets as f64 <= most, "{summary}");
            if packets > 1000 {
                return Ok(());
            }
            seen.push(packets);
        }
        panic!("packets in half a second each: {seen:?}");
    });
}

#[test]
fn interfaces_are_filled_and_the_loss_is_counted() {
    case("blaster-if", |case| {
        need_af_xdp()?;
        let namespace = Namespace::new()?;
        namespace.cable("a0", "a1");
        let blast = |words: &str| {
            let mut command = namespace.command(&shortwire());
            command.arg("packetblaster").args(words.split(' '));
            case.start("packetblaster", &mut command).success(secs(60))
        };
        let received = |output: &str| {
            let text =
                blast(&format!("synth --count 20000 --rate 100kpps --receive a1 --json {output}"));
            let summary: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(summary["packets"], 20000, "{summary}");
            let [received, lost] = ["packets", "lost"]
                .map(|part| summary["received"][part].as_u64().expect("a number"));
            assert_eq!(received + lost, 20000, "{summary}");
            assert!(!namespace.has_xdp("a0") && !namespace.has_xdp("a1"));
            received
        };
        for output in ["--if a0", "--raw a0"] {
            // The cable holds 256 packets, 2.6 ms of them, while the kernel's thread that takes
            // them out has no processor.
            let most = (0..TRIES).map(|_| received(output)).find(|received| *received > 10000);
            assert!(most.is_some(), "{output}: half of the packets are lost each time");
        }
        let text = blast("synth --count 1000 --tap t0");
        assert!(text.contains("1,000 packets") && text.contains("t0"), "{text}");
        Ok(())
    });
}

#[test]
fn what_cannot_be_sent_is_told() {
    case("blaster-bad", |case| {
        let path = case.dir().join("bad.pcap");
        fs::write(&path, b"no capture at all, but long enough").expect("a file");
        let path = path.to_str().expect("UTF-8");
        for (words, part) in [
            (vec!["replay", path, "--sink"], "no pcap"),
            (vec!["replay", "/nonexistent.pcap", "--sink"], "cannot open"),
            (vec!["synth", "--if", "eth77"], "there is no interface"),
            (vec!["synth", "--count", "1", "--pcap", "/nonexistent/x"], "cannot write"),
            (vec!["synth", "--pcap", path], "--count"),
            (vec!["replay", path, "--pcap", path, "--count", "1"], "would empty"),
            (vec!["synth", "--sink", "--dst", "fd00::1"], "different families"),
        ] {
            let mut blaster = case.start("packetblaster", command(&["packetblaster"]).args(words));
            assert_eq!(blaster.wait(secs(60)).code(), Some(1));
            assert!(blaster.stderr().contains(part), "{part} is not in {}", blaster.stderr());
            // A cause is told once.
            assert!(blaster.stderr().matches("os error").count() <= 1, "{}", blaster.stderr());
        }
        assert_eq!(fs::read(path).expect("the file").len(), 34, "what is replayed is left alone");
        Ok(())
    });
}

/// One load test between `a0` and `b0`; why it has not found the limit of 5,000 packets per second.
fn finds_the_limit(case: &Case, namespace: &Namespace) -> Result<(), String> {
    let plot = case.dir().join("load.svg");
    let mut command = namespace.command(&shortwire());
    let words = "loadtest --from a0 --to b0 --max 20kpps --loss 10 --precision 10 --duration 500ms --json --plot";
    let mut loadtest = case.start("loadtest", command.args(words.split(' ')).arg(&plot));
    // Counters in the run directory are seen from any namespace.
    let row = seen_link(case, "loadtest.output -> a0.input", &mut loadtest);
    // Where nothing passed, or the sender had no processor, it says so and fails.
    let status = loadtest.wait(secs(60));
    if !status.success() {
        return Err(format!("{status}: {}", loadtest.stderr()));
    }
    let row = row.ok_or("it was over before it was seen")?;
    assert_eq!(row["total"]["drops"], 0, "{row}");
    let found: Value = serde_json::from_str(&loadtest.stdout()).expect("JSON");
    let rate = found["packets_per_second"].as_f64().expect("a rate");
    let trials = found["trials"].as_array().expect("trials");
    let latency = |trial: &Value| trial["latency_us"]["p50"].as_f64() > Some(0.0);
    // The limit and its bucket let 5,000 to 5,500 per second through, and a tenth more may be lost. What
    // one trial has kept waiting comes in the next one.
    let is_found = (1_250.0..6_500.0).contains(&rate)
        && trials.len() >= 3
        && trials[0]["loss_percent"].as_f64() > Some(10.0)
        && trials.iter().any(latency);
    assert!(fs::read_to_string(&plot).expect("a plot").contains("<svg"));
    if is_found { Ok(()) } else { Err(found.to_string()) }
}

#[test]
fn a_load_test_finds_the_rate_of_a_limiter() {
    case("loadtest", |case| {
        need_af_xdp()?;
        let namespace = Namespace::new()?;
        namespace.cable("a0", "a1");
        namespace.cable("b0", "b1");
        // 5,000 packets of 60 bytes per second: a busy machine can send that many.
        let text = "links = [\"a.tx -> limit.input\", \"limit.output -> b.rx\"]\n[apps.a]\nkind = \"XDP\"\ninterface = \"a1\"\n\
                    [apps.b]\nkind = \"XDP\"\ninterface = \"b1\"\n[apps.limit]\nkind = \"RateLimiter\"\nrate = 2400000.0\nburst = 15000\n";
        let path = file(case, text);
        let mut engine =
            case.start("engine", namespace.command(&shortwire()).arg("engine").arg(&path));
        engine.wait_line("running:", secs(60));
        let mut wrong = Vec::new();
        while let Err(why) = finds_the_limit(case, &namespace) {
            wrong.push(why);
            assert!(wrong.len() < TRIES, "{}", wrong.join("\n"));
        }
        ends_well(engine);
        assert!(!namespace.has_xdp("a0") && !namespace.has_xdp("b0"));
        Ok(())
    });
}

/// Waits until `ps` knows a process that has moved packets.
fn seen(case: &Case, pid: i32) -> Value {
    let end = Deadline::within(secs(60));
    loop {
        let found = json(case, &["ps", "--json"]);
        let rows = found["processes"].as_array().expect("processes");
        let row = rows.iter().find(|row| row["pid"] == pid && row["packets"].as_u64() > Some(0));
        if let Some(row) = row {
            return row.clone();
        }
        assert!(!end.is_over(), "{found}");
        std::thread::sleep(millis(20));
    }
}

/// Waits until `top` shows a link that packets have passed; None if its process ends before.
fn seen_link(case: &Case, name: &str, of: &mut Proc) -> Option<Value> {
    let end = Deadline::within(secs(60));
    while of.running() {
        let found = json(case, &["engine", "top", "--json", "--interval", "50ms"]);
        let processes = found["processes"].as_array().expect("processes");
        let links = processes.iter().flat_map(|process| process["links"].as_array()).flatten();
        let mut links = links.filter(|link| link["total"]["packets"].as_u64() > Some(0));
        if let Some(link) = links.find(|link| link["name"] == name) {
            return Some(link.clone());
        }
        assert!(!end.is_over(), "{found}");
    }
    None
}

#[test]
fn a_blaster_is_seen_by_ps_and_top_and_leaves_nothing() {
    case("blaster-seen", |case| {
        let words = ["packetblaster", "synth", "--sink"];
        let blaster = case.start("blaster", &mut command(&words));
        let row = seen(case, blaster.pid());
        assert_eq!((&row["apps"], &row["links"]), (&2.into(), &1.into()), "{row}");
        let pid = blaster.pid().to_string();
        until("the rate of its link", || {
            let top = json(case, &["engine", "top", &pid, "--json", "--interval", "200ms"]);
            let link = &top["processes"][0]["links"][0];
            assert_eq!(link["name"], "packetblaster.output -> memory.input", "{top}");
            link["packets"].as_f64() > Some(0.0)
        });
        ends_well(blaster);
        assert_eq!(fs::read_dir(case.dir().join("run")).map_or(0, Iterator::count), 0);
        Ok(())
    });
}
