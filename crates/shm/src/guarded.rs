//! A value behind a [`FastLock`], with an answer to what a lock alone leaves open: a signal handler
//! that interrupted the owner, an owner that died or jumped out of its section, the child of a
//! fork.
//!
//! Code that runs in other people's programs meets all three. In each of them the value may be half
//! changed, so a value that was left begins anew, and what it was is not even dropped.
#![allow(unsafe_code)]

use crate::FastLock;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

/// A value that can begin anew.
pub trait Fresh {
    /// As it is before anything was done with it.
    const FRESH: Self;
}

impl<T> Fresh for Vec<T> {
    const FRESH: Self = Self::new();
}

/// A value that the threads of one process use one at a time. Meant for a `static`.
pub struct Guarded<T> {
    lock: FastLock<false>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the lock only, so by one thread at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T: Fresh> Default for Guarded<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Fresh> Guarded<T> {
    /// A fresh value.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { lock: FastLock::new(), value: UnsafeCell::new(T::FRESH) }
    }

    /// A fresh value.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { lock: FastLock::new(), value: UnsafeCell::new(T::FRESH) }
    }

    /// Runs `f` on the value, which begins anew if its last user left it half changed. None, and
    /// nothing was run, in a signal handler that interrupted a user of the value: to wait for that
    /// one would be for ever.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let (_guard, left) = self.lock.lock_recovering().ok()?;
        if left {
            // SAFETY: the guard makes it exclusive.
            unsafe { self.value.get().write(T::FRESH) };
        }
        // SAFETY: the guard makes it exclusive, and no reference leaves `f`.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// As [`Self::with`] for a value that is whole after each step of what is done with it: it is
    /// kept when its last user left it.
    pub fn with_kept<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _guard = self.lock.lock().ok()?;
        // SAFETY: the guard makes it exclusive, and no reference leaves `f`.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// In the child of a fork: makes it free, and lets the value begin anew if a thread of the
    /// parent was changing it.
    ///
    /// # Safety
    /// The caller is the child's only thread, and not within `with`.
    pub unsafe fn after_fork_child(&self) {
        let torn = self.lock.is_locked();
        // SAFETY: no other thread uses it, by the contract.
        unsafe { self.lock.reset() };
        if torn {
            // SAFETY: exclusive by the contract.
            unsafe { self.value.get().write(T::FRESH) };
        }
    }

    /// In the child of a fork: makes it free and lets the value begin anew. What the parent had
    /// stays in place, undropped.
    ///
    /// # Safety
    /// As for [`Self::after_fork_child`].
    pub unsafe fn forget(&self) {
        // SAFETY: no other thread uses it, by the contract.
        unsafe { self.lock.reset() };
        // SAFETY: exclusive by the contract.
        unsafe { self.value.get().write(T::FRESH) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_take_turns() {
        static LIST: Guarded<Vec<usize>> = Guarded::new();
        std::thread::scope(|s| {
            for n in 0..4 {
                s.spawn(move || (0..1000).for_each(|_| LIST.with(|list| list.push(n)).unwrap()));
            }
        });
        assert_eq!(LIST.with(|list| list.len()), Some(4000));
    }

    #[test]
    fn a_user_within_a_user_is_refused() {
        let list = Guarded::<Vec<u8>>::new();
        let within = list.with(|_| {
            // As deep in the stack as a handler is.
            let frame = core::hint::black_box([0u8; 4096]);
            let refused = (list.with(|_| ()), list.with_kept(|_| ()));
            core::hint::black_box(&frame);
            refused
        });
        assert_eq!((within, list.with(|_| ())), (Some((None, None)), Some(())));
    }

    #[test]
    fn a_child_finds_it_free_and_whole() {
        for torn in [false, true] {
            let list = Guarded::<Vec<u8>>::new();
            list.with(|list| list.push(1));
            let (held, forked) = (Barrier::new(2), Barrier::new(2));
            let mut status = -1;
            std::thread::scope(|s| {
                s.spawn(|| {
                    if torn {
                        list.with(|_| [held.wait(), forked.wait()].len());
                    } else {
                        held.wait();
                        forked.wait();
                    }
                });
                held.wait();
                // SAFETY: the child allocates nothing and leaves by _exit.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    crate::refresh_thread_id();
                    // SAFETY: the child's only thread.
                    unsafe { list.after_fork_child() };
                    let kept = list.with(|list| list.len());
                    // SAFETY: as above.
                    unsafe { list.forget() };
                    let good =
                        kept == Some(usize::from(!torn)) && list.with(|list| list.len()) == Some(0);
                    // SAFETY: ends the process here.
                    unsafe { libc::_exit(i32::from(!good)) };
                }
                forked.wait();
                // SAFETY: our child, and a local.
                unsafe { libc::waitpid(child, &mut status, 0) };
            });
            assert_eq!(status, 0, "torn: {torn}");
        }
    }
}
