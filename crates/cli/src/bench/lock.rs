//! `shortwire bench lock`: a lock and unlock of each kind, alone and against others, with signals arriving.
//!
//! The source patch that gave `fastlock` its name measured two billion pairs against a pthread mutex.

use std::cell::UnsafeCell;
use std::fmt::Write as _;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::machine::Machine;
use crate::args::Lock as Args;
use crate::sys;

/// Pairs between two looks at the clock.
const BATCH: u64 = 1000;
const SIGNAL_EVERY: Duration = Duration::from_micros(200);

/// A lock, and a counter that it protects.
trait Lock: Sync {
    fn name(&self) -> &'static str;
    /// `n` times: lock, count, unlock.
    fn pairs(&self, n: u64);
    fn total(&self) -> u64;
}

struct Fast(shm::FastLock<true>, UnsafeCell<u64>);
// SAFETY: the counter is only touched under the lock, which is what this bench checks.
unsafe impl Sync for Fast {}

impl Lock for Fast {
    fn name(&self) -> &'static str {
        "fastlock"
    }

    fn pairs(&self, n: u64) {
        for _ in 0..n {
            let _held = self.0.lock().expect("no handler takes it");
            // SAFETY: under the lock.
            unsafe { *self.1.get() += 1 };
        }
    }

    fn total(&self) -> u64 {
        let _held = self.0.lock().expect("no handler takes it");
        // SAFETY: under the lock.
        unsafe { *self.1.get() }
    }
}

impl Lock for sys::PthreadMutex<u64> {
    fn name(&self) -> &'static str {
        "pthread mutex"
    }

    fn pairs(&self, n: u64) {
        (0..n).for_each(|_| self.with(|count| *count += 1));
    }

    fn total(&self) -> u64 {
        self.with(|count| *count)
    }
}

impl Lock for Mutex<u64> {
    fn name(&self) -> &'static str {
        "std"
    }

    fn pairs(&self, n: u64) {
        (0..n).for_each(|_| *self.lock().expect("no panic under it") += 1);
    }

    fn total(&self) -> u64 {
        *self.lock().expect("no panic under it")
    }
}

impl Lock for parking_lot::Mutex<u64> {
    fn name(&self) -> &'static str {
        "parking_lot"
    }

    fn pairs(&self, n: u64) {
        (0..n).for_each(|_| *self.lock() += 1);
    }

    fn total(&self) -> u64 {
        *self.lock()
    }
}

fn locks() -> [Box<dyn Lock>; 4] {
    [
        Box::new(Fast(shm::FastLock::new(), UnsafeCell::new(0))),
        Box::new(sys::PthreadMutex::new(0u64)),
        Box::new(Mutex::new(0u64)),
        Box::new(parking_lot::Mutex::new(0u64)),
    ]
}

struct Scene {
    name: &'static str,
    threads: usize,
    signals: bool,
}

const SCENES: [Scene; 4] = [
    Scene { name: "uncontended", threads: 1, signals: false },
    Scene { name: "2 threads", threads: 2, signals: false },
    Scene { name: "4 threads", threads: 4, signals: false },
    Scene { name: "2 threads, signals", threads: 2, signals: true },
];

/// Nanoseconds of wall time per pair, over all threads.
fn measure(lock: &dyn Lock, scene: &Scene, time: Duration) -> Result<f64> {
    let _storm = scene.signals.then(|| sys::Storm::start(SIGNAL_EVERY)).transpose()?;
    let start = Barrier::new(scene.threads);
    let before = lock.total();
    let (mut pairs, mut elapsed) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        let run = || {
            start.wait();
            let began = Instant::now();
            let mut done = 0;
            while began.elapsed() < time {
                lock.pairs(BATCH);
                done += BATCH;
            }
            (done, began.elapsed())
        };
        let threads: Vec<_> = (0..scene.threads).map(|_| scope.spawn(run)).collect();
        for thread in threads {
            let (done, took) = thread.join().expect("no panic in a thread");
            pairs += done;
            elapsed = elapsed.max(took);
        }
    });
    ensure!(lock.total() - before == pairs, "{} let two threads in at once ({})", lock.name(), scene.name);
    Ok(elapsed.as_secs_f64() * 1e9 / pairs as f64)
}

fn median(samples: &mut [f64]) -> (f64, f64, f64) {
    samples.sort_by(f64::total_cmp);
    (samples[samples.len() / 2], samples[0], samples[samples.len() - 1])
}

pub fn run(args: &Args) -> Result<()> {
    let locks = locks();
    let time = Duration::from_secs_f64(args.seconds);
    let mut rows = Vec::new();
    for scene in &SCENES {
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); locks.len()];
        for _ in 0..args.repeat {
            // In turn, so that what disturbs the machine disturbs all.
            for (lock, samples) in locks.iter().zip(&mut samples) {
                samples.push(measure(lock.as_ref(), scene, time)?);
            }
        }
        let summaries: Vec<_> = samples.iter_mut().map(|s| median(s)).collect();
        rows.push((scene.name, summaries));
    }
    let names: Vec<_> = locks.iter().map(|lock| lock.name()).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&object(&rows, &names, args.repeat as usize))?);
    } else {
        print!("{}", text(&rows, &names));
    }
    Ok(())
}

type Row = (&'static str, Vec<(f64, f64, f64)>);

fn object(rows: &[Row], names: &[&str], n: usize) -> Value {
    let entries = rows.iter().flat_map(|(scene, summaries)| {
        let (ours, min, max) = summaries[0];
        let rivals = summaries.iter().zip(names).skip(1);
        rivals.map(move |((rival, _, _), against)| {
            json!({"name": format!("fastlock, {scene}"), "value": ours, "unit": "ns", "min": min, "max": max, "n": n,
                "against": against, "ratio": rival / ours})
        })
    });
    json!({"bench": "lock", "machine": Machine::describe(None), "rows": entries.collect::<Vec<_>>()})
}

fn text(rows: &[Row], names: &[&str]) -> String {
    let mut out = format!("{:<20}", "ns per pair");
    names.iter().for_each(|name| write!(out, "{name:>26}").expect("a string"));
    out.push('\n');
    for (scene, summaries) in rows {
        write!(out, "{scene:<20}").expect("a string");
        for (value, min, max) in summaries {
            write!(out, "{:>26}", format!("{value:.1} [{min:.1}..{max:.1}]")).expect("a string");
        }
        out.push('\n');
    }
    out
}
