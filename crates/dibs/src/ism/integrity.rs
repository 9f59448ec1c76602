//! An end-to-end checksum of a stream through a buffer: the sender sums what it has copied, and what
//! the receiver finds must have the same sum.
//!
//! The last bytes of the buffer are no ring then but two records, each one word: how far the stream
//! went and the Internet checksum of all of it. A sender writes one of them, in turn, ahead of its
//! producer word. So the word that a receiver finds has its record beside it at any time, whatever
//! the sender is about to write, or died of.

use checksum::{csum_block_add, csum_fold, csum_partial};

/// Bytes at the end of a DMB that are not ring.
pub const TAIL: u32 = 64;

/// How many records there are.
pub const RECORDS: usize = 2;

/// What came by of a stream. All zero at its start.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Sum {
    pos: u64,
    partial: u32,
    _pad: u32,
}

impl Sum {
    /// The next bytes of the stream, copied to `stage`. The copy is summed: the program may change `source`
    /// meanwhile, and the sum of other bytes than those sent would pass for damage.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy(&mut self, source: &[u8], stage: &mut [u8]) {
        assert_eq!(source.len(), stage.len());
        // So few that they are still in the first cache.
        const BLOCK: usize = 4096;
        for (source, stage) in source.chunks(BLOCK).zip(stage.chunks_mut(BLOCK)) {
            stage.copy_from_slice(source);
            self.take(stage);
        }
    }

    /// The next bytes of the stream.
    #[inline]
    pub fn take(&mut self, bytes: &[u8]) {
        self.partial = csum_block_add(self.partial, csum_partial(bytes, 0), self.pos as usize);
        self.pos = self.pos.wrapping_add(bytes.len() as u64);
    }

    /// The record of what came by: 48 bits of the position, 16 of the checksum.
    pub fn record(&self) -> u64 {
        self.pos << 16 | u64::from(csum_fold(self.partial))
    }

    /// Whether a record speaks of this position.
    pub fn is_of(&self, record: u64) -> bool {
        record >> 16 == self.record() >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 + i / 7) as u8).collect()
    }

    #[test]
    fn both_ends_come_to_the_same_however_the_stream_is_cut() {
        let bytes = stream(10_000);
        for step in [1, 2, 3, 7, 100, 4095, 10_000] {
            let (mut sent, mut came, mut stage) = (Sum::default(), Sum::default(), vec![0; step]);
            for piece in bytes.chunks(step) {
                sent.copy(piece, &mut stage[..piece.len()]);
                assert_eq!(&stage[..piece.len()], piece);
            }
            bytes.chunks(997).for_each(|piece| came.take(piece));
            assert_eq!(sent.record(), came.record(), "{step}");
        }
    }

    #[test]
    fn every_bit_counts() {
        let mut bytes = stream(301);
        let sum = |bytes: &[u8]| {
            let mut sum = Sum::default();
            bytes.chunks(50).for_each(|piece| sum.take(piece));
            sum
        };
        let whole = sum(&bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = sum(&bytes);
            assert!(
                damaged.is_of(whole.record()) && damaged.record() != whole.record(),
                "bit {bit}"
            );
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(!sum(&bytes[..300]).is_of(whole.record()));
    }
}
