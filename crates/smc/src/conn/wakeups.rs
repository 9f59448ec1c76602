//! How long doorbells take to wake this end: scheduling, and whatever keeps a byte in the kernel's
//! TCP.

use super::*;
use crate::sys;

/// No wake-up: a process that was stopped, or a clock that was set.
const ABSURD_US: u64 = 60_000_000;
/// Where the time stands in a header's `kind`.
const TIME_AT: u32 = image::KIND_TYPE.count_ones();

/// Microseconds of the time of day: CLOCK_MONOTONIC differs between time namespaces, and the peer
/// may be in another.
pub fn now_us() -> u64 {
    let (seconds, nanoseconds) = sys::realtime();
    seconds * 1_000_000 + u64::from(nanoseconds / 1000)
}

impl Conn {
    /// Whether both ends go by one clock, and `kind` has room for the time.
    fn is_timed(&self) -> bool {
        matches!(self.identity.path.load(Relaxed), path::DIRECT | path::COPY)
    }

    /// The peer is about to be rung for.
    pub(super) fn stamp_ring(&self) {
        if !self.is_timed() {
            return;
        }
        let kind = &self.peer().kind;
        // SYNC: kind. As the store that it follows, in whose place it is found from now on.
        kind.store(kind.load(Relaxed) & image::KIND_TYPE | now_us() << TIME_AT, Release);
    }

    /// When the peer rang for this connection after a sleep had begun at `slept_us`, if that has
    /// not been counted yet: of several that one bell stands for it was this one that rang it.
    pub fn rang_since(&self, slept_us: u64) -> Option<u64> {
        if !self.receives_on_ring() || !self.is_timed() {
            return None;
        }
        let rung = self.my().kind.load(Relaxed) >> TIME_AT;
        (rung != 0 && rung >= slept_us).then_some(rung)
    }

    /// A sleep that began at `slept_us` has ended because something arrived on this connection.
    pub fn woken(&self, slept_us: u64) {
        if !self.receives_on_ring() || !self.is_timed() {
            return;
        }
        let now = now_us();
        let kind = self.my().kind.load(Relaxed);
        // A ring from before the sleep had been seen already.
        let rung = kind >> TIME_AT;
        if rung < slept_us || rung > now {
            return;
        }
        if now - rung < ABSURD_US {
            self.wakeups.count(now - rung);
        }
        // Counted once, however many threads it wakes.
        let _ = self.my().kind.compare_exchange(kind, kind & image::KIND_TYPE, Relaxed, Relaxed);
    }
}
