//! How long doorbells take to wake this end: scheduling, and whatever keeps a byte in the kernel's TCP.

use super::*;
use crate::sys;

/// A wake-up is late from so many microseconds on.
pub const LATE_US: u64 = 5_000;
/// No wake-up: a process that was stopped, or a clock that was set.
const ABSURD_US: u64 = 60_000_000;
/// Where the time stands in a header's `kind`.
const TIME_AT: u32 = far::KIND_TYPE.count_ones();

/// Wake-ups of one connection, or of all that have ended.
#[repr(C)]
#[derive(Default)]
pub struct Wakeups {
    /// All.
    pub all: AtomicU64,
    /// Those that took longer than `LATE_US`.
    pub late: AtomicU64,
    /// The longest, in microseconds.
    pub longest_us: AtomicU64,
}

impl Wakeups {
    fn count(&self, us: u64) {
        self.all.fetch_add(1, Relaxed);
        if us > LATE_US {
            self.late.fetch_add(1, Relaxed);
        }
        if us > self.longest_us.load(Relaxed) {
            self.longest_us.fetch_max(us, Relaxed);
        }
    }

    /// Adds those of a connection that has ended.
    pub fn add(&self, ended: &Wakeups) {
        self.all.fetch_add(ended.all.load(Relaxed), Relaxed);
        self.late.fetch_add(ended.late.load(Relaxed), Relaxed);
        self.longest_us.fetch_max(ended.longest_us.load(Relaxed), Relaxed);
    }

    pub(super) fn clear(&self) {
        for n in [&self.all, &self.late, &self.longest_us] {
            n.store(0, Relaxed);
        }
    }
}

/// Microseconds of the time of day: CLOCK_MONOTONIC differs between time namespaces, and the peer may be in another.
pub fn now_us() -> u64 {
    let (seconds, nanoseconds) = sys::realtime();
    seconds * 1_000_000 + u64::from(nanoseconds / 1000)
}

impl Conn {
    /// Whether both ends go by one clock, and `kind` has room for the time.
    fn is_timed(&self) -> bool {
        matches!(self.path.load(Relaxed), path::DIRECT | path::COPY)
    }

    /// The peer is about to be rung for.
    pub(super) fn stamp_ring(&self) {
        if !self.is_timed() {
            return;
        }
        let kind = &self.peer().kind;
        kind.store(kind.load(Relaxed) & far::KIND_TYPE | now_us() << TIME_AT, Relaxed);
    }

    /// A sleep that began at `slept_us` has ended because something arrived on this connection.
    pub fn woken(&self, slept_us: u64) {
        if self.phase() & p::RX_RING == 0 || !self.is_timed() {
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
        let _ = self.my().kind.compare_exchange(kind, kind & far::KIND_TYPE, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_ones_are_told_apart() {
        let (all, ended) = (Wakeups::default(), Wakeups::default());
        for us in [3, LATE_US, LATE_US + 1, 40_000] {
            ended.count(us);
        }
        all.add(&ended);
        all.add(&ended);
        let told = [&all.all, &all.late, &all.longest_us].map(|n| n.load(Relaxed));
        assert_eq!(told, [8, 4, 40_000]);
        ended.clear();
        assert_eq!(ended.longest_us.load(Relaxed), 0);
    }
}
