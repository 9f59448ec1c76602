//! Incremental update (RFC 1624, equation 3): a field changes, the checksum follows without a look
//! at the rest.
//!
//! `check` is the checksum field in native byte order (`u16::from_ne_bytes`), and so is the result;
//! old and new value are bytes as they lie in the packet, at an even offset from where the checksum
//! began. The result is what a computation from scratch gives, unless all the data that remains is
//! zero: then that gives 0xffff, and this may give the equivalent
//! 0. A UDP checksum of 0 means that there is none: leave it alone, and send a result of 0 as
//!    0xffff (RFC 768).

use crate::sum::{csum_fold, fold64};

/// A field of 16 bits: a port, a length, the TTL together with its neighbour.
#[inline]
pub const fn csum_replace2(check: u16, old: [u8; 2], new: [u8; 2]) -> u16 {
    replace(check, !u16::from_ne_bytes(old) as u64, u16::from_ne_bytes(new) as u64)
}

/// A field of 32 bits: an IPv4 address, a sequence number.
#[inline]
pub const fn csum_replace4(check: u16, old: [u8; 4], new: [u8; 4]) -> u16 {
    replace(check, !u32::from_ne_bytes(old) as u64, u32::from_ne_bytes(new) as u64)
}

/// A field of 48 bits: a MAC address.
#[inline]
pub const fn csum_replace6(check: u16, old: [u8; 6], new: [u8; 6]) -> u16 {
    let [a, b, c, d, e, f] = old;
    let old = !u32::from_ne_bytes([a, b, c, d]) as u64 + !u16::from_ne_bytes([e, f]) as u64;
    let [a, b, c, d, e, f] = new;
    replace(check, old, u32::from_ne_bytes([a, b, c, d]) as u64 + u16::from_ne_bytes([e, f]) as u64)
}

/// A field of 128 bits: an IPv6 address.
#[inline]
pub const fn csum_replace16(check: u16, old: [u8; 16], new: [u8; 16]) -> u16 {
    replace(check, words(!u128::from_ne_bytes(old)), words(u128::from_ne_bytes(new)))
}

const fn words(value: u128) -> u64 {
    let mask = 0xffff_ffff;
    ((value & mask) + (value >> 32 & mask) + (value >> 64 & mask) + (value >> 96)) as u64
}

/// `old` is complemented already. Both are sums of at most four 32-bit words.
#[inline(always)]
const fn replace(check: u16, old: u64, new: u64) -> u16 {
    csum_fold(fold64(!check as u64 + old + new))
}
