//! Threads that put a doorbell on the TCP stream, and the one that waits until none of them does.

use shm::sync::{AtomicU32, Ordering::*, fence};

/// How many threads are about to ring.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Ringing(AtomicU32);

impl Ringing {
    /// Of a new connection.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }

    /// Calls `ring` while `await_all` waits for it: it looks whether sends are on the ring, and rings
    /// only then.
    pub fn hold<R>(&self, ring: impl FnOnce() -> R) -> R {
        self.0.fetch_add(1, Relaxed);
        // SYNC: ringing. In front of the look whether sends are on the ring; pairs with `await_all`.
        // Two words, so a fence on either side.
        fence(SeqCst);
        let rung = ring();
        // SYNC: rung. Behind the doorbell; pairs with `await_all`. One that was waited for too long
        // is counted no more.
        let _ = self.0.fetch_update(Release, Relaxed, |threads| threads.checked_sub(1));
        rung
    }

    /// Returns when no doorbell can come any more, behind the change of the state that forbids them,
    /// or when `nap` says that it has waited for long enough: for a thread that was killed or jumped
    /// out, or that this one is a signal handler of.
    pub fn await_all(&self, mut nap: impl FnMut() -> bool) {
        // SYNC: ringing. Behind the change of the state; pairs with `hold`.
        fence(SeqCst);
        // SYNC: rung. In front of what goes over TCP now; pairs with `hold`.
        while self.0.load(Acquire) != 0 {
            if !nap() {
                return self.reset();
            }
        }
    }
}
