//! Time limits of what must happen, on a machine that may be busy with other things.

use std::cell::Cell;
use std::fs;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// How much slower than on a machine of its own anything may be, at most: what goes round in a circle
/// must end, too.
const SLOWEST: f64 = 8.0;

/// A limit that runs as fast as a program can: where more threads want to run than there are
/// processors, it has the more time. So a test does not fail because of what runs beside it, and
/// nobody waits long for what hangs on a quiet machine.
pub struct Deadline {
    left: Cell<Duration>,
    looked: Cell<Instant>,
}

impl Deadline {
    pub fn within(limit: Duration) -> Deadline {
        Deadline { left: Cell::new(limit * patience()), looked: Cell::new(Instant::now()) }
    }

    /// To be asked often: what the machine was busy with since the last time is taken from what it
    /// does now.
    pub fn is_over(&self) -> bool {
        let now = Instant::now();
        let passed = now - self.looked.replace(now);
        let left = self.left.get().saturating_sub(passed.div_f64(slowness()));
        self.left.set(left);
        left.is_zero()
    }
}

/// How much longer than on a machine anything may take on an emulated one: SHORTWIRE_TEST_PATIENCE.
pub fn patience() -> u32 {
    let asked = std::env::var("SHORTWIRE_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(1).max(1)
}

/// Threads that want to run, for each processor.
fn slowness() -> f64 {
    let told = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running =
        told.split(' ').nth(3).and_then(|threads| threads.split('/').next()?.parse().ok());
    let processors = available_parallelism().map_or(1, |n| n.get()) as f64;
    (running.unwrap_or(1.0) / processors).clamp(1.0, SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_passes_but_not_before_its_time() {
        let (begun, deadline) = (Instant::now(), Deadline::within(Duration::from_millis(20)));
        while !deadline.is_over() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        assert!(begun.elapsed() >= Duration::from_millis(20));
        assert!(deadline.is_over());
        assert!((1.0..=SLOWEST).contains(&slowness()));
    }
}
