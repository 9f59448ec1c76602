//! What the machine itself allows: a ring between two processors with one copy in and one copy out,
//! and memcpy.
#![allow(unsafe_code)]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use shm::CachePadded;

use super::measure::{Case, Kind, fill};
use crate::processors::run_on;

const RING: usize = 1 << 20;
/// Bytes published at a time: measured best for this ring.
const PUBLISH: usize = 16 << 10;
/// Pieces between two looks at the clock, which costs as much as a small message.
const PIECES: u32 = 16;

/// None for measures that have no limit of their own.
pub fn run(case: &Case, time: Duration, cpus: Option<(usize, usize)>) -> Result<Option<f64>> {
    match case.kind {
        Kind::Bandwidth | Kind::Both => rings(case, time, cpus).map(Some),
        Kind::Latency => pingpong(case, time, cpus).map(Some),
        Kind::Direct => Ok(Some(memcpy(case, time))),
        Kind::Rate => Ok(None),
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
            let (source, target) = (black_box(&from), black_box(&mut to));
            // SAFETY: two vectors of one length.
            unsafe { shm::copy(source.as_ptr(), target.as_mut_ptr(), case.size) };
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

/// One way, in memory of two threads, which is that of two processes.
struct Ring {
    memory: shm::Segment,
    written: CachePadded<AtomicU64>,
    read: CachePadded<AtomicU64>,
}

/// How far one end is with one ring.
#[derive(Clone, Copy, Default)]
struct Place {
    at: u64,
    /// Where the other end was when it was last looked at: each look costs a cache line.
    other: u64,
}

impl Ring {
    fn new() -> Result<Self> {
        Ok(Self {
            memory: shm::Segment::create(c"shortwire-rstream-ring", RING)?,
            written: AtomicU64::new(0).into(),
            read: AtomicU64::new(0).into(),
        })
    }

    /// A piece of `bytes`; 0 without room.
    fn push(&self, bytes: &[u8], place: &mut Place) -> usize {
        let offset = place.at as usize % RING;
        let n = bytes.len().min(PUBLISH).min(RING - offset);
        if place.at + n as u64 - place.other > RING as u64 {
            place.other = self.read.load(Ordering::Acquire);
            if place.at + n as u64 - place.other > RING as u64 {
                return 0;
            }
        }
        // SAFETY: within the ring, and free; only this thread writes there.
        unsafe { shm::copy(bytes.as_ptr(), self.memory.base().add(offset), n) };
        place.at += n as u64;
        // SYNC: bench ring. After the bytes.
        self.written.store(place.at, Ordering::Release);
        n
    }

    /// A piece for `buffer`; 0 if there is none.
    fn pop(&self, buffer: &mut [u8], place: &mut Place) -> usize {
        let offset = place.at as usize % RING;
        if place.other == place.at {
            // SYNC: bench ring.
            place.other = self.written.load(Ordering::Acquire);
        }
        let there = (place.other - place.at) as usize;
        let n = buffer.len().min(there).min(RING - offset).min(PUBLISH);
        if n != 0 {
            // SAFETY: within the ring, and written.
            unsafe { shm::copy(self.memory.base().add(offset), buffer.as_mut_ptr(), n) };
            place.at += n as u64;
            self.read.store(place.at, Ordering::Release);
        }
        n
    }
}

/// One end of all rings: what it sends lies in messages, and so does what it receives, as a
/// program's would.
struct End<'a> {
    out: &'a [Ring],
    into: &'a [Ring],
    sent: Vec<Place>,
    got: Vec<Place>,
    from: Vec<Vec<u8>>,
    to: Vec<Vec<u8>>,
}

impl<'a> End<'a> {
    fn new(case: &Case, out: &'a [Ring], into: &'a [Ring]) -> Self {
        let messages = |rings: &[Ring]| {
            let mut message = vec![0; case.size];
            fill(&mut message, 0);
            vec![message; rings.len()]
        };
        Self {
            sent: vec![Place::default(); out.len()],
            got: vec![Place::default(); into.len()],
            from: messages(out),
            to: messages(into),
            out,
            into,
        }
    }

    /// A piece of each ring, where that is possible.
    fn step(&mut self) {
        let mut moved = 0;
        for ((ring, place), message) in self.out.iter().zip(&mut self.sent).zip(&self.from) {
            let at = place.at as usize % message.len();
            moved += ring.push(&black_box(message)[at..], place);
        }
        for ((ring, place), message) in self.into.iter().zip(&mut self.got).zip(&mut self.to) {
            let at = place.at as usize % message.len();
            moved += ring.pop(&mut message[at..], place);
            black_box(message);
        }
        if moved == 0 {
            spin_loop();
        }
    }

    /// Bytes that have arrived here.
    fn received(&self) -> u64 {
        self.got.iter().map(|place| place.at).sum()
    }
}

fn rings(case: &Case, time: Duration, cpus: Option<(usize, usize)>) -> Result<f64> {
    let some = |n: u8| (0..n).map(|_| Ring::new()).collect::<Result<Vec<_>>>();
    let there = some(case.streams)?;
    let back = some(if case.kind == Kind::Both { case.streams } else { 0 })?;
    let (stop, started) = (AtomicBool::new(false), AtomicBool::new(false));
    let server = || -> Result<u64> {
        cpus.map_or(Ok(()), |(server, _)| run_on(server))?;
        let mut end = End::new(case, &back, &there);
        started.store(true, Ordering::Release);
        while !stop.load(Ordering::Relaxed) {
            end.step();
        }
        Ok(end.received())
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(server);
        while !started.load(Ordering::Acquire) && !server.is_finished() {
            std::thread::yield_now();
        }
        let mut end = End::new(case, &there, &back);
        let start = Instant::now();
        while start.elapsed() < time {
            (0..PIECES).for_each(|_| end.step());
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        let received = server.join().expect("no panic in it")? + end.received();
        Ok(received as f64 / took.as_secs_f64())
    })
}

/// Half a round trip, in microseconds.
fn pingpong(case: &Case, time: Duration, cpus: Option<(usize, usize)>) -> Result<f64> {
    let (there, back) = (Ring::new()?, Ring::new()?);
    let (stop, started) = (AtomicBool::new(false), AtomicBool::new(false));
    let server = || {
        cpus.map_or(Ok(()), |(server, _)| run_on(server))?;
        let (mut got, mut sent) = (Place::default(), Place::default());
        let mut buffer = vec![0; case.size];
        started.store(true, Ordering::Release);
        while whole_from(&there, &mut buffer, &mut got, &stop) {
            whole_to(&back, &buffer, &mut sent, &stop);
        }
        std::io::Result::Ok(())
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(server);
        while !started.load(Ordering::Acquire) && !server.is_finished() {
            std::thread::yield_now();
        }
        let (mut sent, mut got) = (Place::default(), Place::default());
        let (mut from, mut to) = (vec![0; case.size], vec![0; case.size]);
        fill(&mut from, 0);
        let never = AtomicBool::new(false);
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time && !server.is_finished() {
            for _ in 0..(RING / case.size).clamp(1, PIECES as usize) {
                whole_to(&there, black_box(&from), &mut sent, &never);
                whole_from(&back, &mut to, &mut got, &never);
                black_box(&mut to);
                count += 1;
            }
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Release);
        server.join().expect("no panic in it")?;
        Ok(case.value(count, took))
    })
}

/// A whole message; false if it is not worth waiting for any more.
fn whole_from(ring: &Ring, buffer: &mut [u8], place: &mut Place, stop: &AtomicBool) -> bool {
    let mut done = 0;
    while done < buffer.len() {
        match ring.pop(&mut buffer[done..], place) {
            0 if stop.load(Ordering::Relaxed) => return false,
            0 => spin_loop(),
            n => done += n,
        }
    }
    true
}

fn whole_to(ring: &Ring, message: &[u8], place: &mut Place, stop: &AtomicBool) {
    let mut done = 0;
    while done < message.len() && !stop.load(Ordering::Relaxed) {
        match ring.push(&message[done..], place) {
            0 => spin_loop(),
            n => done += n,
        }
    }
}
