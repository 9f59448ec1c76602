//! What the machine itself allows: a ring between two processors with one copy in and one copy out,
//! and memcpy.
#![allow(unsafe_code)]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use shm::CachePadded;

use super::measure::{Case, Kind, fill};
use crate::processors::run_on;

const RING: usize = 1 << 20;
/// Bytes published at a time: measured best for this ring.
const PUBLISH: usize = 16 << 10;

/// None for measures that have no limit of their own.
pub fn run(case: &Case, time: Duration, cpus: Option<(usize, usize)>) -> Result<Option<f64>> {
    match case.kind {
        Kind::Bandwidth => ring(case, time, cpus).map(Some),
        Kind::Direct => Ok(Some(memcpy(case, time))),
        Kind::Latency | Kind::Rate => Ok(None),
    }
}

fn memcpy(case: &Case, time: Duration) -> f64 {
    let mut from = vec![0; case.size];
    fill(&mut from, 0);
    let mut to = vec![0u8; case.size];
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        // Long enough that the clock does not count.
        for _ in 0..(RING / case.size).max(1) {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            count += 1;
        }
    }
    case.value(count, start.elapsed())
}

/// Nanoseconds that a cache line takes from one of the two processors to the other: the least of
/// some rounds. It differs fivefold with the cores that a virtual machine's processors happen to be
/// on, and every message pays it.
pub fn crossing(cpus: (usize, usize)) -> Result<f64> {
    const TRIPS: u32 = 200;
    let [there, back] = [const { CachePadded::new(AtomicU64::new(0)) }; 2];
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = run_on(cpus.0);
            let mut last = 0;
            while last != u64::MAX {
                let now = there.load(Ordering::Acquire);
                if now != last {
                    back.store(now, Ordering::Release);
                    last = now;
                }
            }
            pinned
        });
        let trip = |n| {
            there.store(n, Ordering::Release);
            while back.load(Ordering::Acquire) != n {
                spin_loop();
            }
        };
        let (mut n, mut best) = (0, f64::MAX);
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..TRIPS {
                n += 1;
                trip(n);
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(2 * TRIPS));
        }
        trip(u64::MAX);
        echo.join().expect("no panic in it")?;
        Ok(best)
    })
}

struct Ring {
    memory: *mut u8,
    written: CachePadded<AtomicU64>,
    read: CachePadded<AtomicU64>,
}

// SAFETY: one thread writes ahead of `written`, one reads behind it, and each waits for the other.
unsafe impl Sync for Ring {}

impl Ring {
    fn push(&self, mut bytes: &[u8], at: &mut u64) {
        while !bytes.is_empty() {
            let offset = *at as usize % RING;
            let n = bytes.len().min(PUBLISH).min(RING - offset);
            while *at + n as u64 - self.read.load(Ordering::Acquire) > RING as u64 {
                spin_loop();
            }
            // SAFETY: within the ring, and free.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(offset), n) };
            *at += n as u64;
            // SYNC: bench ring. After the bytes.
            self.written.store(*at, Ordering::Release);
            bytes = &bytes[n..];
        }
    }

    fn pop(&self, buffer: &mut [u8], at: &mut u64, end: u64) {
        // SYNC: bench ring.
        let there = self.written.load(Ordering::Acquire);
        let offset = *at as usize % RING;
        let n = buffer.len().min((there.min(end) - *at) as usize).min(RING - offset).min(PUBLISH);
        if n == 0 {
            return spin_loop();
        }
        // SAFETY: within the ring, and written.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.add(offset), buffer.as_mut_ptr(), n) };
        *at += n as u64;
        self.read.store(*at, Ordering::Release);
    }
}

/// Shared memory of two threads is that of two processes, and ends with them.
fn ring(case: &Case, time: Duration, cpus: Option<(usize, usize)>) -> Result<f64> {
    let memory = shm::Segment::create(c"shortwire-rstream-ring", RING)?;
    let ring = Ring {
        memory: memory.base(),
        written: AtomicU64::new(0).into(),
        read: AtomicU64::new(0).into(),
    };
    let mut from = vec![0; case.size];
    fill(&mut from, 0);
    let (stop, started) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let pinned = cpus.map_or(Ok(()), |(server, _)| run_on(server));
            let mut buffer = vec![0; case.size.max(PUBLISH)];
            let mut at = 0;
            started.store(1, Ordering::Release);
            while at < stop.load(Ordering::Acquire) {
                ring.pop(&mut buffer, &mut at, u64::MAX);
                black_box(&mut buffer);
            }
            pinned
        });
        while started.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let (mut at, mut count, start) = (0, 0, Instant::now());
        while start.elapsed() < time {
            ring.push(black_box(&from), &mut at);
            count += 1;
        }
        stop.store(at, Ordering::Release);
        reader.join().expect("no panic in it")?;
        Ok(case.value(count, start.elapsed()))
    })
}
