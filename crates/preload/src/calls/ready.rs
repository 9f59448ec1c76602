//! poll, select and epoll as the application calls them.
#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use socket::select::Selected;
use socket::wait::duration;
use socket::{epoll, faulty, poll as user, select as sets};

use crate::{next, tell, told};

fn ms(timeout: c_int) -> Option<u64> {
    (timeout >= 0).then(|| timeout as u64 * 1_000_000)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    unsafe {
        let plain = || told(next::poll(fds, n, timeout) as isize);
        tell(user::poll(fds, n, ms(timeout), core::ptr::null(), plain)) as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    t: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    unsafe {
        let Ok(limit) = duration(t) else { return next::ppoll(fds, n, t, mask) };
        tell(user::poll(fds, n, limit, mask, || told(next::ppoll(fds, n, t, mask) as isize)))
            as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    unsafe { poll(fds, n, timeout) }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// The system call, which leaves the time that was left when a signal ended it.
pub unsafe fn ppoll_by_number(
    fds: *mut pollfd,
    n: nfds_t,
    t: *mut timespec,
    mask: *const sigset_t,
) -> c_int {
    let start = smc::sys::now_ns();
    // SAFETY: forwarded.
    unsafe {
        let limit = duration(t);
        let r = ppoll(fds, n, t, mask);
        // Nobody waits again after any other end, and a time limit in read-only memory, which the
        // kernel tolerates, would be our crash.
        if let (Some(t), Ok(Some(limit))) = (t.as_mut(), limit)
            && r < 0
            && *libc::__errno_location() == libc::EINTR
        {
            leave(t, limit.saturating_sub(smc::sys::now_ns() - start));
        }
        r
    }
}

/// Notes what is left of a time limit.
fn leave(t: &mut timespec, left: u64) {
    t.tv_sec = (left / 1_000_000_000) as i64;
    t.tv_nsec = (left % 1_000_000_000) as i64;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    unsafe {
        if room / size_of::<pollfd>() < n as usize {
            __chk_fail();
        }
        poll(fds, n, timeout)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    t: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    unsafe {
        if room / size_of::<pollfd>() < n as usize {
            __chk_fail();
        }
        ppoll(fds, n, t, mask)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    t: *mut timeval,
) -> c_int {
    unsafe {
        // Of a negative time the kernel tells that it is none.
        if !t.is_null() && (faulty(t) || (*t).tv_sec < 0 || (*t).tv_usec < 0) {
            return next::select(n, r, w, e, t);
        }
        let limit = t.as_ref().map(|t| {
            (t.tv_sec as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add((t.tv_usec as u64).saturating_mul(1000))
        });
        let start = smc::sys::now_ns();
        match sets::select(n, [r, w, e], limit, core::ptr::null()) {
            Selected::Here(got) => {
                // Linux leaves the time that was left.
                if let (Some(t), Some(limit)) = (t.as_mut(), limit) {
                    let left = limit.saturating_sub(smc::sys::now_ns() - start);
                    t.tv_sec = (left / 1_000_000_000) as i64;
                    t.tv_usec = (left % 1_000_000_000 / 1000) as i64;
                }
                tell(got) as c_int
            }
            Selected::Kernel(n) => next::select(n, r, w, e, t),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __select(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    t: *mut timeval,
) -> c_int {
    unsafe { select(n, r, w, e, t) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    t: *const timespec,
    m: *const sigset_t,
) -> c_int {
    unsafe {
        let Ok(limit) = duration(t) else { return next::pselect(n, r, w, e, t, m) };
        match sets::select(n, [r, w, e], limit, m) {
            Selected::Here(got) => tell(got) as c_int,
            Selected::Kernel(n) => next::pselect(n, r, w, e, t, m),
        }
    }
}

/// pselect as it is called by number: the mask behind a pointer, and the time left given back. None
/// where the kernel must be asked.
///
/// # Safety
/// The caller's obligations are the kernel's.
pub unsafe fn pselect6(
    n: c_int,
    sets: [*mut fd_set; 3],
    t: *mut timespec,
    mask: *const [usize; 2],
) -> Option<c_int> {
    if !mask.is_null() && faulty(mask) {
        return None;
    }
    let start = smc::sys::now_ns();
    // SAFETY: forwarded.
    unsafe {
        let limit = duration(t).ok()?;
        let mask = mask.as_ref().map_or(core::ptr::null(), |m| m[0] as *const sigset_t);
        let Selected::Here(got) = sets::select(n, sets, limit, mask) else { return None };
        // Only where somebody may wait again: the kernel tolerates a time limit in read-only memory,
        // where a write would be our crash.
        if let (Some(t), Some(limit)) = (t.as_mut(), limit)
            && got == -(libc::EINTR as isize)
        {
            leave(t, limit.saturating_sub(smc::sys::now_ns() - start));
        }
        Some(tell(got) as c_int)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    epoll::open(unsafe { next::epoll_create(size) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    epoll::open(unsafe { next::epoll_create1(flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, ev: *mut epoll_event) -> c_int {
    let call = |other: Option<&mut epoll_event>| {
        let ev = other.map_or(ev, core::ptr::from_mut);
        told(unsafe { next::epoll_ctl(ep, op, fd, ev) } as isize)
    };
    tell(unsafe { epoll::control(ep, op, fd, ev, call) }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    ep: c_int,
    evs: *mut epoll_event,
    n: c_int,
    timeout: c_int,
) -> c_int {
    unsafe {
        // Not the kernel's epoll_pwait, which a sandbox may forbid to a program that does not use
        // it.
        let plain = || told(next::epoll_wait(ep, evs, n, timeout) as isize);
        tell(epoll::wait(ep, evs, n, ms(timeout), core::ptr::null(), plain)) as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    ep: c_int,
    evs: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    unsafe {
        let plain = || told(next::epoll_pwait(ep, evs, n, timeout, mask) as isize);
        tell(epoll::wait(ep, evs, n, ms(timeout), mask, plain)) as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    ep: c_int,
    evs: *mut epoll_event,
    n: c_int,
    t: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    unsafe {
        let Ok(limit) = duration(t) else { return next::epoll_pwait2(ep, evs, n, t, mask) };
        let plain = || told(next::epoll_pwait2(ep, evs, n, t, mask) as isize);
        tell(epoll::wait(ep, evs, n, limit, mask, plain)) as c_int
    }
}
