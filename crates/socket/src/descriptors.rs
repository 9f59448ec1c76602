//! Numbers that come and go: close, dup, fcntl and ioctl.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ffi::c_int;

use smc::{hidden, home, reason, sys};

use crate::fds::{self, Kind, Port};
use crate::rights::leave_for;
use crate::settle::settle;
use crate::{bell, fail, faulty};

/// close; `plain` is the application's own call.
#[inline]
pub fn close(fd: i32, plain: impl FnOnce() -> isize) -> isize {
    if hidden::contains(fd) {
        return fail(libc::EBADF);
    }
    fds::before_close(fd);
    plain()
}

/// close_range; `call` is the front's, for a part of the range.
pub fn close_range(first: u32, last: u32, flags: i32, call: impl Fn(u32, u32) -> isize) -> isize {
    const CLOEXEC: i32 = 4;
    const UNSHARE: i32 = 2;
    if flags & UNSHARE != 0 {
        leave_for(libc::SYS_unshare, libc::CLONE_FILES as usize, 0);
    }
    if flags & CLOEXEC != 0 || first > last {
        return call(first, last);
    }
    let end = (last as i64).min(i64::from(fds::high()) - 1);
    for fd in i64::from(first)..=end {
        fds::before_close(fd as i32);
    }
    // Around our own descriptors, which the application does not know of. A vfork child is about to
    // exec, which closes them anyway.
    let mut from = first;
    let mut r = 0;
    let mut ours: Vec<u32> =
        if home::is_owner() { hidden::all().map(|fd| fd as u32).collect() } else { Vec::new() };
    ours.sort_unstable();
    for fd in ours.into_iter().filter(|f| (first..=last).contains(f)) {
        if fd > from {
            r = call(from, fd - 1).min(r);
        }
        from = fd + 1;
    }
    if from <= last {
        r = call(from, last).min(r);
    }
    r
}

/// dup; `plain` is the application's own call.
pub fn dup(fd: i32, plain: impl FnOnce() -> isize) -> isize {
    let new = plain();
    if new >= 0 && home::is_owner() {
        fds::share(fd, new as i32);
    }
    new
}

/// dup3, and dup2 of different numbers; `plain` is the application's own call.
pub fn dup_over(old: i32, new: i32, plain: impl FnOnce() -> isize) -> isize {
    if hidden::contains(new)
        && home::is_owner()
        && let Some(now) = fds::make_way(new)
    {
        bell::moved_fd(new, now);
    }
    if !home::is_owner() {
        return plain();
    }
    // The kernel closes `new` inside the call. What an upgraded connection there must do before its
    // end is done on another descriptor of it, kept for that moment.
    let mut kept = -1;
    if let Kind::Conn(_) = fds::kind(new)
        && sys::fcntl(old, libc::F_GETFD, 0) >= 0
    {
        kept = sys::fcntl(new, libc::F_DUPFD_CLOEXEC, 0) as i32;
        if kept >= 0 {
            fds::share(new, kept);
        }
    }
    // Only these are asked by their numbers meanwhile.
    let names_connection = matches!(fds::kind(new), fds::Kind::Conn(_));
    if names_connection {
        fds::begin_over();
    }
    let r = plain();
    if r >= 0 {
        fds::share_over(old, new);
    }
    if names_connection {
        fds::end_over();
    }
    if kept >= 0 {
        fds::before_close(kept);
        sys::close(kept);
    }
    r
}

/// fcntl; `plain` is the application's own call.
pub fn fcntl(fd: i32, cmd: i32, arg: usize, plain: impl FnOnce() -> isize) -> isize {
    let r = plain();
    if r >= 0 && (cmd == libc::F_DUPFD || cmd == libc::F_DUPFD_CLOEXEC) && home::is_owner() {
        fds::share(fd, r as i32);
    }
    if r >= 0 && cmd == libc::F_SETFL && arg as i32 & libc::O_ASYNC != 0 {
        leave_for_signals(fd);
    }
    r
}

/// SIGIO comes from the kernel's socket: its readiness must be the whole truth, from the first byte on.
#[cold]
fn leave_for_signals(fd: i32) {
    if let Some(port) = fds::port(fd) {
        fds::go_back(port, reason::ASYNC_IO.code());
    }
}

/// ioctl; `plain` is the application's own call.
///
/// # Safety
/// `arg` must be what the application gives to ioctl.
pub unsafe fn ioctl(fd: i32, req: u64, arg: usize, plain: impl FnOnce() -> isize) -> isize {
    let told = arg as *mut c_int;
    if req == libc::FIOASYNC {
        // SAFETY: the application gives an int.
        if !faulty(told) && unsafe { *told } != 0 {
            leave_for_signals(fd);
        }
        return plain();
    }
    let Some(port) = fds::existing(fd) else { return plain() };
    // What the kernel would refuse is left to it.
    match if faulty(told) { None } else { queued(port, req) } {
        Some(n) => {
            // SAFETY: the application gives an int.
            unsafe { *told = n };
            0
        }
        None => plain(),
    }
}

/// What an ioctl tells of a stream, where the kernel does not know it.
fn queued(port: Port, req: u64) -> Option<c_int> {
    const SIOCINQ: u64 = libc::FIONREAD;
    const SIOCOUTQ: u64 = libc::TIOCOUTQ;
    const SIOCOUTQNSD: u64 = 0x894B;
    const SIOCATMARK: u64 = 0x8905;
    let Port { conn: c, fd, .. } = port;
    match req {
        SIOCINQ if settle(port) => Some(c.unread(fd) as c_int),
        // What is in the ring has been delivered: TCP counts what the peer's kernel has not
        // acknowledged.
        SIOCOUTQ | SIOCOUTQNSD if c.sends_on_ring() => Some(0),
        SIOCATMARK if c.receives_on_ring() => {
            // The mark lies behind the ring: its sender has gone back to TCP for the urgent byte.
            if c.has_payload_left() && c.unread(fd) > 0 || c.unread_in_ring() > 0 {
                return Some(0);
            }
            c.try_back_to_tcp(fd);
            None
        }
        _ => None,
    }
}
