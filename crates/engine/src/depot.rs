//! The free slots that no thread holds: a stack of chunks that any thread may push to and pop from
//! without a lock.
//!
//! A slot is named by its index. A chunk is named by the index of its first slot; what the chunk
//! holds is written in the free memory of that slot by the caller, before it is pushed. The links
//! between chunks lie outside of the slots, so that a late reader of a link never meets packet
//! bytes.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A stack of slot indices. The head carries a tag that changes with every exchange, so that a
/// chunk which was popped and pushed again in between is not mistaken for an unchanged head.
pub struct Depot {
    /// `tag << 32 | index + 1`; the low half is 0 when the stack is empty.
    head: AtomicU64,
    /// For each slot that is the first of a chunk: the chunk below, as in `head`.
    below: Box<[AtomicU32]>,
}

impl Depot {
    /// Empty, for the slots from 0 to `slots - 1`.
    pub fn new(slots: usize) -> Self {
        Self { head: AtomicU64::new(0), below: (0..slots).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Gives the chunk that slot `first` describes to whoever pops it.
    pub fn push(&self, first: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.below[first as usize].store(head as u32, Ordering::Relaxed);
            let new = tagged(head, first + 1);
            // SYNC: depot. What the slots hold comes before their index is seen.
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the chunk that was pushed last. Its slots belong to the caller.
    pub fn pop(&self) -> Option<u32> {
        // SYNC: depot.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = (head as u32).checked_sub(1)?;
            // May be the link of a later life of that chunk; then the tag has moved and the
            // exchange fails.
            let below = self.below[first as usize].load(Ordering::Relaxed);
            // SYNC: depot. The exchange continues the release sequence of the push below, too.
            match self.head.compare_exchange_weak(
                head,
                tagged(head, below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(first),
                Err(now) => head = now,
            }
        }
    }
}

fn tagged(old: u64, low: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | u64::from(low)
}
