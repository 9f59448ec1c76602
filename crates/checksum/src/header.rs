//! Fixed-size headers, inline: no call, no dispatch.

use crate::sum::{add64, csum_fold, fold64};

/// The folded and complemented checksum of an IPv4 header without options, in native byte order; 0
/// if the header holds its own right checksum.
#[inline(always)]
pub fn csum_header20(header: &[u8; 20]) -> u16 {
    let (words, rest) = header.as_chunks::<8>();
    let last = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]);
    csum_fold(fold64(add64(sum_words(words), u64::from(last))))
}

/// The folded and complemented checksum of 40 bytes, in native byte order: an IPv6 header, or IPv4
/// and TCP without options.
#[inline(always)]
pub fn csum_header40(header: &[u8; 40]) -> u16 {
    csum_fold(fold64(sum_words(header.as_chunks::<8>().0)))
}

#[inline(always)]
fn sum_words(words: &[[u8; 8]]) -> u64 {
    // In 128 bits the carries of all additions are taken in once, at the end: one chain of
    // add-with-carry.
    let sum: u128 = words.iter().map(|word| u128::from(u64::from_ne_bytes(*word))).sum();
    add64(sum as u64, (sum >> 64) as u64)
}
