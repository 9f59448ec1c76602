//! The kernels, by instruction set.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
use crate::{kernel::CopyFn, sum::csum_block_add};

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) mod aarch64;
pub(crate) mod portable;
#[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
pub(crate) mod x86_64;

/// Short data whose sum is waited for.
#[inline(always)]
pub(crate) fn few(data: &[u8], sum: u32) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    return x86_64::few::partial(data, sum);
    #[cfg(not(all(target_arch = "x86_64", not(shortwire_raw))))]
    portable::partial(data, sum)
}

/// The bytes behind the last whole 64-bit word, 0 to 7 of them, as a word padded with zero bytes.
/// No loop, no branch but for short data.
#[inline(always)]
pub(crate) fn last_word(data: &[u8]) -> u64 {
    let behind = data.len() % 8;
    // As if little-endian, where a byte's place does not depend on how many follow.
    let word = match *data {
        // The last 8 bytes, less those that belong to the word before.
        [.., a, b, c, d, e, f, g, h] if behind != 0 => {
            u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> (64 - 8 * behind as u32)
        }
        // Two halves that overlap in equal bytes.
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, ..] if data.len() < 8 => {
            let last = [data[behind - 4], data[behind - 3], data[behind - 2], data[behind - 1]];
            u64::from(u32::from_le_bytes([a, b, c, d]))
                | u64::from(u32::from_le_bytes(last)) << (8 * (behind - 4))
        }
        [a, b, c] => u64::from(a) | u64::from(b) << 8 | u64::from(c) << 16,
        [a, b] => u64::from(a) | u64::from(b) << 8,
        [a] => u64::from(a),
        _ => 0,
    };
    u64::from_le(word)
}

#[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
/// Copies and sums whole blocks, the destination being aligned to their size.
type StreamFn<const BLOCK: usize> = unsafe fn(&[[u8; BLOCK]], &mut [[u8; BLOCK]]) -> u32;

#[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
/// Copies and sums where the stores of `stream` need a destination that is aligned to `BLOCK`
/// bytes: what lies before and behind goes through `copy`.
///
/// # Safety
/// The processor must have the features that `copy` and `stream` need, and both slices the same
/// length.
#[inline(always)]
pub(crate) unsafe fn aligned<const BLOCK: usize>(
    source: &[u8],
    destination: &mut [u8],
    sum: u32,
    copy: CopyFn,
    stream: StreamFn<BLOCK>,
) -> u32 {
    let head = (destination.as_ptr().addr().wrapping_neg() % BLOCK).min(destination.len());
    let (head_source, source) = source.split_at(head);
    let (head_destination, destination) = destination.split_at_mut(head);
    let (source, tail_source) = source.as_chunks::<BLOCK>();
    let (destination, tail_destination) = destination.as_chunks_mut::<BLOCK>();
    // SAFETY: the caller's obligation; the parts were cut at the same places.
    let (before, blocks, behind) = unsafe {
        let before = copy(head_source, head_destination, sum);
        (before, stream(source, destination), copy(tail_source, tail_destination, 0))
    };
    csum_block_add(before, csum_block_add(blocks, behind, 0), head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_word_is_the_padded_rest() {
        let data: [u8; 40] = core::array::from_fn(|place| 0x81 + place as u8);
        for length in 0..data.len() {
            let rest = &data[length / 8 * 8..length];
            let mut padded = [0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            assert_eq!(last_word(&data[..length]), u64::from_ne_bytes(padded), "{length}");
        }
    }
}
