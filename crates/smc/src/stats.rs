//! Counters of one fork family, in the shape of `smcd stats`.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    /// Connections upgraded as the end that proposed / that answered.
    pub client: AtomicU64,
    /// See `client`.
    pub server: AtomicU64,
    /// Handshakes that broke off with an error.
    pub handshake_errors: AtomicU64,
    /// Connections that stayed TCP, all reasons together.
    pub fallback: AtomicU64,
    /// reason << 32 | count.
    pub reasons: [AtomicU64; REASONS],
    /// Peers that broke the protocol.
    pub violations: AtomicU64,
    /// Streams that arrived otherwise than they were sent.
    pub damaged: AtomicU64,
    /// First contacts (link groups made).
    pub link_groups: AtomicU64,
    /// setsockopt(TCP_CORK), setsockopt(TCP_NODELAY), splice, urgent data on upgraded connections.
    pub cork: AtomicU64,
    /// See `cork`.
    pub nodelay: AtomicU64,
    /// See `cork`.
    pub splice: AtomicU64,
    /// See `cork`.
    pub urgent: AtomicU64,
    /// Of connections that have ended.
    pub wakeups: crate::conn::wakeups::Wakeups,
}

/// The bucket of a request of `n` bytes.
#[inline]
pub fn bucket(n: usize) -> usize {
    if n <= 8192 { 0 } else { ((n - 1) >> 13).ilog2() as usize + 1 }.min(BUCKETS - 1)
}

impl Direction {
    /// Adds a finished connection's counts.
    pub fn add(&self, c: &crate::conn::Counts) {
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
        self.fallback.fetch_add(1, Relaxed);
        for cell in &self.reasons {
            let mut v = cell.load(Relaxed);
            loop {
                if v != 0 && (v >> 32) as u32 != reason {
                    break;
                }
                let base = if v == 0 { u64::from(reason) << 32 } else { v };
                match cell.compare_exchange_weak(v, base + 1, Relaxed, Relaxed) {
                    Ok(_) => return,
                    Err(now) => v = now,
                }
            }
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
}
