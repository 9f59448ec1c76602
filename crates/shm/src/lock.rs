//! The low-contention lock of rsockets, made right for signals, forks and deaths.
//!
//! A word holds the owner's thread id; a CAS takes it and an exchange gives it back. Only who finds
//! it taken goes to the kernel, and says so in `WAITERS`. Because the word names its owner, a signal
//! handler that interrupted the owner is told [`Reentered`] in place of a deadlock, and a lock
//! whose owner was killed can be taken over by a waiter. The word's other half says where on its
//! stack the owner was: a handler may leave by siglongjmp, and the section with it. Who finds a lock
//! of its own thread that was taken deeper in the stack, or no deeper than a handler can be, has
//! jumped, and takes it over. One exchange writes both halves: a handler that came between two would
//! judge its owner by the frame of the last one.
//!
//! Limits. After a jump the lock stays taken until its thread comes back to it, and from no deeper
//! in its stack than a handler would. A function that returns a guard must be inlined: a frame that
//! is no more would pass for one that was left. A shared lock needs its users in one PID namespace,
//! or a living owner seems dead. A recycled thread id keeps a dead owner's lock taken for as long
//! as the new thread lives.
#![allow(unsafe_code)]

use crate::futex::{self, Woke};
use crate::sync::{AtomicU64, Ordering, spin};
use crate::thread;
use core::marker::PhantomData;
use core::time::Duration;

/// Set while somebody may sleep on the word.
const WAITERS: u64 = 1 << 31;
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
    /// Zero when free. From the lowest bit: 31 bits of the owner's thread id, `WAITERS`, 32 bits of
    /// where the owner's stack ended, see `here`.
    word: AtomicU64,
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
        Self { word: AtomicU64::new(0) }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0) }
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
        let mine = taken(me, here(&me));
        // SYNC: lock. Pairs with the release in `unlock`.
        let recovered =
            match self.word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => false,
                Err(word) => self.lock_contended(mine, word)?,
            };
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
        let mine = taken(me, here(&me).wrapping_sub(nearer >> 4));
        self.take(0, mine).then(|| self.guard())
    }

    /// Whether the calling thread owns it.
    #[inline]
    pub fn is_mine(&self) -> bool {
        owner(self.word.load(Ordering::Relaxed)) == thread::thread_id()
    }

    /// Whether this is a signal handler that interrupted the owner. Not one that jumped out of its
    /// section.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        let mark = 0;
        let word = self.word.load(Ordering::Relaxed);
        word != 0 && owner(word) == thread::thread_id() && !was_left(word, here(&mark))
    }

    /// Whether its owner is a thread that has died.
    #[cold]
    pub fn is_abandoned(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word != 0 && !Self::owner_lives(owner(word))
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
    fn lock_contended(&self, mine: u64, mut word: u64) -> Result<bool, Reentered> {
        if owner(word) == owner(mine) {
            if !was_left(word, frame(mine)) {
                return Err(Reentered);
            }
            // Another thread may set `WAITERS` meanwhile.
            while !self.take(word, mine | word & WAITERS) {
                word = self.word.load(Ordering::Relaxed);
            }
            return Ok(true);
        }
        let spins = if several_cpus() { SPINS } else { 0 };
        for _ in 0..spins {
            spin();
            word = self.word.load(Ordering::Relaxed);
            if word == 0 && self.take(0, mine) {
                return Ok(false);
            }
            if word & WAITERS != 0 {
                break;
            }
        }
        // From here on it is taken with WAITERS, because others may sleep too and a single one is
        // woken.
        let mine = mine | WAITERS;
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
            if futex::wait_low(&self.word, marked as u32, SHARED, Some(CHECK)) != Woke::Changed
                && !Self::owner_lives(owner(marked))
                && self.take(marked, mine)
            {
                return Ok(true);
            }
        }
    }

    fn take(&self, from: u64, to: u64) -> bool {
        // SYNC: lock. Pairs with the release in `unlock`.
        self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn mark(&self, word: u64) -> bool {
        let marked = word | WAITERS;
        self.word.compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn owner_lives(tid: u32) -> bool {
        if SHARED { thread::is_alive(tid) } else { thread::is_alive_here(tid) }
    }

    #[inline]
    fn unlock(&self) {
        // A guard copied by fork must not free the lock of the parent, in memory of both.
        if SHARED && !self.is_mine() {
            return;
        }
        // SYNC: lock. Pairs with the acquire of whoever takes it next.
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        futex::wake_low(&self.word, 1, SHARED);
    }
}

impl<const SHARED: bool> Drop for FastGuard<'_, SHARED> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// The word of a lock that `tid` has taken at `frame`, with nobody waiting.
#[inline(always)]
fn taken(tid: u32, frame: u32) -> u64 {
    u64::from(frame) << 32 | u64::from(tid)
}

/// The thread that has taken the lock, 0 when free.
#[inline(always)]
fn owner(word: u64) -> u32 {
    (word & !WAITERS) as u32
}

fn frame(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Whether the calling thread, which is at `here` and owns the lock, has left its section by a jump.
#[cold]
fn was_left(word: u64, here: u32) -> bool {
    // Without libc a handler's calls run on another stack than those that it has interrupted, so
    // addresses say nothing: a handler that took its owner's lock would spoil what it guards.
    // Under Miri addresses are made up, and say nothing either.
    if cfg!(any(shortwire_raw, miri)) {
        return false;
    }
    // A handler lies deeper, behind the frame that the kernel has made for it, and on a stack of its
    // own anywhere.
    frame(word).wrapping_sub(here).cast_signed() < SIGNAL_FRAME && !on_signal_stack()
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
