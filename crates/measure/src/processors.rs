//! Where measurements run.

use std::io;

use anyhow::{Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two processors to pin to, where there are two.
pub fn two_cpus() -> Option<(usize, usize)> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Some((cpus.next()?, cpus.next()?))
}

/// Binds this thread, and those that it starts, to a processor.
pub fn run_on(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs on a thread of its own, on the second processor: the first one has the interrupts of most
/// machines.
pub fn pinned<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let body = || {
            if let Some((_, cpu)) = two_cpus() {
                run_on(cpu)?;
            }
            Ok(work())
        };
        scope.spawn(body).join().unwrap_or_else(|_| bail!("the measurement crashed"))
    })
}
