//! Waiting threads: each sleep is armed, checked and really slept, as in the preloaded library's `wait`, and always ends.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use common::wait::{MOST, Port, Sizes, part, pattern, ppoll};
use common::{End, rings, serial};
use smc::config::CONFIG;
use smc::conn::{Got, IN, OUT, Sent, Waits};
use smc::table;

/// Longest time without any progress of a direction.
const STALL: Duration = Duration::from_secs(4);

/// One direction's progress, which a watchdog looks at.
struct Flow {
    sent: AtomicU64,
    got: AtomicU64,
    done: AtomicBool,
}

struct Sender<'a> {
    port: Port,
    flow: &'a Flow,
    pattern: Vec<u8>,
    sizes: Sizes,
    at: u64,
    /// Of the present request.
    left: usize,
    until: Instant,
}

impl<'a> Sender<'a> {
    fn new(port: Port, flow: &'a Flow, stream: u8, until: Instant) -> Self {
        Self { port, flow, pattern: pattern(stream), sizes: Sizes(u64::from(stream)), at: 0, left: 0, until }
    }

    /// Sends one request as far as there is room; whether all of it.
    fn request(&mut self) -> bool {
        while self.left > 0 {
            match self.port.send(part(&self.pattern, self.at, self.left)) {
                Sent::Bytes(n) => {
                    self.left -= n;
                    self.at += n as u64;
                    self.flow.sent.store(self.at, Relaxed);
                }
                Sent::Full => return false,
                other => panic!("{other:?}"),
            }
        }
        true
    }

    /// Sends until there is no more room; false at the end.
    fn go(&mut self) -> bool {
        while Instant::now() < self.until {
            if self.left == 0 {
                self.sizes.dawdle();
                self.left = self.sizes.next();
            }
            if !self.request() {
                return true;
            }
        }
        self.port.shut();
        false
    }
}

struct Receiver<'a> {
    port: Port,
    flow: &'a Flow,
    pattern: Vec<u8>,
    sizes: Sizes,
    at: u64,
    buf: Vec<u8>,
}

impl<'a> Receiver<'a> {
    fn new(port: Port, flow: &'a Flow, stream: u8) -> Self {
        let buf = vec![0; MOST];
        Self { port, flow, pattern: pattern(stream), sizes: Sizes(u64::from(stream) + 100), at: 0, buf }
    }

    /// Receives at most `n` bytes.
    fn some(&mut self, n: usize) -> Got {
        let got = self.port.recv(&mut self.buf[..n]);
        match got {
            Got::Bytes(n) => {
                assert!(self.buf[..n] == *part(&self.pattern, self.at, n), "wrong bytes behind {}", self.at);
                self.at += n as u64;
                self.flow.got.store(self.at, Relaxed);
            }
            Got::Empty => {}
            Got::Eof => self.flow.done.store(true, SeqCst),
            ref other => panic!("{other:?}"),
        }
        got
    }

    /// Receives until there is nothing more; false at the end.
    fn go(&mut self) -> bool {
        loop {
            let n = self.sizes.next();
            match self.some(n) {
                Got::Bytes(_) => self.sizes.dawdle(),
                got => return got == Got::Empty,
            }
        }
    }
}

/// Runs `work` on connections while a watchdog looks on, and checks that all came through.
fn watched(name: &str, pairs: &[(End, End)], work: impl FnOnce(&[Flow], Instant)) {
    let flow = || Flow { sent: AtomicU64::new(0), got: AtomicU64::new(0), done: AtomicBool::new(false) };
    let flows: Vec<Flow> = (0..pairs.len() * 2).map(|_| flow()).collect();
    let over = Arc::new(AtomicBool::new(false));
    thread::scope(|s| {
        let stop = over.clone();
        let flows = &flows;
        s.spawn(move || {
            let mut last: Vec<(u64, Instant)> = flows.iter().map(|_| (0, Instant::now())).collect();
            while !stop.load(SeqCst) {
                thread::sleep(Duration::from_millis(20));
                for (i, f) in flows.iter().enumerate() {
                    let now = f.sent.load(Relaxed) + f.got.load(Relaxed);
                    if now != last[i].0 || f.done.load(SeqCst) {
                        last[i] = (now, Instant::now());
                    } else if last[i].1.elapsed() > STALL {
                        eprintln!("{name}: flow {i} stalls at {} sent, {} received", f.sent.load(Relaxed), f.got.load(Relaxed));
                        for (a, b) in pairs {
                            for end in [a, b] {
                                let (rx, tx) = (end.conn.rx_sleepers.load(SeqCst), end.conn.tx_sleepers.load(SeqCst));
                                eprintln!("  sleepers {rx} {tx} ready {:#x} {}", end.conn.ready(end.fd), end.describe());
                            }
                        }
                        // The sleepers cannot be woken any other way.
                        std::process::abort();
                    }
                }
            }
        });
        work(flows, Instant::now() + Duration::from_millis(2000));
        over.store(true, SeqCst);
    });
    for f in &flows {
        assert_eq!(f.sent.load(Relaxed), f.got.load(Relaxed), "{name}");
    }
    let doorbells: u64 = pairs.iter().flat_map(|(a, b)| [a, b]).map(|e| e.conn.tx_counts.doorbells.load(Relaxed)).sum();
    let bytes: u64 = flows.iter().map(|f| f.got.load(Relaxed)).sum();
    println!("{name}: {} MB, {doorbells} doorbells for data", bytes >> 20);
}

/// A reader and a writer on each end.
fn four_threads(name: &str) {
    let pairs = [rings()];
    let ports = [Port::of(&pairs[0].0), Port::of(&pairs[0].1)];
    watched(name, &pairs, |flows, until| {
        thread::scope(|s| {
            for i in [0, 1] {
                s.spawn(move || {
                    let mut sender = Sender::new(ports[i], &flows[i], i as u8, until);
                    while sender.go() {
                        ports[i].wait_for_space();
                    }
                });
                s.spawn(move || {
                    let mut receiver = Receiver::new(ports[i], &flows[1 - i], 1 - i as u8);
                    while receiver.go() {
                        ports[i].wait_for_data();
                    }
                });
            }
        });
    });
}

#[test]
fn blocking_threads() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    four_threads("16 KiB");
    CONFIG.dmb_size.store(256 << 10, Relaxed);
    four_threads("256 KiB");
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    CONFIG.copy.store(true, Relaxed);
    four_threads("16 KiB, copying");
}

/// Requests and answers: somebody sleeps for every one of them.
fn ping_pong(name: &str) {
    let pairs = [rings()];
    let ports = [Port::of(&pairs[0].0), Port::of(&pairs[0].1)];
    watched(name, &pairs, |flows, until| {
        thread::scope(|s| {
            for i in [0, 1] {
                s.spawn(move || {
                    let mut sender = Sender::new(ports[i], &flows[i], i as u8, until);
                    let mut receiver = Receiver::new(ports[i], &flows[1 - i], 1 - i as u8);
                    // Both ends draw the same sizes.
                    let mut sizes = Sizes(7);
                    for turn in 0.. {
                        let n = sizes.next().min(40_000);
                        if turn % 2 == i {
                            if Instant::now() >= until {
                                break;
                            }
                            sender.left = n;
                            while !sender.request() {
                                ports[i].wait_for_space();
                            }
                            continue;
                        }
                        let end = receiver.at + n as u64;
                        while receiver.at < end {
                            match receiver.some((end - receiver.at) as usize) {
                                Got::Eof => return ports[i].shut(),
                                Got::Empty => ports[i].wait_for_data(),
                                _ => {}
                            }
                        }
                    }
                    ports[i].shut();
                    while receiver.go() {
                        ports[i].wait_for_data();
                    }
                });
            }
        });
    });
}

#[test]
fn requests_and_answers() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    ping_pong("ping-pong");
}

/// One thread per end does both directions of several connections and sleeps on all of them at once, either armed one
/// by one as poll does it, or covered by a single wait word as epoll does it.
fn event_loops(name: &str, covered: bool) {
    let pairs: Vec<_> = (0..3).map(|_| rings()).collect();
    let ports: Vec<[Port; 2]> = pairs.iter().map(|(a, b)| [Port::of(a), Port::of(b)]).collect();
    let waits = [0, 1].map(|_| if covered { table::get().expect("a table").take_wait() } else { 0 });
    watched(name, &pairs, |flows, until| {
        thread::scope(|s| {
            for side in [0, 1] {
                let (ports, wait) = (&ports, waits[side]);
                s.spawn(move || {
                    let mut works: Vec<_> = ports.iter().enumerate().map(|(k, p)| {
                        let stream = |side: usize| (2 * k + side) as u8;
                        p[side].conn.cover(wait);
                        (
                            Some(Sender::new(p[side], &flows[2 * k + side], stream(side), until)),
                            Some(Receiver::new(p[side], &flows[2 * k + 1 - side], stream(1 - side))),
                        )
                    }).collect();
                    loop {
                        for (sender, receiver) in &mut works {
                            sender.take_if(|s| !s.go());
                            receiver.take_if(|r| !r.go());
                        }
                        works.retain(|(s, r)| s.is_some() || r.is_some());
                        if works.is_empty() {
                            break;
                        }
                        sleep_on(&works, wait);
                    }
                });
            }
        });
    });
    for wait in waits {
        table::get().expect("a table").free_wait(wait);
    }
}

fn sleep_on(works: &[(Option<Sender>, Option<Receiver>)], wait: u32) {
    let ports = works.iter().map(|(s, r)| s.as_ref().map(|s| s.port).or(r.as_ref().map(|r| r.port)).expect("one of them"));
    let ports: Vec<_> = ports.zip(works).map(|(p, (s, r))| (p, s.is_some(), r.is_some())).collect();
    let page = |p: Port| {
        // SAFETY: a control page of a living group.
        unsafe { &*p.conn.peer_waits.load(Relaxed).cast_const() as &Waits }
    };
    let mut silent = false;
    for &(p, sends, receives) in &ports {
        p.conn.rx_sleepers.fetch_add(u32::from(receives), SeqCst);
        p.conn.tx_sleepers.fetch_add(u32::from(sends), SeqCst);
        if wait == 0 {
            p.conn.arm_data();
        }
        if sends {
            p.conn.arm_space();
            silent |= p.conn.space_is_silent() && p.conn.ready(p.fd) & OUT == 0;
        }
    }
    if wait != 0 {
        page(ports[0].0).sleep(wait);
    }
    let wanted = |(p, sends, receives): &(Port, bool, bool)| {
        let want = if *sends { OUT } else { 0 } | if *receives { IN } else { 0 };
        p.conn.ready(p.fd) & want != 0
    };
    if !ports.iter().any(|port| {
        let seen = port.0.conn.doorbells_seen();
        wanted(port) || { port.0.clear_stale(seen, port.2, port.1); false }
    }) {
        let mut fds: Vec<_> = ports.iter().map(|(p, ..)| libc::pollfd { fd: p.fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }).collect();
        // The kernel keeps telling of an end that the rest of the work does not wait for.
        let ended = ports.iter().any(|(.., receives)| !receives);
        ppoll(&mut fds, (silent || ended).then_some(2_000_000));
        for ((p, ..), k) in ports.iter().zip(&fds) {
            p.conn.kernel_end(k.revents as u16 as u32);
        }
    }
    if wait != 0 {
        page(ports[0].0).wake(wait);
    }
    for &(p, sends, receives) in &ports {
        p.conn.rx_sleepers.fetch_sub(u32::from(receives), SeqCst);
        p.conn.tx_sleepers.fetch_sub(u32::from(sends), SeqCst);
    }
}

#[test]
fn event_loops_armed_one_by_one() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    event_loops("poll", false);
}

#[test]
fn event_loops_under_one_cover() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    event_loops("epoll", true);
}
