//! The checksum over ism, where both ends asked for it: `dibs::ism::integrity` has the records,
//! which lie behind the ring.
#![allow(unsafe_code)]

use super::*;
use core::mem::MaybeUninit;
use dibs::ism::far::{Piece, piece};
use dibs::ism::integrity::{RECORDS, Sum, TAIL};
use shm::cursor::{CURSOR_MASK, Cursor};
use shm::ring::Ring;

/// Bytes summed at a time: they stay in the first cache.
const STAGE: usize = 8 << 10;

impl Conn {
    /// From now on the ends of both rings are records.
    pub(super) fn keep_records(&self) {
        let w = self.window();
        for size in [&w.my_size, &w.peer_size] {
            size.store(size.load(Relaxed) - TAIL, Relaxed);
        }
        // SAFETY: before `commit` nobody else looks at it.
        unsafe { self.rx.state.alone() }.size -= TAIL;
        // SAFETY: before `commit` nobody else looks at it.
        unsafe { self.tx.state.alone() }.size -= TAIL;
        w.tail.store(TAIL, Relaxed);
        // What an earlier connection left there speaks of other streams.
        self.records().iter().for_each(|record| record.store(0, Relaxed));
    }

    /// The records behind our ring.
    fn records(&self) -> &[AtomicU64; RECORDS] {
        let w = self.window();
        let at = (w.my.load(Relaxed) as *mut u8)
            .wrapping_add((HEADER_LEN + w.my_size.load(Relaxed)) as usize);
        // SAFETY: the last TAIL bytes of our DMB, which is a power of two long: aligned, mapped for
        // good, atomics.
        unsafe { &*at.cast() }
    }

    /// What goes across between the bytes and the cursor behind them, if anything does: the record
    /// of `ahead` from `word`.
    pub(super) fn record(&self, tx: &Tx, ahead: &Sum, word: &mut u64) -> Option<(Piece, Piece)> {
        let w = self.window();
        if w.tail.load(Relaxed) == 0 {
            return None;
        }
        *word = ahead.record();
        let at =
            u64::from(HEADER_LEN + w.peer_size.load(Relaxed)) + tx.records % RECORDS as u64 * 8;
        Some((piece(&raw const *word as u64, 8), piece(w.far.load(Relaxed) + at, 8)))
    }

    /// Whether the `len` bytes in our ring from `from` on, of which the peer's word says `word`,
    /// are those that it sent; None while it is writing the next ones and that cannot be told. The
    /// rx lock is held.
    #[cold]
    pub(super) fn intact(&self, rx: &mut Rx, from: &Cursor, len: u32, word: u64) -> Option<bool> {
        let w = self.window();
        let base = (w.my.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: our DMB has HEADER_LEN + size bytes.
        let ring = unsafe { Ring::new(base, w.my_size.load(Relaxed)) };
        let mut sum = rx.sum;
        let mut stage = [MaybeUninit::<u8>::uninit(); STAGE];
        for (mut at, len) in ring.spans(from, len) {
            let mut left = len as usize;
            while left > 0 {
                let n = left.min(STAGE);
                // Copied first: the peer may write there while it is looked at.
                // SAFETY: a span lies in the ring, and `n` fits the stage.
                unsafe { shm::copy(at, stage.as_mut_ptr().cast(), n) };
                // SAFETY: copied just now.
                sum.take(unsafe { stage[..n].assume_init_ref() });
                at = at.wrapping_add(n);
                left -= n;
            }
        }
        let told = self
            .records()
            .iter()
            .map(|record| record.load(Acquire))
            .find(|&record| sum.is_of(record));
        match told {
            Some(record) => {
                let same = record == sum.record();
                if same {
                    rx.sum = sum;
                }
                Some(same)
            }
            // SYNC: prod. As long as the word stands its record does.
            None if (self.my().prod.load(Acquire) ^ word) & CURSOR_MASK == 0 => Some(false),
            None => None,
        }
    }
}
