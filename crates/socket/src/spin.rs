//! Busy waiting: how long, and whether it pays.

use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::config::CONFIG;

use crate::kernel;

/// Score below which spinning is only tried now and then.
const PAYS: u32 = 4;
const BEST: u32 = 16;
/// One wait in so many is a probe while spinning does not pay, and half as many after each that came to nothing, down to one in
/// `32 << RARER`: where more threads want to run than there are processors, a probe is time that its peer does not get.
const PROBE: u32 = 32;
const RARER: u32 = 4;

/// What is kept between waits, in one word: how well it has paid, in the lowest 8 bits; how much rarer probes have become, in 4; and
/// waits since the last one.
#[derive(Clone, Copy)]
struct Score(u32);

impl Score {
    fn new(level: u32, rarer: u32, skipped: u32) -> Self {
        Self(level | rarer << 8 | skipped << 12)
    }

    fn level(self) -> u32 {
        self.0 & 0xff
    }

    fn rarer(self) -> u32 {
        self.0 >> 8 & 0xf
    }

    fn skipped(self) -> u32 {
        self.0 >> 12
    }

    /// Whether the next wait spins, and what is kept then.
    fn next(self) -> (bool, Self) {
        let goes = self.level() >= PAYS || self.skipped() >= PROBE << self.rarer();
        (goes, if goes { self } else { Self::new(self.level(), self.rarer(), self.skipped() + 1) })
    }

    fn hit(self) -> Self {
        Self::new((self.level() + 2).min(BEST), 0, 0)
    }

    /// It came to nothing; worth less by so much.
    fn miss(self, less: u32) -> Self {
        let was_probe = self.level() < PAYS;
        Self::new(self.level().saturating_sub(less), (self.rarer() + u32::from(was_probe)).min(RARER), 0)
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
        let (goes, kept) = Score(score.load(Relaxed)).next();
        if !goes {
            score.store(kept.0, Relaxed);
            return None;
        }
        Some(Self { score })
    }

    /// Spins until `done` or the budget is spent. `done` is asked every few dozen cycles.
    pub fn until(self, mut done: impl FnMut() -> bool) -> bool {
        let budget = u64::from(CONFIG.spin_ns.load(Relaxed));
        let start = kernel::get().now_ns();
        let before = Score(self.score.load(Relaxed));
        let mut last = start;
        loop {
            for _ in 0..8 {
                if done() {
                    self.score.store(before.hit().0, Relaxed);
                    return true;
                }
                core::hint::spin_loop();
            }
            let now = kernel::get().now_ns();
            // A gap means that somebody else ran here: the processor is wanted, and spinning only delays the peer. Who lets it
            // spin for long, between emulated processors perhaps, means shorter ones not.
            let preempted = now - last > (budget / 2).max(50_000);
            if now - start > budget || preempted {
                self.score.store(before.miss(if preempted { 8 } else { 2 }).0, Relaxed);
                return false;
            }
            last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the next one spins.
    fn until_next(mut score: Score) -> u32 {
        (0..)
            .find(|_| {
                let (goes, kept) = score.next();
                score = kept;
                goes
            })
            .unwrap()
    }

    #[test]
    fn probes_that_come_to_nothing_become_rarer_until_one_pays() {
        let mut score = Score::new(PAYS, 0, 0);
        assert_eq!(until_next(score), 0);
        score = score.miss(2);
        for waits in [32, 64, 128, 256, 512, 512] {
            assert_eq!(until_next(score), waits);
            score = score.miss(2);
        }
        score = score.hit().hit();
        assert_eq!((until_next(score), score.level()), (0, PAYS));
        score = score.miss(8);
        assert_eq!(until_next(score), PROBE);
    }

    #[test]
    fn what_pays_is_not_forgotten_at_once() {
        let mut score = (0..100).fold(Score::new(0, 0, 0), |score, _| score.hit());
        assert_eq!(score.level(), BEST);
        for _ in 0..6 {
            score = score.miss(2);
        }
        assert_eq!((until_next(score), until_next(score.miss(2))), (0, PROBE));
    }
}
