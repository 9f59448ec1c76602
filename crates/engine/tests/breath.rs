//! In which order a breath calls apps, and what ends a run.

use std::collections::HashSet;
use std::time::Duration;

use engine::config::LinkSpec;
use engine::engine::{Ended, push_order};
use engine::{Config, Engine, Options, Pace, Until};

fn order(links: &[&str], pulls: &[&str]) -> String {
    let links: Vec<LinkSpec> = links.iter().map(|link| link.parse().unwrap()).collect();
    push_order(links.iter(), &pulls.iter().copied().collect::<HashSet<_>>()).join(" ")
}

#[test]
fn goldens() {
    // A chain, in whatever order it was written.
    assert_eq!(order(&["b.o -> c.i", "c.o -> d.i", "a.o -> b.i"], &["a"]), "b c d");
    // Ties go by name of app and port.
    assert_eq!(order(&["a.y -> c.i", "a.x -> d.i", "a.z -> b.i"], &["a"]), "d c b");
    assert_eq!(order(&["b.o -> d.i", "a.o -> c.i"], &["a", "b"]), "c d");
    // A diamond: the joint comes once, after both ways.
    assert_eq!(order(&["a.x -> b.i", "a.y -> c.i", "b.o -> d.l", "c.o -> d.r", "d.o -> e.i"], &["a"]), "b c d e");
    // Fed at different depths: after the deepest.
    assert_eq!(order(&["a.x -> d.short", "a.y -> b.i", "b.o -> c.i", "c.o -> d.long"], &["a"]), "b c d");
    // A cycle is cut where it closes.
    assert_eq!(order(&["a.o -> b.i", "b.o -> c.i", "c.back -> b.back", "c.o -> d.i"], &["a"]), "c b d");
    // Two interfaces shunted: each is a start and an end.
    assert_eq!(order(&["if1.tx -> if2.rx", "if2.tx -> if1.rx"], &["if1", "if2"]), "if2 if1");
    // An app that pulls is fed by another one: its outputs are not waited for.
    assert_eq!(order(&["a.o -> m.i", "m.o -> z.i"], &["a", "m"]), "m z");
    // What nobody that pulls feeds comes last.
    assert_eq!(order(&["q.o -> r.i", "a.o -> b.i"], &["a"]), "b r");
    assert_eq!(order(&[], &["a"]), "");
}

fn network() -> Config {
    let mut config = Config::new();
    config.app("src", "Source", ()).unwrap().app("mid", "Join", ()).unwrap().app("sink", "Sink", ()).unwrap();
    config.link("src.output -> mid.input").unwrap().link("mid.output -> sink.input").unwrap();
    config
}

#[test]
fn a_packet_crosses_in_one_breath() {
    let mut engine = Engine::new(Options::default());
    engine.configure(&network()).unwrap();
    engine.breathe();
    let last = engine.link("mid.output -> sink.input").unwrap().stats();
    assert_eq!((last.rxpackets, last.rxbytes), (128, 128 * 60));
}

#[test]
fn runs_end_for_each_reason() {
    let mut engine = Engine::new(Options { pace: Pace::Busy, ..Options::default() });
    engine.configure(&network()).unwrap();
    let duration = Some(Duration::from_millis(5));
    assert_eq!(engine.run(Until { duration, ..Until::default() }), Ended::Duration);
    assert!(engine.breaths() > 0);
    assert_eq!(engine.latency().total(), engine.breaths());
    let done = Box::new(|engine: &Engine| engine.links().all(|(_, stats)| stats.rxpackets > 100_000));
    assert_eq!(engine.run(Until { done: Some(done), ..Until::default() }), Ended::Done);
    let stop = engine.stopper();
    let stopper = std::thread::spawn(move || stop.request());
    assert_eq!(engine.run(Until::default()), Ended::Stopped);
    stopper.join().unwrap();

    let mut idle = Engine::new(Options::default());
    idle.configure(&Config::new()).unwrap();
    assert_eq!(idle.run(Until { finished: true, ..Until::default() }), Ended::Finished);
}

#[test]
fn timers_run_between_breaths() {
    let mut engine = Engine::new(Options::default());
    let calls = std::rc::Rc::new(std::cell::Cell::new(0));
    let (counted, now) = (calls.clone(), engine.now());
    engine.timers().every(now, Duration::from_millis(1), move || counted.set(counted.get() + 1));
    engine.run(Until { done: Some(Box::new(|_: &Engine| calls.get() >= 3)), ..Until::default() });
    assert!(calls.get() >= 3);
}
