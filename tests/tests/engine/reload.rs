//! A new file while packets flow.

use std::sync::atomic::{AtomicBool, Ordering};

use system_tests::OneProcessor;

use super::wire::{End, Namespace};
use super::*;

/// A cable through the engine, and beside it a part that changes from step to step.
const STEADY: &str = "[apps.a]\nkind = \"RawSocket\"\ninterface = \"a1\"\n[apps.b]\nkind = \"RawSocket\"\ninterface = \"b1\"\n";
const STEPS: [(&str, &str); 5] = [
    // An app and a link come.
    (
        ", \"src.output -> sink.input\"",
        "[apps.src]\nkind = \"Source\"\n[apps.sink]\nkind = \"Sink\"\n",
    ),
    // An app gets other arguments.
    (
        ", \"src.output -> sink.input\"",
        "[apps.src]\nkind = \"Source\"\nsize = 100\n[apps.sink]\nkind = \"Sink\"\n",
    ),
    // A link goes, two come, between two others.
    (
        ", \"src.output -> mid.input\", \"mid.output -> sink.input\"",
        "[apps.src]\nkind = \"Source\"\nsize = 100\n[apps.sink]\nkind = \"Sink\"\n[apps.mid]\nkind = \"Join\"\n",
    ),
    // An app becomes another kind.
    (
        ", \"src.output -> mid.input\", \"mid.output -> sink.input\"",
        "[apps.src]\nkind = \"Synth\"\n[apps.sink]\nkind = \"Sink\"\n[apps.mid]\nkind = \"Split\"\n",
    ),
    // All of it goes.
    ("", ""),
];

fn network((links, apps): (&str, &str)) -> String {
    format!("links = [\"a.tx -> b.rx\", \"b.tx -> a.rx\"{links}]\n{STEADY}{apps}")
}

fn top(case: &Case) -> Value {
    json(case, &["engine", "top", "--json", "--interval", "0.05"])
}

/// Packets sent on a link so far.
pub(super) fn sent(case: &Case, link: &str) -> u64 {
    count(&top(case), link)
}

/// The same, with all that had been sent before the call: an engine publishes its breaths, then its links.
/// Where a look found new breaths, the next new ones say that the links were published too, and a third
/// look reads them.
fn all_sent(case: &Case, link: &str) -> u64 {
    let (mut sent, mut published) = (0, 0);
    until("the engine publishes", || {
        let top = top(case);
        sent = count(&top, link);
        let breaths = top["processes"][0]["engines"][0]["breaths"].as_f64();
        published += usize::from(breaths > Some(0.0));
        published == 3
    });
    sent
}

fn count(top: &Value, link: &str) -> u64 {
    let links = top["processes"][0]["links"].as_array().cloned().unwrap_or_default();
    let found = links.iter().find(|object| object["name"] == link);
    found
        .and_then(|link| link["total"]["packets"].as_u64())
        .unwrap_or_else(|| panic!("no link {link} in {top}"))
}

#[test]
fn what_did_not_change_keeps_its_packets_and_counters() {
    case("reload", |case| {
        let _one = OneProcessor::new();
        let namespace = Namespace::new()?;
        namespace.cable("a0", "a1");
        namespace.cable("b0", "b1");
        let path = file(case, &network(("", "")));
        let mut engine =
            case.start("engine", namespace.command(&shortwire()).arg("engine").arg(&path));
        engine.wait_line("running:", secs(60));
        let (from, to) = (End::of(&namespace, "a0"), End::of(&namespace, "b0"));
        from.reach(&to, || engine.stderr());
        let frames = recording::frames(400);
        // Probes may still be under way. What is sent behind all of them arrives behind them.
        from.send(&frames[0]);
        while to.receive(secs(60)).expect("the frame behind the probes") != frames[0] {}
        let before = all_sent(case, "a.tx -> b.rx");
        let done = AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut rounds = 0;
                while !done.load(Ordering::Relaxed) || rounds == 0 {
                    let arrived = from.replay(&to, &frames);
                    assert!(
                        arrived == frames,
                        "round {rounds}: {} of {} arrived",
                        arrived.len(),
                        frames.len()
                    );
                    rounds += 1;
                }
                rounds
            });
            let mut counted = before;
            for (number, step) in STEPS.into_iter().enumerate() {
                file(case, &network(step));
                engine.signal(Signal::HUP);
                engine.wait_lines("reloaded:", number + 1, secs(60));
                let now = sent(case, "a.tx -> b.rx");
                assert!(now >= counted, "the counter fell from {counted} to {now}");
                counted = now;
            }
            done.store(true, Ordering::Relaxed);
            traffic.join().expect("all frames in order")
        });
        until("the last packets are counted", || {
            sent(case, "a.tx -> b.rx") == before + rounds * frames.len() as u64
        });
        let report = ends_well(engine);
        let total = before + rounds * frames.len() as u64;
        let figure: String = report.lines().filter(|line| line.contains("a.tx -> b.rx")).collect();
        assert!(
            figure.replace(',', "").contains(&format!(" {total} sent on")),
            "{total} is not in {report}"
        );
        Ok(())
    });
}

#[test]
fn a_bad_file_is_refused_and_the_old_network_runs_on() {
    case("reload-bad", |case| {
        let path = file(case, SOURCE_TO_SINK);
        let mut engine = engine(case, &path, &[]);
        let bad = [
            "links = [\"src.output -> sink.nput\"]\n[apps]\nsrc = \"Source\"\nsink = \"Sync\"\n",
            "links = [",
            "",
        ];
        for (number, text) in bad.into_iter().enumerate() {
            file(case, text);
            let before = sent(case, "src.output -> sink.input");
            engine.signal(Signal::HUP);
            engine.wait_lines("reload refused", number + 1, secs(60));
            until("it runs on", || sent(case, "src.output -> sink.input") > before);
        }
        engine.wait_line(
            "line 4: app 'sink': there is no kind 'Sync'; did you mean 'Sink'?",
            secs(60),
        );
        fs::remove_file(&path).expect("remove the file");
        engine.signal(Signal::HUP);
        engine.wait_lines("reload refused", bad.len() + 1, secs(60));
        ends_well(engine);
        Ok(())
    });
}

#[test]
fn an_app_that_cannot_start_is_told_and_the_rest_runs() {
    case("half", |case| {
        let text = format!(
            "{SOURCE_TO_SINK}[apps.gone]\nkind = \"PcapReader\"\nfile = \"/nonexistent/x.pcap\"\n"
        )
        .replace(
            "[apps]\nsrc = \"Source\"\nsink = \"Sink\"",
            "[apps.src]\nkind = \"Source\"\n[apps.sink]\nkind = \"Sink\"",
        );
        let mut engine = engine(case, &file(case, &text), &[]);
        let said = engine.wait_line("app 'gone' (PcapReader)", secs(60));
        assert!(said.contains("/nonexistent/x.pcap"), "{said}");
        let before = sent(case, "src.output -> sink.input");
        until("the rest runs", || sent(case, "src.output -> sink.input") > before);
        // It is told once more by the status.
        engine.signal(Signal::INT);
        assert_eq!(engine.wait(secs(60)).code(), Some(1), "{}", engine.stderr());
        Ok(())
    });
}
