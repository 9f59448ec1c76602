//! `shortwire bench lock`: a lock and unlock of each kind, alone and against others, with signals
//! arriving.
//!
//! The source patch that gave `fastlock` its name measured two billion pairs against a pthread
//! mutex.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use terminal::units::parse_seconds;

use super::machine::Machine;
use super::samples::{Summary, median};
use crate::sys;

/// Pairs between two looks at the clock.
const BATCH: u64 = 1000;
/// The source patch's claim: 33.0 s for the mutex, 26.6 s for the lock.
const BAR: f64 = 1.2;
const SIGNAL_EVERY: Duration = Duration::from_micros(200);

#[derive(clap::Args)]
#[command(about = "Measure fastlock, the lock of rsockets, beside other locks")]
#[command(
    long_about = "Takes and releases each lock in turn, alone, against one and three other threads, and while signals arrive, and prints \
nanoseconds per pair: the median over the rounds, its spread, and how many times longer a rival takes than fastlock within a round. Every lock \
protects a counter, which is checked."
)]
pub struct Args {
    /// How long each lock is measured per round
    #[arg(long, value_name = "N", default_value = "0.2", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

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
    ensure!(
        lock.total() - before == pairs,
        "{} let two threads in at once ({})",
        lock.name(),
        scene.name
    );
    Ok(elapsed.as_secs_f64() * 1e9 / pairs as f64)
}

/// One scene: the rounds of each lock, ours first.
struct Row {
    scene: &'static str,
    rounds: Vec<Vec<f64>>,
}

impl Row {
    fn summary(&self, lock: usize) -> Summary {
        Summary::of(&self.rounds[lock]).expect("at least one round")
    }

    /// How many times longer a pair of `lock` takes than one of ours, in the same round.
    fn ratio(&self, lock: usize) -> f64 {
        let mut ratios: Vec<_> = self.rounds[lock]
            .iter()
            .zip(&self.rounds[0])
            .map(|(rival, ours)| rival / ours)
            .collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios).expect("at least one round")
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let machine = Machine::describe(None).warned();
    let locks = locks();
    let time = Duration::from_secs_f64(args.seconds);
    let mut rows = Vec::new();
    for scene in &SCENES {
        let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); locks.len()];
        for _ in 0..args.repeat {
            // In turn, so that what disturbs the machine disturbs all.
            for (lock, values) in locks.iter().zip(&mut rounds) {
                values.push(measure(lock.as_ref(), scene, time)?);
            }
        }
        rows.push(Row { scene: scene.name, rounds });
    }
    let names: Vec<_> = locks.iter().map(|lock| lock.name()).collect();
    if args.json {
        terminal::outln!("{}", serde_json::to_string_pretty(&object(&rows, &names, &machine))?)?;
    } else {
        terminal::out!("{}", text(&rows, &names, &machine))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn object(rows: &[Row], names: &[&str], machine: &Machine) -> Value {
    let entries = rows.iter().flat_map(|row| {
        let ours = row.summary(0);
        let rivals = names.iter().enumerate().skip(1);
        rivals.map(move |(lock, against)| {
            json!({"name": format!("fastlock, {}", row.scene), "value": ours.median, "unit": "ns", "min": ours.min,
                "max": ours.max, "n": ours.n, "against": against, "ratio": row.ratio(lock)})
        })
    });
    json!({"bench": "lock", "machine": machine, "rows": entries.collect::<Vec<_>>()})
}

fn text(rows: &[Row], names: &[&str], machine: &Machine) -> String {
    let mut out = format!("{:<19}", "ns per pair");
    names.iter().for_each(|name| write!(out, "{name:>28}").expect("a string"));
    out.push('\n');
    for row in rows {
        write!(out, "{:<19}", row.scene).expect("a string");
        for lock in 0..names.len() {
            let Summary { median, min, max, .. } = row.summary(lock);
            let ratio =
                if lock == 0 { String::new() } else { format!("  {:.2} x", row.ratio(lock)) };
            write!(out, "{:>28}", format!("{median:.1} [{min:.1}..{max:.1}]{ratio}"))
                .expect("a string");
        }
        out.push('\n');
    }
    let (n, ratio) = (rows[0].rounds[0].len(), rows[0].ratio(1));
    let outcome = if ratio >= BAR { "reached" } else { "MISSED" };
    writeln!(
        out,
        "Median [min..max] of {n} rounds; x: how many times longer than fastlock, within rounds. {}",
        machine.sentence()
    )
    .expect("a string");
    writeln!(out, "Bar: {BAR:.2} x for the uncontended pthread mutex: {outcome}")
        .expect("a string");
    out
}
