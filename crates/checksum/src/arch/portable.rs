//! Any processor: 64-bit words in safe Rust.

use super::last_word;
use crate::sum::{add64, fold64};

/// Of the 2^33 in a lane's addend, 2^31 fit: 64 GiB. Even, so that the pieces' sums add up.
const PIECE: usize = 1 << 30;
/// Bytes that are copied and then summed while they are in the first-level cache.
const BLOCK: usize = 2048;

pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
    if data.len() > PIECE {
        return data.chunks(PIECE).fold(sum, |sum, piece| partial(piece, sum));
    }
    let mut total = add64(u64::from(sum), last_word(data));
    let (blocks, rest) = data.as_chunks::<32>();
    if !blocks.is_empty() {
        // A word enters as two halves of 32 bits, so that nothing carries; four lanes are what
        // compilers turn into vectors.
        let mut lanes = [0u64; 4];
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
                let word = u64::from_ne_bytes(*word);
                *lane += (word & 0xffff_ffff) + (word >> 32);
            }
        }
        for lane in lanes {
            total = add64(total, lane);
        }
    }
    for word in rest.as_chunks::<8>().0 {
        total = add64(total, u64::from_ne_bytes(*word));
    }
    fold64(total)
}

/// Copies and sums block by block: the copy is the platform's own, and the sum finds the block in
/// the cache.
pub(crate) fn copy(source: &[u8], destination: &mut [u8], mut sum: u32) -> u32 {
    for (from, to) in source.chunks(BLOCK).zip(destination.chunks_mut(BLOCK)) {
        to.copy_from_slice(from);
        sum = partial(from, sum);
    }
    sum
}
