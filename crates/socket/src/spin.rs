//! Busy waiting: how long, and whether it pays.

use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::config::CONFIG;

use crate::kernel;

/// Score below which spinning is only tried now and then.
const PAYS: u32 = 4;
const BEST: u32 = 16;
/// One wait in so many is a probe while spinning does not pay.
const PROBE: u32 = 32;

/// In a score, beside how well spinning has paid: how many waits were not spun.
const SKIPPED: u32 = 0xff << 8;
/// Waits in a row that soon found something, with no send of ours between them.
const ONE_WAY: u32 = 0xff << 16;
/// How often we had sent at the last of them, as far as the bits go.
const SENT: u32 = 0x7f << 24;
/// The last wait found a descriptor that blocks.
const BLOCKS: u32 = 1 << 31;
/// Looks, of a few nanoseconds each, of a receive that probably blocks, in front of the system call
/// that asks whether it does.
const EARLY: u32 = 256;

/// So many of `ONE_WAY` are a stream. Its reader takes a message as soon as it is there and so
/// fights the writer for a cache line with each one.
const STREAM: u32 = 32;
/// Hints to the processor, 10 to 50 ns each, for which the reader of a stream leaves it to the
/// writer. A message waits no longer for that than it would behind the ones of such a stream.
const LEAVE: u32 = 24;

/// Notes whether a wait that is accounted to `score` may sleep.
pub fn note(score: &AtomicU32, blocks: bool) {
    let s = score.load(Relaxed);
    if (s & BLOCKS != 0) != blocks {
        score.store(s ^ BLOCKS, Relaxed);
    }
}

/// Whether the last wait found a descriptor that blocks.
#[inline]
pub fn may_block(score: &AtomicU32) -> bool {
    score.load(Relaxed) & BLOCKS != 0
}

/// Whether `done` comes true within a few looks; none where the last wait did not block, or spinning
/// does not pay. `sent` is how often the caller has sent on the connection.
#[inline]
pub fn is_early(score: &AtomicU32, sent: u64, mut done: impl FnMut() -> bool) -> bool {
    let s = score.load(Relaxed);
    if !may_block(score) || s & 0xff < PAYS || CONFIG.spin_ns.load(Relaxed) == 0 {
        return false;
    }
    let sent = (sent as u32) << SENT.trailing_zeros() & SENT;
    let streak = if s & SENT == sent { (s & ONE_WAY) >> ONE_WAY.trailing_zeros() } else { 0 };
    if streak >= STREAM {
        (0..LEAVE).for_each(|_| core::hint::spin_loop());
    }
    let found = (0..EARLY).any(|_| done());
    let streak = if found { (streak + 1).min(STREAM) } else { 0 };
    let now = s & !(SENT | ONE_WAY) | sent | streak << ONE_WAY.trailing_zeros();
    if now != s {
        score.store(now, Relaxed);
    }
    found
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
        let (level, skipped) = (s & 0xff, (s & SKIPPED) >> 8);
        if level < PAYS && skipped < PROBE {
            score.store(s & !SKIPPED | (skipped + 1) << 8, Relaxed);
            return None;
        }
        Some(Self { score })
    }

    /// Keeps what has come of it.
    fn judge(&self, level: u32) {
        self.score.store(self.score.load(Relaxed) & !(SKIPPED | 0xff) | level, Relaxed);
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
