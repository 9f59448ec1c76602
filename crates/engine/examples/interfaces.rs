//! What the XDP app reaches on a veth pair, beside what the kernel does by itself and what the
//! barest loop over an AF_XDP socket does: `interfaces [ROUNDS] [SECONDS] [ROW]`, all rows or those
//! whose names contain ROW. Needs root, `ip`, two processors and Linux 5.18.
//!
//! Everything happens in a network namespace of its own. The kernel's generator
//! (`engine::xdp::live_frames`) has processor 0, what is measured has processor 1. All rows take
//! turns in each round; the medians are printed.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::arena::{SLOT, arena};
use engine::netdev::Netdev;
use engine::xdp::live_frames::{Source, drop_all, forward_all};
use engine::xdp::{Attachment, Copying, Filter, Options, Socket, Umem};
use engine::{Config, Engine, Packet};

const BATCH: u32 = 64;
const RING: u32 = 2048;

/// What is measured, and how: millions of packets per second over so many seconds.
type Row = (&'static str, fn(f64) -> f64);

fn main() {
    let mut words = std::env::args().skip(1);
    let rounds: usize = words.next().map_or(3, |word| word.parse().expect("ROUNDS"));
    let seconds: f64 = words.next().map_or(0.5, |word| word.parse().expect("SECONDS"));
    let wanted = words.next().unwrap_or_default();
    // SAFETY: no descriptor is shared with a thread that would miss it; there is one thread.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("needs root");
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    for (one, other) in [("a0", "a1"), ("b0", "b1")] {
        ip(&format!("link add {one} type veth peer name {other}"));
        ip(&format!("link set {one} up"));
        ip(&format!("link set {other} up"));
    }
    let rows: [Row; 9] = [
        ("receive: kernel drops", kernel_drops),
        ("receive: bare loop", bare_receive),
        ("receive: XDP -> Sink", engine_receive),
        ("transmit: bare loop", bare_transmit),
        ("transmit: Source -> XDP", engine_transmit),
        ("forward: kernel redirects", kernel_forwards),
        ("forward: bare loop", bare_forward),
        ("forward: XDP -> XDP", engine_forward),
        ("forward: RawSocket -> RawSocket", engine_raw),
    ];
    let mut figures: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for (row, (_, measure)) in
            rows.iter().enumerate().filter(|(_, (name, _))| name.contains(&wanted))
        {
            let v = measure(seconds);
            if std::env::var_os("V").is_some() {
                println!("{row} {v:.3}");
            }
            figures.entry(row).or_default().push(v);
        }
    }
    let mut medians = BTreeMap::new();
    for (row, mut values) in figures {
        values.sort_by(f64::total_cmp);
        let (least, middle, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
        println!("{:32} {middle:6.3} Mpps  ({least:.3} .. {most:.3})", rows[row].0);
        medians.insert(row, middle);
    }
    for (name, ours, limit) in [("receive", 2, 1), ("transmit", 4, 3), ("forward", 7, 6)] {
        if let (Some(ours), Some(limit)) = (medians.get(&ours), medians.get(&limit)) {
            println!("{name}: {:.2} of the bare loop", ours / limit);
        }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().expect("ip runs");
    assert!(status.success(), "ip {arguments}");
}

fn index(name: &str) -> u32 {
    Netdev::find(name).expect("an interface of ours").index()
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("two processors");
}

/// Packets that an interface has received, by its own count.
fn received(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("a list of interfaces");
    let line = table
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))
        .expect("it is listed");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// Millions of packets per second that arrive at an interface.
fn rate(name: &str, seconds: f64) -> f64 {
    thread::sleep(Duration::from_millis(150));
    let (before, began) = (received(name), Instant::now());
    thread::sleep(Duration::from_secs_f64(seconds));
    (received(name) - before) as f64 / began.elapsed().as_secs_f64() / 1e6
}

/// Runs `body` beside `work` on processor 1, until `body` is done.
fn beside<R>(work: impl FnOnce(&AtomicBool) + Send, body: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            work(&stop);
        });
        let result = body();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn frame() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

/// Runs `body` while the kernel sends into a0, which arrives at a1.
fn under_load<R>(body: impl FnOnce() -> R) -> R {
    let (stop, to) = (AtomicBool::new(false), index("a0"));
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            Source::new(to, &frame())
                .and_then(|source| source.run(&stop))
                .expect("the kernel's generator");
        });
        let result = body();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn kernel_drops(seconds: f64) -> f64 {
    let _sink = drop_all(index("a1")).expect("a program on a1");
    under_load(|| rate("a1", seconds))
}

fn kernel_forwards(seconds: f64) -> f64 {
    let _sink = drop_all(index("b0")).expect("a program on b0");
    let _forward = forward_all(index("a1"), index("b1")).expect("a program on a1");
    under_load(|| rate("b0", seconds))
}

/// A socket with everything around it that a loop needs.
struct Bare {
    socket: Socket,
    attachment: Option<Arc<Attachment>>,
}

fn bare(umem: &Arc<Umem>, name: &str, receive: bool) -> Bare {
    let ifindex = index(name);
    let options = Options { ifindex, queue: 0, ring_size: RING, copying: Copying::Auto };
    let socket = Socket::open(umem, &options).expect("an AF_XDP socket");
    let attachment =
        receive.then(|| Attachment::open(ifindex, None, &Filter::default()).expect("a program"));
    if let Some(attachment) = &attachment {
        attachment.direct(0, socket.as_fd()).expect("a queue");
    }
    Bare { socket, attachment }
}

impl Bare {
    fn fill(&mut self, free: &mut Vec<u64>) {
        let room = self.socket.fill_room(RING);
        for _ in 0..room {
            let chunk = free.pop().expect("more chunks than rings hold");
            // SAFETY: a chunk of ours, which the list forgets.
            unsafe { self.socket.fill(chunk) };
        }
        self.socket.flush_fill();
    }

    fn close(self, free: &mut Vec<u64>) {
        drop(self.attachment);
        self.socket.close(|chunk| free.push(chunk));
    }
}

/// Chunks of the engine's own packet memory, for loops without an engine.
fn chunks(count: usize) -> (Arc<Umem>, Vec<u64>) {
    let base = arena().base();
    // SAFETY: the arena lives as long as the process.
    let umem = unsafe { Umem::new(base.as_ptr(), arena().length(), SLOT as u32, 0) };
    let slots = (0..count).map(|_| Packet::from_slice(&frame()).expect("a packet").into_slot());
    (Arc::new(umem), slots.map(|slot| (slot.addr().get() - base.addr().get()) as u64).collect())
}

fn give_back(free: Vec<u64>) {
    for chunk in free {
        // SAFETY: within the arena.
        let slot = unsafe { arena().base().add(chunk as usize) };
        // SAFETY: a slot that came from `into_slot`, and is nobody else's.
        drop(unsafe { Packet::from_slot(slot, 256, 0) });
    }
}

fn bare_receive(seconds: f64) -> f64 {
    let (umem, mut free) = chunks(2 * RING as usize);
    let count = std::sync::atomic::AtomicU64::new(0);
    let work = |stop: &AtomicBool| {
        let mut bare = bare(&umem, "a1", true);
        while !stop.load(Ordering::Relaxed) {
            bare.fill(&mut free);
            let got = bare.socket.receive(BATCH, |frame| free.push(frame.chunk));
            count.fetch_add(got.into(), Ordering::Relaxed);
        }
        bare.close(&mut free);
    };
    let figure = beside(work, || under_load(|| counted(&count, seconds)));
    give_back(free);
    figure
}

fn counted(count: &std::sync::atomic::AtomicU64, seconds: f64) -> f64 {
    thread::sleep(Duration::from_millis(150));
    let (before, began) = (count.load(Ordering::Relaxed), Instant::now());
    thread::sleep(Duration::from_secs_f64(seconds));
    (count.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64() / 1e6
}

fn bare_transmit(seconds: f64) -> f64 {
    let (umem, mut free) = chunks(2 * RING as usize);
    let _sink = drop_all(index("a0")).expect("a program on a0");
    let work = |stop: &AtomicBool| {
        let mut bare = bare(&umem, "a1", false);
        while !stop.load(Ordering::Relaxed) {
            bare.socket.complete(RING, |chunk| free.push(chunk));
            for _ in 0..bare.socket.send_room(BATCH).min(BATCH) {
                let chunk = free.pop().expect("more chunks than rings hold");
                // SAFETY: a chunk of ours, which the list forgets; frames were written at 256 or a
                // little behind.
                unsafe { bare.socket.send(chunk + 256, 60) };
            }
            bare.socket.flush_send().expect("the interface takes frames");
        }
        bare.close(&mut free);
    };
    let figure = beside(work, || rate("a0", seconds));
    give_back(free);
    figure
}

fn bare_forward(seconds: f64) -> f64 {
    let (umem, mut free) = chunks(4 * RING as usize);
    let _sink = drop_all(index("b0")).expect("a program on b0");
    let work = |stop: &AtomicBool| {
        let (mut from, mut to) = (bare(&umem, "a1", true), bare(&umem, "b1", false));
        let mut held = Vec::with_capacity(BATCH as usize);
        while !stop.load(Ordering::Relaxed) {
            to.socket.complete(RING, |chunk| free.push(chunk));
            from.fill(&mut free);
            let room = to.socket.send_room(BATCH).min(BATCH);
            from.socket.receive(room, |frame| held.push(frame));
            for frame in held.drain(..) {
                // SAFETY: received just now, and given up.
                unsafe { to.socket.send(frame.chunk + u64::from(frame.data), frame.length) };
            }
            to.socket.flush_send().expect("the interface takes frames");
        }
        from.close(&mut free);
        to.close(&mut free);
    };
    let figure = beside(work, || under_load(|| rate("b0", seconds)));
    give_back(free);
    figure
}

fn breathe(config: Config) -> impl FnOnce(&AtomicBool) + Send {
    move |stop| {
        let mut engine = Engine::new(engine::Options::default());
        engine.configure(&config).expect("a network that starts");
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..100 {
                engine.breathe();
            }
        }
        engine.stop().expect("a network that stops");
    }
}

fn port(config: &mut Config, kind: &str, interface: &str, receive: bool) {
    let mut args = toml::Table::from_iter([("interface".into(), interface.into())]);
    if kind == "XDP" {
        args.insert("receive".into(), receive.into());
    }
    config.app(interface, kind, args).expect("arguments of a port");
}

fn engine_receive(seconds: f64) -> f64 {
    let mut config = Config::new();
    port(&mut config, "XDP", "a1", true);
    config.app("sink", "Sink", ()).unwrap().link("a1.tx -> sink.input").unwrap();
    let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let told = count.clone();
    let work = move |stop: &AtomicBool| {
        let mut engine = Engine::new(engine::Options::default());
        engine.configure(&config).expect("a network that starts");
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..100 {
                engine.breathe();
            }
            let packets = engine.links().map(|(_, stats)| stats.rxpackets).sum();
            told.store(packets, Ordering::Relaxed);
        }
        engine.stop().expect("a network that stops");
    };
    beside(work, || under_load(|| counted(&count, seconds)))
}

fn engine_transmit(seconds: f64) -> f64 {
    let _sink = drop_all(index("a0")).expect("a program on a0");
    let mut config = Config::new();
    port(&mut config, "XDP", "a1", false);
    config.app("source", "Source", ()).unwrap().link("source.output -> a1.rx").unwrap();
    beside(breathe(config), || rate("a0", seconds))
}

fn forward(kind: &str, seconds: f64) -> f64 {
    let _sink = drop_all(index("b0")).expect("a program on b0");
    let mut config = Config::new();
    port(&mut config, kind, "a1", true);
    port(&mut config, kind, "b1", false);
    config.link("a1.tx -> b1.rx").unwrap();
    beside(breathe(config), || under_load(|| rate("b0", seconds)))
}

fn engine_forward(seconds: f64) -> f64 {
    forward("XDP", seconds)
}

fn engine_raw(seconds: f64) -> f64 {
    // Without a program on a1 the generator's frames need GRO there to arrive at all.
    let _pass = engine::xdp::live_frames::pass_all(index("a1")).expect("a program on a1");
    forward("RawSocket", seconds)
}
