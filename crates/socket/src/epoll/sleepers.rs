//! Threads that sleep in the kernel on a set, or are about to. They share what wakes them: an edge
//! wakes one of them, and the doorbells that they asked for are the set's.

use shm::sync::{AtomicU32, Ordering::*};

/// How many there are. A thread counts itself before it looks at the set under the set's lock;
/// whoever changes the set changes it under that lock, and asks for sleepers behind the change. So
/// one of both sees the other.
#[derive(Debug)]
pub struct Sleepers(AtomicU32);

impl Sleepers {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The calling thread is about to look, and then to sleep.
    pub fn enter(&self) {
        // SYNC: sleepers. In front of the look; pairs with `any`.
        self.0.fetch_add(1, SeqCst);
    }

    /// It sleeps no more; whether it was the last one.
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, SeqCst) == 1
    }

    /// Whether anybody sleeps, or is about to.
    pub fn any(&self) -> bool {
        // SYNC: sleepers. Behind the change; pairs with `enter`.
        self.0.load(SeqCst) > 0
    }

    /// In a fork child: they are the parent's.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}
