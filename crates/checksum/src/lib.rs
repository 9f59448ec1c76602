#![doc = include_str!("../README.md")]
#![no_std]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

mod arch;
mod batch;
mod chain;
mod cpu;
mod header;
pub mod kernel;
pub mod packet;
pub mod prefetch;
mod pseudo;
mod replace;
mod sum;

pub use batch::csum_batch;
pub use chain::{Chain, csum_chain};
pub use header::{csum_header20, csum_header40};
pub use kernel::Kernel;
pub use pseudo::{
    ICMP, ICMPV6, TCP, UDP, csum_ipv6_magic, csum_ipv6_nofold, csum_tcpudp_magic,
    csum_tcpudp_nofold,
};
pub use replace::{csum_replace2, csum_replace4, csum_replace6, csum_replace16};
pub use sum::{csum_add, csum_block_add, csum_fold, csum_sub};

/// Adds `data` to a partial sum: what the Linux kernel's function of this name does (RFC 1071).
///
/// `sum` is 0 or an earlier partial sum of data with an even length. The result is a ones'
/// complement sum of 16-bit words in native byte order, held in 32 bits. Only its value modulo
/// 0xffff and whether it is 0 mean anything, so compare sums after [`csum_fold`]. It is 0 only if
/// `sum` and all bytes are 0. A last odd byte counts as if a zero byte followed. `data` may begin
/// at any address and have any length up to `isize::MAX`.
///
/// ```
/// let sum = shortwire_checksum::csum_partial(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0);
/// assert_eq!(shortwire_checksum::csum_fold(sum).to_ne_bytes(), (!0xddf2u16).to_be_bytes());
/// ```
#[inline]
pub fn csum_partial(data: &[u8], sum: u32) -> u32 {
    kernel::active_partial(data, sum)
}

/// As [`csum_partial`], for a sum that is needed at once, and not one of many: for a header that is
/// about to be written, say.
///
/// [`csum_partial`] is made for many packets, whose sums overlap; with one alone, short data waits for
/// the way through the vectors. With the kernel `avx512vnni` this one takes less time for up to 128 bytes then (half, on a Zen 5), and more
/// time if it is called for many. Longer data goes to [`csum_partial`].
#[inline]
pub fn csum_partial_latency(data: &[u8], sum: u32) -> u32 {
    if data.len() <= LATENCY { arch::few(data, sum) } else { csum_partial(data, sum) }
}

/// Up to here vectors come later, on the processors that were measured (Zen 5).
const LATENCY: usize = 384;

/// The checksum of `data` as it goes into a header, in native byte order:
/// `csum_fold(csum_partial(data, 0))`.
#[inline]
pub fn checksum(data: &[u8]) -> u16 {
    csum_fold(csum_partial(data, 0))
}

/// Copies `source` to `destination` and adds it to a partial sum, in one pass over memory. Some bytes are read twice:
/// if the source changes meanwhile, the sum may be that of neither.
///
/// ```
/// let mut copy = [0; 5];
/// let sum = shortwire_checksum::csum_and_copy(b"bytes", &mut copy, 0);
/// assert_eq!(&copy, b"bytes");
/// assert_eq!(shortwire_checksum::csum_fold(sum), shortwire_checksum::checksum(b"bytes"));
/// ```
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn csum_and_copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    kernel::active_copy(source, destination, sum)
}

/// As [`csum_and_copy`], with stores that go past the caches (non-temporal).
///
/// For a destination that is not in a cache and is not read soon, or for 1 MiB and more. Into a
/// destination that is in a cache this is several times slower than [`csum_and_copy`]. Only the
/// caller knows which it is.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn csum_and_copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    Kernel::active().csum_and_copy_nt(source, destination, sum)
}
