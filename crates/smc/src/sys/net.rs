//! Sockets.
#![allow(unsafe_code)]

use core::ffi::c_int;

use super::Errno;
use super::raw::syscall;

/// `recvfrom(fd, buf, len, flags, NULL, NULL)`.
///
/// # Safety
/// `buf` must be writable for `len` bytes.
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> isize {
    // SAFETY: forwarded from the caller.
    unsafe { syscall(libc::SYS_recvfrom, fd as usize, buf as usize, len, flags as usize, 0, 0) }
}

/// `sendto(fd, buf, len, flags, NULL, 0)`.
///
/// # Safety
/// `buf` must be readable for `len` bytes.
#[inline]
pub unsafe fn send(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> isize {
    // SAFETY: forwarded from the caller.
    unsafe { syscall(libc::SYS_sendto, fd as usize, buf as usize, len, flags as usize, 0, 0) }
}

/// `socketpair`: connected Unix stream sockets, nonblocking and close-on-exec.
pub fn unix_pair() -> Result<[c_int; 2], Errno> {
    let mut ends = [-1; 2];
    let (domain, kind) =
        (libc::AF_UNIX as usize, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    // SAFETY: the kernel writes two ints.
    let r = unsafe {
        syscall(libc::SYS_socketpair, domain, kind as usize, 0, ends.as_mut_ptr() as usize, 0, 0)
    };
    if r < 0 { Err(-r as Errno) } else { Ok(ends) }
}

/// Whether it is a Unix stream socket with another end.
pub fn is_connected_unix_stream(fd: c_int) -> bool {
    let option = |name| {
        let mut value = 0i32;
        (getsockopt(fd, libc::SOL_SOCKET, name, &mut value) > 0).then_some(value)
    };
    option(libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && option(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && name_of(fd, true).is_some()
}

/// `shutdown(fd, how)`.
pub fn shutdown(fd: c_int, how: c_int) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_shutdown, fd as usize, how as usize, 0, 0, 0, 0) }
}

/// `getsockopt` into a plain value; the number of bytes filled, or a negative errno.
pub fn getsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, out: &mut T) -> isize {
    let mut len = size_of::<T>() as u32;
    // SAFETY: `out` is a live value of `len` bytes; every T used here is plain data.
    let r = unsafe {
        syscall(
            libc::SYS_getsockopt,
            fd as usize,
            level as usize,
            name as usize,
            out as *mut T as usize,
            &raw mut len as usize,
            0,
        )
    };
    if r < 0 { r } else { len as isize }
}

/// `setsockopt` from a plain value.
pub fn setsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> isize {
    // SAFETY: `value` is live and of the size given.
    unsafe {
        syscall(
            libc::SYS_setsockopt,
            fd as usize,
            level as usize,
            name as usize,
            value as *const T as usize,
            size_of::<T>(),
            0,
        )
    }
}

/// `recvmsg`.
///
/// # Safety
/// As for the system call.
pub unsafe fn recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_recvmsg, fd as usize, msg as usize, flags as usize, 0, 0, 0) }
}

/// `sendmsg`.
///
/// # Safety
/// As for the system call.
pub unsafe fn sendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_sendmsg, fd as usize, msg as usize, flags as usize, 0, 0, 0) }
}

/// `socket`, close-on-exec; a descriptor or a negative errno.
pub fn socket(family: c_int, kind: c_int, protocol: c_int) -> isize {
    let kind = (kind | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_socket, family as usize, kind, protocol as usize, 0, 0, 0) }
}

/// `bind` to an address as the kernel has it.
pub fn bind(fd: c_int, address: &[u8]) -> isize {
    // SAFETY: a live address.
    unsafe {
        syscall(libc::SYS_bind, fd as usize, address.as_ptr() as usize, address.len(), 0, 0, 0)
    }
}

/// `connect` to an address as the kernel has it.
pub fn connect(fd: c_int, address: &[u8]) -> isize {
    // SAFETY: a live address.
    unsafe {
        syscall(libc::SYS_connect, fd as usize, address.as_ptr() as usize, address.len(), 0, 0, 0)
    }
}

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_listen, fd as usize, backlog as usize, 0, 0, 0, 0) }
}

/// `accept4` without an address, nonblocking and close-on-exec.
pub fn accept(fd: c_int) -> isize {
    let flags = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: no address is asked for.
    unsafe { syscall(libc::SYS_accept4, fd as usize, 0, 0, flags, 0, 0) }
}

/// The address of a socket (`getsockname`) or of its peer (`getpeername`) as the kernel has it, in
/// the first of these bytes.
pub fn name_of(fd: c_int, peer: bool) -> Option<[u8; 28]> {
    let call = if peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    let mut raw = [0u8; 28];
    let mut len = raw.len() as u32;
    // SAFETY: `raw` has `len` bytes.
    let r = unsafe {
        syscall(call, fd as usize, raw.as_mut_ptr() as usize, &raw mut len as usize, 0, 0, 0)
    };
    (r >= 0).then_some(raw)
}
