//! Busy waiting: how long, and whether it pays.

use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::config::CONFIG;

use crate::kernel;

/// Score below which spinning is only tried now and then.
const PAYS: u32 = 4;
const BEST: u32 = 16;
/// One wait in so many is a probe while spinning does not pay.
const PROBE: u32 = 32;

/// Looks between two questions for the time.
const LOOKS: u32 = 8;
/// Nanoseconds that these and the question take at the least, on any machine.
const ROUND_NS: u64 = 16;

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

/// So many of `ONE_WAY` may be a stream. Its reader takes a message as soon as it is there and so
/// fights the writer for a cache line with each one. Where it is none after all, one receive in so
/// many is late.
const STREAM: u32 = 128;
/// Hints to the processor, 10 to 50 ns each, for which the reader of a stream leaves it to the
/// writer.
const LEAVE: u32 = 24;

/// Notes whether a wait that is accounted to `score` may sleep.
pub fn note(score: &AtomicU32, blocks: bool) {
    let s = score.load(Relaxed);
    if (s & BLOCKS != 0) != blocks {
        score.store(if blocks { s | BLOCKS } else { s & !BLOCKS }, Relaxed);
    }
}

/// Whether the last wait found a descriptor that blocks.
#[inline]
pub fn may_block(score: &AtomicU32) -> bool {
    score.load(Relaxed) & BLOCKS != 0
}

/// How a receive that found nothing came to find something soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Soon {
    /// It did not.
    No,
    /// It looked.
    Looked,
    /// It left the ring to the writer for a while before it looked.
    Left,
}

/// Whether `done` comes true within a few looks; none where the last wait did not block, or spinning
/// does not pay. `sent` is how often the caller has sent on the connection.
#[inline]
pub fn soon(score: &AtomicU32, sent: u64, mut done: impl FnMut() -> bool) -> Soon {
    let s = score.load(Relaxed);
    if !may_block(score) || s & 0xff < PAYS || CONFIG.spin_ns.load(Relaxed) == 0 {
        return Soon::No;
    }
    let sent = (sent as u32) << SENT.trailing_zeros() & SENT;
    let streak = if s & SENT == sent { (s & ONE_WAY) >> ONE_WAY.trailing_zeros() } else { 0 };
    let leaves = streak >= STREAM;
    if leaves {
        (0..LEAVE).for_each(|_| core::hint::spin_loop());
    }
    let found = (0..EARLY).any(|_| done());
    count(score, sent, if found { (streak + 1).min(STREAM) } else { 0 });
    match (found, leaves) {
        (false, _) => Soon::No,
        (true, false) => Soon::Looked,
        (true, true) => Soon::Left,
    }
}

/// It left the ring to the writer, who has written no more than one message meanwhile, and may be
/// waiting for what is made of that: no stream.
#[cold]
pub fn no_stream(score: &AtomicU32) {
    count(score, score.load(Relaxed) & SENT, 0);
}

/// Keeps how long the stream is; others may have changed the rest since it was looked at.
#[inline(always)]
fn count(score: &AtomicU32, sent: u32, streak: u32) {
    let s = score.load(Relaxed);
    let now = s & !(SENT | ONE_WAY) | sent | streak << ONE_WAY.trailing_zeros();
    if now != s {
        score.store(now, Relaxed);
    }
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
        // By a clock that stands still, or goes back, the budget would never be spent: where libc's own is not
        // found, a library's that tells programs another time may be asked.
        for _ in 0..=budget / ROUND_NS {
            for _ in 0..LOOKS {
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
            let preempted = now.saturating_sub(last) > (budget / 2).max(50_000);
            if now.saturating_sub(start) > budget || preempted {
                self.judge(level.saturating_sub(if preempted { 8 } else { 2 }));
                return false;
            }
            last = now;
        }
        self.judge(level.saturating_sub(2));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{SCRIPTED, serial};

    /// Runs `test` where spinning is allowed, which others here have switched off.
    fn where_spinning_is_allowed(test: impl FnOnce()) {
        let _turn = serial();
        let before = CONFIG.spin_ns.swap(20_000, Relaxed);
        test();
        CONFIG.spin_ns.store(before, Relaxed);
    }

    #[test]
    fn only_a_stream_is_left_to_its_writer() {
        where_spinning_is_allowed(streams);
    }

    fn streams() {
        let score = AtomicU32::new(BEST);
        assert_eq!(soon(&score, 0, || true), Soon::No, "it may not block");
        note(&score, true);
        for _ in 0..STREAM {
            assert_eq!(soon(&score, 5, || true), Soon::Looked);
        }
        assert_eq!(soon(&score, 5, || true), Soon::Left);
        // An answer.
        assert_eq!(soon(&score, 6, || true), Soon::Looked);
        for _ in 1..STREAM {
            soon(&score, 6, || true);
        }
        assert_eq!(soon(&score, 6, || true), Soon::Left);
        no_stream(&score);
        assert_eq!(soon(&score, 6, || true), Soon::Looked);
        assert_eq!(soon(&score, 6, || false), Soon::No);
        assert!(may_block(&score));
        note(&score, false);
        assert_eq!((may_block(&score), score.load(Relaxed) & 0xff), (false, BEST));
    }

    #[test]
    fn what_does_not_pay_is_tried_now_and_then() {
        where_spinning_is_allowed(|| {
            let score = AtomicU32::new(PAYS - 1);
            note(&score, true);
            assert_eq!(soon(&score, 0, || true), Soon::No);
            let tries = (0..4 * (PROBE + 1))
                .filter(|_| Spin::try_now(&score).inspect(|spin| spin.judge(PAYS - 1)).is_some());
            assert_eq!((tries.count(), may_block(&score)), (4, true));
        });
    }

    #[test]
    fn a_clock_that_stands_still_ends_no_spin() {
        where_spinning_is_allowed(|| {
            let score = AtomicU32::new(BEST);
            SCRIPTED.stands_still.store(true, SeqCst);
            let mut looks = 0u32;
            let found = Spin::try_now(&score).expect("it pays").until(|| {
                looks += 1;
                assert!(looks < 1_000_000, "for ever");
                false
            });
            SCRIPTED.stands_still.store(false, SeqCst);
            assert!(!found && looks >= LOOKS);
            assert_eq!(score.load(Relaxed) & 0xff, BEST - 2, "it has not paid");
        });
    }
}
