//! Engines on several threads: packets cross, threads start and stop, one that crashes is told and
//! hurts nobody.

use std::time::{Duration, Instant};

use engine::app::{App, AppError, Context, Io, Kind, Ports};
use engine::threads::{Health, ThreadsError};
use engine::{Config, Options, Packet, Registry, Threads};
use serde::{Deserialize, Serialize};

/// Sends numbered packets, so many in all.
struct Numbers {
    next: u64,
    count: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    count: u64,
}

impl Kind for Numbers {
    const NAME: &'static str = "Numbers";
    const ABOUT: &'static str = "for tests";
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const PULLS: bool = true;
    type Args = Count;

    fn new(args: Count, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { next: 0, count: args.count })
    }
}

impl App for Numbers {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0) else { return };
        for _ in 0..output.room().min(100) {
            if self.next == self.count {
                return;
            }
            let Some(packet) = Packet::from_slice(&self.next.to_le_bytes()) else { return };
            self.next += 1;
            output.transmit(packet);
        }
    }

    fn finished(&self) -> bool {
        self.next == self.count
    }
}

/// Expects growing numbers (a full link may drop some); panics at the number `count`.
struct Check {
    next: u64,
    count: u64,
}

impl Kind for Check {
    const NAME: &'static str = "Check";
    const ABOUT: &'static str = "for tests";
    const INPUTS: Ports = Ports::Named(&["input"]);
    type Args = Count;

    fn new(args: Count, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { next: 0, count: args.count })
    }
}

impl App for Check {
    fn push(&mut self, io: &Io) {
        while let Some(packet) = io.input(0).and_then(|input| input.receive()) {
            let number = u64::from_le_bytes(packet[..].try_into().expect("eight bytes"));
            assert!(number >= self.next, "out of order: {number} after {}", self.next);
            self.next = number + 1;
            assert!(self.next < self.count, "enough");
        }
    }
}

fn threads() -> Threads {
    let mut registry = Registry::standard().clone();
    registry.register::<Numbers>();
    registry.register::<Check>();
    Threads::new(Options::default(), registry)
}

const NEVER: u64 = u64::MAX >> 1;

/// Numbers on thread 0, checked on thread 2, through thread 1.
fn network(count: u64, enough: u64) -> Config {
    let mut config = Config::new();
    config
        .app_on(0, "src", "Numbers", Count { count })
        .unwrap()
        .app_on(1, "mid", "Join", ())
        .unwrap();
    config.app_on(2, "end", "Check", Count { count: enough }).unwrap();
    config.link("src.output -> mid.input").unwrap().link("mid.output -> end.input").unwrap();
    config
}

/// A watchdog, far beyond what any machine needs; it ends a test that hangs.
fn wait_for(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing happens any more");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn packets_cross_in_order_and_come_home() {
    const COUNT: u64 = 300_000;
    let mut threads = threads();
    threads.configure(&network(COUNT, NEVER)).unwrap();
    wait_for(|| threads.finished());
    let links = threads.links();
    let first = links[&"src.output -> mid.input".parse().unwrap()];
    let last = links[&"mid.output -> end.input".parse().unwrap()];
    assert_eq!(first.txpackets + first.txdrop, COUNT);
    assert_eq!(first.txdrop, 0, "the source looks for room");
    assert_eq!((first.rxpackets, first.rxbytes), (COUNT, COUNT * 8));
    assert_eq!((last.txpackets + last.txdrop, last.rxpackets), (COUNT, last.txpackets));
    let live = threads.ask_all(|_| engine::pool::stats().live);
    assert_eq!(live.values().sum::<i64>(), 0, "{live:?}");
    threads.stop().unwrap();
    assert!(threads.health().is_empty());
}

#[test]
fn a_crash_is_told_and_the_rest_goes_on() {
    let mut threads = threads();
    threads.configure(&network(NEVER, 1000)).unwrap();
    wait_for(|| threads.health()[&2] != Health::Running);
    let Health::Crashed(words) = threads.health()[&2].clone() else { panic!("it runs") };
    assert_eq!(words, "app 'end' panicked: enough");
    let sent = |threads: &mut Threads| {
        threads.links()[&"src.output -> mid.input".parse().unwrap()].rxpackets
    };
    let before = sent(&mut threads);
    wait_for(|| sent(&mut threads) > before + 10_000);
    assert_eq!(threads.health()[&0], Health::Running);
    // What is sent to the dead thread is dropped and counted.
    wait_for(|| threads.links()[&"mid.output -> end.input".parse().unwrap()].txdrop > 0);
    // Asking it is an error and no hang.
    assert!(threads.ask(2, |engine| engine.breaths()).is_err());

    // The next configuration starts it again; what ran goes on.
    let survivor = threads.ask(0, |engine| engine.breaths()).unwrap();
    let mut again = network(NEVER, NEVER);
    again.remove("end");
    again.app_on(2, "end", "Sink", ()).unwrap().link("mid.output -> end.input").unwrap();
    threads.configure(&again).unwrap();
    assert!(threads.ask(0, |engine| engine.breaths()).unwrap() >= survivor);
    wait_for(|| threads.links()[&"mid.output -> end.input".parse().unwrap()].rxpackets > 0);
    threads.stop().unwrap();
}

#[test]
fn apps_move_between_threads() {
    let mut threads = threads();
    threads.configure(&network(NEVER, NEVER)).unwrap();
    wait_for(|| threads.links()[&"mid.output -> end.input".parse().unwrap()].rxpackets > 1000);
    let mut next = Config::new();
    next.app_on(1, "src", "Numbers", Count { count: 5000 })
        .unwrap()
        .app_on(1, "mid", "Join", ())
        .unwrap();
    next.app_on(0, "end", "Sink", ()).unwrap();
    next.link("src.output -> mid.input").unwrap().link("mid.output -> end.input").unwrap();
    threads.configure(&next).unwrap();
    assert_eq!(threads.health().into_keys().collect::<Vec<_>>(), [0, 1]);
    wait_for(|| threads.finished());
    let end = threads.links()[&"mid.output -> end.input".parse().unwrap()];
    assert_eq!((end.rxpackets + end.txdrop, end.rxpackets), (5000, end.txpackets));
    threads.stop().unwrap();
}

#[test]
fn a_bad_configuration_is_refused_as_a_whole() {
    let mut threads = threads();
    threads.configure(&network(10, NEVER)).unwrap();
    let mut bad = network(20, NEVER);
    bad.link("mid.output -> nobody.input").unwrap();
    assert!(matches!(threads.configure(&bad), Err(ThreadsError::Refused(_))));
    wait_for(|| threads.finished());
    assert_eq!(threads.links()[&"src.output -> mid.input".parse().unwrap()].txpackets, 10);
}
