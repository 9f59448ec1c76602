//! Waiting for descriptors.
#![allow(unsafe_code)]

use core::ffi::c_int;

use super::process::MASK;
use super::raw::syscall;

/// Polls one descriptor without waiting; `revents`, or 0 on error.
pub fn poll_now(fd: c_int, events: i16) -> i16 {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    if poll_for(core::slice::from_mut(&mut p), 0) > 0 { p.revents } else { 0 }
}

/// `ppoll`, which leaves `limit` alone, as libc's does.
///
/// # Safety
/// As for the system call.
pub unsafe fn ppoll(
    list: *mut libc::pollfd,
    n: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> isize {
    // SAFETY: null, or valid by the caller's obligation.
    let mut limit = unsafe { limit.as_ref() }.copied();
    let limit = limit.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: the caller's obligation; `limit` is live.
    unsafe {
        syscall(libc::SYS_ppoll, list as usize, n as usize, limit as usize, mask as usize, MASK, 0)
    }
}

/// Polls descriptors for at most so many nanoseconds, less than a second; how many have something,
/// or a negative errno.
pub fn poll_for(list: &mut [libc::pollfd], ns: u32) -> isize {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: live locals.
    unsafe {
        ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, &raw const limit, core::ptr::null())
    }
}

/// `epoll_create1` with EPOLL_CLOEXEC; a descriptor or a negative errno.
pub fn epoll_create() -> c_int {
    // SAFETY: no pointers.
    unsafe {
        syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0) as c_int
    }
}

/// `epoll_ctl`.
pub fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: &libc::epoll_event) -> isize {
    // SAFETY: a live event, which the kernel only reads.
    unsafe { epoll_ctl_raw(ep, op, fd, event) }
}

/// The same with an event of the application's.
///
/// # Safety
/// As for the system call.
pub unsafe fn epoll_ctl_raw(
    ep: c_int,
    op: c_int,
    fd: c_int,
    event: *const libc::epoll_event,
) -> isize {
    let [ep, op, fd] = [ep, op, fd].map(|n| n as usize);
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_epoll_ctl, ep, op, fd, event as usize, 0, 0) }
}

/// `epoll_pwait`, with milliseconds.
///
/// # Safety
/// As for the system call.
pub unsafe fn epoll_pwait(
    ep: c_int,
    out: *mut libc::epoll_event,
    n: c_int,
    ms: c_int,
    mask: *const libc::sigset_t,
) -> isize {
    let (ep, out, n, ms, mask) =
        (ep as usize, out as usize, n as usize, ms as usize, mask as usize);
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_epoll_pwait, ep, out, n, ms, mask, MASK) }
}

/// `epoll_pwait2`, with nanoseconds.
///
/// # Safety
/// As for the system call.
pub unsafe fn epoll_pwait2(
    ep: c_int,
    out: *mut libc::epoll_event,
    n: c_int,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> isize {
    let (ep, out, n, limit, mask) =
        (ep as usize, out as usize, n as usize, limit as usize, mask as usize);
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_epoll_pwait2, ep, out, n, limit, mask, MASK) }
}
