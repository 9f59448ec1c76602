//! The calls that move data.
#![allow(unsafe_code)]

use super::{number, set_errno};
use crate::socket;
use core::ffi::{c_int, c_void};
use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use shm::Errno;

/// Buffers of one call that need no memory of the heap.
const FEW: usize = 8;
const IOV_MAX: usize = 1024;

fn count(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(e) => {
            set_errno(e);
            -1
        }
    }
}

/// Calls `f` with the buffers of an iovec, in this crate's form.
///
/// # Safety
/// `iov` is readable for `n` entries.
unsafe fn with<T: Copy>(
    iov: *const iovec,
    n: usize,
    null: T,
    each: impl Fn(&iovec) -> (T, usize),
    f: impl FnOnce(&[(T, usize)]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if n > IOV_MAX {
        return Err(Errno::INVAL);
    }
    if n == 0 {
        return f(&[]);
    }
    if iov.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: by the contract.
    let iov = unsafe { core::slice::from_raw_parts(iov, n) };
    let total = iov.iter().try_fold(0usize, |sum, one| sum.checked_add(one.iov_len));
    total.filter(|sum| *sum <= isize::MAX as usize).ok_or(Errno::INVAL)?;
    let mut few = [(null, 0); FEW];
    match few.get_mut(..n) {
        Some(bufs) => {
            bufs.iter_mut().zip(iov).for_each(|(to, one)| *to = each(one));
            f(bufs)
        }
        None => f(&iov.iter().map(each).collect::<Vec<_>>()),
    }
}

fn source(one: &iovec) -> (*const u8, usize) {
    (one.iov_base as *const u8, one.iov_len)
}

fn target(one: &iovec) -> (*mut u8, usize) {
    (one.iov_base.cast(), one.iov_len)
}

/// # Safety
/// As `send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's obligation, as for the function of the kernel; so in this whole file.
    count(unsafe { socket::send(fd, &[(buf.cast(), len)], flags) })
}

/// # Safety
/// As `sendto`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    let to = (!addr.is_null() || addr_len != 0).then_some((addr, addr_len));
    // SAFETY: as above.
    count(unsafe { socket::send_to(fd, &[(buf.cast(), len)], flags, to) })
}

/// # Safety
/// As `sendmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    let Some(message) = (unsafe { message.as_ref() }) else { return count(Err(Errno::FAULT)) };
    if !message.msg_control.is_null() && message.msg_controllen != 0 {
        return count(Err(Errno::NOTSUP));
    }
    let to = (!message.msg_name.is_null() && message.msg_namelen != 0)
        .then_some((message.msg_name as *const sockaddr, message.msg_namelen));
    // SAFETY: as above.
    let send = |bufs: &[_]| unsafe { socket::send_to(fd, bufs, flags, to) };
    // SAFETY: as above.
    count(unsafe { with(message.msg_iov, message.msg_iovlen, core::ptr::null(), source, send) })
}

/// # Safety
/// As `write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { rsend(fd, buf, len, 0) }
}

/// # Safety
/// As `writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    let Ok(n) = usize::try_from(n) else { return count(Err(Errno::INVAL)) };
    // SAFETY: as above.
    let send = |bufs: &[_]| unsafe { socket::send(fd, bufs, 0) };
    // SAFETY: as above.
    count(unsafe { with(iov, n, core::ptr::null(), source, send) })
}

/// # Safety
/// As `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    count(unsafe { socket::recv(fd, &[(buf.cast(), len)], flags) })
}

/// # Safety
/// As `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as above.
    let got = unsafe { socket::recv_from(fd, &[(buf.cast(), len)], flags, addr, addr_len) };
    count(got.map(|got| got.0))
}

/// # Safety
/// As `recvmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    let Some(message) = (unsafe { message.as_mut() }) else { return count(Err(Errno::FAULT)) };
    if !message.msg_control.is_null() && message.msg_controllen != 0 {
        return count(Err(Errno::NOTSUP));
    }
    let (addr, addr_len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
    // SAFETY: as above.
    let recv = |bufs: &[_]| unsafe { socket::recv_from(fd, bufs, flags, addr, addr_len) };
    let mut told = 0;
    let noted = |bufs: &[_]| recv(bufs).map(|(n, flags)| (told = flags, n).1);
    // SAFETY: as above.
    let got =
        unsafe { with(message.msg_iov, message.msg_iovlen, core::ptr::null_mut(), target, noted) };
    message.msg_flags = told;
    count(got)
}

/// # Safety
/// As `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { rrecv(fd, buf, len, 0) }
}

/// # Safety
/// As `readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    let Ok(n) = usize::try_from(n) else { return count(Err(Errno::INVAL)) };
    // SAFETY: as above.
    let recv = |bufs: &[_]| unsafe { socket::recv(fd, bufs, 0) };
    // SAFETY: as above.
    count(unsafe { with(iov, n, core::ptr::null_mut(), target, recv) })
}

/// Opens `buf` to the peer's `riowrite` at `offset`, or for -1 at an offset of our choice, which is
/// returned.
///
/// # Safety
/// `buf` stays writable for `len` bytes until `riounmap` or `rclose`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    match socket::map(fd, buf.cast(), len, prot, offset) {
        Ok(offset) => offset,
        Err(e) => {
            set_errno(e);
            -1
        }
    }
}

/// Takes back what `riomap` gave the peer at `buf`: its `riowrite`s do not reach it any more.
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: size_t) -> c_int {
    number(socket::unmap(fd, buf.cast(), len).map(|()| 0))
}

/// Writes to what the peer has mapped at `offset`. An error is `(size_t) -1`, for the published
/// type.
///
/// # Safety
/// `buf` is readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    // SAFETY: as above.
    count(unsafe { socket::write_mapped(fd, buf.cast(), len, offset, flags) }) as size_t
}
