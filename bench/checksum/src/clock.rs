//! Time in nanoseconds by the processor's counter, and the core's own clock.
#![allow(unsafe_code)]

use std::arch::asm;
use std::hint::black_box;
use std::time::{Duration, Instant};

const CALIBRATION: Duration = Duration::from_millis(50);
/// Multiplications by one register: the latency is 3 cycles on every x86-64 core of the last
/// fifteen years, and unlike additions no core folds them away.
const MULTIPLY_CYCLES: f64 = 3.0;
const MULTIPLICATIONS: u32 = 8 * 20_000;
/// For a short look at the core: about half a microsecond each.
const FEW_MULTIPLICATIONS: u32 = 8 * 50;
const ADDITIONS: u64 = 12 * 250;

#[derive(Clone, Copy)]
pub struct Clock {
    ns_per_tick: f64,
    /// What a measurement of nothing gives.
    overhead: u64,
}

impl Clock {
    pub fn calibrate() -> Clock {
        let (began, ticks) = (Instant::now(), start());
        while began.elapsed() < CALIBRATION {}
        let (ticks, elapsed) = (stop() - ticks, began.elapsed());
        let overhead = (0..1000).map(|_| measure(|| ())).min().unwrap_or(0);
        Clock { ns_per_tick: elapsed.as_nanos() as f64 / ticks as f64, overhead }
    }

    /// How long `work` takes, in ns. What it returns counts as used.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> f64 {
        measure(work).saturating_sub(self.overhead) as f64 * self.ns_per_tick
    }

    pub fn counter_ghz(&self) -> f64 {
        1.0 / self.ns_per_tick
    }

    /// The clock that the core runs at just now.
    pub fn core_ghz(&self) -> Option<f64> {
        if cfg!(not(target_arch = "x86_64")) {
            return None;
        }
        let fastest =
            (0..20).map(|_| self.time(|| multiply(MULTIPLICATIONS))).min_by(f64::total_cmp)?;
        Some(f64::from(MULTIPLICATIONS) * MULTIPLY_CYCLES / fastest)
    }

    /// How much this core gets done just now: additions per cycle that do not depend on each other.
    /// The cycles are counted by multiplications that do. Other work on the same core, a
    /// neighbour's on its other hardware thread, takes from the additions and not from the
    /// multiplications; a change of the clock changes both alike. Always 1 elsewhere.
    pub fn additions_per_cycle(&self) -> f64 {
        if cfg!(not(target_arch = "x86_64")) {
            return 1.0;
        }
        // The fastest of a few: an interrupt is not what is looked for.
        let fastest = |work: &dyn Fn()| (0..3).map(|_| self.time(work)).fold(f64::MAX, f64::min);
        let cycle = fastest(&|| multiply(FEW_MULTIPLICATIONS))
            / f64::from(FEW_MULTIPLICATIONS)
            / MULTIPLY_CYCLES;
        ADDITIONS as f64 * cycle / fastest(&add)
    }
}

fn measure<T>(work: impl FnOnce() -> T) -> u64 {
    let began = start();
    black_box(work());
    stop() - began
}

#[cfg(target_arch = "x86_64")]
fn start() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    // SAFETY: every x86-64 processor has these. The fences keep earlier loads, stores and flushes
    // out of the measurement, and the measured work behind the counter.
    unsafe {
        _mm_mfence();
        _mm_lfence();
        let ticks = _rdtsc();
        _mm_lfence();
        ticks
    }
}

#[cfg(target_arch = "x86_64")]
fn stop() -> u64 {
    use std::arch::x86_64::{__rdtscp, _mm_lfence};
    let mut processor = 0;
    // SAFETY: as above; `rdtscp` waits for the measured work, the fence holds back what comes
    // after.
    unsafe {
        let ticks = __rdtscp(&mut processor);
        _mm_lfence();
        ticks
    }
}

#[cfg(target_arch = "aarch64")]
fn start() -> u64 {
    let ticks: u64;
    // SAFETY: reads the virtual counter, which Linux lets programs do; the barriers order it
    // against the work.
    unsafe { asm!("dsb sy", "isb", "mrs {}, cntvct_el0", "isb", out(reg) ticks) };
    ticks
}

#[cfg(target_arch = "aarch64")]
fn stop() -> u64 {
    start()
}

#[cfg(target_arch = "x86_64")]
fn add() {
    // SAFETY: registers only.
    unsafe {
        asm!("2:",
             "add {a}, {n}", "add {b}, {n}", "add {c}, {n}", "add {d}, {n}", "add {e}, {n}", "add {f}, {n}",
             "add {a}, {n}", "add {b}, {n}", "add {c}, {n}", "add {d}, {n}", "add {e}, {n}", "add {f}, {n}",
             "dec {n}", "jnz 2b",
             a = inout(reg) 0u64 => _, b = inout(reg) 0u64 => _, c = inout(reg) 0u64 => _, d = inout(reg) 0u64 => _,
             e = inout(reg) 0u64 => _, f = inout(reg) 0u64 => _, n = inout(reg) ADDITIONS / 12 => _,
             options(nomem, nostack));
    }
}

#[cfg(target_arch = "x86_64")]
fn multiply(times: u32) {
    // SAFETY: registers only.
    unsafe {
        asm!("2:",
             "imul {x}, {x}", "imul {x}, {x}", "imul {x}, {x}", "imul {x}, {x}",
             "imul {x}, {x}", "imul {x}, {x}", "imul {x}, {x}", "imul {x}, {x}",
             "dec {n:e}", "jnz 2b",
             x = inout(reg) 3u64 => _, n = inout(reg) times / 8 => _, options(nomem, nostack));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn add() {}

#[cfg(not(target_arch = "x86_64"))]
fn multiply(_: u32) {}
