//! The oracle, and memory whose neighbourhood faults.
#![allow(unsafe_code)]

use std::io::Write;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// RFC 1071 in the simplest words: the folded, complemented checksum in native byte order.
pub fn naive(data: &[u8], sum: u32) -> u16 {
    let mut total = u128::from(sum);
    for pair in data.chunks(2) {
        total += u128::from(u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    finish(total)
}

/// A total of 16-bit words, folded and complemented: 0 only stands for data that are not all zero.
pub fn finish(mut total: u128) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// Readable and writable bytes between two inaccessible pages.
pub struct Guarded {
    map: *mut u8,
    length: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    /// At least so many bytes.
    pub fn new(length: usize) -> Guarded {
        let length = length.next_multiple_of(PAGE);
        let whole = length + 2 * PAGE;
        // SAFETY: a new mapping, which nothing else knows.
        let map = unsafe {
            let map = mmap_anonymous(null_mut(), whole, ProtFlags::empty(), MapFlags::PRIVATE)
                .expect("mmap")
                .cast::<u8>();
            mprotect(map.add(PAGE).cast(), length, MprotectFlags::READ | MprotectFlags::WRITE)
                .expect("mprotect");
            map
        };
        Guarded { map, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the accessible middle of our mapping, borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(PAGE), self.length) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: our mapping; no borrow of it outlives `self`.
        unsafe { munmap(self.map.cast(), self.length + 2 * PAGE).expect("munmap") };
    }
}

/// Xorshift: the same bytes in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.next() as u8);
    }
}

/// What every test over patterns uses.
pub fn patterns(length: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = vec![0; length];
    Random(0x9e37_79b9_7f4a_7c15).fill(&mut random);
    vec![("zeros", vec![0; length]), ("0xff", vec![0xff; length]), ("random", random)]
}

/// Past the test runner's capture, so that a skip is seen and counted.
pub fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
