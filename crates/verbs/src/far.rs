//! Memory of another process, reached by system calls alone.
#![allow(unsafe_code)]

use core::ffi::c_void;
use shm::Errno;

/// One piece of memory, here or there.
pub type Piece = libc::iovec;

/// What is nobody's: to ask for the right to write, without a place where it could be done.
const NOWHERE: usize = 1 << (usize::BITS - 1);

/// `len` bytes from `addr` on.
pub const fn piece(addr: u64, len: usize) -> Piece {
    Piece { iov_base: addr as usize as *mut c_void, iov_len: len }
}

type Call = unsafe extern "C" fn(
    i32,
    *const Piece,
    libc::c_ulong,
    *const Piece,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

fn cross(call: Call, pid: i32, local: &[Piece], remote: &[Piece]) -> Result<usize, Errno> {
    // SAFETY: it has no obligation.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno, which a hook leaves as the call it stands for would.
    let errno = unsafe { &mut *errno };
    let before = *errno;
    // SAFETY: the kernel checks what both sides may do with the pieces. That those here are ours to
    // read or to write is the caller's obligation.
    let n = unsafe {
        call(pid, local.as_ptr(), local.len() as _, remote.as_ptr(), remote.len() as _, 0)
    };
    let failed = core::mem::replace(errno, before);
    if n < 0 { Err(Errno::from_raw_os_error(failed)) } else { Ok(n as usize) }
}

/// Copies `local` to `remote` in the process `pid`, in order; how many bytes.
///
/// An aligned word of up to eight bytes that is a piece of its own, or lies in one that begins and
/// ends with such words, arrives whole if its addresses here and there agree modulo 16: Linux
/// copies with `rep movsb`, which Zen 3 and Zen 4 carry out byte by byte where the destination lies
/// 1 to 15 bytes behind the source modulo 4096.
///
/// # Safety
/// `local` must be readable, or `EFAULT` be understood as its fault; what is written in the other
/// process is that process's loss, so `remote` must be what it gave away.
pub unsafe fn write(pid: i32, local: &[Piece], remote: &[Piece]) -> Result<usize, Errno> {
    cross(libc::process_vm_writev, pid, local, remote)
}

/// Fills `to` from `addr` on in the process `pid`.
pub fn read(pid: i32, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
    let local = [Piece { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
    let n = cross(libc::process_vm_readv, pid, &local, &[piece(addr, to.len())])?;
    if n == to.len() { Ok(()) } else { Err(Errno::FAULT) }
}

/// Fills `to` from the pieces there, in order; `to` may be anything that any bytes make.
pub fn gather<T: Plain>(pid: i32, remote: &[Piece], to: &mut T) -> Result<(), Errno> {
    let local = [Piece { iov_base: (&raw mut *to).cast(), iov_len: size_of::<T>() }];
    let n = cross(libc::process_vm_readv, pid, &local, remote)?;
    if n == size_of::<T>() { Ok(()) } else { Err(Errno::FAULT) }
}

/// Reads from the process `pid` into pieces of memory here; how many bytes.
///
/// # Safety
/// `local` must be this process's to write.
pub unsafe fn fetch(pid: i32, local: &[Piece], remote: &[Piece]) -> Result<usize, Errno> {
    cross(libc::process_vm_readv, pid, local, remote)
}

/// What any bytes make.
///
/// # Safety
/// No padding, no pointers, no value that is not allowed.
pub unsafe trait Plain {}

/// Whether this process may read and write the memory of `pid`: the kernel asks for the rights of
/// ptrace, which Yama, a process that cannot be dumped, another user or a seccomp filter deny.
/// Nothing is read or written.
pub fn may_write(pid: i32) -> Result<(), Errno> {
    let mut byte = 0u8;
    let local = [Piece { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    for call in [libc::process_vm_writev as Call, libc::process_vm_readv as Call] {
        match cross(call, pid, &local, &[piece(NOWHERE as u64, 1)]) {
            // The rights are looked at before the address.
            Err(Errno::FAULT) => {}
            Err(e) => return Err(e),
            Ok(_) => return Err(Errno::INVAL),
        }
    }
    Ok(())
}
