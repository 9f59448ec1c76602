//! The order in which an entry is written and read: what makes a torn copy show as one.
//!
//! Its model is in `tests/loom.rs`, with loom's atomics; the ring in shared memory has those of core.

use crate::sync::Ordering;

/// A word that both sides use.
pub trait Word {
    /// Loads it.
    fn load(&self, order: Ordering) -> u64;
    /// Stores it.
    fn store(&self, value: u64, order: Ordering);
    /// A fence of its kind of words.
    fn fence(order: Ordering);
}

impl Word for core::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fence(order: Ordering) {
        core::sync::atomic::fence(order);
    }
}

#[cfg(loom)]
impl Word for shm::sync::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn fence(order: Ordering) {
        shm::sync::fence(order);
    }
}

/// Writes entry `number` by `write`, in relaxed or plain stores.
#[inline]
pub fn write<W: Word>(sequence: &W, count: &W, number: u64, write: impl FnOnce()) {
    sequence.store(2 * number + 1, Ordering::Relaxed);
    // SYNC: look. Who finds new bytes below finds the odd number, too.
    W::fence(Ordering::Release);
    write();
    // SYNC: look. The entry comes before its even number, and that before the count.
    sequence.store(2 * number + 2, Ordering::Release);
    count.store(number + 1, Ordering::Release);
}

/// How many entries there are.
#[inline]
pub fn written<W: Word>(count: &W) -> u64 {
    // SYNC: look. The entries come before the count.
    count.load(Ordering::Acquire)
}

/// What `copy` makes of entry `number`; None if another one has taken its place.
#[inline]
pub fn read<W: Word, R>(sequence: &W, number: u64, copy: impl FnOnce() -> R) -> Option<R> {
    // SYNC: look. The even number comes behind the entry that it stands for: else bytes of an older
    // one would be copied under it.
    if sequence.load(Ordering::Acquire) != 2 * number + 2 {
        return None;
    }
    let copied = copy();
    // SYNC: look. If a byte of a later entry was copied, its odd number is seen below.
    W::fence(Ordering::Acquire);
    (sequence.load(Ordering::Relaxed) == 2 * number + 2).then_some(copied)
}
