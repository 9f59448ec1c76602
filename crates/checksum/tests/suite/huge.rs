//! More than 4 GiB at once. The memory is one file of 1 MiB mapped many times, so that it costs
//! address space only.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use shortwire_checksum::{Kernel, csum_fold};

const PIECE: usize = 1 << 20;
const PIECES: usize = 4097;

#[test]
fn more_than_4_gib_of_ones() {
    let file = memfd_create("ones", MemfdFlags::CLOEXEC).expect("memfd_create");
    ftruncate(&file, PIECE as u64).expect("ftruncate");
    let length = PIECE * PIECES;
    // SAFETY: a new mapping, which nothing else knows.
    let Ok(base) = (unsafe {
        mmap_anonymous(
            null_mut(),
            length,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }) else {
        crate::oracle::skipped("more_than_4_gib_of_ones", "no address space for it");
        return;
    };
    for piece in 0..PIECES {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces a part of the mapping above.
        let mapped = unsafe {
            let place = base.cast::<u8>().add(piece * PIECE).cast();
            mmap(place, PIECE, protection, MapFlags::SHARED | MapFlags::FIXED, &file, 0)
        };
        mapped.expect("mmap of a piece");
    }
    // SAFETY: the first piece, before anything else refers to it.
    unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), PIECE) }.fill(0xff);
    // SAFETY: all pieces are mapped, and nobody writes from here on.
    let data = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), length) };
    for kernel in Kernel::all().iter().filter(|kernel| kernel.is_available()) {
        // Words of ones are 0xffff, the other zero, so that the odd last byte stays. Unaligned, for
        // the longer way.
        let last = u16::from_ne_bytes([0xff, 0]);
        assert_eq!(csum_fold(kernel.csum_partial(&data[1..], 0)), !last, "{}", kernel.name());
    }
    // SAFETY: our mapping; `data` is not used any more.
    unsafe { munmap(base, length) }.expect("munmap");
}
