//! Numbers that another process may read at any time.

use crate::sync::{AtomicU64, Ordering, fence, spin};

/// A statistic. Statistics order nothing, so that all accesses are relaxed.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Starts at 0.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`; wraps around at 2^64.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// As [`Self::add`] without the locked instruction, for a counter with a single writer at a
    /// time.
    #[inline]
    pub fn add_single(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value, for gauges and for sums that are kept elsewhere.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often a reader tries again before it gives up on a writer that died in the middle.
const TRIES: u32 = if cfg!(loom) { 2 } else { 1000 };

/// A record of `N` words with one writer at a time and any readers: a seqlock.
#[repr(C)]
#[derive(Debug)]
pub struct Snapshot<const N: usize> {
    /// Odd while a write is under way.
    version: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for Snapshot<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Snapshot<N> {
    /// All words 0.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { version: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; N] }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { version: AtomicU64::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Replaces the record. Writers must exclude each other.
    #[inline]
    pub fn write(&self, record: &[u64; N]) {
        // A predecessor that died in the middle left it odd; its write is finished by this one.
        let busy = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(busy, Ordering::Relaxed);
        // SYNC: snapshot. Whoever sees a new word sees the odd version.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(record) {
            word.store(*value, Ordering::Relaxed);
        }
        // SYNC: snapshot. Whoever sees the even version sees all words.
        self.version.store(busy.wrapping_add(1), Ordering::Release);
    }

    /// One whole record, or None when the writer seems stuck in the middle of one.
    #[inline]
    pub fn read(&self) -> Option<[u64; N]> {
        for _ in 0..TRIES {
            // SYNC: snapshot.
            let before = self.version.load(Ordering::Acquire);
            if before & 1 == 0 {
                let record = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
                // SYNC: snapshot.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return Some(record);
                }
            }
            spin();
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let c = Counter::new();
        c.add(2);
        c.add_single(3);
        assert_eq!(c.get(), 5);
        c.set(u64::MAX);
        c.add(1);
        c.add_single(0);
        assert_eq!(c.get(), 0);
    }

    #[test]
    fn readers_see_whole_records() {
        let cell = Snapshot::<4>::new();
        let done = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..100_000u64 {
                    cell.write(&[i, i * 3, !i, i ^ 0x55]);
                }
                done.store(true, Ordering::Release);
            });
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let Some([a, b, c, d]) = cell.read() else {
                    continue;
                };
                if a != 0 {
                    assert_eq!((b, c, d), (a * 3, !a, a ^ 0x55));
                }
                assert!(a >= last);
                last = a;
            }
        });
        assert_eq!(cell.read().unwrap()[0], 99_999);
    }

    #[test]
    fn a_dead_writer_blocks_nobody() {
        let cell = Snapshot::<2>::new();
        cell.write(&[1, 2]);
        cell.version.fetch_add(1, Ordering::Relaxed);
        assert_eq!(cell.read(), None);
        cell.write(&[3, 4]);
        assert_eq!(cell.read(), Some([3, 4]));
    }
}
