//! Counters of one fork family, in the shape of `smcd stats`.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::reason::NOT_YET;

/// Buckets of request sizes: up to 8, 16, 32, 64, 128, 256, 512, 1024 KiB, and above.
pub const BUCKETS: usize = 9;

/// One direction's counters.
#[repr(C)]
pub struct Direction {
    /// Requests by size.
    pub sizes: [AtomicU64; BUCKETS],
    /// Buffers by size.
    pub buffers: [AtomicU64; BUCKETS],
    /// Payload bytes moved through shared memory.
    pub bytes: AtomicU64,
    /// Calls served.
    pub calls: AtomicU64,
    /// Times the own (receive) or the peer's (transmit) ring was full.
    pub full: AtomicU64,
    /// Doorbells sent for this direction.
    pub doorbells: AtomicU64,
    /// Buffers taken from a pool.
    pub reuse: AtomicU64,
    /// Buffers made anew.
    pub alloc: AtomicU64,
}

/// Distinct fallback reasons kept.
pub const REASONS: usize = 36;

/// All counters of a table.
#[repr(C)]
pub struct Stats {
    /// Received.
    pub rx: Direction,
    /// Transmitted.
    pub tx: Direction,
    /// Connections upgraded as the end that proposed.
    pub client: AtomicU64,
    /// Connections upgraded as the end that answered.
    pub server: AtomicU64,
    /// Handshakes that broke off with an error here, whose connections stay TCP and count in
    /// `fallback` when they end.
    pub handshake_errors: AtomicU64,
    /// Connections that have ended and had stayed TCP, all reasons together.
    pub fallback: AtomicU64,
    /// reason << 32 | count. `NOT_YET`, the reason of most, is not counted here: see `by_reason`.
    pub reasons: [AtomicU64; REASONS],
    /// Peers that broke the protocol.
    pub violations: AtomicU64,
    /// Streams that arrived otherwise than they were sent.
    pub damaged: AtomicU64,
    /// First contacts (link groups made).
    pub link_groups: AtomicU64,
    /// Calls of setsockopt(TCP_CORK) on upgraded connections.
    pub cork: AtomicU64,
    /// Calls of setsockopt(TCP_NODELAY) on upgraded connections.
    pub nodelay: AtomicU64,
    /// Calls of splice on upgraded connections.
    pub splice: AtomicU64,
    /// Sends of urgent data on upgraded connections.
    pub urgent: AtomicU64,
    /// Wake-ups of connections that have ended.
    pub wakeups: Wakeups,
}

/// The bucket of a request of `n` bytes.
#[inline]
pub fn bucket(n: usize) -> usize {
    if n <= 8192 { 0 } else { ((n - 1) >> 13).ilog2() as usize + 1 }.min(BUCKETS - 1)
}

impl Direction {
    /// Adds a finished connection's counts.
    pub fn add(&self, c: &Counts) {
        self.bytes.fetch_add(c.bytes.load(Relaxed), Relaxed);
        self.calls.fetch_add(c.calls.load(Relaxed), Relaxed);
        self.full.fetch_add(c.full.load(Relaxed), Relaxed);
        self.doorbells.fetch_add(c.doorbells.load(Relaxed), Relaxed);
        for (sum, n) in self.sizes.iter().zip(&c.sizes) {
            sum.fetch_add(u64::from(n.load(Relaxed)), Relaxed);
        }
    }
}

impl Stats {
    /// Counts a connection that stays TCP for `reason`.
    pub fn count_fallback(&self, reason: u32) {
        // A short connection pays for one count, not two.
        if reason != NOT_YET.code() {
            self.add_reason(reason, 1);
        }
        // SYNC: reasons. Behind its reason, so that `by_reason` takes no connection for one of `NOT_YET`.
        self.fallback.fetch_add(1, Release);
    }

    /// Reason codes, and how many connections stayed TCP for each. `NOT_YET` has what no cell has
    /// counted: also reasons that came when all `REASONS` cells had another one.
    pub fn by_reason(&self) -> Vec<(u32, u64)> {
        // SYNC: reasons. In this order, the other way round than they are counted: a connection that ends meanwhile
        // may be missing from `NOT_YET` in this look, and is never one too many there.
        let all = self.fallback.load(Acquire);
        let cells = self.reasons.iter().map(|cell| cell.load(Relaxed));
        let mut found: Vec<_> = cells
            .map(|cell| ((cell >> 32) as u32, cell & u64::from(u32::MAX)))
            // Earlier builds have counted it there, too.
            .filter(|&(reason, count)| count > 0 && reason != NOT_YET.code())
            .collect();
        let others = found.iter().fold(0, |sum: u64, &(_, count)| sum.saturating_add(count));
        let rest = all.saturating_sub(others);
        if rest > 0 {
            found.push((NOT_YET.code(), rest));
        }
        found
    }

    /// For a copy of counters that others count in, made in any order: `fallback` becomes that of a
    /// copy which was made earlier, with an acquire fence in between.
    pub fn is_behind(&self, earlier: &Stats) {
        // SYNC: reasons. As `by_reason` reads them where they are counted.
        self.fallback.store(earlier.fallback.load(Relaxed), Relaxed);
    }

    /// Counts a reason so many times more.
    pub(crate) fn add_reason(&self, reason: u32, count: u64) {
        if count == 0 {
            return;
        }
        for cell in &self.reasons {
            let mut v = cell.load(Relaxed);
            loop {
                if v != 0 && (v >> 32) as u32 != reason {
                    break;
                }
                let base = if v == 0 { u64::from(reason) << 32 } else { v };
                match cell.compare_exchange_weak(v, base + count, Relaxed, Relaxed) {
                    Ok(_) => return,
                    Err(now) => v = now,
                }
            }
        }
    }
}

/// Per-direction counters, added to by the holder of that direction's lock.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counts {
    /// Payload bytes through shared memory.
    pub bytes: AtomicU64,
    /// Calls.
    pub calls: AtomicU64,
    /// Times the ring was full.
    pub full: AtomicU64,
    /// Doorbells sent.
    pub doorbells: AtomicU64,
    /// Requests by size.
    pub sizes: [AtomicU32; BUCKETS],
}

impl Counts {
    pub(crate) fn reset(&self) {
        for n in [&self.bytes, &self.calls, &self.full, &self.doorbells] {
            n.store(0, Relaxed);
        }
        self.sizes.iter().for_each(|n| n.store(0, Relaxed));
    }

    // Plain load and store: the direction's lock makes the writer single, readers only look.
    #[inline]
    pub(crate) fn call(&self, bytes: usize) {
        self.calls.store(self.calls.load(Relaxed) + 1, Relaxed);
        self.bytes.store(self.bytes.load(Relaxed) + bytes as u64, Relaxed);
        let b = &self.sizes[bucket(bytes)];
        b.store(b.load(Relaxed) + 1, Relaxed);
    }
}

/// A wake-up is late from so many microseconds on.
pub const LATE_US: u64 = 5_000;

/// Wake-ups of one connection, or of all that have ended.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Wakeups {
    /// All.
    pub all: AtomicU64,
    /// Those that took longer than `LATE_US`.
    pub late: AtomicU64,
    /// The longest, in microseconds.
    pub longest_us: AtomicU64,
}

impl Wakeups {
    pub(crate) fn count(&self, us: u64) {
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

    pub(crate) fn clear(&self) {
        for n in [&self.all, &self.late, &self.longest_us] {
            n.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_their_size() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(8192), 0);
        assert_eq!(bucket(8193), 1);
        assert_eq!(bucket(16384), 1);
        assert_eq!(bucket(16385), 2);
        assert_eq!(bucket(1 << 20), 7);
        assert_eq!(bucket((1 << 20) + 1), 8);
        assert_eq!(bucket(1 << 30), 8);
    }

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
