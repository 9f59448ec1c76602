//! Other names of the same: those that checks of lengths (`_FORTIFY_SOURCE`) make of a call, and those
//! that libc has had for its own use. Past us they would reach the TCP socket beneath an rsocket, where
//! bytes are lost and none come.

use crate::{descriptors, next, ready, socket, transfer};
use core::ffi::{c_int, c_long, c_uint, c_void};
use libc::{
    fd_set, mmsghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
    timeval,
};
use shortwire_rsocket::sockets;

macro_rules! alias {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $of:expr;)*) => {$(
        /// # Safety
        /// As the function without underscores.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            // SAFETY: the same contract under another name.
            unsafe { $of }
        }
    )*};
}

alias! {
    __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = transfer::read(fd, buf, len);
    __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = transfer::write(fd, buf, len);
    __recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = transfer::recv(fd, buf, len, flags);
    __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = transfer::send(fd, buf, len, flags);
    __sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int =
        transfer::sendmmsg(fd, messages, count, flags);
    __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = ready::poll(fds, count, timeout);
    __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int =
        ready::select(count, read, write, except, timeout);
    __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = socket::connect(fd, addr, len);
}

#[unsafe(no_mangle)]
pub extern "C" fn __close(fd: c_int) -> c_int {
    descriptors::close(fd)
}

#[unsafe(no_mangle)]
pub extern "C" fn __dup2(fd: c_int, to: c_int) -> c_int {
    descriptors::dup2(fd, to)
}

#[unsafe(no_mangle)]
pub extern "C" fn __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    descriptors::fcntl(fd, command, argument)
}

/// Where there is too little room libc ends the program.
///
/// # Safety
/// As `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    match sockets::is_rsocket(fd) && len <= room {
        // SAFETY: by the contract.
        true => unsafe { transfer::recvfrom(fd, buf, len, flags, addr, addr_len) },
        // SAFETY: by the contract.
        false => unsafe { next::__recvfrom_chk(fd, buf, len, room, flags, addr, addr_len) },
    }
}

/// # Safety
/// As `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    match room / size_of::<pollfd>() >= count as usize {
        // SAFETY: by the contract.
        true => unsafe { ready::ppoll(fds, count, timeout, mask) },
        // SAFETY: by the contract.
        false => unsafe { next::__ppoll_chk(fds, count, timeout, mask, room) },
    }
}
