//! Memory from the kernel.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ops::Range;

use rustix::mm::{MapFlags, ProtFlags};

use super::raw::syscall;

/// Whether nothing can be mapped at `p`: below the kernel's mmap_min_addr, or not in a process's
/// half of the addresses.
#[inline(always)]
pub fn faulty(p: *const u8) -> bool {
    const LOWEST: usize = 1 << 16;
    // On arm64 stacks and libraries lie right below 1 << 48, who asks for it gets up to 1 << 52, and
    // the processor ignores the highest byte, in which sanitizers and MTE keep a tag.
    const END: usize = if cfg!(target_arch = "aarch64") { 1 << 52 } else { (1 << 47) - 4096 };
    const ADDRESS: usize = if cfg!(target_arch = "aarch64") { (1 << 56) - 1 } else { usize::MAX };
    !(LOWEST..END).contains(&(p as usize & ADDRESS))
}

/// Memory from the kernel, zeroed, reserved only; null when there is none.
pub fn reserve(len: usize, shared: bool) -> *mut c_void {
    let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    shm::address::map(len, ProtFlags::READ | ProtFlags::WRITE, kind, None)
        .unwrap_or(core::ptr::null_mut())
}

/// Gives back what `reserve` gave.
///
/// # Safety
/// `len` is that of the call, and nobody uses the memory any more.
pub unsafe fn give_back(memory: *mut c_void, len: usize) {
    // SAFETY: forwarded.
    unsafe { shm::address::unmap(memory, len) };
}

/// Private memory from the kernel, zeroed, writable, for which it need not have room yet; null when
/// there is none.
pub fn anonymous(len: usize) -> *mut u8 {
    map_private(core::ptr::null_mut(), len, libc::MAP_NORESERVE)
}

/// Puts fresh private memory, all zero, in place of what is mapped at `memory`.
///
/// # Safety
/// `memory` and `len` must be those of a mapping that nobody else uses.
pub unsafe fn renew(memory: *mut c_void, len: usize) {
    map_private(memory, len, libc::MAP_FIXED);
}

fn map_private(at: *mut c_void, len: usize, flags: c_int) -> *mut u8 {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags) as usize;
    // SAFETY: a fresh mapping, which replaces another one only for `renew`, whose caller vouches
    // for that.
    let p = unsafe { syscall(libc::SYS_mmap, at as usize, len, prot, flags, usize::MAX, 0) };
    if p < 0 { core::ptr::null_mut() } else { p as *mut u8 }
}

/// The first `len` bytes of a file, shared and writable; null where they cannot be had.
pub fn map_file(fd: c_int, len: usize) -> *mut u8 {
    map_file_at(fd, len, 0)
}

/// `len` bytes of a file from `offset` on, likewise.
pub fn map_file_at(fd: c_int, len: usize, offset: u64) -> *mut u8 {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let (kind, fd) = (libc::MAP_SHARED as usize, fd as usize);
    // SAFETY: a fresh mapping.
    let p = unsafe { syscall(libc::SYS_mmap, 0, len, prot, kind, fd, offset as usize) };
    if p < 0 { core::ptr::null_mut() } else { p as *mut u8 }
}

/// `munmap`.
///
/// # Safety
/// As for the system call.
pub unsafe fn unmap(memory: *mut u8, len: usize) {
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_munmap, memory as usize, len, 0, 0, 0, 0) };
}

/// New memory, writable, that each byte of `code` reaches by a jump, and the other way round: behind
/// it, where the program's heap will not grow into it, or in front.
pub fn map_near(code: Range<usize>, len: usize) -> Option<usize> {
    // A jump reaches 2 GiB, and 128 MiB on arm64.
    const STEP: usize = if cfg!(target_arch = "aarch64") { 1 << 20 } else { 16 << 20 };
    const FAR: usize = if cfg!(target_arch = "aarch64") { 16 << 20 } else { 1 << 30 };
    // Data of a Go program lies behind its code, tens of megabytes that are in the way; what is too far
    // from the first instruction is no place.
    const BEHIND: usize = if cfg!(target_arch = "aarch64") { 110 } else { 32 };
    const REACH: usize = if cfg!(target_arch = "aarch64") { 127 << 20 } else { usize::MAX };
    let page = shm::segment::kernel_page();
    let behind = (code.end + FAR).next_multiple_of(page);
    let front = code.start / page * page;
    let places = (0..BEHIND).map(|i| behind + i * STEP);
    let places = places.take_while(|place| place + len - code.start < REACH);
    let places = places.chain((1..32).filter_map(|i| front.checked_sub(len + (i - 1) * STEP)));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    places.filter(|place| *place > 0).find(|&place| {
        let (access, flags) = (access as usize, flags as usize);
        // SAFETY: a fresh mapping, where nothing is.
        let at = unsafe { syscall(libc::SYS_mmap, place, len, access, flags, usize::MAX, 0) };
        // A kernel before 4.17 takes the place for a hint.
        if at > 0 && at as usize != place {
            // SAFETY: mapped just now.
            unsafe { unmap(at as *mut u8, len) };
        }
        at > 0 && at as usize == place
    })
}

/// Gives the whole pages of this part of shared memory back; the rest stays. The kernel's own
/// rounding would take what lies behind the part as well.
///
/// # Safety
/// Nobody may count on what is in the part.
pub unsafe fn give_back_pages(first: *mut u8, len: usize) {
    let page = shm::segment::kernel_page();
    let begin = first.addr().next_multiple_of(page);
    let end = (first.addr() + len) / page * page;
    if begin < end {
        // SAFETY: forwarded: pages of the part.
        unsafe { advise(first.with_addr(begin).cast(), end - begin, libc::MADV_REMOVE) };
    }
}

/// `madvise`.
///
/// # Safety
/// Nobody may count on what this kind of advice takes away.
pub unsafe fn advise(memory: *mut c_void, len: usize, advice: c_int) -> isize {
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_madvise, memory as usize, len, advice as usize, 0, 0, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a program has itself is where something can be mapped.
    #[test]
    fn what_is_mapped_is_not_faulty() {
        static DATA: u8 = 1;
        let (stack, heap) = (1u8, alloc::boxed::Box::new(1u8));
        let mapped: [*const u8; 5] = [
            &raw const stack,
            &raw const *heap,
            &raw const DATA,
            faulty as *const u8,
            libc::getpid as *const u8,
        ];
        assert!(mapped.iter().all(|&p| !faulty(p)));
        assert!(faulty(core::ptr::null()) && faulty(100 as *const u8));
        assert!(faulty(usize::MAX as *const u8) && faulty((1usize << 55) as *const u8));
        // Where arm64 has its stacks, and such a place with a tag.
        let high = [(1usize << 48) - 4096, (0xa5 << 56) | ((1usize << 48) - 4096)];
        assert_eq!(high.map(|p| faulty(p as *const u8)), [!cfg!(target_arch = "aarch64"); 2]);
    }
}
