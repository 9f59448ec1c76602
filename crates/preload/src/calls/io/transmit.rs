//! A send: into the ring, or to the kernel before the switch and after a return.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::sync::atomic::Ordering::*;

use libc::{iovec, ssize_t};
use smc::conn::{Conn, Pieces, Sent};
use smc::{meet, reason, witness};

use super::{after_op, deferred, empty_msg, settle, with_rest, within_most};
use crate::wait::{self, Stay};
use crate::{errno, fail, fds, next};

/// Flags whose data a ring cannot carry.
const APART: c_int = libc::MSG_OOB | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;

/// A send on a connection. `kernel` is the plain call for what is left, with the given flags.
pub(super) fn transmit(
    index: u32,
    c: &Conn,
    fd: c_int,
    from: Pieces,
    flags: c_int,
    kernel: impl FnMut(&Pieces, c_int) -> ssize_t,
) -> ssize_t {
    wait::cancellation_point();
    let r = transmit_own(index, c, fd, from, flags, kernel);
    if deferred::any() {
        transmit_deferred(index, c, fd);
    }
    r
}

/// What handlers have sent that interrupted the send before.
#[cold]
#[inline(never)]
pub(super) fn transmit_deferred(index: u32, c: &Conn, fd: c_int) {
    let e = errno();
    let mut bytes = [0; _];
    loop {
        let n = match c.while_not_sending(|| deferred::take(index, &mut bytes)) {
            None | Some(0) => break,
            Some(n) => n,
        };
        let mut at = 0;
        while at < n {
            let iov = [iovec { iov_base: bytes[at..].as_mut_ptr().cast(), iov_len: n - at }];
            let r = transmit_own(index, c, fd, Pieces::new(&iov), libc::MSG_NOSIGNAL, |from, fl| {
                with_rest(from, |v, n| {
                    let m = empty_msg(v, n);
                    // SAFETY: our buffer.
                    unsafe { next::sendmsg(fd, &raw const m, fl) }
                })
            });
            match r {
                1.. => at += r as usize,
                _ if errno() == libc::EINTR => {}
                // The stream has ended.
                _ => break,
            }
        }
    }
    crate::set_errno(e);
}

fn transmit_own(
    index: u32,
    c: &Conn,
    fd: c_int,
    mut from: Pieces,
    flags: c_int,
    mut kernel: impl FnMut(&Pieces, c_int) -> ssize_t,
) -> ssize_t {
    if flags & APART != 0 {
        let why = if flags & libc::MSG_OOB != 0 { reason::URGENT } else { reason::OPT_UNSUPP }.code();
        if !c.is_exposed() {
            fds::freeze(index, c, fd, why);
        } else {
            // Only this direction must be in order on TCP: what the peer sends may go on coming through the ring.
            settle(index, c, fd);
            c.freeze();
            c.leave_tx();
            c.reason.store(why, Relaxed);
            if let Some(t) = smc::table::get() {
                t.stats.urgent.fetch_add(1, Relaxed);
            }
        }
        return kernel(&from, flags);
    }
    let generation = c.gen_.load(Relaxed);
    let want = from.left();
    let dontwait = flags & libc::MSG_DONTWAIT != 0;
    let mut done = 0;
    let mut stay = Stay::new(c, fd);
    loop {
        let fd = stay.fd();
        let ph = c.phase();
        if !ph.sends_on_ring() && stay.is_over() {
            return if done > 0 { done as ssize_t } else { fail(libc::EBADF) };
        }
        if !ph.sends_on_ring() {
            settle(index, c, fd);
            if c.sends_on_ring() {
                continue;
            }
            if !c.flush_takeback(fd) {
                match wait::for_space(&mut stay, dontwait, done > 0) {
                    Ok(()) => continue,
                    Err(e) => return if done > 0 { done as ssize_t } else { fail(e) },
                }
            }
            if !c.enter_kernel_send() {
                continue;
            }
            stay.is_inside();
            let stake = meet::stake(c, fd, from.left(), flags);
            let r = match &stake {
                Some(stake) => ahead(&from, stake.len(), |part| kernel(part, flags)),
                None => kernel(&from, flags),
            };
            c.leave_kernel_send();
            let fd = stay.fd();
            let staked = stake.is_some();
            if let Some(stake) = stake {
                stake.settle(r);
            }
            if r > 0 {
                witness::sent(c, fd, Some(from), r as usize);
                after_op(index, c, fd, r as usize);
            }
            if staked && r > 0 {
                from.skip(r as usize);
                done += r as usize;
                continue;
            }
            return if done > 0 && r < 0 { done as ssize_t } else { done as ssize_t + r };
        }
        match c.send(fd, &mut from) {
            Sent::Bytes(n) => {
                done += n;
                if done >= want {
                    return done as ssize_t;
                }
                continue;
            }
            Sent::Err(e) => return if done > 0 { done as ssize_t } else { fail(e) },
            Sent::Held => {
                // Where the caller would wait, the bytes wait.
                let kept = if dontwait || stay.is_nonblocking() { 0 } else { deferred::keep(index, &mut from) };
                done += kept;
                return if done > 0 { done as ssize_t } else { fail(libc::EAGAIN) };
            }
            Sent::Kernel => {
                if c.sends_are_back() {
                    crate::epoll::on_reverted(index);
                    continue;
                }
                if done > 0 {
                    return done as ssize_t;
                }
                if want > 0 {
                    c.sends_past_ring();
                }
                if c.sends_are_shut() && c.sends_on_ring() {
                    // Another thread is about to shut the socket, and has told the peer: payload that overtakes it would
                    // count as doorbells there.
                    smc::sys::shutdown(fd, libc::SHUT_WR);
                }
                return kernel(&from, flags);
            }
            Sent::Full => match wait::for_space(&mut stay, dontwait, done > 0) {
                Ok(()) => {}
                Err(_) if done > 0 => return done as ssize_t,
                Err(e) => return fail(e),
            },
        }
        if c.gen_.load(Relaxed) != generation {
            return if done > 0 { done as ssize_t } else { fail(libc::EBADF) };
        }
    }
}

/// Sends the first `len` bytes of `from`, or fewer if they lie in many pieces.
#[cold]
fn ahead(from: &Pieces, len: usize, kernel: impl FnOnce(&Pieces) -> ssize_t) -> ssize_t {
    let mut few = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 16];
    let n = from.rest(&mut few);
    let mut left = len;
    for piece in &mut few[..n] {
        piece.iov_len = piece.iov_len.min(left);
        left -= piece.iov_len;
    }
    kernel(&Pieces::new(&few[..n]))
}

/// The short way of a send while the connection is TCP with nothing begun: counted, otherwise the kernel's.
#[inline(always)]
pub(super) fn untouched(
    index: u32,
    c: &Conn,
    fd: c_int,
    flags: c_int,
    plain: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    let generation = c.gen_.load(Relaxed);
    if flags & APART != 0 || !c.enter_untouched_send() {
        return None;
    }
    let r = plain();
    if c.gen_.load(Relaxed) != generation {
        // Closed meanwhile by another thread: the place in the table, and its counts, may be another connection's.
        return Some(r);
    }
    c.leave_kernel_send();
    if !c.untouched() {
        // An upgrade has begun while the call was in the kernel, and a close of another thread may have waited for its end.
        return Some(touched(index, c, fd, r));
    }
    if r > 0 {
        after_op(index, c, fd, r as usize);
    }
    Some(r)
}

#[cold]
#[inline(never)]
fn touched(index: u32, c: &Conn, fd: c_int, r: ssize_t) -> ssize_t {
    let e = errno();
    match fds::kept(c) {
        Some(_) => fds::left(c),
        None if r > 0 => after_op(index, c, fd, r as usize),
        None => {}
    }
    crate::set_errno(e);
    r
}

/// Sends from `iov`, by sendmsg where the kernel is asked for the rest.
#[inline(always)]
pub(super) unsafe fn send_iov(fd: c_int, iov: &[iovec], flags: c_int, plain: impl Fn() -> ssize_t) -> ssize_t {
    let Some((index, c)) = fds::conn_of(fd) else { return plain() };
    match untouched(index, c, fd, flags, &plain) {
        Some(r) => r,
        None => within_most(iov, |iov| send_pieces(index, c, fd, iov, flags, &plain)),
    }
}

#[inline(never)]
fn send_pieces(index: u32, c: &Conn, fd: c_int, iov: &[iovec], flags: c_int, plain: &dyn Fn() -> ssize_t) -> ssize_t {
    let whole = iov.iter().map(|v| v.iov_len).sum::<usize>();
    let all = Pieces::new(iov).before_more(flags & libc::MSG_MORE != 0);
    transmit(index, c, fd, all, flags, |from, fl| {
        if from.left() == whole && fl == flags {
            return plain();
        }
        with_rest(from, |v, n| {
            let m = empty_msg(v, n);
            // SAFETY: the application's buffers.
            unsafe { next::sendmsg(fd, &raw const m, fl) }
        })
    })
}
