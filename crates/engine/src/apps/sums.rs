//! The Internet checksum (RFC 1071) by the kernel's names, for headers and whole packets.
//!
//! Sums are ones' complement sums in native byte order, as they lie in memory.

/// Adds bytes to a partial sum. A last odd byte counts as if a zero byte followed.
pub fn csum_partial(data: &[u8], sum: u32) -> u32 {
    let (words, rest) = data.as_chunks::<4>();
    let mut total = words.iter().fold(u64::from(sum), |total, word| total + u64::from(u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    total = (total & 0xffff_ffff) + (total >> 32);
    ((total & 0xffff_ffff) + (total >> 32)) as u32
}

/// The checksum of a partial sum.
pub const fn csum_fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// Follows a change of 16 bits (RFC 1624, equation 3).
pub const fn csum_replace2(check: u16, old: [u8; 2], new: [u8; 2]) -> u16 {
    csum_fold(!check as u32 + !u16::from_ne_bytes(old) as u32 + u16::from_ne_bytes(new) as u32)
}
