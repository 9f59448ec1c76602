//! The free slots of one thread: a stack, so that the slot freed last, whose lines are still in the
//! cache, is used next.
//!
//! A thread takes slots from the arena and gives them back [`CHUNK`] at a time. A packet that
//! crossed to another thread is freed there; its slot comes back with a chunk. Nothing is allocated
//! while packets move.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::null_mut;

use crate::arena::{CHUNK, arena};

/// Most slots that a thread keeps. One more chunk and it gives one back.
const KEEP: usize = 4096;
/// No thread keeps more than this part of the arena to itself.
const SHARE: usize = 16;

/// The free list of a thread. Scripts reach it by this layout; see [`current`].
///
/// ```c
/// struct pool {
///     uint8_t **free;                    // free slots; the one freed last is free[count - 1]
///     uint64_t count, full;              // at count == full and at count == 0 only Rust goes on, by a chunk
///     uint64_t frees, freebytes;         // packets freed by this thread, ever, and their lengths
///     int64_t held;
/// };
/// ```
#[repr(C)]
pub struct Pool {
    /// Free slots; the one freed last is `free[count - 1]`.
    free: *mut *mut u8,
    count: u64,
    /// With so many free slots a chunk is given back.
    full: u64,
    /// Packets freed by this thread, ever.
    frees: u64,
    /// Their lengths.
    freebytes: u64,
    /// Slots taken from the arena less those given back. Without `count` it is what this thread
    /// allocated and did not free, negative where packets of other threads end.
    held: i64,
}

/// What a thread's free list did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Packets that this thread freed.
    pub frees: u64,
    /// Their lengths, in bytes.
    pub freebytes: u64,
    /// Packets that this thread allocated less those that it freed. The sum over threads is the
    /// number of live packets.
    pub live: i64,
}

thread_local! {
    /// Without a destructor, so that reading it is one load.
    static LOCAL: Cell<*mut Pool> = const { Cell::new(null_mut()) };
    static OWNER: Owner = Owner::new();
}

/// Gives a thread's free slots back when it ends.
struct Owner {
    pool: *mut Pool,
}

impl Owner {
    fn new() -> Self {
        let free = Box::leak(Box::new([null_mut::<u8>(); KEEP + CHUNK]));
        let keep = (arena().slots() / SHARE).clamp(CHUNK, KEEP);
        let full = (keep + CHUNK) as u64;
        let pool =
            Pool { free: free.as_mut_ptr(), count: 0, full, frees: 0, freebytes: 0, held: 0 };
        Self { pool: Box::into_raw(Box::new(pool)) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        LOCAL.set(null_mut());
        // SAFETY: made by `Owner::new`, and `LOCAL` was the only other way to it.
        let mut pool = unsafe { Box::from_raw(self.pool) };
        while pool.count > 0 {
            pool.give();
        }
        // SAFETY: the leaked array of `Owner::new`.
        drop(unsafe { Box::from_raw(pool.free.cast::<[*mut u8; KEEP + CHUNK]>()) });
    }
}

/// The free list of this thread, made at first use. Null while the thread's variables are being
/// torn down.
#[inline]
pub fn current() -> *mut Pool {
    let pool = LOCAL.get();
    if pool.is_null() { first_use() } else { pool }
}

#[cold]
fn first_use() -> *mut Pool {
    let pool = OWNER.try_with(|owner| owner.pool).unwrap_or(null_mut());
    LOCAL.set(pool);
    pool
}

/// What this thread's free list did so far.
pub fn stats() -> PoolStats {
    with(|pool| PoolStats {
        frees: pool.frees,
        freebytes: pool.freebytes,
        live: pool.held - pool.count as i64,
    })
    .unwrap_or_default()
}

/// Runs `body` with this thread's pool. `body` must not come back here.
#[inline]
pub(crate) fn with<R>(body: impl FnOnce(&mut Pool) -> R) -> Option<R> {
    let pool = current();
    // SAFETY: only this thread has the pointer, it is valid until the thread's variables go, and
    // the closures of this crate do not reenter.
    unsafe { pool.as_mut() }.map(body)
}

/// Returns one slot. Works at any time, also while the thread ends.
#[inline]
pub(crate) fn free(slot: *mut u8, length: usize) {
    if with(|pool| pool.put(slot, length)).is_none() {
        // SAFETY: one slot, which the caller gives up.
        unsafe { arena().give(&slot, 1) };
    }
}

impl Pool {
    /// Makes sure of `wanted <= CHUNK` free slots and returns how many there are, at most `wanted`.
    #[inline]
    pub(crate) fn ready(&mut self, wanted: usize) -> usize {
        debug_assert!(wanted <= CHUNK);
        if (self.count as usize) < wanted {
            self.fetch();
        }
        wanted.min(self.count as usize)
    }

    #[cold]
    fn fetch(&mut self) {
        // SAFETY: fewer than `CHUNK` places are in use, of at least twice as many.
        let got = unsafe { arena().take(self.free.add(self.count as usize)) };
        self.count += got as u64;
        self.held += got as i64;
    }

    /// The free slot at the top.
    ///
    /// # Safety
    /// [`Self::ready`] found one that was not yet taken.
    #[inline]
    pub(crate) unsafe fn take(&mut self) -> *mut u8 {
        self.count -= 1;
        // SAFETY: below the old count are free slots.
        unsafe { self.free.add(self.count as usize).read() }
    }

    /// Hands `count` free slots to `each`, the top one first. The cursor moves once, so that the
    /// loop stays in registers.
    ///
    /// # Safety
    /// [`Self::ready`] found so many that were not yet taken.
    #[inline(always)]
    pub(crate) unsafe fn take_each(&mut self, count: usize, mut each: impl FnMut(*mut u8)) {
        self.count -= count as u64;
        // SAFETY: below the old count are free slots.
        let first = unsafe { self.free.add(self.count as usize) };
        for i in (0..count).rev() {
            // SAFETY: as above.
            each(unsafe { first.add(i).read() });
        }
    }

    #[inline]
    pub(crate) fn put(&mut self, slot: *mut u8, length: usize) {
        self.put_uncounted(slot);
        self.count_frees(1, length as u64);
    }

    /// As [`Self::put`]; the caller counts by [`Self::count_frees`] if it was a packet.
    #[inline]
    pub(crate) fn put_uncounted(&mut self, slot: *mut u8) {
        self.put_each(1, |_| slot);
    }

    /// Takes `count` slots back, which `slot` names by their number. The caller counts them by
    /// [`Self::count_frees`].
    #[inline(always)]
    pub(crate) fn put_each(&mut self, count: usize, mut slot: impl FnMut(usize) -> *mut u8) {
        let mut done = 0;
        while done < count {
            if self.count == self.full {
                self.give();
            }
            let some = (count - done).min((self.full - self.count) as usize);
            for i in 0..some {
                // SAFETY: there are places below `full`, which is at most `KEEP + CHUNK`.
                unsafe { self.free.add(self.count as usize + i).write(slot(done + i)) };
            }
            self.count += some as u64;
            done += some;
        }
    }

    #[inline]
    pub(crate) fn count_frees(&mut self, packets: u64, bytes: u64) {
        self.frees += packets;
        self.freebytes += bytes;
    }

    /// Gives the slots at the top away: those that circulate between threads, so that few slots do.
    #[cold]
    pub(crate) fn give(&mut self) {
        let count = CHUNK.min(self.count as usize);
        self.count -= count as u64;
        self.held -= count as i64;
        // SAFETY: the topmost `count` slots are free, ours, and given up with this.
        unsafe { arena().give(self.free.add(self.count as usize), count) };
    }
}
