//! epoll: every set is one of `repoll`, which takes all descriptors. One that another process has
//! made, before a fork, is the kernel's and shows no rsockets.

use crate::ready::millis;
use crate::{failed, next};
use core::ffi::c_int;
use libc::{epoll_event, sigset_t, timespec};
use shm::Errno;
use shortwire_rsocket::{capi, sockets};

#[unsafe(no_mangle)]
pub extern "C" fn epoll_create1(flags: c_int) -> c_int {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return failed(Errno::INVAL);
    }
    capi::repoll_create(flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return failed(Errno::INVAL);
    }
    capi::repoll_create(0)
}

/// # Safety
/// As `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    match sockets::is_set(set) {
        // SAFETY: the caller's obligation, as for the function of libc; so in this whole file.
        true => unsafe { capi::repoll_ctl(set, operation, fd, event) },
        // SAFETY: as above.
        false => unsafe { next::epoll_ctl(set, operation, fd, event) },
    }
}

/// # Safety
/// As `epoll_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    match sockets::is_set(set) {
        // SAFETY: as above.
        true => unsafe { capi::repoll_wait(set, events, count, timeout) },
        // SAFETY: as above.
        false => unsafe { next::epoll_wait(set, events, count, timeout) },
    }
}

/// # Safety
/// As `epoll_pwait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !sockets::is_set(set) {
        // SAFETY: as above.
        return unsafe { next::epoll_pwait(set, events, count, timeout, mask) };
    }
    // SAFETY: as above.
    unsafe { capi::repoll_wait_under(mask, set, events, count, timeout) }
}

/// # Safety
/// As `epoll_pwait2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if !sockets::is_set(set) {
        // SAFETY: as above.
        return unsafe { next::epoll_pwait2(set, events, count, timeout, mask) };
    }
    // SAFETY: as above.
    let millis = unsafe { timeout.as_ref() }.map_or(-1, millis);
    // SAFETY: as above.
    unsafe { epoll_pwait(set, events, count, millis, mask) }
}
