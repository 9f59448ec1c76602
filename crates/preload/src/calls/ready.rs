//! poll, select and epoll as the application calls them.
#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use smc::reason;

use crate::fds::{self, Kind};
use crate::{epoll, fail, next, poll as user};

fn ns(t: *const timespec) -> Option<u64> {
    // SAFETY: null or a timespec of the application.
    unsafe { t.as_ref() }
        .map(|t| (t.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64))
}

unsafe fn list<'a>(fds: *mut pollfd, n: nfds_t) -> &'a mut [pollfd] {
    if crate::faulty(fds) || n == 0 || n > 1 << 20 {
        return &mut [];
    }
    // SAFETY: the application vouches for n entries.
    unsafe { core::slice::from_raw_parts_mut(fds, n as usize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    unsafe {
        let l = list(fds, n);
        if !user::concerns(l) {
            return next::poll(fds, n, timeout);
        }
        let t = (timeout >= 0).then(|| timeout as u64 * 1_000_000);
        user::poll(l, t, core::ptr::null())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(fds: *mut pollfd, n: nfds_t, t: *const timespec, mask: *const sigset_t) -> c_int {
    unsafe {
        let l = list(fds, n);
        if !user::concerns(l) || ns_invalid(t) {
            return next::ppoll(fds, n, t, mask);
        }
        user::poll(l, ns(t), mask)
    }
}

fn ns_invalid(t: *const timespec) -> bool {
    if !t.is_null() && crate::faulty(t) {
        return true;
    }
    // SAFETY: null or a timespec of the application.
    unsafe { t.as_ref() }.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    unsafe { poll(fds, n, timeout) }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: usize) -> c_int {
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

// fd_set is an array of longs, as long as the application made it: sets beyond FD_SETSIZE exist.
unsafe fn has(set: *const fd_set, fd: usize) -> bool {
    // SAFETY: fd < n, for which the application's set has room.
    !set.is_null() && unsafe { set.cast::<u64>().add(fd / 64).read() } >> (fd % 64) & 1 == 1
}

unsafe fn put(set: *mut fd_set, fd: usize, on: bool) {
    if !set.is_null() {
        // SAFETY: as in `has`.
        unsafe {
            let w = set.cast::<u64>().add(fd / 64);
            w.write(w.read() & !(1 << (fd % 64)) | u64::from(on) << (fd % 64));
        }
    }
}

const READ: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// As many descriptors as the kernel would look at of `n`: it goes by the size of the descriptor table, which without our
/// hidden descriptors, high up, would end with the program's own. Programs that pass getdtablesize() count on that: their sets
/// are shorter.
fn within_table(n: c_int) -> c_int {
    const SET: c_int = libc::FD_SETSIZE as c_int;
    const BATCH: c_int = 256;
    if n <= SET || smc::hidden::all().next().is_none() {
        return n;
    }
    let mut end = n.min(smc::sys::descriptor_table_size());
    while end > SET {
        let begin = (end - BATCH).max(SET);
        let mut open = [pollfd { fd: -1, events: 0, revents: 0 }; BATCH as usize];
        for (fd, p) in (begin..end).zip(&mut open) {
            p.fd = fd;
        }
        let zero = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the list and the limit are live, the mask is null.
        unsafe {
            smc::sys::syscall(
                libc::SYS_ppoll,
                open.as_mut_ptr() as usize,
                (end - begin) as usize,
                &raw const zero as usize,
                0,
                8,
                0,
            );
        }
        let is_own = |p: &&pollfd| p.fd >= 0 && p.revents & libc::POLLNVAL == 0 && !smc::hidden::contains(p.fd);
        if let Some(highest) = open.iter().rev().find(is_own) {
            return n.min((highest.fd + 64) / 64 * 64);
        }
        end = begin;
    }
    SET
}

/// select by poll, with select's meaning of the events; None when no upgraded connection is in the sets.
unsafe fn by_poll(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let unreadable = |set: *mut fd_set| !set.is_null() && crate::faulty(set);
    if n <= 0 || !fds::readiness_differs() || unreadable(r) || unreadable(w) || unreadable(e) {
        return None;
    }
    let mut l = Vec::new();
    for fd in 0..n as usize {
        // SAFETY: fd < n.
        let (ri, wi, ei) = unsafe { (has(r, fd), has(w, fd), has(e, fd)) };
        let events = if ri { READ } else { 0 } | if wi { WRITE } else { 0 } | if ei { libc::POLLPRI } else { 0 };
        if events != 0 {
            l.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    if !user::concerns(&l) {
        return None;
    }
    // SAFETY: forwarded.
    let got = unsafe { user::poll(&mut l, timeout, mask) };
    if got < 0 {
        return Some(got);
    }
    if l.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return Some(fail(libc::EBADF) as c_int);
    }
    let mut count = 0;
    for p in &l {
        let fd = p.fd as usize;
        let on = |bits: i16, asked: i16| p.revents & bits != 0 && p.events & asked != 0;
        let readable = on(READ | libc::POLLHUP | libc::POLLERR, libc::POLLIN);
        let writable = on(WRITE | libc::POLLERR, libc::POLLOUT);
        let urgent = on(libc::POLLPRI, libc::POLLPRI);
        // SAFETY: fd < n.
        unsafe {
            put(r, fd, readable);
            put(w, fd, writable);
            put(e, fd, urgent);
        }
        count += c_int::from(readable) + c_int::from(writable) + c_int::from(urgent);
    }
    Some(count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, t: *mut timeval) -> c_int {
    unsafe {
        if !t.is_null() && crate::faulty(t) {
            return next::select(n, r, w, e, t);
        }
        let limit = t.as_ref().map(|t| {
            (t.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_usec.max(0) as u64 * 1000)
        });
        let start = smc::sys::now_ns();
        let n = within_table(n);
        match by_poll(n, r, w, e, limit, core::ptr::null()) {
            Some(got) => {
                // Linux leaves the time that was left.
                if let (Some(t), Some(limit)) = (t.as_mut(), limit) {
                    let left = limit.saturating_sub(smc::sys::now_ns() - start);
                    t.tv_sec = (left / 1_000_000_000) as i64;
                    t.tv_usec = (left % 1_000_000_000 / 1000) as i64;
                }
                got
            }
            None => next::select(n, r, w, e, t),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, t: *mut timeval) -> c_int {
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
        if ns_invalid(t) {
            return next::pselect(n, r, w, e, t, m);
        }
        let n = within_table(n);
        by_poll(n, r, w, e, ns(t), m).unwrap_or_else(|| next::pselect(n, r, w, e, t, m))
    }
}

/// pselect as it is called by number: the mask behind a pointer, and the time left given back.
///
/// # Safety
/// The caller's obligations are the kernel's.
pub unsafe fn pselect6(n: c_int, sets: [*mut fd_set; 3], t: *mut timespec, mask: *const [usize; 2]) -> Option<c_int> {
    let [r, w, e] = sets;
    if ns_invalid(t) || (!mask.is_null() && crate::faulty(mask)) {
        return None;
    }
    let n = within_table(n);
    let start = smc::sys::now_ns();
    let limit = ns(t);
    // SAFETY: forwarded.
    unsafe {
        let got = by_poll(n, r, w, e, limit, mask.as_ref().map_or(core::ptr::null(), |m| m[0] as *const sigset_t))?;
        if let (Some(t), Some(limit)) = (t.as_mut(), limit) {
            let left = limit.saturating_sub(smc::sys::now_ns() - start);
            t.tv_sec = (left / 1_000_000_000) as i64;
            t.tv_nsec = (left % 1_000_000_000) as i64;
        }
        Some(got)
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
    let plain = || unsafe { next::epoll_ctl(ep, op, fd, ev) };
    let (Kind::Epoll(set), Some((index, c))) = (fds::kind(ep), fds::conn_of(fd)) else {
        // A set that we did not see made, or one inside another set: hooked registrations there would go unseen.
        if let (Kind::Other, Some((index, c))) = (fds::kind(ep), fds::existing(fd))
            && op == libc::EPOLL_CTL_ADD
        {
            fds::give_up(index, c, fd, reason::UNSEEN.code());
        }
        if let (true, Kind::Epoll(inner)) = (op == libc::EPOLL_CTL_ADD, fds::kind(fd)) {
            epoll::nest(inner);
        }
        return plain();
    };
    // SAFETY: the application's event.
    let event = if crate::faulty(ev) { None } else { unsafe { ev.as_ref() }.copied() };
    let call = |e: &mut epoll_event| unsafe { next::epoll_ctl(ep, op, fd, e) };
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(e)) if e.events & libc::EPOLLEXCLUSIVE as u32 != 0 => {
            fds::give_up(index, c, fd, reason::EXCLUSIVE.code());
            plain()
        }
        (libc::EPOLL_CTL_ADD, Some(e)) => epoll::add(set, index, fd, e, call),
        // The kernel refuses EPOLLEXCLUSIVE here.
        (libc::EPOLL_CTL_MOD, Some(e)) if e.events & libc::EPOLLEXCLUSIVE as u32 == 0 => {
            epoll::modify(set, index, fd, e, call)
        }
        (libc::EPOLL_CTL_DEL, _) => epoll::delete(set, index, fd, plain),
        _ => plain(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(ep: c_int, evs: *mut epoll_event, n: c_int, timeout: c_int) -> c_int {
    unsafe {
        let t = (timeout >= 0).then(|| timeout as u64 * 1_000_000);
        // Not the kernel's epoll_pwait, which a sandbox may forbid to a program that does not use it.
        by_set(ep, evs, n, t, core::ptr::null(), || next::epoll_wait(ep, evs, n, timeout))
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
        let t = (timeout >= 0).then(|| timeout as u64 * 1_000_000);
        by_set(ep, evs, n, t, mask, || next::epoll_pwait(ep, evs, n, timeout, mask))
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
        let plain = || next::epoll_pwait2(ep, evs, n, t, mask);
        if ns_invalid(t) {
            return plain();
        }
        by_set(ep, evs, n, ns(t), mask, plain)
    }
}

unsafe fn by_set(
    ep: c_int,
    evs: *mut epoll_event,
    n: c_int,
    t: Option<u64>,
    mask: *const sigset_t,
    plain: impl Fn() -> c_int,
) -> c_int {
    let Kind::Epoll(set) = fds::kind(ep) else { return plain() };
    const MOST: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;
    if !(1..=MOST).contains(&n) || crate::faulty(evs) {
        return plain();
    }
    // SAFETY: forwarded.
    unsafe { epoll::wait(set, ep, evs, n as usize, t, mask, plain) }
}
