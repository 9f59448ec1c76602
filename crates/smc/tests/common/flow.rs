//! Streams of a known pattern through real threads, and a watchdog over them.

use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use smc::conn::sleepers::{READS, WRITES};
use smc::conn::{Got, Sent};

use super::End;
use super::wait::{MOST, Port, Sizes, part, pattern};

/// Most looks of the watchdog without any progress of a direction, and the time between two: it looks
/// the less where the program gets no processor.
const STALL: u32 = 200;
const LOOK: Duration = Duration::from_millis(20);

/// One direction's progress, which a watchdog looks at.
pub struct Flow {
    sent: AtomicU64,
    got: AtomicU64,
    done: AtomicBool,
}

pub struct Sender<'a> {
    pub port: Port,
    flow: &'a Flow,
    pattern: Vec<u8>,
    sizes: Sizes,
    at: u64,
    /// Of the present request.
    pub left: usize,
    until: Instant,
}

impl<'a> Sender<'a> {
    pub fn new(port: Port, flow: &'a Flow, stream: u8, until: Instant) -> Self {
        Self {
            port,
            flow,
            pattern: pattern(stream),
            sizes: Sizes(u64::from(stream)),
            at: 0,
            left: 0,
            until,
        }
    }

    /// Sends one request as far as there is room; whether all of it.
    pub fn request(&mut self) -> bool {
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
    pub fn go(&mut self) -> bool {
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

pub struct Receiver<'a> {
    pub port: Port,
    flow: &'a Flow,
    pattern: Vec<u8>,
    sizes: Sizes,
    pub at: u64,
    buf: Vec<u8>,
}

impl<'a> Receiver<'a> {
    pub fn new(port: Port, flow: &'a Flow, stream: u8) -> Self {
        let buf = vec![0; MOST];
        Self {
            port,
            flow,
            pattern: pattern(stream),
            sizes: Sizes(u64::from(stream) + 100),
            at: 0,
            buf,
        }
    }

    /// Receives at most `n` bytes.
    pub fn some(&mut self, n: usize) -> Got {
        let got = self.port.recv(&mut self.buf[..n]);
        match got {
            Got::Bytes(n) => {
                assert!(
                    self.buf[..n] == *part(&self.pattern, self.at, n),
                    "wrong bytes behind {}",
                    self.at
                );
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
    pub fn go(&mut self) -> bool {
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
pub fn watched(name: &str, pairs: &[(End, End)], work: impl FnOnce(&[Flow], Instant)) {
    let flow =
        || Flow { sent: AtomicU64::new(0), got: AtomicU64::new(0), done: AtomicBool::new(false) };
    let flows: Vec<Flow> = (0..pairs.len() * 2).map(|_| flow()).collect();
    let over = Arc::new(AtomicBool::new(false));
    thread::scope(|s| {
        let stop = over.clone();
        let flows = &flows;
        s.spawn(move || {
            let mut last: Vec<(u64, u32)> = flows.iter().map(|_| (0, 0)).collect();
            while !stop.load(SeqCst) {
                thread::sleep(LOOK);
                for (i, f) in flows.iter().enumerate() {
                    let now = f.sent.load(Relaxed) + f.got.load(Relaxed);
                    if now != last[i].0 || f.done.load(SeqCst) {
                        last[i] = (now, 0);
                        continue;
                    }
                    last[i].1 += 1;
                    if last[i].1 > STALL {
                        let _ = writeln!(
                            stderr(),
                            "{name}: flow {i} stalls at {} sent, {} received",
                            f.sent.load(Relaxed),
                            f.got.load(Relaxed)
                        );
                        for (a, b) in pairs {
                            for end in [a, b] {
                                let (rx, tx) = (
                                    end.conn.sleepers.others(READS),
                                    end.conn.sleepers.others(WRITES),
                                );
                                let _ = writeln!(
                                    stderr(),
                                    "  sleepers {rx} {tx} ready {:#x} {}",
                                    end.conn.ready(end.fd),
                                    end.describe()
                                );
                            }
                        }
                        // Not by eprintln, whose text would be lost; and the sleepers cannot be
                        // woken.
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
    let doorbells: u64 = pairs
        .iter()
        .flat_map(|(a, b)| [a, b])
        .map(|e| e.conn.tx.counts.doorbells.load(Relaxed))
        .sum();
    let bytes: u64 = flows.iter().map(|f| f.got.load(Relaxed)).sum();
    println!("{name}: {} MB, {doorbells} doorbells for data", bytes >> 20);
}
