//! A receive: from the ring, or from the kernel up to the switch.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::sync::atomic::Ordering::*;

use libc::{iovec, ssize_t};
use smc::conn::{Conn, Got, Pieces};
use smc::{reason, witness};

use super::{after_op, empty_msg, finish_upgrade, settle, with_rest, within_most};
use crate::wait::{self, Stay};
use crate::{errno, fail, fds, next};

/// A receive on a connection. `kernel` is the plain call with the given flags.
pub(super) fn receive(
    index: u32,
    mut stay: Stay,
    mut into: Pieces,
    flags: c_int,
    mut kernel: impl FnMut(&mut Pieces, c_int) -> ssize_t,
) -> ssize_t {
    let (c, fd) = (stay.conn, stay.fd());
    wait::cancellation_point();
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // The urgent byte is the kernel's; a connection that uses it is not upgraded any more.
        if flags & libc::MSG_OOB != 0 && !c.is_exposed() {
            fds::freeze(index, c, fd, reason::URGENT.code());
        }
        return kernel(&mut into, flags);
    }
    let generation = c.gen_.load(Relaxed);
    let want = into.left();
    let peek = flags & libc::MSG_PEEK != 0;
    let dontwait = flags & libc::MSG_DONTWAIT != 0;
    // A kernel receive that insists on all of it would swallow doorbells: insist here.
    let low = c.user_rcvlowat.load(Relaxed) as usize;
    let all = if flags & libc::MSG_WAITALL != 0 { want } else { low.min(want) };
    let mut done = 0;
    if peek && flags & libc::MSG_WAITALL != 0 && !dontwait && want > 0 {
        return peek_all(index, stay, into, flags, &mut kernel);
    }
    // A receive that is content with a byte sleeps once, in most cases, and there the kernel's own limit holds.
    if all > 1 {
        stay.begin();
    }
    loop {
        let fd = stay.fd();
        let got = if settle(index, c, fd) {
            if done > 0 && c.only_its_end_is_left() {
                // A reset is told once, and to a call that has nothing else to tell.
                return done as ssize_t;
            }
            match c.recv(fd, &mut into, flags) {
                Got::Bytes(n) => {
                    if want == 0 {
                        return 0;
                    }
                    done += n;
                    None
                }
                Got::Empty => Some(libc::EAGAIN),
                Got::Eof => return done as ssize_t,
                Got::Kernel => {
                    crate::epoll::on_reverted(index);
                    continue;
                }
                Got::Err(e) => {
                    if done > 0 {
                        return done as ssize_t;
                    }
                    return fail(e);
                }
            }
        } else if stay.is_over() {
            return if done > 0 { done as ssize_t } else { fail(libc::EBADF) };
        } else if done > 0 && smc::sys::poll_now(fd, 0) & libc::POLLERR != 0 && c.queued(fd) == 0 {
            // The same: the kernel would tell it here.
            return done as ssize_t;
        } else {
            let more = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
            match from_kernel(index, &mut stay, &mut into, flags & !libc::MSG_WAITALL | more, &mut kernel) {
                // The ring has it.
                None => continue,
                Some(n) if n <= 0 => return if done > 0 { done as ssize_t } else { n },
                Some(n) => {
                    done += n as usize;
                    None
                }
            }
        };
        if got.is_none() && (done >= all || peek || into.left() == 0) {
            return done as ssize_t;
        }
        if done > 0 {
            // A signal ends a receive that has something, also where it would restart one that has nothing.
            if dontwait || !wait::for_more(&mut stay, || c.has_news()) {
                return done as ssize_t;
            }
            continue;
        }
        if !c.receives_on_ring() {
            // Another thread has brought it back to TCP since the look at the ring: the kernel waits, or says EAGAIN.
            continue;
        }
        match wait::for_data(&mut stay, dontwait) {
            // Once it has slept, a receive of nothing has what it wants.
            _ if want == 0 && !dontwait && !stay.is_nonblocking() => return 0,
            Ok(None) => {}
            Ok(Some(Got::Err(e))) if done == 0 => return fail(e),
            Ok(Some(_)) => return done as ssize_t,
            Err(_) if done > 0 => return done as ssize_t,
            Err(e) => return fail(e),
        }
        if c.gen_.load(Relaxed) != generation {
            // Closed under us by another thread.
            return if done > 0 { done as ssize_t } else { fail(libc::EBADF) };
        }
    }
}

/// MSG_PEEK with MSG_WAITALL: nothing moves until all of it is there, or can't be.
#[cold]
fn peek_all(
    index: u32,
    mut stay: Stay,
    mut into: Pieces,
    flags: c_int,
    kernel: &mut impl FnMut(&mut Pieces, c_int) -> ssize_t,
) -> ssize_t {
    let (c, want) = (stay.conn, into.left());
    stay.begin();
    loop {
        let fd = stay.fd();
        while settle(index, c, fd) {
            let seen = c.read_stamp();
            let room = c.rx_room() as usize;
            let ended = c.ready(fd) & smc::conn::RDHUP != 0;
            match c.recv(fd, &mut into.clone(), flags) {
                Got::Bytes(n)
                    if n < want.min(room) && !ended && wait::for_more(&mut stay, || c.read_stamp() != seen) => {}
                Got::Bytes(n) => return n as ssize_t,
                Got::Empty => match wait::for_data(&mut stay, false) {
                    Ok(None) => {}
                    Ok(Some(Got::Err(e))) | Err(e) => return fail(e),
                    Ok(Some(_)) => return 0,
                },
                Got::Eof => return 0,
                Got::Kernel => crate::epoll::on_reverted(index),
                Got::Err(e) => return fail(e),
            }
        }
        // The kernel waits for all of it; no upgrade may begin meanwhile, or it would wait for bytes that go elsewhere.
        let held = !c.is_exposed() && c.hold_upgrade();
        if held || !c.is_exposed() || c.receives_are_back() {
            let r = kernel(&mut into, flags);
            if held {
                c.release_upgrade();
            }
            return r;
        }
        // The peer may switch at any time, and the kernel's poll is content with what is there.
        match from_kernel(index, &mut stay, &mut into.clone(), flags & !libc::MSG_WAITALL, kernel) {
            Some(n) if n <= 0 || n as usize >= want || !wait::for_a_while(&mut stay) => return n,
            _ => {}
        }
    }
}

/// A plain receive; None when receives have moved to the ring meanwhile.
fn from_kernel(
    index: u32,
    stay: &mut Stay,
    into: &mut Pieces,
    flags: c_int,
    kernel: &mut impl FnMut(&mut Pieces, c_int) -> ssize_t,
) -> Option<ssize_t> {
    let (c, fd) = (stay.conn, stay.fd());
    let dontwait = |stay: &mut Stay| flags & libc::MSG_DONTWAIT != 0 || stay.is_nonblocking();
    if !c.flush_takeback(fd) && !dontwait(stay) {
        // The peer may wait for what it has given back to us to send again, and it did not all fit.
        return if wait::for_kernel(stay, libc::POLLOUT, false) { None } else { Some(-1) };
    }
    if !c.enter_kernel_recv() {
        if c.receives_on_ring() {
            return None;
        }
        // Another thread is inside a receive that began before the upgrade: it alone can cut the stream.
        if dontwait(stay) {
            return Some(fail(libc::EAGAIN));
        }
        if c.forget_abandoned_recv() {
            return None;
        }
        return if wait::for_turn(stay) { None } else { Some(-1) };
    }
    stay.is_inside();
    let mut there = *into;
    let mut now = flags;
    let low = c.user_rcvlowat.load(Relaxed) as usize;
    if low > 1 && !dontwait(stay) {
        // A receive that has begun keeps to the mark it began with, and would sleep over a doorbell; poll does not.
        if !wait::for_kernel(stay, 0, into.left() < low) && c.queued(fd) == 0 {
            c.leave_kernel_recv(stay.fd(), 0, true);
            return Some(-1);
        }
        now |= libc::MSG_DONTWAIT;
    }
    let r = kernel(&mut there, now);
    let seen = (flags & libc::MSG_TRUNC == 0).then_some(*into);
    let ended = after_kernel(index, c, stay.fd(), r, flags & libc::MSG_PEEK != 0, seen);
    if let Some(n @ 1..) = ended {
        into.skip(n as usize);
    }
    ended
}

/// What a kernel receive that brought `r` into `into` gives the caller; None when the ring has what it asked for.
#[inline(never)]
fn after_kernel(index: u32, c: &Conn, fd: c_int, r: ssize_t, peek: bool, into: Option<Pieces>) -> Option<ssize_t> {
    let e = errno();
    let payload = c.leave_kernel_recv_into(fd, r.max(0) as usize, peek, into);
    if r > 0 && payload > 0 {
        if !peek {
            witness::came(c, fd, into, payload);
        }
        after_op(index, c, fd, payload);
    }
    if c.receives_on_ring() {
        if !c.is_committed() {
            finish_upgrade(index, c, fd);
        }
        fds::on_upgraded(index, fd);
        if payload == 0 && (r > 0 || r < 0 && e == libc::EAGAIN) {
            return None;
        }
    }
    crate::set_errno(e);
    Some(if r > 0 { payload as ssize_t } else { r })
}

/// The short way of a receive while the connection is TCP with nothing begun: counted, otherwise the kernel's. Where the call
/// must go on in another way, `receive` continues its stay.
#[inline(always)]
pub(super) fn untouched(
    index: u32,
    c: &'static Conn,
    fd: c_int,
    flags: c_int,
    plain: impl FnOnce() -> ssize_t,
) -> Result<ssize_t, Stay<'static>> {
    const LONG: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_PEEK | libc::MSG_WAITALL;
    let generation = c.gen_.load(Relaxed);
    if flags & LONG != 0 || !c.enter_untouched_recv() {
        return Err(Stay::new(c, fd));
    }
    let r = plain();
    if c.gen_.load(Relaxed) != generation {
        // Closed meanwhile by another thread: the place in the table, and its counts, may be another connection's.
        return Ok(r);
    }
    if !c.untouched() {
        return touched(index, c, fd, r);
    }
    c.leave_untouched_recv();
    if r > 0 {
        after_op(index, c, fd, r as usize);
    }
    Ok(r)
}

/// An upgrade has begun while the call was in the kernel; the application's descriptor may be closed since.
#[cold]
#[inline(never)]
fn touched(index: u32, c: &'static Conn, fd: c_int, r: ssize_t) -> Result<ssize_t, Stay<'static>> {
    let e = errno();
    let mut stay = Stay::new(c, fd);
    // Before it is counted out: a close in another thread must find it in one way or the other.
    stay.is_inside();
    crate::set_errno(e);
    after_kernel(index, c, stay.fd(), r, false, None).ok_or(stay)
}

/// Receives into `iov`, by recvmsg where the kernel is asked.
#[inline(always)]
pub(super) unsafe fn recv_iov(fd: c_int, iov: &[iovec], flags: c_int, plain: impl Fn() -> ssize_t) -> ssize_t {
    let Some((index, c)) = fds::conn_of(fd) else { return plain() };
    match untouched(index, c, fd, flags, &plain) {
        Ok(r) => r,
        Err(stay) => within_most(iov, |iov| recv_pieces(index, stay, iov, flags, &plain)),
    }
}

#[inline(never)]
fn recv_pieces(index: u32, stay: Stay, iov: &[iovec], flags: c_int, plain: &dyn Fn() -> ssize_t) -> ssize_t {
    let whole = iov.iter().map(|v| v.iov_len).sum::<usize>();
    let fd = stay.fd();
    receive(index, stay, Pieces::new(iov), flags, |into, fl| {
        if into.left() == whole && fl == flags {
            return plain();
        }
        with_rest(into, |v, n| {
            let mut m = empty_msg(v, n);
            // SAFETY: the application's buffers.
            unsafe { next::recvmsg(fd, &raw mut m, fl) }
        })
    })
}
