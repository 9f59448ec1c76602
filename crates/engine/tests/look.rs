//! Looking at the packets of a running engine: what is seen, and lookers that mean ill.
#![allow(unused_crate_dependencies)]

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::app::{App, AppError, Context, Io, Kind as AppKind, Ports};
use engine::counters::{Process, RunDir, processes};
use engine::look::{Entry, Kind, Look, LookError};
use engine::{Engine, Options, Packet, Stop, Until};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, send,
    socket_with,
};

const LIMIT: Duration = Duration::from_secs(30);

/// An engine on a thread of its own.
struct Running {
    root: tempfile::TempDir,
    stop: Stop,
    thread: JoinHandle<u64>,
}

impl Running {
    fn start(network: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (path, text) = (root.path().to_path_buf(), network.to_string());
        let (told, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let run_dir = Some(Arc::new(RunDir::create(&path).unwrap()));
            let mut engine = Engine::new(Options { run_dir, ..Options::default() });
            let file = engine::Config::from_toml(&text).unwrap();
            engine.configure(&file.config).unwrap();
            told.send(engine.stopper()).unwrap();
            engine.run(Until::default());
            engine.breaths()
        });
        let stop = ready.recv().unwrap();
        Self { root, stop, thread }
    }

    fn process(&self) -> Process {
        processes(self.root.path()).unwrap().remove(0)
    }

    fn breaths(&self) -> u64 {
        self.process().read().unwrap().engines[&0].counters.get("breaths")
    }

    fn socket(&self) -> PathBuf {
        self.process().path.join("engine/0/look")
    }

    /// It still does its work, and ends in order.
    fn ends_well(self) {
        let before = self.breaths();
        let end = Instant::now() + LIMIT;
        while self.breaths() == before {
            assert!(Instant::now() < end, "the engine does not breathe");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stop.request();
        assert!(self.thread.join().unwrap() > 0);
    }
}

const NETWORK: &str = "links = [\"src.output -> push.input\", \"push.output -> tee.input\", \"tee.a -> one.input\", \
    \"tee.b -> two.input\"]\n[apps.src]\nkind = \"Source\"\n[apps.push]\nkind = \"Tagger\"\ntag = 7\n[apps.tee]\nkind = \"Tee\"\n\
    [apps.one]\nkind = \"Sink\"\n[apps.two]\nkind = \"Sink\"\n";

fn some(look: &mut Look, count: usize) -> Vec<Entry> {
    let (mut all, end) = (Vec::new(), Instant::now() + LIMIT);
    while all.len() < count {
        assert!(Instant::now() < end, "{} of {count}", all.len());
        all.extend(look.next_entry());
    }
    all
}

/// What a look says, once the engine has had a processor to answer it.
fn asked<T>(look: impl Fn() -> Result<T, LookError>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match look() {
            Err(LookError::Silent(_)) if Instant::now() < end => {}
            answer => return answer.unwrap(),
        }
    }
}

fn reach(path: &Path) -> OwnedFd {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn a_capture_shows_each_packet_of_its_link_as_it_is_there() {
    let running = Running::start(NETWORK);
    let process = running.process();
    for (link, length) in [("src.output -> push.input", 60), ("push.output -> tee.input", 64)] {
        let mut look = asked(|| Look::capture(&process, link));
        let seen = some(&mut look, 1000);
        assert!(seen.iter().all(|entry| entry.kind == Kind::Captured && entry.length == length));
        assert!(seen.iter().all(|entry| entry.packet().len() == length as usize));
        assert!(seen.windows(2).all(|pair| pair[0].time <= pair[1].time));
        if length == 64 {
            assert!(seen.iter().all(|entry| entry.packet()[12..16] == [0x81, 0, 0, 7]));
        }
    }
    assert!(matches!(Look::capture(&process, "no.such -> link.input"), Err(LookError::Refused(_))));
    running.ends_well();
}

#[test]
fn a_way_has_its_links_its_copies_and_its_ends() {
    let running = Running::start(NETWORK);
    let mut look = asked(|| Look::trace(&running.process(), 1)).remove(0);
    // In, through, out of the tee twice of which one is a copy, and two ends.
    let seen = some(&mut look, 6);
    let labels = |kind| seen.iter().filter(move |entry| entry.kind == kind).map(Entry::label);
    assert_eq!(labels(Kind::Entered).collect::<Vec<_>>(), ["src.output -> push.input"]);
    let moved: Vec<String> = labels(Kind::Moved).collect();
    assert!(moved[0] == "push.output -> tee.input" && moved.len() == 2, "{moved:?}");
    let copied: Vec<String> = labels(Kind::Copied).collect();
    let mut from_tee = [moved[1].clone(), copied[0].clone()];
    from_tee.sort();
    assert_eq!(from_tee, ["tee.a -> one.input", "tee.b -> two.input"]);
    let mut ends: Vec<String> = labels(Kind::Ended).collect();
    ends.sort();
    assert_eq!(ends, ["one (Sink)", "two (Sink)"]);
    running.ends_well();
}

#[test]
fn a_looker_that_is_gone_leaves_its_place_to_the_next() {
    let running = Running::start(NETWORK);
    let process = running.process();
    let look = || Look::capture(&process, "tee.a -> one.input");
    let first: Vec<Look> = (0..4).map(|_| asked(look)).collect();
    let refused = look().err().expect("four at once are the most");
    assert!(refused.to_string().contains("as many"), "{refused}");
    // As if killed: nothing is said.
    drop(first);
    let end = Instant::now() + LIMIT;
    while look().is_err() {
        assert!(Instant::now() < end, "no place becomes free");
        std::thread::sleep(Duration::from_millis(10));
    }
    running.ends_well();
}

#[test]
fn who_says_nothing_or_nonsense_is_sent_away_and_the_engine_goes_on() {
    let running = Running::start(NETWORK);
    let path = running.socket();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let say = |bytes: &[u8]| {
        let socket = reach(&path);
        let _ = send(&socket, bytes, SendFlags::NOSIGNAL);
        socket
    };
    let long = [b'x'; 60_000];
    let kept = [
        say(b""),
        say(&long),
        say(b"shortwire-look-1 capture \xff\xfe"),
        say(b"shortwire-look-1 trace 99999999999999999999"),
        say(b"shortwire-look-1 trace -1"),
        say(b"shortwire-look-9 capture tee.a -> one.input"),
        say(b"\0\0\0\0"),
    ];
    // Silent ones take all places for two seconds, and no longer.
    let silent: Vec<OwnedFd> = (0..4).map(|_| reach(&path)).collect();
    let end = Instant::now() + LIMIT;
    let mut look = loop {
        match Look::capture(&running.process(), "tee.a -> one.input") {
            Ok(look) => break look,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    assert_eq!(some(&mut look, 10).len(), 10);
    // One that goes on to talk loses its view.
    drop((kept, silent));
    running.ends_well();
    assert!(look.is_over());
}

#[test]
fn a_link_that_is_gone_ends_its_capture() {
    let root = tempfile::tempdir().unwrap();
    let run_dir = Some(Arc::new(RunDir::create(root.path()).unwrap()));
    let mut engine = Engine::new(Options { run_dir, ..Options::default() });
    let file = engine::Config::from_toml(NETWORK).unwrap();
    engine.configure(&file.config).unwrap();
    let process = processes(root.path()).unwrap().remove(0);
    let asker = std::thread::spawn(move || Look::capture(&process, "tee.a -> one.input"));
    let end = Instant::now() + LIMIT;
    while !asker.is_finished() {
        engine.breathe();
        assert!(Instant::now() < end, "no answer");
    }
    let look = asker.join().unwrap().unwrap();
    engine.breathe();
    assert!(!look.is_over());
    engine.configure(&engine::Config::new()).unwrap();
    assert!(look.is_over());
}

/// Sends at each tick, and is never called otherwise.
struct Ticker;

impl App for Ticker {
    fn tick(&mut self, io: &Io) {
        io.output(0).unwrap().transmit(Packet::from_slice(&[9; 77]).unwrap());
    }
}

impl AppKind for Ticker {
    const NAME: &'static str = "Ticker";
    const ABOUT: &'static str = "sends at each tick";
    const OUTPUTS: Ports = Ports::Named(&["out"]);
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self)
    }
}

/// An interface: what it takes has left, and what comes from it is in the slot of that.
struct Port;

impl App for Port {
    fn pull(&mut self, io: &Io) {
        let output = io.output(0).unwrap();
        // As many as the source has sent, and some: all slots of those are used again.
        for _ in 0..512 {
            output.transmit(Packet::from_slice(&[9; 77]).unwrap());
        }
    }

    fn push(&mut self, io: &Io) {
        io.input(0).unwrap().discard();
    }
}

impl AppKind for Port {
    const NAME: &'static str = "Port";
    const ABOUT: &'static str = "takes packets, and has others";
    const INPUTS: Ports = Ports::Named(&["in"]);
    const OUTPUTS: Ports = Ports::Named(&["out"]);
    const PULLS: bool = true;
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self)
    }
}

/// An engine that breathes in this thread, and what another one gets by asking it.
fn ask<R: Send + 'static>(
    network: &str,
    question: impl FnOnce(Process) -> R + Send + 'static,
) -> (Engine, R, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    let run_dir = Some(Arc::new(RunDir::create(root.path()).unwrap()));
    let mut engine = Engine::new(Options { run_dir, ..Options::default() });
    engine.registry_mut().register::<Ticker>();
    engine.registry_mut().register::<Port>();
    engine.configure(&engine::Config::from_toml(network).unwrap().config).unwrap();
    let process = processes(root.path()).unwrap().remove(0);
    let asker = std::thread::spawn(move || question(process));
    let end = Instant::now() + LIMIT;
    while !asker.is_finished() {
        engine.breathe();
        assert!(Instant::now() < end, "no answer");
    }
    (engine, asker.join().unwrap(), root)
}

/// Breathes until so many entries are there.
fn breathe_until(engine: &mut Engine, look: &mut Look, count: usize) -> Vec<Entry> {
    let (mut all, end) = (Vec::new(), Instant::now() + LIMIT);
    while all.len() < count {
        assert!(Instant::now() < end, "{} of {count}", all.len());
        engine.breathe();
        all.extend(std::iter::from_fn(|| look.next_entry()));
    }
    all
}

#[test]
fn what_is_sent_at_a_tick_is_captured() {
    let network = "links = [\"ticks.out -> sink.input\"]\n[apps.ticks]\nkind = \"Ticker\"\n[apps.sink]\nkind = \"Sink\"\n";
    let (mut engine, look, _root) =
        ask(network, |process| Look::capture(&process, "ticks.out -> sink.input"));
    let seen = breathe_until(&mut engine, &mut look.unwrap(), 5);
    assert!(seen.iter().all(|entry| entry.packet() == [9; 77]));
}

#[test]
fn a_slot_that_is_used_again_is_another_packet() {
    let network = "links = [\"src.output -> port.in\", \"port.out -> sink.input\"]\n[apps.src]\nkind = \"Source\"\n\
        [apps.port]\nkind = \"Port\"\n[apps.sink]\nkind = \"Sink\"\n";
    let (mut engine, looks, _root) = ask(network, |process| Look::trace(&process, 500));
    let seen = breathe_until(&mut engine, &mut looks.unwrap().remove(0), 1000);
    let count = |kind| seen.iter().filter(|entry| entry.kind == kind).count();
    assert_eq!((count(Kind::Entered), count(Kind::Moved)), (500, 0));
}

#[test]
fn a_thread_that_does_not_answer_hides_no_other() {
    let running = Running::start(NETWORK);
    let process = running.process();
    let folder = process.path.join("engine/7");
    std::fs::create_dir(&folder).unwrap();
    let stuck = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let stuck = stuck.unwrap();
    bind(&stuck, &SocketAddrUnix::new(folder.join("look")).unwrap()).unwrap();
    listen(&stuck, 1).unwrap();
    let looks = Look::trace(&process, 1).unwrap();
    assert_eq!(looks.len(), 1);
    running.ends_well();
}
