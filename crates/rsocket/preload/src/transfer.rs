//! Calls that move data.

use crate::{failed, next};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use shm::Errno;
use shortwire_rsocket::{capi, sockets};

/// A call whose first argument is a descriptor: of an rsocket to the rsockets library, of any other
/// to the next.
macro_rules! either {
    ($($name:ident => $ours:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, $($arg: $kind),*) -> $result {
            match sockets::is_rsocket(fd) {
                // SAFETY: by the contract.
                true => unsafe { capi::$ours(fd, $($arg),*) },
                // SAFETY: by the contract.
                false => unsafe { next::$name(fd, $($arg),*) },
            }
        }
    )*};
}

either! {
    read => rread(buf: *mut c_void, len: size_t) -> ssize_t;
    readv => rreadv(iov: *const iovec, count: c_int) -> ssize_t;
    recv => rrecv(buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom => rrecvfrom(buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    recvmsg => rrecvmsg(message: *mut msghdr, flags: c_int) -> ssize_t;
    write => rwrite(buf: *const c_void, len: size_t) -> ssize_t;
    writev => rwritev(iov: *const iovec, count: c_int) -> ssize_t;
    send => rsend(buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto => rsendto(buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t;
    sendmsg => rsendmsg(message: *const msghdr, flags: c_int) -> ssize_t;
}

/// `read` of a program that was built with checks of lengths.
///
/// # Safety
/// As `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    match sockets::is_rsocket(fd) && len <= room {
        // SAFETY: by the contract.
        true => unsafe { capi::rread(fd, buf, len) },
        // Too much is for libc to end the program for.
        // SAFETY: by the contract.
        false => unsafe { next::__read_chk(fd, buf, len, room) },
    }
}

/// # Safety
/// As `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    match sockets::is_rsocket(fd) && len <= room {
        // SAFETY: by the contract.
        true => unsafe { capi::rrecv(fd, buf, len, flags) },
        // SAFETY: by the contract.
        false => unsafe { next::__recv_chk(fd, buf, len, room, flags) },
    }
}

/// Of an rsocket one message at a time, which a caller must expect anyway.
///
/// # Safety
/// As `recvmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !sockets::is_rsocket(fd) || count == 0 {
        // SAFETY: by the contract.
        return unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
    }
    // SAFETY: by the contract, the first of them.
    let first = unsafe { &mut *messages };
    // SAFETY: by the contract.
    let n = unsafe { capi::rrecvmsg(fd, &raw mut first.msg_hdr, flags & !libc::MSG_WAITFORONE) };
    one(n, first)
}

/// # Safety
/// As `sendmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !sockets::is_rsocket(fd) || count == 0 {
        // SAFETY: by the contract.
        return unsafe { next::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: by the contract, the first of them.
    let first = unsafe { &mut *messages };
    // SAFETY: by the contract.
    let n = unsafe { capi::rsendmsg(fd, &raw const first.msg_hdr, flags) };
    one(n, first)
}

fn one(n: ssize_t, message: &mut mmsghdr) -> c_int {
    match c_uint::try_from(n) {
        Ok(n) => {
            message.msg_len = n;
            1
        }
        Err(_) => -1,
    }
}

/// What the kernel would do within itself goes by a buffer here.
///
/// # Safety
/// As `sendfile`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if !sockets::is_rsocket(to) {
        // SAFETY: by the contract.
        return unsafe { next::sendfile(to, from, offset, count) };
    }
    // SAFETY: by the contract: null or an offset.
    let given = unsafe { offset.as_mut() };
    let start = match &given {
        Some(at) => **at,
        // SAFETY: no pointers.
        None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
    };
    if start < 0 {
        // A pipe, which can be neither put back nor looked at twice.
        return failed(Errno::INVAL) as ssize_t;
    }
    let mut buffer = [0u8; 1 << 16];
    let mut done = 0;
    while done < count {
        let want = buffer.len().min(count - done);
        // SAFETY: our buffer, which is that long.
        let n =
            unsafe { libc::pread(from, buffer.as_mut_ptr().cast(), want, start + done as off_t) };
        if n <= 0 {
            if n < 0 && done == 0 {
                return -1;
            }
            break;
        }
        // SAFETY: what was just read.
        let sent = unsafe { capi::rsend(to, buffer.as_ptr().cast(), n as size_t, 0) };
        if sent < 0 {
            if done == 0 {
                return -1;
            }
            break;
        }
        done += sent as size_t;
        if sent < n {
            break;
        }
    }
    match given {
        Some(at) => *at = start + done as off_t,
        None => {
            // SAFETY: no pointers.
            unsafe { libc::lseek(from, start + done as off_t, libc::SEEK_SET) };
        }
    }
    done as ssize_t
}

/// # Safety
/// As `sendfile64`, which is the same on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: by the contract.
    unsafe { sendfile(to, from, offset, count) }
}

/// An rsocket is no file of the kernel's that pages could be moved to: as the kernel says of such
/// files, on which programs go on with `read` and `write`.
///
/// # Safety
/// As `splice`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if sockets::is_rsocket(from) || sockets::is_rsocket(to) {
        return failed(Errno::INVAL) as ssize_t;
    }
    // SAFETY: by the contract.
    unsafe { next::splice(from, from_at, to, to_at, len, flags) }
}
