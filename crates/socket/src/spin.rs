//! Busy waiting: how long, and whether it pays.

use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::config::CONFIG;

use crate::kernel;

/// Score below which spinning is only tried now and then.
const PAYS: u32 = 4;
const BEST: u32 = 16;
/// One wait in so many is a probe while spinning does not pay.
const PROBE: u32 = 32;

/// In a score: the last wait found a descriptor that blocks.
const BLOCKS: u32 = 1 << 31;
/// Looks, of a few nanoseconds each, of a receive that probably blocks, in front of the system call
/// that asks whether it does.
const EARLY: u32 = 256;

/// Notes whether a wait that is accounted to `score` may sleep.
pub fn note(score: &AtomicU32, blocks: bool) {
    let s = score.load(Relaxed);
    if (s & BLOCKS != 0) != blocks {
        score.store(s ^ BLOCKS, Relaxed);
    }
}

/// Whether `done` comes true within a few looks; none where the last wait did not block, or spinning
/// does not pay.
#[inline]
pub fn is_early(score: &AtomicU32, mut done: impl FnMut() -> bool) -> bool {
    let s = score.load(Relaxed);
    s & BLOCKS != 0
        && s & 0xff >= PAYS
        && CONFIG.spin_ns.load(Relaxed) != 0
        && (0..EARLY).any(|_| done())
}

/// How well spinning has paid, and whether to try now.
pub struct Spin<'a> {
    score: &'a AtomicU32,
}

impl<'a> Spin<'a> {
    /// A spin accounted to `score`, if one is worth trying.
    pub fn try_now(score: &'a AtomicU32) -> Option<Self> {
        if CONFIG.spin_ns.load(Relaxed) == 0 {
            return None;
        }
        let s = score.load(Relaxed);
        let (level, skipped) = (s & 0xff, (s & !BLOCKS) >> 8);
        if level < PAYS && skipped < PROBE {
            score.store(s & BLOCKS | level | (skipped + 1) << 8, Relaxed);
            return None;
        }
        Some(Self { score })
    }

    /// Keeps what has come of it.
    fn judge(&self, level: u32) {
        self.score.store(self.score.load(Relaxed) & BLOCKS | level, Relaxed);
    }

    /// Spins until `done` or the budget is spent. `done` is asked every few dozen cycles.
    pub fn until(self, mut done: impl FnMut() -> bool) -> bool {
        let budget = u64::from(CONFIG.spin_ns.load(Relaxed));
        let start = kernel::get().now_ns();
        let level = self.score.load(Relaxed) & 0xff;
        let mut last = start;
        loop {
            for _ in 0..8 {
                if done() {
                    self.judge((level + 2).min(BEST));
                    return true;
                }
                core::hint::spin_loop();
            }
            let now = kernel::get().now_ns();
            // A gap means that somebody else ran here: the processor is wanted, and spinning only
            // delays the peer. Who lets it spin for long, between emulated processors perhaps,
            // means shorter ones not.
            let preempted = now - last > (budget / 2).max(50_000);
            if now - start > budget || preempted {
                self.judge(level.saturating_sub(if preempted { 8 } else { 2 }));
                return false;
            }
            last = now;
        }
    }
}
