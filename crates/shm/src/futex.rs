//! Sleeping on a word. Under loom, and under Miri, the kernel is a mutex and a condition variable.
#![allow(unsafe_code)]

use crate::sync::{AtomicU32, AtomicU64};
use core::time::Duration;

/// Why [`wait`] returned. The caller looks at the word again in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woke {
    /// Woken, or the word did not hold the expected value any more.
    Changed,
    /// The time limit has passed (ETIMEDOUT).
    TimedOut,
    /// A signal handler ran (EINTR).
    Interrupted,
}

#[cfg(not(any(loom, miri)))]
mod imp {
    use super::*;
    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags, Timespec};

    fn flags(shared: bool) -> Flags {
        if shared { Flags::empty() } else { Flags::PRIVATE }
    }

    /// Sleeps while `word` holds `expected`. `shared` for words in memory of several processes.
    pub fn wait(word: &AtomicU32, expected: u32, shared: bool, timeout: Option<Duration>) -> Woke {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        match futex::wait(word, flags(shared), expected, timeout.as_ref()) {
            Err(Errno::TIMEDOUT) => Woke::TimedOut,
            Err(Errno::INTR) => Woke::Interrupted,
            _ => Woke::Changed,
        }
    }

    /// Wakes up to `count` sleepers.
    pub fn wake(word: &AtomicU32, count: u32, shared: bool) {
        // Fails only for memory that is gone, and then nobody sleeps there.
        let _ = futex::wake(word, flags(shared), count);
    }

    /// As [`wait`], on the lower half of `word`.
    pub fn wait_low(
        word: &AtomicU64,
        expected: u32,
        shared: bool,
        timeout: Option<Duration>,
    ) -> Woke {
        wait(low(word), expected, shared, timeout)
    }

    /// As [`wake`], on the lower half of `word`.
    pub fn wake_low(word: &AtomicU64, count: u32, shared: bool) {
        wake(low(word), count, shared);
    }

    /// For the kernel's eyes: the language has no word for accesses of two sizes.
    fn low(word: &AtomicU64) -> &AtomicU32 {
        const { assert!(cfg!(target_endian = "little")) };
        // SAFETY: memory of an atomic word that is as large and aligned at least.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }
}

#[cfg(any(loom, miri))]
mod imp {
    use super::*;
    use crate::sync::Ordering;
    #[cfg(loom)]
    use loom::sync::{Condvar, Mutex};
    #[cfg(miri)]
    use std::sync::{Condvar, Mutex};

    // One queue for all words: a wake of another word is a spurious wakeup, which futexes have.
    #[cfg(loom)]
    loom::lazy_static! {
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }
    #[cfg(miri)]
    static QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

    /// No timeouts in the model: what only a timeout would repair shows up as a deadlock.
    pub fn wait(word: &AtomicU32, expected: u32, _: bool, _: Option<Duration>) -> Woke {
        wait_while(|| word.load(Ordering::SeqCst) == expected)
    }

    pub fn wake(_: &AtomicU32, count: u32, _: bool) {
        wake_any(count);
    }

    pub fn wait_low(word: &AtomicU64, expected: u32, _: bool, _: Option<Duration>) -> Woke {
        wait_while(|| word.load(Ordering::SeqCst) as u32 == expected)
    }

    pub fn wake_low(_: &AtomicU64, count: u32, _: bool) {
        wake_any(count);
    }

    fn wait_while(unchanged: impl Fn() -> bool) -> Woke {
        let held = QUEUE.0.lock().unwrap();
        if unchanged() {
            drop(QUEUE.1.wait(held).unwrap());
        }
        Woke::Changed
    }

    /// A model has one word to sleep on. What Miri runs has several, so that the one who is woken could be
    /// another word's sleeper, and the wake be lost.
    fn wake_any(count: u32) {
        let _held = QUEUE.0.lock().unwrap();
        if cfg!(miri) {
            QUEUE.1.notify_all();
        }
        for _ in 0..count.min(4) {
            QUEUE.1.notify_one();
        }
    }
}

pub use imp::{wait, wait_low, wake, wake_low};
