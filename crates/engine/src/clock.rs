//! Time for the breath: the processor's counter, brought into line with CLOCK_MONOTONIC now and
//! then.
#![allow(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor's counter: cycles of its nominal clock on x86-64; on arm64 the generic timer, which
/// counts 24 million to a thousand million times a second. Elsewhere nanoseconds.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register, which Linux lets programs read. It may be read a few instructions
        // early, as that of x86-64.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    monotonic()
}

/// Between two reads of the counter nothing came that takes more time than this; a clock that takes
/// a system call is as far off.
fn close() -> u64 {
    #[cfg(target_arch = "aarch64")]
    {
        let per_second: u64;
        // SAFETY: reads a register, in which the firmware has put the counter's frequency.
        unsafe {
            std::arch::asm!("mrs {}, cntfrq_el0", out(reg) per_second, options(nomem, nostack, preserves_flags))
        };
        // A microsecond, and at least what two reads may be apart where the counter is slow.
        (per_second / 1_000_000).max(2)
    }
    #[cfg(not(target_arch = "aarch64"))]
    2000
}

/// Both clocks at one moment. Whoever is preempted between the two reads has them apart by as long,
/// and a rate measured from there is wrong by far: the closest pair of a few tries counts.
fn pair() -> (u64, u64) {
    let (close, mut best, mut closest) = (close(), (0, 0), u64::MAX);
    for _ in 0..TRIES {
        let before = cycles();
        let nanos = monotonic();
        let apart = cycles().saturating_sub(before);
        if apart < closest {
            (best, closest) = ((before, nanos), apart);
        }
        if apart < close {
            break;
        }
    }
    best
}

/// Turns cycles into time. Exact at each [`Clock::set`], and never backwards.
pub struct Clock {
    cycles: u64,
    nanos: u64,
    /// Nanoseconds per cycle, times 2^32.
    rate: u64,
    last: u64,
}

/// Time between two settings over which a new rate is measured.
const SPAN: u64 = 500_000;
/// Longest time that the counter alone tells.
const FAR: u64 = SPAN * 1000;
const TRIES: usize = 8;

impl Clock {
    /// Spins for half a millisecond, to measure the counter's rate.
    pub fn new() -> Self {
        let (cycles, nanos) = pair();
        let mut clock = Self { cycles, nanos, rate: 0, last: 0 };
        while monotonic() - clock.nanos < SPAN {
            std::hint::spin_loop();
        }
        clock.set();
        clock
    }

    /// Reads the system's clock.
    pub fn set(&mut self) -> u64 {
        let (cycles, nanos) = pair();
        let (spent, passed) = (cycles.saturating_sub(self.cycles), nanos - self.nanos);
        if passed >= SPAN {
            // A counter that stopped or jumped (a moved guest) gives a rate of its own for one span
            // only.
            self.rate = ((u128::from(passed) << 32) / u128::from(spent.max(1))).min(1 << 40) as u64;
            (self.cycles, self.nanos) = (cycles, nanos);
        }
        self.last = self.last.max(nanos);
        self.last
    }

    /// The time at a value of the cycle counter.
    #[inline]
    pub fn at(&mut self, cycles: u64) -> u64 {
        let passed = (u128::from(cycles.saturating_sub(self.cycles)) * u128::from(self.rate)) >> 32;
        // A counter that went back would let time stand for as long, and with it whatever sets the
        // clock.
        if passed > u128::from(FAR) || cycles < self.cycles {
            return self.jumped();
        }
        self.last = self.last.max(self.nanos + passed as u64);
        self.last
    }

    #[cold]
    fn jumped(&mut self) -> u64 {
        (self.cycles, self.nanos) = pair();
        self.last = self.last.max(self.nanos);
        self.last
    }

    /// Nanoseconds that a number of cycles takes.
    #[inline]
    pub fn nanos(&self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.rate)) >> 32) as u64
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    /// A counter that jumps does not stop the clock.
    #[test]
    fn jumps() {
        for jump in [i64::MIN / 4, -1 << 40, 1 << 40, i64::MAX / 4] {
            let mut clock = Clock::new();
            clock.cycles = clock.cycles.saturating_add_signed(jump);
            let (before, at, after) = (monotonic(), clock.at(cycles()), monotonic());
            assert!(
                (before..=after).contains(&at),
                "{at} is not between {before} and {after} after a jump by {jump}"
            );
        }
    }

    /// However many others want the processor, the clock is not led astray by being preempted.
    #[test]
    fn preempted() {
        let stop = AtomicBool::new(false);
        let wrong = std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let wrong = until_wrong(Duration::from_millis(500));
            stop.store(true, Relaxed);
            wrong
        });
        assert_eq!(wrong, None, "a time outside of what it can be");
    }

    fn until_wrong(most: Duration) -> Option<(u64, RangeInclusive<u64>)> {
        let begin = monotonic();
        while monotonic() - begin < most.as_nanos() as u64 {
            let mut clock = Clock::new();
            for _ in 0..20 {
                let set = clock.set();
                let (before, at, after) = (monotonic(), clock.at(cycles()), monotonic());
                // A rate that is off by one part in fifty, over what may have passed since it was
                // set.
                let off = (after - set) / 50 + 10_000;
                let sound = before - off..=after + off;
                if !sound.contains(&at) {
                    return Some((at, sound));
                }
                while monotonic() - set < SPAN {}
            }
        }
        None
    }
}
