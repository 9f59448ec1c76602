//! In which order a breath calls apps, and what ends a run.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use engine::app::{App, AppError, Context, Io, Kind, Ports};
use engine::config::LinkSpec;
use engine::engine::{Ended, push_order};
use engine::{Config, Engine, Options, Pace, Registry, Until};

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
    assert_eq!(
        order(&["a.x -> b.i", "a.y -> c.i", "b.o -> d.l", "c.o -> d.r", "d.o -> e.i"], &["a"]),
        "b c d e"
    );
    // Fed at different depths: after the deepest.
    assert_eq!(
        order(&["a.x -> d.short", "a.y -> b.i", "b.o -> c.i", "c.o -> d.long"], &["a"]),
        "b c d"
    );
    // A cycle is cut where it closes.
    assert_eq!(
        order(&["a.o -> b.i", "b.o -> c.i", "c.back -> b.back", "c.o -> d.i"], &["a"]),
        "c b d"
    );
    // Two interfaces shunted: each is a start and an end.
    assert_eq!(order(&["if1.tx -> if2.rx", "if2.tx -> if1.rx"], &["if1", "if2"]), "if2 if1");
    // An app that pulls is fed by another one: its outputs are not waited for.
    assert_eq!(order(&["a.o -> m.i", "m.o -> z.i"], &["a", "m"]), "m z");
    // What nobody that pulls feeds comes last.
    assert_eq!(order(&["q.o -> r.i", "a.o -> b.i"], &["a"]), "b r");
    assert_eq!(order(&[], &["a"]), "");
}

/// By calls, this would overflow the stack; and a look at all links for each would take minutes.
#[test]
fn a_chain_may_be_as_long_as_it_likes() {
    const APPS: usize = 100_000;
    let chain = || {
        let link = |n| LinkSpec {
            from: engine::config::PortSpec { app: format!("a{n}"), port: "o".into() },
            to: engine::config::PortSpec { app: format!("a{}", n + 1), port: "i".into() },
        };
        let links: Vec<LinkSpec> = (0..APPS).map(link).collect();
        let order = push_order(links.iter(), &HashSet::from(["a0"]));
        let expected: Vec<String> = (1..=APPS).map(|n| format!("a{n}")).collect();
        assert_eq!(order, expected);
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(chain).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_long_chain_is_one_network_in_which_packets_arrive() {
    const HOPS: usize = 2000;
    let mut config = Config::new();
    config.app("src", "Source", ()).unwrap().app("sink", "Sink", ()).unwrap();
    let mut from = "src.output".to_string();
    for n in 0..HOPS {
        config.app(&format!("j{n}"), "Join", ()).unwrap();
        config.link(&format!("{from} -> j{n}.input")).unwrap();
        from = format!("j{n}.output");
    }
    config.link(&format!("{from} -> sink.input")).unwrap();
    let mut engine = Engine::new(Options { pace: Pace::Busy, ..Options::default() });
    engine.configure(&config).unwrap();
    engine.breathe();
    let last = engine.link(&format!("{from} -> sink.input")).unwrap().stats();
    assert!(last.rxpackets > 0, "{last:?}");
    // In the middle two apps go, and the rest keeps its links.
    config.remove("j1000").unwrap();
    config.remove("j1001").unwrap();
    engine.configure(&config).unwrap();
    assert_eq!(engine.links().count(), HOPS + 1 - 3);
    engine.breathe();
    assert!(engine.link("src.output -> j0.input").unwrap().stats().rxpackets > 128);
}

fn network() -> Config {
    let mut config = Config::new();
    config
        .app("src", "Source", ())
        .unwrap()
        .app("mid", "Join", ())
        .unwrap()
        .app("sink", "Sink", ())
        .unwrap();
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

thread_local! {
    /// The calls of the running test.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Writes its calls down.
struct Spy(String);

impl Kind for Spy {
    const NAME: &'static str = "Spy";
    const ABOUT: &'static str = "for tests";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    const PULLS: bool = true;
    type Args = ();

    fn new((): (), context: &Context) -> Result<Self, AppError> {
        Ok(Self(context.name.clone()))
    }
}

impl App for Spy {
    fn pull(&mut self, _io: &Io) {
        CALLS.with_borrow_mut(|calls| calls.push(format!("pull {}", self.0)));
    }

    fn push(&mut self, _io: &Io) {
        CALLS.with_borrow_mut(|calls| calls.push(format!("push {}", self.0)));
    }
}

/// Networks that no link joins breathe one after the other: what the first pulled is gone before
/// the second pulls.
#[test]
fn separate_networks_breathe_in_turn() {
    let mut registry = Registry::standard().clone();
    registry.register::<Spy>();
    let mut engine = Engine::with_registry(Options::default(), registry);
    let mut config = Config::new();
    for name in ["a", "b", "c", "d", "e"] {
        config.app(name, "Spy", ()).unwrap();
    }
    config.link("a.o -> d.i").unwrap().link("b.o -> c.i").unwrap().link("d.o -> a.i").unwrap();
    engine.configure(&config).unwrap();
    engine.breathe();
    assert_eq!(
        CALLS.take(),
        ["pull a", "pull d", "push d", "push a", "pull b", "pull c", "push c", "pull e"]
    );
}

#[test]
fn runs_end_for_each_reason() {
    let mut engine = Engine::new(Options { pace: Pace::Busy, ..Options::default() });
    engine.configure(&network()).unwrap();
    let duration = Some(Duration::from_millis(5));
    assert_eq!(engine.run(Until { duration, ..Until::default() }), Ended::Duration);
    assert!(engine.breaths() > 0);
    assert_eq!(engine.latency().total(), engine.breaths());
    let done =
        Box::new(|engine: &Engine| engine.links().all(|(_, stats)| stats.rxpackets > 100_000));
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
