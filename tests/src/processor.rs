//! Processors that a test may use: not all, perhaps, and not from 0 on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub fn processors() -> Vec<usize> {
    let all = sched_getaffinity(None).expect("processors");
    (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect()
}

/// Until it is dropped, what this thread does and starts runs on one processor: the kernel keeps the order of
/// what is sent into a cable only for each processor that sends.
pub struct OneProcessor(CpuSet);

impl OneProcessor {
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> OneProcessor {
        let all = sched_getaffinity(None).expect("processors");
        let last = processors().pop().expect("a processor");
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(None, &one).expect("one processor");
        OneProcessor(all)
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}
