//! What is said and known of a connection's end.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// See the module documentation.
#[repr(C)]
#[derive(Debug)]
pub struct Ending {
    /// State flags that we publish (`DONE`, `CLOSED`, `ABORT`).
    pub(super) said: AtomicU64,
    /// `sys::ticks` when the kernel was last asked for the peer's end.
    pub(super) looked: AtomicU64,
    /// How far a peer that has ended its half had read by then; above it, how many such looks found
    /// it there.
    pub(super) stalled: AtomicU64,
    /// Looks in vain at a peer that may be dead.
    pub(super) probes: AtomicU32,
}

impl Ending {
    /// The flags that go with every consumer word.
    #[inline(always)]
    pub(super) fn said(&self) -> u64 {
        self.said.load(Relaxed)
    }

    /// For a connection that takes the slot.
    pub(super) fn reset(&self) {
        for word in [&self.said, &self.looked, &self.stalled] {
            word.store(0, Relaxed);
        }
        self.probes.store(0, Relaxed);
    }
}
