//! Listening, connecting, options.

use crate::{next, status};
use core::ffi::{c_int, c_void};
use libc::{sockaddr, socklen_t};
use shortwire_rsocket::{capi, sockets};

#[unsafe(no_mangle)]
pub extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match sockets::listen(fd, backlog) {
        Some(done) => status(done),
        // SAFETY: no pointers.
        None => unsafe { next::listen(fd, backlog) },
    }
}

/// # Safety
/// As `accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if !sockets::is_rsocket(fd) {
        // SAFETY: the caller's obligation, as for the function of libc; so in this whole crate.
        return unsafe { next::accept4(fd, addr, len, flags) };
    }
    // SAFETY: as above.
    unsafe { sockets::accept(fd, addr, len, flags) }.unwrap_or_else(crate::failed)
}

/// # Safety
/// As `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if !sockets::is_rsocket(fd) {
        // SAFETY: as above.
        return unsafe { next::accept(fd, addr, len) };
    }
    // SAFETY: as above.
    unsafe { accept4(fd, addr, len, 0) }
}

/// # Safety
/// As `connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as above.
    match unsafe { sockets::connect(fd, addr, len) } {
        Some(done) => status(done),
        // SAFETY: as above.
        None => unsafe { next::connect(fd, addr, len) },
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match sockets::is_rsocket(fd) {
        true => capi::rshutdown(fd, how),
        // SAFETY: no pointers.
        false => unsafe { next::shutdown(fd, how) },
    }
}

/// Sizes and errors are the rsocket's, all else is asked of the TCP socket beneath, which programs
/// ask for more than they need: iperf3 wants its segment size, congestion control and TCP_INFO.
///
/// # Safety
/// As `getsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if sockets::is_rsocket(fd) && sockets::is_its_option(level, name) {
        // SAFETY: as above.
        return unsafe { capi::rgetsockopt(fd, level, name, value, len) };
    }
    // SAFETY: as above.
    unsafe { next::getsockopt(fd, level, name, value, len) }
}

/// # Safety
/// As `setsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if sockets::is_rsocket(fd) && sockets::is_its_option(level, name) {
        // SAFETY: as above.
        return unsafe { capi::rsetsockopt(fd, level, name, value, len) };
    }
    // SAFETY: as above.
    unsafe { next::setsockopt(fd, level, name, value, len) }
}
