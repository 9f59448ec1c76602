//! Any processor: 64-bit words in safe Rust.

use crate::sum::{add64, fold64};

/// Bytes that are copied and then summed while they are in the first-level cache.
const BLOCK: usize = 2048;

pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
    // Four sums that do not wait for each other. A word enters as two halves of 32 bits: no carry before 2^32 words,
    // and compilers turn this into vector code where they can.
    let mut sums = [0u64; 4];
    let mut total = u64::from(sum);
    // A carry out of a 64-bit lane needs 2^32 additions of 32 bits; a piece of 16 GiB has 2^29 in each lane.
    let mut rest = data;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(PIECE));
        rest = behind;
        let (blocks, tail) = piece.as_chunks::<32>();
        for block in blocks {
            for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
                let word = u64::from_ne_bytes(*word);
                *sum += (word & 0xffff_ffff) + (word >> 32);
            }
        }
        for sum in &mut sums {
            total = add64(total, core::mem::take(sum));
        }
        total = add64(total, u64::from(tail_sum(tail)));
    }
    fold64(total)
}

/// Even, so that the pieces' sums add up.
const PIECE: usize = 1 << 30;

/// At most 31 bytes.
fn tail_sum(tail: &[u8]) -> u32 {
    let (words, odd) = tail.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_ne_bytes(*word))).sum();
    // RFC 1071 section 1: an odd last byte is padded with a zero byte behind it.
    sum + odd.first().map_or(0, |&last| u32::from(u16::from_ne_bytes([last, 0])))
}

/// Copies and sums block by block: the copy is the platform's own, and the sum finds the block in the cache.
pub(crate) fn copy(source: &[u8], destination: &mut [u8], mut sum: u32) -> u32 {
    for (from, to) in source.chunks(BLOCK).zip(destination.chunks_mut(BLOCK)) {
        to.copy_from_slice(from);
        sum = partial(from, sum);
    }
    sum
}
