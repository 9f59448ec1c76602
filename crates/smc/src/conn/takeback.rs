//! The two looks by which the ends of a ring that is taken back at a distance do not miss each
//! other. The owner tells its takeback and then looks at the writer; the writer has taken its lock,
//! or has copied, and then looks at the takeback. So at least one of both sees the other (a model:
//! `tests/loom.rs`).

use shm::sync::{AtomicU64, Ordering::*, fence};

/// The word of an owner that wants everything from position `pos` on sent again.
pub fn from(pos: u64) -> u64 {
    pos << 1 | 1
}

/// The owner has told its takeback, and looks at the writer's lock, or at what has come.
pub fn told() {
    // SYNC: recall. Pairs with the fences in `may_ring` and `kept`.
    fence(SeqCst);
}

/// Whether the writer, which holds the lock of its image, may send a doorbell: an owner that has
/// told its takeback takes the number of doorbells for final once it has seen that lock free.
pub fn may_ring(takeback: &AtomicU64) -> bool {
    // SYNC: recall. The lock is taken, then the takeback looked at; pairs with `told`.
    fence(SeqCst);
    takeback.load(SeqCst) & 1 == 0
}

/// Of `len` bytes that were just copied behind position `pos`, those that count as sent: the owner
/// reads nothing behind its takeback.
pub fn kept(takeback: &AtomicU64, pos: u64, len: usize) -> usize {
    // SYNC: recall. The copy, then the look at the takeback; pairs with `told`.
    fence(SeqCst);
    let word = takeback.load(SeqCst);
    if word & 1 == 0 { len } else { (word >> 1).saturating_sub(pos).min(len as u64) as usize }
}
