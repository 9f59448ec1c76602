//! Memory to measure in: large pages, and lines that can be thrown out of all caches.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::random::Random;

pub const LINE: usize = 64;
const HUGE: usize = 2 << 20;

/// Filled with random bytes, on a boundary of 2 MiB.
pub struct Region {
    mapping: NonNull<c_void>,
    mapped: usize,
    start: NonNull<u8>,
    length: usize,
}

impl Region {
    pub fn new(length: usize, random: &mut Random) -> io::Result<Region> {
        let length = length.next_multiple_of(HUGE);
        let mapped = length + HUGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let mapping =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }?;
        let offset = mapping.addr().next_multiple_of(HUGE) - mapping.addr();
        let start = mapping.cast::<u8>().wrapping_add(offset);
        // SAFETY: within the new mapping. Kernels without large pages refuse; the figures then
        // contain more page walks.
        let _ = unsafe { madvise(start.cast(), length, Advice::LinuxHugepage) };
        let (Some(mapping), Some(start)) = (NonNull::new(mapping), NonNull::new(start)) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut region = Region { mapping, mapped, start, length };
        let (words, _) = region.bytes_mut().as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = random.next().to_ne_bytes());
        Ok(region)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives, initialised, and changed only through
        // `bytes_mut`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.mapping.as_ptr(), self.mapped) };
    }
}

/// Writes every line back and out of all caches of the machine.
#[cfg(target_arch = "x86_64")]
pub fn flush(bytes: &[u8]) {
    use std::arch::asm;
    use std::arch::x86_64::_mm_mfence;
    for line in bytes.chunks(LINE) {
        // SAFETY: changes no value; the address is one of ours. (Processors without clflushopt are
        // turned away at start.)
        unsafe {
            asm!("clflushopt [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags))
        };
    }
    // SAFETY: every x86-64 processor has it; it waits for the flushes.
    unsafe { _mm_mfence() };
}

#[cfg(target_arch = "aarch64")]
pub fn flush(bytes: &[u8]) {
    use std::arch::asm;
    for line in bytes.chunks(LINE) {
        // SAFETY: cleans and invalidates a line of ours to the point of coherency: changes no
        // value.
        unsafe { asm!("dc civac, {}", in(reg) line.as_ptr(), options(nostack, preserves_flags)) };
    }
    // SAFETY: waits for the above.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// Whether `flush` may be called.
pub fn can_flush() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // CPUID leaf 7, EBX bit 23.
        std::arch::x86_64::__cpuid_count(7, 0).ebx & 1 << 23 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    true
}
