//! The low-contention lock of rsockets, made right for signals, forks and deaths.
//!
//! A word holds the owner's thread id; a CAS takes it and a CAS gives it back. Only who finds it
//! taken goes to the kernel, and says so in `WAITERS`. Because the word names its owner, a signal
//! handler that interrupted the owner is told [`Reentered`] in place of a deadlock, and a lock
//! whose owner was killed can be taken over by a waiter. Beside it stands where on its stack the
//! owner was: a handler may leave by siglongjmp, and the section with it. Who finds a lock of its
//! own thread that was taken deeper in the stack, or no deeper than a handler can be, has jumped,
//! and takes it over.
//!
//! Limits. After a jump the lock stays taken until its thread comes back to it, and from no deeper
//! in its stack than a handler would. A function that returns a guard must be inlined: a frame that
//! is no more would pass for one that was left. A shared lock needs its users in one PID namespace,
//! or a living owner seems dead. A recycled thread id keeps a dead owner's lock taken for as long
//! as the new thread lives.
#![allow(unsafe_code)]

use crate::futex::{self, Woke};
use crate::sync::{AtomicU32, Ordering, spin};
use crate::thread;
use core::marker::PhantomData;
use core::time::Duration;

/// Set while somebody may sleep on the word.
const WAITERS: u32 = 1 << 31;
/// What lies at least between the frames of an owner and of a handler that interrupted it, in 16
/// bytes: the registers, with those for floating point, are 1,000 on x86-64 and 4,500 on arm64.
/// Calls of ours between two locks take less.
pub const SIGNAL_FRAME: i32 = 768 / 16;
/// How often a waiter asks whether the owner still lives.
const CHECK: Duration = Duration::from_millis(50);
/// About as long as the sections that these locks guard.
#[cfg(not(loom))]
const SPINS: u32 = 100;
#[cfg(loom)]
const SPINS: u32 = 0;

/// The calling thread owns the lock already: this is a signal handler, and waiting would be for
/// ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reentered;

impl core::fmt::Display for Reentered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the calling thread holds this lock already")
    }
}

impl core::error::Error for Reentered {}

/// `SHARED` when the word lies in memory of several processes. Zeroed memory is a free lock.
#[repr(C)]
#[derive(Debug)]
pub struct FastLock<const SHARED: bool> {
    word: AtomicU32,
    /// Where the owner's stack ended, see `here`. Written by the owner alone.
    frame: core::sync::atomic::AtomicU32,
}

/// Holds the lock until dropped. Bound to its thread, whose id is in the word.
#[derive(Debug)]
#[must_use]
pub struct FastGuard<'a, const SHARED: bool> {
    lock: &'a FastLock<SHARED>,
    _not_send: PhantomData<*mut ()>,
}

impl<const SHARED: bool> Default for FastLock<SHARED> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const SHARED: bool> FastLock<SHARED> {
    /// A free lock. All zeros is one, too.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0), frame: core::sync::atomic::AtomicU32::new(0) }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0), frame: core::sync::atomic::AtomicU32::new(0) }
    }

    /// Waits for the lock. After the death of an owner what it guards may be half changed; who
    /// cares calls [`Self::lock_recovering`].
    #[inline(always)]
    pub fn lock(&self) -> Result<FastGuard<'_, SHARED>, Reentered> {
        self.lock_recovering().map(|(guard, _)| guard)
    }

    /// As [`Self::lock`], and tells whether the lock was taken over from a dead owner.
    #[inline(always)]
    pub fn lock_recovering(&self) -> Result<(FastGuard<'_, SHARED>, bool), Reentered> {
        let me = thread::thread_id();
        // SYNC: lock. Pairs with the release in `unlock`.
        let free = self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        let frame = here(&me);
        let recovered = match free {
            Ok(_) => false,
            Err(word) => self.lock_contended(me, word, frame)?,
        };
        self.frame.store(frame, Ordering::Relaxed);
        Ok((self.guard(), recovered))
    }

    /// Takes the lock if it is free; never waits, nor takes it over from an owner that died.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<FastGuard<'_, SHARED>> {
        self.try_lock_near(0)
    }

    /// As [`Self::try_lock`], for a section whose frame lies so many bytes nearer to the program's
    /// than those of the lock's other sections: these would take it for one that they have
    /// interrupted, if the thread left it by a jump.
    #[inline(always)]
    pub fn try_lock_near(&self, nearer: u32) -> Option<FastGuard<'_, SHARED>> {
        let me = thread::thread_id();
        // SYNC: lock. Pairs with the release in `unlock`.
        let free = self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        free.ok().map(|_| {
            self.frame.store(here(&me).wrapping_sub(nearer >> 4), Ordering::Relaxed);
            self.guard()
        })
    }

    /// Whether the calling thread owns it.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !WAITERS == thread::thread_id()
    }

    /// Whether this is a signal handler that interrupted the owner. Not one that jumped out of its
    /// section.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        let mark = 0;
        self.is_locked() && self.is_mine() && !self.was_left(here(&mark))
    }

    /// Whether the calling thread, which owns it, has left its section by a jump.
    #[cold]
    fn was_left(&self, frame: u32) -> bool {
        // Without libc a handler's calls run on another stack than those that it has interrupted, so
        // addresses say nothing: a handler that took its owner's lock would spoil what it guards.
        if cfg!(shortwire_raw) {
            return false;
        }
        // A handler lies deeper, behind the frame that the kernel has made for it, and on a stack
        // of its own anywhere. Between taking the lock and the note of the frame that of the last
        // owner is there: a handler that comes just then may take the lock from the one that it has
        // interrupted. A mark for "no frame yet" would be worse: a jump out of there, which storms
        // of signals do find, would leave a lock that refuses its own thread for ever.
        self.frame.load(Ordering::Relaxed).wrapping_sub(frame).cast_signed() < SIGNAL_FRAME
            && !on_signal_stack()
    }

    /// Whether its owner is a thread that has died.
    #[cold]
    pub fn is_abandoned(&self) -> bool {
        let owner = self.word.load(Ordering::Relaxed) & !WAITERS;
        owner != 0 && !Self::owner_lives(owner)
    }

    /// Whether anybody does.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Makes the lock free, whoever held it.
    ///
    /// # Safety
    /// No other thread uses the lock: for the child of a fork, which has only one.
    pub unsafe fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Unlocks what this thread locked and whose guard it has forgotten.
    ///
    /// # Safety
    /// The calling thread holds the lock and no guard for it.
    pub unsafe fn force_unlock(&self) {
        drop(self.guard());
    }

    fn guard(&self) -> FastGuard<'_, SHARED> {
        FastGuard { lock: self, _not_send: PhantomData }
    }

    #[cold]
    fn lock_contended(&self, me: u32, mut word: u32, frame: u32) -> Result<bool, Reentered> {
        if word & !WAITERS == me {
            return if self.was_left(frame) { Ok(true) } else { Err(Reentered) };
        }
        let spins = if several_cpus() { SPINS } else { 0 };
        for _ in 0..spins {
            spin();
            word = self.word.load(Ordering::Relaxed);
            if word == 0 && self.take(0, me) {
                return Ok(false);
            }
            if word & WAITERS != 0 {
                break;
            }
        }
        // From here on it is taken with WAITERS, because others may sleep too and a single one is
        // woken.
        let mine = me | WAITERS;
        loop {
            word = self.word.load(Ordering::Relaxed);
            if word == 0 {
                if self.take(0, mine) {
                    return Ok(false);
                }
                continue;
            }
            let marked = word | WAITERS;
            if word != marked && !self.mark(word) {
                continue;
            }
            // Interrupted counts as a timeout: under a storm of signals no wait would ever time
            // out.
            if futex::wait(&self.word, marked, SHARED, Some(CHECK)) != Woke::Changed
                && !Self::owner_lives(marked & !WAITERS)
                && self.take(marked, mine)
            {
                return Ok(true);
            }
        }
    }

    fn take(&self, from: u32, to: u32) -> bool {
        // SYNC: lock. Pairs with the release in `unlock`.
        self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn mark(&self, word: u32) -> bool {
        let marked = word | WAITERS;
        self.word.compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn owner_lives(tid: u32) -> bool {
        if SHARED { thread::is_alive(tid) } else { thread::is_alive_here(tid) }
    }

    #[inline]
    fn unlock(&self) {
        let me = thread::thread_id();
        // SYNC: lock. Pairs with the acquire of whoever takes it next.
        if self.word.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.unlock_contended(me);
        }
    }

    #[cold]
    fn unlock_contended(&self, me: u32) {
        // A guard copied by fork must not free the lock of the parent, in memory of both.
        if SHARED && self.word.load(Ordering::Relaxed) & !WAITERS != me {
            return;
        }
        // SYNC: lock. Pairs with the acquire of whoever takes it next.
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            futex::wake(&self.word, 1, SHARED);
        }
    }
}

impl<const SHARED: bool> Drop for FastGuard<'_, SHARED> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// Where a local of the caller lies, in 16 bytes: addresses of one stack compare by their
/// difference.
#[inline(always)]
fn here(local: &u32) -> u32 {
    (core::ptr::from_ref(local) as usize >> 4) as u32
}

/// Whether this is a signal handler on the stack that sigaltstack(2) has named for it.
pub fn on_signal_stack() -> bool {
    const SS_ONSTACK: core::ffi::c_int = 1;
    let mut stack = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: asks only, into a live local.
    unsafe {
        libc::sigaltstack(core::ptr::null(), &raw mut stack) == 0
            && stack.ss_flags & SS_ONSTACK != 0
    }
}

#[cfg(not(loom))]
fn several_cpus() -> bool {
    use core::sync::atomic::AtomicU8;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            // Refused where there are more CPUs than its set has room for.
            let many = rustix::thread::sched_getaffinity(None).map_or(true, |set| set.count() > 1);
            KNOWN.store(1 + u8::from(many), Ordering::Relaxed);
            many
        }
        known => known > 1,
    }
}

#[cfg(loom)]
fn several_cpus() -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_lock_of_a_dead_owner_is_abandoned() {
        let lock = FastLock::<true>::new();
        assert!(!lock.is_abandoned(), "free");
        let held = lock.lock().unwrap();
        assert!(!lock.is_abandoned(), "held");
        drop(held);
        std::thread::scope(|scope| {
            scope.spawn(|| core::mem::forget(lock.lock().unwrap()));
        });
        // The kernel's word on it may come a little after the join.
        while !lock.is_abandoned() {
            std::thread::yield_now();
        }
        assert!(lock.try_lock().is_none());
        assert!(lock.lock_recovering().unwrap().1);
    }
}
