//! Who has to wake whom, without a lost wakeup and with one ring per sleep.
//!
//! The sleeper counts its arm word up; the waker remembers the value for which it rang last. They
//! differ exactly when somebody went to sleep since. Neither side writes the other's word.
//!
//! It is Dekker's scheme: the sleeper writes the arm word and then reads the ring, the waker writes
//! the ring and then reads the arm word, with a full fence in between on both sides. At least one
//! of them sees the other.

use crate::sync::{AtomicU32, Ordering, fence};

/// Sleeper: publishes a new arm value, never 0, in the word that the peer reads. The caller looks
/// at its condition once more afterwards, and sleeps only if it still does not hold.
#[inline]
pub fn arm(word: &AtomicU32) -> u32 {
    let mut value = word.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    if value == 0 {
        // Zero means "never armed" to a waker with fresh memory.
        value = word.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    }
    // SYNC: doorbell. Orders the arm before the caller's second look at the ring.
    fence(Ordering::SeqCst);
    value
}

/// Waker: true when the peer armed since the last ring, and then it is this caller that has to
/// ring.
///
/// To be called after the data was published by a SeqCst read-modify-write, or by any store
/// followed by `fence(SeqCst)`. `rung` is private to the waking side and shared by its threads, of
/// which one gets true. A hostile `armed` can cost a superfluous ring per call, no more.
#[inline]
pub fn must_ring(armed: &AtomicU32, rung: &AtomicU32) -> bool {
    loop {
        // `rung` first, with acquire: then `armed` is at least as new as the value that another
        // thread recorded, and an old value can never replace a newer one.
        let last = rung.load(Ordering::Acquire);
        // SYNC: doorbell. SeqCst, so that it also follows a published SeqCst read-modify-write.
        let now = armed.load(Ordering::SeqCst);
        if now == last {
            return false;
        }
        if rung.compare_exchange(last, now, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_once_per_arm() {
        let (armed, rung) = (AtomicU32::new(0), AtomicU32::new(0));
        assert!(!must_ring(&armed, &rung));
        assert_eq!(arm(&armed), 1);
        assert!(must_ring(&armed, &rung));
        assert!(!must_ring(&armed, &rung));
        arm(&armed);
        arm(&armed);
        assert!(must_ring(&armed, &rung));
        assert!(!must_ring(&armed, &rung));
    }

    #[test]
    fn never_arms_with_zero() {
        let (armed, rung) = (AtomicU32::new(u32::MAX), AtomicU32::new(u32::MAX));
        assert_eq!(arm(&armed), 1);
        assert!(must_ring(&armed, &rung));
    }
}
