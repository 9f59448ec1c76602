//! A routine under measurement, and the loops in which it is timed. Each loop is compiled once per
//! routine, so that a routine is called, or inlined, as in a program that uses it.
#![allow(unsafe_code)]

use std::arch::asm;
use std::hint::black_box;

/// Where a routine stands in the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// What a user of the checksum crate gets.
    Ours,
    /// One kernel of the crate by name.
    Kernel,
    /// Other people's.
    Rival,
    /// Reads all bytes and does no more: the limit.
    Read,
    /// Copies all bytes.
    Memcpy,
    /// A setting that is compared with others.
    Setting,
}

/// What a routine returns, as the sum of RFC 1071 in network byte order, neither folded to one of
/// the two zeros nor complemented. None: it computes no sum.
pub type ToSum = Option<fn(u64) -> u16>;

pub struct Routine {
    pub name: String,
    pub role: Role,
    pub to_sum: ToSum,
    pub loops: Box<dyn Loops>,
}

impl Routine {
    pub fn new(
        name: &str,
        role: Role,
        to_sum: ToSum,
        sum: impl Fn(&[u8]) -> u64 + 'static,
    ) -> Routine {
        Routine { name: name.into(), role, to_sum, loops: Box::new(sum) }
    }

    /// Whether it sums these packets right. Rivals overflow on long ones.
    pub fn is_right(&self, packets: &[&[u8]]) -> bool {
        let Some(to_sum) = self.to_sum else { return true };
        packets.iter().all(|packet| same(to_sum(self.loops.each(&[packet])), oracle(packet)))
    }
}

pub trait Loops {
    /// The same data again and again.
    fn repeat(&self, data: &[u8], times: usize) -> u64;
    /// One packet after the other; the exclusive or of what comes back.
    fn each(&self, packets: &[&[u8]]) -> u64;
    /// As `repeat`, but each call's address depends on the result before: latency and not
    /// throughput.
    fn chain(&self, data: &[u8], times: usize) -> u64;
}

impl<F: Fn(&[u8]) -> u64> Loops for F {
    #[inline(never)]
    fn repeat(&self, data: &[u8], times: usize) -> u64 {
        (0..times).fold(0, |sum, _| sum ^ self(opaque(data)))
    }

    #[inline(never)]
    fn each(&self, packets: &[&[u8]]) -> u64 {
        packets.iter().fold(0, |sum, packet| sum ^ self(packet))
    }

    #[inline(never)]
    fn chain(&self, data: &[u8], times: usize) -> u64 {
        // Nothing the compiler knows of, and always zero.
        let zero = black_box(0);
        (0..times).fold(0, |sum, _| self(opaque(&data[(sum & zero) as usize..])))
    }
}

/// The same slice, about which the compiler knows nothing any more: it can neither hoist a call out
/// of its loop nor specialise the loop for a length. Costs no instruction.
#[inline(always)]
pub fn opaque(data: &[u8]) -> &[u8] {
    let (mut start, mut length) = (data.as_ptr(), data.len());
    // SAFETY: no instruction at all; both values stay what they are.
    unsafe {
        asm!("/* {} {} */", inout(reg) start, inout(reg) length, options(nostack, preserves_flags))
    };
    // SAFETY: pointer and length of `data`.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// As `opaque`, for data whose length is part of its type.
#[inline(always)]
pub fn opaque_array<const N: usize>(data: &[u8; N]) -> &[u8; N] {
    let mut start = std::ptr::from_ref(data);
    // SAFETY: no instruction at all; the address stays what it is.
    unsafe { asm!("/* {} */", inout(reg) start, options(nostack, preserves_flags)) };
    // SAFETY: the address of `data`.
    unsafe { &*start }
}

/// RFC 1071 as written: 16-bit words in network byte order, the last one padded with zero.
pub fn oracle(data: &[u8]) -> u16 {
    let (words, rest) = data.as_chunks::<2>();
    let whole: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    fold(whole + rest.first().map_or(0, |&byte| u64::from(byte) << 8))
}

pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// 0 and 0xffff are the same number in ones' complement.
pub fn same(one: u16, other: u16) -> bool {
    one % 0xffff == other % 0xffff
}

/// For routines that add words in the byte order of the processor.
pub fn from_native(sum: u64) -> u16 {
    fold(sum).to_be()
}

/// For routines that return the finished field, complemented, as a number.
pub fn from_complement(field: u64) -> u16 {
    !(field as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(oracle(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(oracle(&[0x12, 0x34, 0x56]), 0x6834);
        assert!(same(0, 0xffff) && !same(1, 0));
    }

    #[test]
    fn a_routine_that_sums_wrong_is_found() {
        let right = Routine::new("right", Role::Rival, Some(|sum| sum as u16), |data| {
            u64::from(oracle(data))
        });
        let wrong = Routine::new("wrong", Role::Rival, Some(|sum| sum as u16), |data| {
            u64::from(oracle(data)) + 1
        });
        assert!(right.is_right(&[b"packet", b"odd"]));
        assert!(!wrong.is_right(&[b"packet", b"odd"]));
        assert_eq!(right.loops.repeat(b"packet", 3), u64::from(oracle(b"packet")));
        assert_eq!(right.loops.chain(b"packet", 3), u64::from(oracle(b"packet")));
    }
}
