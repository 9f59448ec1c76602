//! Time for the breath: the processor's counter, brought into line with CLOCK_MONOTONIC now and then.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The cycle counter, or nanoseconds where the processor has none that user space may read.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    monotonic()
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

impl Clock {
    pub fn new() -> Self {
        let mut clock = Self { cycles: cycles(), nanos: monotonic(), rate: 0, last: 0 };
        while monotonic() - clock.nanos < SPAN {
            std::hint::spin_loop();
        }
        clock.set();
        clock
    }

    /// Reads the system's clock.
    pub fn set(&mut self) -> u64 {
        let (cycles, nanos) = (cycles(), monotonic());
        let (spent, passed) = (cycles.saturating_sub(self.cycles), nanos - self.nanos);
        if passed >= SPAN {
            // A counter that stopped or jumped (a moved guest) gives a rate of its own for one span only.
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
        // A counter read before the last setting, or far off, must not move time.
        self.last = self.last.max(self.nanos + (passed as u64).min(SPAN * 1000));
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
