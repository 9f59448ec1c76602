//! What is made once per process. `Once` and its kin are of no use here: where another thread was at
//! it when a process forked, the child would wait for a thread that it does not have.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_micros(50);

/// A value that is never freed. Threads that come at once may each make one; one of them is kept.
pub struct Kept<T>(AtomicPtr<T>);

impl<T: Sync> Kept<T> {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    pub fn get(&self) -> Option<&'static T> {
        // SYNC: made. The pointer, then the value. SAFETY: null, or never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(known) = self.get() {
            return known;
        }
        // SYNC: made. Behind the value.
        let fresh = Box::into_raw(Box::new(make()));
        match self.0.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: never freed.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: seen by nobody.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: never freed.
                unsafe { &*other }
            }
        }
    }

    /// The next call makes another one; who has this one keeps it.
    pub fn forget(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }
}

/// What is done once. In the child of a fork in whose parent another thread was at it, it is done
/// anew.
pub struct Done(AtomicU32);

impl Done {
    const YES: u32 = u32::MAX;
    /// How long a caller waits until it goes on without: it may be a signal handler that has
    /// interrupted who is at it.
    const PATIENCE: Duration = Duration::from_secs(2);

    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub fn once(&self, act: impl FnOnce()) {
        if self.0.load(Ordering::Acquire) == Self::YES {
            return;
        }
        let start = Instant::now();
        loop {
            // SYNC: made. Whether it is done, or the process that is at it.
            let now = self.0.load(Ordering::Acquire);
            if now == Self::YES {
                return;
            }
            let own = std::process::id();
            let take = || self.0.compare_exchange(now, own, Ordering::AcqRel, Ordering::Relaxed);
            if now != own && take().is_ok() {
                act();
                // SYNC: made. Behind what was done.
                self.0.store(Self::YES, Ordering::Release);
                return;
            }
            if start.elapsed() >= Self::PATIENCE {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_is_kept_until_it_is_forgotten() {
        static KEPT: Kept<usize> = Kept::new();
        assert_eq!(KEPT.get(), None);
        let got: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|i| scope.spawn(move || KEPT.get_or_make(|| i))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(got.iter().all(|one| core::ptr::eq(*one, got[0])));
        KEPT.forget();
        assert_eq!(KEPT.get_or_make(|| 9), &9);
    }

    #[test]
    fn once_also_where_a_parent_was_at_it() {
        let (done, mut times) = (Done::new(), 0);
        done.once(|| times += 1);
        done.once(|| times += 1);
        assert_eq!(times, 1);
        let inherited = Done(AtomicU32::new(std::process::id() + 1));
        inherited.once(|| times += 1);
        inherited.once(|| times += 1);
        assert_eq!(times, 2);
        // By this process, which does not come to an end of it: nobody waits for ever.
        Done(AtomicU32::new(std::process::id())).once(|| times += 1);
        assert_eq!(times, 2);
    }
}
