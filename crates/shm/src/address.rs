//! Address space, of which we take much and touch little: what of a program's limits that may cost
//! it.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::{
    MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munlock, munmap,
};
use rustix::process::{Resource, getrlimit};

/// What is shorter is not worth the system calls.
const LONG: usize = 1 << 20;
/// With a limit on the address space (RLIMIT_AS) this part of it at most is ours; what does not fit
/// in stays TCP.
const SHARE: usize = 16;

/// Bytes of long mappings that we hold.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn take(len: usize) -> Result<(), Errno> {
    let taken = TAKEN.fetch_add(len, Relaxed) + len;
    let limit = getrlimit(Resource::As).current;
    if limit.is_some_and(|limit| taken as u64 > limit / SHARE as u64) {
        TAKEN.fetch_sub(len, Relaxed);
        return Err(Errno::NOMEM);
    }
    Ok(())
}

/// Maps `len` bytes of `file` (its number and an offset) or, without one, of nothing, at an address
/// of the kernel's choice. Pages come into being when they are touched, also under
/// mlockall(MCL_FUTURE), which would make all of them resident at once: hundreds of megabytes.
pub fn map(
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    file: Option<(RawFd, u64)>,
) -> Result<*mut c_void, Errno> {
    let flags = flags | MapFlags::NORESERVE;
    let at_once = |prot| match file {
        Some((fd, offset)) => {
            // SAFETY: used for one system call, and never -1.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // SAFETY: a new mapping.
            unsafe { mmap(ptr::null_mut(), len, prot, flags, fd, offset) }
        }
        // SAFETY: a new mapping.
        None => unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags) },
    };
    if len < LONG {
        return at_once(prot);
    }
    take(len)?;
    let base = at_once(ProtFlags::empty()).inspect_err(|_| {
        TAKEN.fetch_sub(len, Relaxed);
    })?;
    // SAFETY: the mapping just made, which is locked in memory if all of the program's are.
    let _ = unsafe { munlock(base, len) };
    // SAFETY: the mapping just made, without access.
    let open = unsafe { mprotect(base, len, MprotectFlags::from_bits_retain(prot.bits())) };
    if let Err(error) = open {
        // SAFETY: as above.
        unsafe { unmap(base, len) };
        return Err(error);
    }
    Ok(base)
}

/// Puts `len` bytes of a shared file, or without one of shared memory, readable and writable, in
/// place of what is mapped at `at`, which counts as it did; false if that failed.
///
/// # Safety
/// `at` and `len` are whole pages of a mapping, and nobody minds that they change.
pub unsafe fn map_over(at: *mut c_void, len: usize, file: Option<(RawFd, u64)>) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    let mapped = match file {
        Some((fd, offset)) => {
            // SAFETY: the number is used for one system call, and never -1.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // SAFETY: forwarded.
            unsafe { mmap(at, len, prot, flags, fd, offset) }
        }
        // SAFETY: forwarded.
        None => unsafe { mmap_anonymous(at, len, prot, flags) },
    };
    mapped.is_ok()
}

/// Ends a mapping.
///
/// # Safety
/// It was made by `map` with this length, and nobody uses it any more.
pub unsafe fn unmap(base: *mut c_void, len: usize) {
    // SAFETY: forwarded.
    let _ = unsafe { munmap(base, len) };
    if len >= LONG {
        TAKEN.fetch_sub(len, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::process::{Rlimit, setrlimit};

    /// The limit is far above what tests beside this one need.
    #[test]
    fn a_limit_leaves_the_program_its_share() {
        let unlimited = getrlimit(Resource::As);
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let get = |len| map(len, rw, MapFlags::PRIVATE, None);
        let most = 1 << 46;
        setrlimit(Resource::As, Rlimit { current: Some(most), ..unlimited }).unwrap();
        let share = most as usize / SHARE;
        let taken = TAKEN.load(Relaxed);
        let base = get(share / 2).unwrap();
        assert_eq!(get(share).err(), Some(Errno::NOMEM));
        // SAFETY: mapped above; its first byte is writable.
        unsafe { base.cast::<u8>().write(1) };
        // SAFETY: mapped above.
        unsafe { unmap(base, share / 2) };
        assert_eq!(TAKEN.load(Relaxed), taken);
        setrlimit(Resource::As, unlimited).unwrap();
    }
}
