//! What one call moves: the application's pieces of memory, and what is left of them.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use libc::{iovec, msghdr};
use smc::conn::Pieces;
use smc::sys;

/// Runs `f` with what is left as an iovec array.
pub fn with_rest<R>(pieces: &Pieces, f: impl FnOnce(*const iovec, usize) -> R) -> R {
    let mut few = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 16];
    let n = pieces.rest(&mut few);
    if n < few.len() {
        return f(few.as_ptr(), n);
    }
    let mut many = alloc::vec![few[0]; libc::UIO_MAXIOV as usize];
    let n = pieces.rest(&mut many);
    f(many.as_ptr(), n)
}

/// A message of these pieces and nothing else.
pub fn empty_msg(iov: *const iovec, n: usize) -> msghdr {
    // SAFETY: all-zero is a valid msghdr.
    let mut m: msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = iov.cast_mut();
    m.msg_iovlen = n;
    m
}

/// One piece.
#[inline(always)]
pub fn one(buf: *const c_void, n: usize) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: n.min(MOST) }
}

/// The application's array of pieces, if the kernel would take it.
///
/// # Safety
/// `iov` must be what the application gives to readv or the like.
pub unsafe fn slice<'a>(iov: *const iovec, n: isize) -> Option<&'a [iovec]> {
    if !(0..=libc::UIO_MAXIOV as isize).contains(&n) || (n > 0 && crate::faulty(iov)) {
        return None;
    }
    // SAFETY: the application vouches for n elements.
    let v = if n == 0 { &[] } else { unsafe { core::slice::from_raw_parts(iov, n as usize) } };
    let mut total = 0usize;
    // The kernel refuses a negative length or sum; let it.
    v.iter()
        .all(|e| {
            total = total.saturating_add(e.iov_len);
            total <= isize::MAX as usize
        })
        .then_some(v)
}

/// Whether the kernel refuses the name of a peer, which TCP does not use, before it looks at what is
/// to be sent.
pub fn refuses_name(name: *const c_void, len: u32) -> bool {
    let most = size_of::<libc::sockaddr_storage>() as u32;
    !name.is_null() && (len > most || len > 0 && crate::faulty(name))
}

/// [`slice()`] of the application's message.
///
/// # Safety
/// `msg` must be what the application gives to sendmsg or the like, and can be read.
#[inline(always)]
pub unsafe fn of_message<'a>(msg: *const msghdr) -> Option<&'a [iovec]> {
    // SAFETY: the caller's obligation.
    let msg = unsafe { &*msg };
    // SAFETY: the caller's obligation.
    unsafe { slice(msg.msg_iov, msg.msg_iovlen as isize) }
}

/// The kernel cuts a request at this length, and so must a ring: counts of calls are ints in
/// places.
const MOST: usize = 0x7fff_f000;

/// Runs `f` with as much of `iov` as one call may move.
#[inline]
pub fn within_most<R>(iov: &[iovec], f: impl FnOnce(&[iovec]) -> R) -> R {
    if iov.iter().map(|e| e.iov_len).sum::<usize>() <= MOST {
        return f(iov);
    }
    let mut left = MOST;
    let cut: Vec<iovec> = iov
        .iter()
        .map(|e| {
            let n = e.iov_len.min(left);
            left -= n;
            iovec { iov_base: e.iov_base, iov_len: n }
        })
        .collect();
    f(&cut)
}

/// The flags of recv or send that stand for those of preadv2 or pwritev2, or the negative errno
/// with which Linux refuses them on a socket: programs ask so what there is.
pub fn flags(of: i32) -> Result<i32, isize> {
    if of == 0 {
        return Ok(0);
    }
    if of & !taken() != 0 {
        return Err(-(libc::EOPNOTSUPP as isize));
    }
    let meant = |flag, by| if of & flag != 0 { by } else { 0 };
    Ok(meant(libc::RWF_NOWAIT, libc::MSG_DONTWAIT) | meant(NOSIGNAL, libc::MSG_NOSIGNAL))
}

/// RWF_NOSIGNAL of Linux 6.18.
const NOSIGNAL: i32 = 0x100;

/// The flags of pwritev2 that this kernel takes for sockets, of those whose meaning is known here. Linux 6.1
/// refuses RWF_NOWAIT, 6.8 RWF_NOAPPEND.
fn taken() -> i32 {
    /// No flag: the kernel has been asked.
    const ASKED: i32 = 1 << 30;
    const NOAPPEND: i32 = 0x20;
    static TAKEN: AtomicI32 = AtomicI32::new(0);
    let before = TAKEN.load(Relaxed);
    if before != 0 {
        return before & !ASKED;
    }
    let old = [libc::RWF_HIPRI, libc::RWF_DSYNC, libc::RWF_SYNC, libc::RWF_APPEND];
    // A sandbox that was entered since may kill for what the program does not call itself. And where a
    // descriptor is wanted, another call may ask.
    let pair = if crate::fds::has_stopped() { None } else { sys::unix_pair().ok() };
    let Some([here, there]) = pair else {
        return old.iter().fold(libc::RWF_NOWAIT, |all, flag| all | flag);
    };
    let byte = one((&raw const *b" ").cast(), 1);
    let piece = (&raw const byte) as usize;
    let number = libc::SYS_pwritev2;
    // SAFETY: the kernel reads one byte of ours.
    let takes = |flag| unsafe {
        sys::by_number(number, here as usize, piece, 1, usize::MAX, usize::MAX, flag as usize) == 1
    };
    let new = [libc::RWF_NOWAIT, NOAPPEND, NOSIGNAL];
    let all =
        old.into_iter().chain(new).filter(|&flag| takes(flag)).fold(0, |all, flag| all | flag);
    sys::close(here);
    sys::close(there);
    TAKEN.store(all | ASKED, Relaxed);
    all
}
