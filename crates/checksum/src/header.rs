//! Fixed-size headers, inline: no call, no dispatch.

use crate::sum::{csum_fold, fold64};

/// The folded and complemented checksum of an IPv4 header without options, in native byte order; 0
/// if the header holds its own right checksum.
#[inline(always)]
pub fn csum_header20(header: &[u8; 20]) -> u16 {
    csum_fold(fold64(sum_halves(header.as_chunks::<4>().0)))
}

/// The folded and complemented checksum of 40 bytes, in native byte order: an IPv6 header, or IPv4
/// and TCP without options.
#[inline(always)]
pub fn csum_header40(header: &[u8; 40]) -> u16 {
    csum_fold(fold64(sum_halves(header.as_chunks::<4>().0)))
}

/// Words of 32 bits leave room for the carries: plain additions, which need not wait for each
/// other's flags.
#[inline(always)]
fn sum_halves(words: &[[u8; 4]]) -> u64 {
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}
