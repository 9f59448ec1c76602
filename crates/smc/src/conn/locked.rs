//! The state of one direction behind its lock.
//!
//! Whoever was inside before may have left by a jump out of a signal handler, or may have been
//! killed: then the state is repaired before anybody sees it.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use shm::lock::{FastGuard, FastLock, Reentered};

/// A state that can be left half changed.
pub trait Repair: Default {
    /// Puts in order what its last user left, for a ring of `size`.
    fn repair(&mut self, size: u32);
}

/// See the module documentation. In memory of several processes, where zero is a free lock.
#[repr(C)]
#[derive(Debug)]
pub struct Locked<T> {
    lock: FastLock<true>,
    state: UnsafeCell<T>,
}

// SAFETY: the state is reached through the lock, or looked at as plain words by whoever can do with
// torn ones.
unsafe impl<T: Send> Sync for Locked<T> {}

/// The state of a direction, and that its lock is held.
pub struct Held<'a, T> {
    _guard: FastGuard<'a, true>,
    state: *mut T,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, as long as `self` lives.
        unsafe { &*self.state }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, as long as `self` lives, and `self` is the only way to the
        // state.
        unsafe { &mut *self.state }
    }
}

impl<T: Repair> Locked<T> {
    #[cfg(test)]
    pub const STATE_AT: usize = core::mem::offset_of!(Self, state);

    /// Waits for the lock; refused to a signal handler that interrupted its owner. Beside the
    /// state: whether it was repaired, for a ring of `size`.
    #[inline(always)]
    pub fn lock(&self, size: impl FnOnce() -> u32) -> Result<(Held<'_, T>, bool), Reentered> {
        let (guard, left) = self.lock.lock_recovering()?;
        let mut held = Held { _guard: guard, state: self.state.get() };
        if left {
            held.repair(size());
        }
        Ok((held, left))
    }

    /// The state, if nobody is inside.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.lock.try_lock().map(|guard| Held { _guard: guard, state: self.state.get() })
    }

    /// The state, if nobody is inside who lives; whether it was repaired as by `lock`.
    pub fn try_lock_recovering(&self, size: impl FnOnce() -> u32) -> Option<(Held<'_, T>, bool)> {
        match self.try_lock() {
            Some(held) => Some((held, false)),
            None if self.lock.is_abandoned() => self.lock(size).ok(),
            None => None,
        }
    }

    /// The state, if nobody is inside, for a section whose frame lies `nearer` (see
    /// [`FastLock::try_lock_near`]).
    #[inline(always)]
    pub fn try_lock_near(&self, nearer: u32) -> Option<Held<'_, T>> {
        let guard = self.lock.try_lock_near(nearer)?;
        Some(Held { _guard: guard, state: self.state.get() })
    }

    /// The state as it is, whoever holds the lock. Only plain words may be read of it, and none be
    /// relied on.
    #[inline(always)]
    pub fn words(&self) -> *const T {
        self.state.get()
    }

    /// The state before others look at it, or where the caller's own thread holds the lock further
    /// up its stack.
    ///
    /// # Safety
    /// No other thread is inside.
    #[expect(clippy::mut_from_ref, reason = "exclusive by contract")]
    pub unsafe fn alone(&self) -> &mut T {
        // SAFETY: by contract.
        unsafe { &mut *self.state.get() }
    }

    /// For a connection that takes the slot. The lock is left alone: who looks for memory at rest
    /// may hold it.
    pub fn reset(&self) {
        // SAFETY: the slot is not in use yet.
        unsafe { *self.state.get() = T::default() };
    }
}
