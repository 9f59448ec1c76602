//! A send: into the ring, or to the kernel before the switch and after a return.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use smc::conn::{Conn, Flushed, Pieces, SendError, Sent};
use smc::{meet, reason, sys, witness};

use crate::fds::{self, Port, drain};
use crate::pieces::{empty_msg, of_message, refuses_name, with_rest, within_most};
use crate::settle::{after_op, settle};
use crate::wait::{self, Stay};
use crate::{deferred, epoll, fail, kernel};

/// Flags whose data a ring cannot carry.
const APART: i32 = libc::MSG_OOB | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;

/// A send on a connection. `kernel` is the plain call for what is left, with the given flags.
fn transmit(
    port: Port,
    from: Pieces,
    flags: i32,
    kernel: impl FnMut(&Pieces, i32) -> isize,
) -> isize {
    kernel::cancellation_point();
    let r = transmit_own(port, from, flags, kernel);
    if deferred::any() {
        transmit_deferred(port);
    }
    r
}

/// Behind a call that has held the connection's sends, but is none of `transmit`: what a handler
/// sent that has interrupted it would stay until the next send, for which the program may wait until
/// the answer comes.
#[inline]
pub fn send_what_was_deferred(port: Port) {
    if deferred::any() {
        transmit_deferred(port);
    }
}

/// What handlers have sent that interrupted the send before.
#[cold]
#[inline(never)]
pub fn transmit_deferred(port: Port) {
    let mut bytes = [0; _];
    loop {
        let n = match port.conn.while_not_sending(|| deferred::take(port.index, &mut bytes)) {
            None | Some(0) => break,
            Some(n) => n,
        };
        let mut at = 0;
        while at < n {
            let iov = [iovec { iov_base: bytes[at..].as_mut_ptr().cast(), iov_len: n - at }];
            let r = transmit_own(port, Pieces::new(&iov), libc::MSG_NOSIGNAL, |from, fl| {
                with_rest(from, |v, n| {
                    let m = empty_msg(v, n);
                    // SAFETY: our buffer.
                    unsafe { kernel::get().sendmsg(port.fd, &raw const m, fl) }
                })
            });
            match r {
                1.. => at += r as usize,
                _ if r == -(libc::EINTR as isize) => {}
                // The stream has ended.
                _ => break,
            }
        }
    }
}

fn transmit_own(
    port: Port,
    mut from: Pieces,
    flags: i32,
    mut kernel: impl FnMut(&Pieces, i32) -> isize,
) -> isize {
    let Port { index, conn: c, .. } = port;
    if flags & APART != 0 {
        let why =
            if flags & libc::MSG_OOB != 0 { reason::URGENT } else { reason::OPT_UNSUPP }.code();
        if !c.is_exposed() {
            fds::go_back(port, why);
        } else {
            // Only this direction must be in order on TCP: what the peer sends may go on coming
            // through the ring.
            settle(port);
            c.freeze();
            let dontwait = flags & libc::MSG_DONTWAIT != 0;
            // What the peer wants sent again goes first, and over ism only before we leave by ourselves.
            if let Err(e) = wait::for_order(port, dontwait) {
                return fail(e);
            }
            // The urgent byte itself wakes the peer; a doorbell in front of it would seem to be data.
            c.leave_tx(port.fd, false);
            c.identity.reason.store(why, Relaxed);
            if let Err(e) = wait::for_order(port, dontwait) {
                return fail(e);
            }
            if let Some(t) = smc::table::get() {
                t.stats.urgent.fetch_add(1, Relaxed);
            }
        }
        return kernel(&from, flags);
    }
    let generation = c.identity.gen_.load(Relaxed);
    let want = from.left();
    let dontwait = flags & libc::MSG_DONTWAIT != 0;
    let mut done = 0;
    let mut stay = Stay::new(port);
    loop {
        drain::look_for_changes(c);
        let fd = stay.fd();
        let ph = c.phase();
        if !ph.sends_on_ring() && stay.is_over() {
            return if done > 0 { done as isize } else { fail(libc::EBADF) };
        }
        if !ph.sends_on_ring() {
            settle(stay.port(index));
            if c.sends_on_ring() {
                continue;
            }
            match c.flush_takeback(fd) {
                Flushed::All => {}
                Flushed::Full => match wait::for_space(&mut stay, dontwait, done > 0) {
                    Ok(()) => continue,
                    Err(e) => return if done > 0 { done as isize } else { fail(e) },
                },
                Flushed::Held => return held(&mut stay, index, &mut from, dontwait, done),
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
            if stay.is_gone() {
                // The end of a stake lets go of the upgrade, which is another connection's by now.
                core::mem::forget(stake);
                return if done > 0 && r < 0 { done as isize } else { done as isize + r };
            }
            c.leave_kernel_send();
            let port = stay.port(index);
            let staked = stake.is_some();
            if let Some(stake) = stake {
                stake.settle(r);
            }
            if r > 0 {
                witness::sent(c, port.fd, Some(from), r as usize);
                after_op(port, r as usize);
            }
            if staked && r > 0 {
                from.skip(r as usize);
                done += r as usize;
                continue;
            }
            return if done > 0 && r < 0 { done as isize } else { done as isize + r };
        }
        match c.send(fd, &mut from) {
            Sent::Bytes(n) => {
                done += n;
                if done >= want {
                    return done as isize;
                }
                continue;
            }
            Sent::Err(_) if done > 0 => return done as isize,
            Sent::Err(e) => return failed(c, e),
            Sent::Held => return held(&mut stay, index, &mut from, dontwait, done),
            Sent::Kernel => {
                if c.sends_are_back() {
                    epoll::on_reverted(index);
                    continue;
                }
                if done > 0 {
                    return done as isize;
                }
                if want > 0 {
                    c.sends_past_ring();
                }
                if c.sends_are_shut() && c.sends_on_ring() {
                    // Another thread is about to shut the socket, and has told the peer: payload
                    // that overtakes it would count as doorbells there.
                    sys::shutdown(fd, libc::SHUT_WR);
                }
                return kernel(&from, flags);
            }
            Sent::Full => match wait::for_space(&mut stay, dontwait, done > 0) {
                Ok(()) => {}
                Err(_) if done > 0 => return done as isize,
                Err(e) => return fail(e),
            },
        }
        if c.identity.gen_.load(Relaxed) != generation {
            return if done > 0 { done as isize } else { fail(libc::EBADF) };
        }
    }
}

/// The end of a send in a signal handler that has interrupted another one, behind `done` bytes:
/// where the caller would wait, the bytes wait.
#[cold]
fn held(stay: &mut Stay, index: u32, from: &mut Pieces, dontwait: bool, done: usize) -> isize {
    let waits = !dontwait && !stay.is_nonblocking();
    let done = done + if waits { deferred::keep(index, from) } else { 0 };
    if done > 0 { done as isize } else { fail(libc::EAGAIN) }
}

/// The error of a send, for the application.
pub(crate) fn failed(c: &Conn, error: SendError) -> isize {
    c.tells(error);
    fail(error.errno())
}

/// Sends the first `len` bytes of `from`, or fewer if they lie in many pieces.
#[cold]
fn ahead(from: &Pieces, len: usize, kernel: impl FnOnce(&Pieces) -> isize) -> isize {
    let mut few = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 16];
    let n = from.rest(&mut few);
    let mut left = len;
    for piece in &mut few[..n] {
        piece.iov_len = piece.iov_len.min(left);
        left -= piece.iov_len;
    }
    kernel(&Pieces::new(&few[..n]))
}

/// Fast path on a ring with room for one buffer. None: nothing was done.
#[inline(always)]
fn at_once(port: Port, iov: &[iovec], flags: i32) -> Option<isize> {
    let Port { conn: c, fd, .. } = port;
    let [piece] = iov else { return None };
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0
        || !c.phase().sends_on_ring()
        || deferred::any()
        || kernel::may_cancel()
    {
        return None;
    }
    // SAFETY: the application's buffer.
    let n = unsafe { c.send_at_once(fd, piece.iov_base.cast(), piece.iov_len) }?;
    if deferred::any() {
        transmit_deferred(port);
    }
    Some(n as isize)
}

/// Fast path while no upgrade has begun: make the plain call and count one operation. None: use the
/// general path.
#[inline(always)]
fn untouched(port: Port, flags: i32, plain: impl FnOnce() -> isize) -> Option<isize> {
    let c = port.conn;
    let generation = c.identity.gen_.load(Relaxed);
    if flags & APART != 0 || !c.enter_untouched_send() {
        return None;
    }
    let r = plain();
    if c.identity.gen_.load(Relaxed) != generation {
        // Closed meanwhile by another thread: the place in the table, and its counts, may be
        // another connection's.
        return Some(r);
    }
    c.leave_kernel_send();
    if !c.untouched() {
        // An upgrade has begun while the call was in the kernel, and a close of another thread may
        // have waited for its end.
        return Some(touched(port, r));
    }
    if r > 0 {
        after_op(port, r as usize);
    }
    Some(r)
}

#[cold]
#[inline(never)]
fn touched(port: Port, r: isize) -> isize {
    match fds::kept(port.conn) {
        Some(_) => fds::call_ended(port.conn),
        None if r > 0 => after_op(port, r as usize),
        None => {}
    }
    r
}

/// sendto; `plain` is the application's own call. The name is ignored, except by TCP fast open on a
/// socket that is not connected.
///
/// # Safety
/// As for the system call.
pub unsafe fn sendto(
    fd: i32,
    piece: iovec,
    flags: i32,
    name: *const sockaddr,
    len: socklen_t,
    plain: impl Fn() -> isize,
) -> isize {
    if refuses_name(name.cast(), len) {
        return plain();
    }
    // SAFETY: the caller's obligation.
    unsafe { send(fd, &[piece], flags, plain) }
}

/// Sends from `iov`: write, send, writev. `plain` is the application's own call.
///
/// # Safety
/// The memory that `iov` names must be the application's to read.
#[inline(always)]
pub unsafe fn send(fd: i32, iov: &[iovec], flags: i32, plain: impl Fn() -> isize) -> isize {
    let Some(port) = fds::port(fd) else { return plain() };
    if let Some(r) = untouched(port, flags, &plain) {
        return r;
    }
    match at_once(port, iov, flags) {
        Some(n) => n,
        None => within_most(iov, |iov| send_pieces(port, iov, flags, &plain)),
    }
}

#[inline(never)]
fn send_pieces(port: Port, iov: &[iovec], flags: i32, plain: &dyn Fn() -> isize) -> isize {
    let whole = iov.iter().map(|v| v.iov_len).sum::<usize>();
    let all = Pieces::new(iov).before_more(flags & libc::MSG_MORE != 0);
    transmit(port, all, flags, |from, fl| {
        if from.left() == whole && fl == flags {
            return plain();
        }
        with_rest(from, |v, n| {
            let m = empty_msg(v, n);
            // SAFETY: the application's buffers.
            unsafe { kernel::get().sendmsg(port.fd, &raw const m, fl) }
        })
    })
}

/// sendmsg.
///
/// # Safety
/// As for the system call.
pub unsafe fn sendmsg(fd: i32, msg: *const msghdr, flags: i32) -> isize {
    let world = kernel::get();
    // SAFETY: forwarded.
    let plain = |fl| unsafe { world.sendmsg(fd, msg, fl) };
    let Some(port) = fds::port(fd).filter(|_| !crate::faulty(msg)) else { return plain(flags) };
    // SAFETY: the application's message, which can be read.
    let pieces = unsafe { of_message(msg) };
    // SAFETY: as above.
    let msghdr { msg_controllen: control, msg_name: name, msg_namelen: len, .. } = unsafe { *msg };
    // sendmsg cuts a name that is too long, where sendto refuses it.
    let is_bad = refuses_name(name, len.min(1)) || !name.is_null() && (len as i32) < 0;
    let Some(v) = pieces.filter(|_| !is_bad) else { return plain(flags) };
    if let Some(r) = untouched(port, flags, || plain(flags)) {
        return r;
    }
    if control > 0 && port.conn.sends_on_ring() {
        // The kernel looks at what comes with the bytes, and may refuse it.
        // SAFETY: the application's message, which can be read.
        let alone = msghdr { msg_iovlen: 0, ..unsafe { *msg } };
        // SAFETY: the application's message, without its pieces.
        let r = unsafe { world.sendmsg(fd, &alone, flags) };
        if r < 0 {
            return r;
        }
    }
    within_most(v, |v| {
        let whole = v.iter().map(|e| e.iov_len).sum::<usize>();
        let all = Pieces::new(v).before_more(flags & libc::MSG_MORE != 0);
        transmit(port, all, flags, |from, fl| {
            if from.left() == whole {
                return plain(fl);
            }
            with_rest(from, |v, n| {
                let m = empty_msg(v, n);
                // SAFETY: the application's buffers.
                unsafe { world.sendmsg(fd, &raw const m, fl) }
            })
        })
    })
}

/// sendmmsg on a descriptor of ours.
///
/// # Safety
/// As for the system call; `v` can be looked at.
pub unsafe fn sendmmsg(fd: i32, v: *mut mmsghdr, n: u32, flags: i32) -> isize {
    for done in 0..n {
        let m = v.wrapping_add(done as usize);
        let header = m.cast::<msghdr>();
        // SAFETY: the caller's obligation, for the next of `n` messages, which begins with its
        // header.
        let r = unsafe { sendmsg(fd, header, flags) };
        if r < 0 {
            return if done > 0 { done as isize } else { r };
        }
        // SAFETY: as above.
        unsafe { (*m).msg_len = r as u32 };
        // SAFETY: as above.
        let whole = unsafe { of_message(header) }.map_or(0, |v| v.iter().map(|e| e.iov_len).sum());
        if (r as usize) < whole {
            // Going on with the next message would leave a hole in the stream.
            return done as isize + 1;
        }
    }
    n as isize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{port, recv, send, serial, upgraded};

    fn message(iov: &mut [iovec]) -> mmsghdr {
        mmsghdr { msg_hdr: empty_msg(iov.as_ptr(), iov.len()), msg_len: 0 }
    }

    #[test]
    fn messages_are_counted_up_to_the_first_that_does_not_fit() {
        let _turn = serial();
        let pair = upgraded();
        sys::fcntl(pair.0, libc::F_SETFL, libc::O_NONBLOCK as usize);
        let bytes = vec![5u8; 16 << 20];
        let piece = |n| [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: n }];
        let (mut small, mut large, mut last) = (piece(10), piece(bytes.len()), piece(1));
        let mut all = [message(&mut small), message(&mut large), message(&mut last)];
        // SAFETY: live messages.
        assert_eq!(unsafe { sendmmsg(pair.0, all.as_mut_ptr(), 3, 0) }, 2);
        assert_eq!(all[0].msg_len, 10);
        assert!((1..bytes.len() as u32).contains(&all[1].msg_len));
        // SAFETY: live messages.
        assert_eq!(unsafe { sendmmsg(pair.0, all.as_mut_ptr(), 3, 0) }, -(libc::EAGAIN as isize));
    }

    #[test]
    fn urgent_bytes_take_their_direction_back_to_tcp() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(send(pair.0, b"!", libc::MSG_OOB), 1);
        assert_eq!(port(pair.0).conn.identity.reason.load(Relaxed), reason::URGENT.code());
        assert_eq!(send(pair.0, b"after", 0), 5);
        assert_eq!(recv(pair.1, 5, libc::MSG_WAITALL), Ok(b"after".to_vec()));
        assert_eq!(send(pair.1, b"back", 0), 4);
        assert_eq!(recv(pair.0, 4, 0), Ok(b"back".to_vec()));
    }

    #[test]
    fn many_pieces_arrive_in_order() {
        let _turn = serial();
        let pair = upgraded();
        let bytes: Vec<u8> = (0..=255).collect();
        let iov: Vec<iovec> = bytes
            .iter()
            .map(|b| iovec { iov_base: core::ptr::from_ref(b).cast_mut().cast(), iov_len: 1 })
            .collect();
        // SAFETY: live pieces.
        assert_eq!(unsafe { super::send(pair.0, &iov, 0, || panic!("it is upgraded")) }, 256);
        assert_eq!(recv(pair.1, 300, 0), Ok(bytes));
    }
}
