//! Memory of another process, reached by system calls alone.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::sync::atomic::{Ordering::SeqCst, fence};
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

/// Copies `local` to `remote` in the process `pid`, in order; how many bytes. Whoever there sees what
/// is in one piece of `remote` sees the pieces in front of it, and a copy is a full fence.
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
    if cfg!(target_arch = "x86_64") {
        return cross(libc::process_vm_writev, pid, local, remote);
    }
    write_one_by_one(pid, local, remote)
}

/// As `write`, for processors that let stores overtake each other: a call for each piece there, with a
/// fence in front of it. Within one call the kernel stores the word that publishes bytes right behind
/// these, with nothing between, and a peer on arm64 may see the word first.
fn write_one_by_one(pid: i32, local: &[Piece], remote: &[Piece]) -> Result<usize, Errno> {
    // The piece here that comes next, and how much of it was copied.
    let (mut next, mut part, mut whole) = (0, 0, 0);
    for there in remote {
        let mut at = 0;
        while at < there.iov_len && next < local.len() {
            let rest = piece((there.iov_base.addr() + at) as u64, there.iov_len - at);
            let first = local[next];
            let begun = [piece((first.iov_base.addr() + part) as u64, first.iov_len - part)];
            let from = if part == 0 { &local[next..] } else { &begun };
            let wanted = from.iter().map(|piece| piece.iov_len).sum::<usize>().min(rest.iov_len);
            fence(SeqCst);
            let copied = match cross(libc::process_vm_writev, pid, from, &[rest]) {
                Err(e) if whole == 0 => return Err(e),
                done => done.unwrap_or(0),
            };
            (whole, at, part) = (whole + copied, at + copied, part + copied);
            if copied < wanted {
                return Ok(whole);
            }
            while next < local.len() && part >= local[next].iov_len {
                part -= local[next].iov_len;
                next += 1;
            }
        }
    }
    fence(SeqCst);
    Ok(whole)
}

/// Behind a read: what is read afterwards is not older. The kernel's own loads are plain ones.
fn read_in_order<T>(done: T) -> T {
    fence(SeqCst);
    done
}

/// Fills `to` from `addr` on in the process `pid`.
pub fn read(pid: i32, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
    let local = [Piece { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
    let n = read_in_order(cross(libc::process_vm_readv, pid, &local, &[piece(addr, to.len())]))?;
    if n == to.len() { Ok(()) } else { Err(Errno::FAULT) }
}

/// Fills `to` from the pieces there, in order; `to` may be anything that any bytes make.
pub fn gather<T: Plain>(pid: i32, remote: &[Piece], to: &mut T) -> Result<(), Errno> {
    let local = [Piece { iov_base: (&raw mut *to).cast(), iov_len: size_of::<T>() }];
    let n = read_in_order(cross(libc::process_vm_readv, pid, &local, remote))?;
    if n == size_of::<T>() { Ok(()) } else { Err(Errno::FAULT) }
}

/// Reads from the process `pid` into pieces of memory here; how many bytes.
///
/// # Safety
/// `local` must be this process's to write.
pub unsafe fn fetch(pid: i32, local: &[Piece], remote: &[Piece]) -> Result<usize, Errno> {
    read_in_order(cross(libc::process_vm_readv, pid, local, remote))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of any lengths on both sides: the same bytes as one call copies, up to a place that
    /// cannot be written.
    #[test]
    fn one_by_one_copies_the_same() {
        let pid = own();
        let from: Vec<u8> = (0..4096u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let cut = |base: *const u8, lens: &[usize]| -> Vec<Piece> {
            let mut at = 0;
            let piece_of = |len: &usize| {
                at += len;
                piece((base.addr() + at - len) as u64, *len)
            };
            lens.iter().map(piece_of).collect()
        };
        let lengths: [(&[usize], &[usize]); 4] = [
            (&[100], &[60, 0, 40]),
            (&[1, 2, 0, 3, 500, 4], &[4, 400, 90, 16]),
            (&[8, 8, 8], &[24]),
            (&[64, 64], &[128, 8]),
        ];
        for (here, there) in lengths {
            let len = here.iter().sum::<usize>();
            let [mut one, mut other] = [vec![0u8; 4096], vec![0u8; 4096]];
            let local = cut(from.as_ptr(), here);
            let remote = cut(one.as_mut_ptr(), there);
            assert_eq!(write_one_by_one(pid, &local, &remote), Ok(len), "{here:?} {there:?}");
            let remote = cut(other.as_mut_ptr(), there);
            assert_eq!(cross(libc::process_vm_writev, pid, &local, &remote), Ok(len));
            assert!(one == other && one[..len] == from[..len]);
        }
        let mut room = [0u8; 16];
        let local = [piece(from.as_ptr() as u64, 32)];
        let remote = [piece(room.as_mut_ptr() as u64, 16), piece(NOWHERE as u64, 16)];
        assert_eq!(write_one_by_one(pid, &local, &remote), Ok(16));
        assert_eq!(room, from[..16]);
        assert_eq!(write_one_by_one(pid, &local, &remote[1..]), Err(Errno::FAULT));
    }

    fn own() -> i32 {
        std::process::id() as i32
    }
}
