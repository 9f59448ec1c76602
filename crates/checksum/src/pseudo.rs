//! Pseudo headers (RFC 768, RFC 9293 section 3.1, RFC 8200 section 8.1).

use crate::sum::{add64, csum_fold, fold64};

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// Adds the IPv4 pseudo header to a partial sum. Addresses as they lie in the packet; `length` in
/// bytes, of the transport header and its data.
#[inline]
pub fn csum_tcpudp_nofold(
    source: [u8; 4],
    destination: [u8; 4],
    length: u16,
    protocol: u8,
    sum: u32,
) -> u32 {
    let addresses =
        u64::from(u32::from_ne_bytes(source)) + u64::from(u32::from_ne_bytes(destination));
    let rest = u32::from_be(u32::from(protocol) + u32::from(length));
    fold64(addresses + u64::from(rest) + u64::from(sum))
}

/// The checksum of a TCP or UDP packet over IPv4: `sum` is that of its transport header and data,
/// its checksum field being zero. For UDP a result of 0 is sent as 0xffff (RFC 768).
#[inline]
pub fn csum_tcpudp_magic(
    source: [u8; 4],
    destination: [u8; 4],
    length: u16,
    protocol: u8,
    sum: u32,
) -> u16 {
    csum_fold(csum_tcpudp_nofold(source, destination, length, protocol, sum))
}

/// Adds the IPv6 pseudo header to a partial sum. `length` in bytes, of the upper-layer header and
/// its data; `protocol` is the upper layer's, also where extension headers come first.
#[inline]
pub fn csum_ipv6_nofold(
    source: [u8; 16],
    destination: [u8; 16],
    length: u32,
    protocol: u8,
    sum: u32,
) -> u32 {
    let words = |address: [u8; 16]| {
        let both = u128::from_ne_bytes(address);
        add64(both as u64, (both >> 64) as u64)
    };
    // Neither the sum of these two nor the 64-bit additions above lose a carry; their own order
    // does not matter.
    let rest = u64::from(u32::from_be(length))
        + u64::from(u32::from_be(u32::from(protocol)))
        + u64::from(sum);
    fold64(add64(add64(words(source), words(destination)), rest))
}

/// The checksum of a TCP, UDP or ICMPv6 packet over IPv6: `sum` is that of its upper-layer header
/// and data, its checksum field being zero. For UDP a result of 0 is sent as 0xffff (RFC 8200
/// section 8.1).
#[inline]
pub fn csum_ipv6_magic(
    source: [u8; 16],
    destination: [u8; 16],
    length: u32,
    protocol: u8,
    sum: u32,
) -> u16 {
    csum_fold(csum_ipv6_nofold(source, destination, length, protocol, sum))
}
