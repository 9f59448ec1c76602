//! A receive: from the ring, or from the kernel up to the switch.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use smc::conn::identity::Identity;
use smc::conn::{Conn, Got, Pieces};
use smc::{reason, sys, table, witness};

use crate::fds::{self, Port, drain};
use crate::pieces::{empty_msg, of_message, with_rest, within_most};
use crate::settle::{after_op, finish_upgrade, settle};
use crate::spin::{self, Soon};
use crate::wait::{self, Ahead, Stay};
use crate::{epoll, fail, kernel, option};

/// A receive on a connection. `kernel` is the plain call with the given flags.
fn receive(
    index: u32,
    mut stay: Stay,
    mut into: Pieces,
    flags: i32,
    mut kernel: impl FnMut(&mut Pieces, i32) -> isize,
) -> isize {
    let c = stay.conn;
    kernel::cancellation_point();
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // The urgent byte is the kernel's; a connection that uses it is not upgraded any more.
        if flags & libc::MSG_OOB != 0 && !c.is_exposed() {
            fds::go_back(stay.port(index), reason::URGENT.code());
        }
        return kernel(&mut into, flags);
    }
    let generation = c.identity.gen_.load(Relaxed);
    let want = into.left();
    let peek = flags & libc::MSG_PEEK != 0;
    let dontwait = flags & libc::MSG_DONTWAIT != 0;
    // A kernel receive that insists on all of it would swallow doorbells: insist here.
    let low = c.identity.user_rcvlowat.load(Relaxed) as usize;
    let all = if flags & libc::MSG_WAITALL != 0 { want } else { low.min(want) };
    let mut done = 0;
    if peek && flags & libc::MSG_WAITALL != 0 && !dontwait && want > 0 {
        return peek_all(index, stay, into, flags, &mut kernel);
    }
    // A receive that is content with a byte sleeps once, in most cases, and there the kernel's own
    // limit holds.
    if all > 1 {
        stay.begin();
    }
    loop {
        drain::look_for_changes(c);
        if done > 0 && c.is_broken() {
            // The reset is told once, and to a call that has nothing else to tell.
            return done as isize;
        }
        let fd = stay.fd();
        let got = if settle(stay.port(index)) {
            if done > 0 && c.only_its_end_is_left() {
                // A reset is told once, and to a call that has nothing else to tell.
                return done as isize;
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
                Got::Eof => return done as isize,
                Got::Kernel => {
                    epoll::on_reverted(index);
                    continue;
                }
                Got::Held => return if done > 0 { done as isize } else { fail(libc::EAGAIN) },
                Got::Err(e) => return if done > 0 { done as isize } else { fail(e.errno()) },
            }
        } else if stay.is_over() {
            return if done > 0 { done as isize } else { fail(libc::EBADF) };
        } else if done == 0
            && let Some(end) = broken(c)
        {
            return end;
        } else if done > 0 && sys::poll_now(fd, 0) & libc::POLLERR != 0 && c.queued(fd) == 0 {
            // The same: the kernel would tell it here.
            return done as isize;
        } else {
            let more = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
            match from_kernel(
                index,
                &mut stay,
                &mut into,
                flags & !libc::MSG_WAITALL | more,
                &mut kernel,
            ) {
                // The ring has it.
                None => continue,
                Some(n) if n <= 0 => return if done > 0 { done as isize } else { n },
                Some(n) => {
                    done += n as usize;
                    None
                }
            }
        };
        if got.is_none() {
            // What came behind the peer's return to TCP belongs to it, as far as it is there.
            if !peek && into.left() > 0 && c.turns_to_tcp(stay.fd()) {
                continue;
            }
            if done >= all || peek || into.left() == 0 {
                return done as isize;
            }
        }
        if done > 0 {
            // A signal ends a receive that has something, also where it would restart one that has
            // nothing.
            if dontwait || !wait::for_more(&mut stay, || c.has_news()) {
                return done as isize;
            }
            continue;
        }
        if !c.receives_on_ring() {
            // Another thread has brought it back to TCP since the look at the ring: the kernel
            // waits, or says EAGAIN.
            continue;
        }
        match wait::for_data(&mut stay, dontwait) {
            // Once it has slept, a receive of nothing has what it wants.
            _ if want == 0 && !dontwait && !stay.is_nonblocking() => return 0,
            Ok(None) => {}
            Ok(Some(Got::Err(e))) if done == 0 => return fail(e.errno()),
            Ok(Some(_)) => return done as isize,
            Err(_) if done > 0 => return done as isize,
            Err(e) => return fail(e),
        }
        if c.identity.gen_.load(Relaxed) != generation {
            // Closed under us by another thread.
            return if done > 0 { done as isize } else { fail(libc::EBADF) };
        }
    }
}

/// What a receive from TCP returns of a connection that was broken here.
fn broken(c: &Conn) -> Option<isize> {
    c.broken_here().map(|got| match got {
        Got::Err(e) => fail(e.errno()),
        _ => 0,
    })
}

/// MSG_PEEK with MSG_WAITALL: nothing moves until all of it is there, or can't be.
#[cold]
fn peek_all(
    index: u32,
    mut stay: Stay,
    mut into: Pieces,
    flags: i32,
    kernel: &mut impl FnMut(&mut Pieces, i32) -> isize,
) -> isize {
    let (c, want) = (stay.conn, into.left());
    stay.begin();
    loop {
        drain::look_for_changes(c);
        let fd = stay.fd();
        while settle(stay.port(index)) {
            let seen = c.read_stamp();
            let room = c.rx_room() as usize;
            let ended = c.ready(fd) & smc::conn::RDHUP != 0;
            match c.recv(fd, &mut into.clone(), flags) {
                Got::Bytes(n)
                    if n < want.min(room)
                        && !ended
                        && wait::for_more(&mut stay, || c.read_stamp() != seen) => {}
                Got::Bytes(n) => return n as isize,
                Got::Empty => match wait::for_data(&mut stay, false) {
                    Ok(None) => {}
                    Ok(Some(Got::Err(e))) => return fail(e.errno()),
                    Err(e) => return fail(e),
                    Ok(Some(_)) => return 0,
                },
                Got::Eof => return 0,
                Got::Kernel => epoll::on_reverted(index),
                Got::Held => return fail(libc::EAGAIN),
                Got::Err(e) => return fail(e.errno()),
            }
        }
        if let Some(end) = broken(c) {
            return end;
        }
        // The kernel waits for all of it; no upgrade may begin meanwhile, or it would wait for
        // bytes that go elsewhere.
        let held = c.hold_unexposed();
        if !held && !c.is_exposed() && c.is_upgraded_elsewhere() {
            // Another thread's step may expose it while this call waits, unseen, for bytes that go
            // elsewhere.
            sys::nap();
            continue;
        }
        if held || !c.is_exposed() || c.receives_are_back() && !c.owes() {
            let r = kernel(&mut into, flags);
            if held && !stay.is_gone() {
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
    flags: i32,
    kernel: &mut impl FnMut(&mut Pieces, i32) -> isize,
) -> Option<isize> {
    let (c, fd) = (stay.conn, stay.fd());
    let dontwait = |stay: &mut Stay| flags & libc::MSG_DONTWAIT != 0 || stay.is_nonblocking();
    let owes = match wait::for_owed(stay, flags & libc::MSG_DONTWAIT != 0) {
        Ok(Ahead::Clear) => false,
        Ok(Ahead::Owed) => !dontwait(stay),
        Ok(Ahead::Again) => return None,
        Err(e) => return Some(fail(e)),
    };
    if !c.enter_kernel_recv() {
        if c.receives_on_ring() {
            return None;
        }
        // Another thread is inside a receive that began before the upgrade: it alone can cut the
        // stream.
        if dontwait(stay) {
            return Some(fail(libc::EAGAIN));
        }
        if c.forget_abandoned_recv() {
            return None;
        }
        return wait::for_turn(stay).err().map(fail);
    }
    stay.is_inside();
    let mut there = *into;
    let mut now = if owes { flags | libc::MSG_DONTWAIT } else { flags };
    let low = c.identity.user_rcvlowat.load(Relaxed) as usize;
    if low > 1 && !dontwait(stay) {
        // A receive that has begun keeps to the mark it began with, and would sleep over a
        // doorbell; poll does not.
        if let Err(e) = wait::for_kernel(stay, 0, into.left() < low)
            && c.queued(fd) == 0
        {
            c.leave_kernel_recv(stay.fd(), 0, true);
            return Some(fail(e));
        }
        now |= libc::MSG_DONTWAIT;
    }
    let r = if stay.is_over() {
        // Closed in another thread while this call waited: the number is nobody's, or another's.
        with_rest(&there, |v, n| {
            let mut m = empty_msg(v, n);
            // SAFETY: the application's buffers.
            unsafe { kernel::get().recvmsg(stay.fd(), &raw mut m, now) }
        })
    } else {
        kernel(&mut there, now)
    };
    if stay.is_gone() {
        return Some(r);
    }
    let seen = (flags & libc::MSG_TRUNC == 0).then_some(*into);
    let ended = after_kernel(stay.port(index), r, flags & libc::MSG_PEEK != 0, seen);
    if let Some(n @ 1..) = ended {
        into.skip(n as usize);
    }
    // Another thread was quicker.
    ended.filter(|n| !owes || *n != -(libc::EAGAIN as isize))
}

/// What a kernel receive that brought `r` into `into` gives the caller; None when the ring has what
/// it asked for.
#[inline(never)]
fn after_kernel(port: Port, r: isize, peek: bool, into: Option<Pieces>) -> Option<isize> {
    let Port { conn: c, fd, .. } = port;
    if r == 0 {
        drain::look_for_changes(c);
    }
    let payload = c.leave_kernel_recv_into(fd, r.max(0) as usize, peek, into);
    if r > 0 && payload > 0 {
        if !peek {
            witness::came(c, fd, into, payload);
        }
        after_op(port, payload);
    }
    if r == 0 && c.is_broken() {
        // The shutdown that woke this receive is ours, and no end of the stream.
        return None;
    }
    if c.receives_on_ring() {
        if !c.is_committed() {
            finish_upgrade(port);
        }
        fds::on_upgraded(port);
        if payload == 0 && (r > 0 || r == -(libc::EAGAIN as isize)) {
            return None;
        }
    }
    Some(if r > 0 { payload as isize } else { r })
}

/// Fast path on a ring that has data: what one buffer takes of it. None: nothing was done.
#[inline(always)]
fn at_once(port: Port, iov: &[iovec], flags: i32) -> Option<isize> {
    let Port { conn: c, fd, .. } = port;
    let [piece] = iov else { return None };
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0
        || !c.phase().receives_on_ring()
        || c.identity.user_rcvlowat.load(Relaxed) > 1
        || kernel::may_cancel()
    {
        return None;
    }
    // SAFETY: the application's buffer.
    let look = || unsafe { c.recv_at_once(fd, piece.iov_base.cast(), piece.iov_len) };
    if let Some(n) = look() {
        return Some(n as isize);
    }
    if flags & libc::MSG_DONTWAIT != 0 || !c.peer_elsewhere() || table::may_have_changed() {
        return None;
    }
    let Identity { spin, single, .. } = &c.identity;
    let how = spin::soon(spin, c.tx.counts.calls.load(Relaxed), || c.has_news());
    let n = if how == Soon::No { None } else { look() }?;
    match how {
        Soon::Left if n <= single.load(Relaxed) as usize => spin::no_stream(spin),
        Soon::Looked => single.store(n as u32, Relaxed),
        _ => {}
    }
    Some(n as isize)
}

/// Fast path while no upgrade has begun: make the plain call and count one operation. Err:
/// `receive` goes on with this stay on the general path.
#[inline(always)]
fn untouched(port: Port, flags: i32, plain: impl FnOnce() -> isize) -> Result<isize, Stay> {
    const LONG: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_PEEK | libc::MSG_WAITALL;
    let c = port.conn;
    let generation = c.identity.gen_.load(Relaxed);
    if flags & LONG != 0 || !c.enter_untouched_recv() {
        return Err(Stay::new(port));
    }
    let r = plain();
    if c.identity.gen_.load(Relaxed) != generation {
        // Closed meanwhile by another thread: the place in the table, and its counts, may be
        // another connection's.
        return Ok(r);
    }
    if !c.untouched() {
        return touched(port, r);
    }
    c.leave_untouched_recv();
    if r > 0 {
        after_op(port, r as usize);
    }
    Ok(r)
}

/// An upgrade has begun while the call was in the kernel; the application's descriptor may be
/// closed since.
#[cold]
#[inline(never)]
fn touched(port: Port, r: isize) -> Result<isize, Stay> {
    let mut stay = Stay::new(port);
    // Before it is counted out: a close in another thread must find it in one way or the other.
    stay.is_inside();
    after_kernel(stay.port(port.index), r, false, None).ok_or(stay)
}

/// recvfrom; `plain` is the application's own call.
///
/// # Safety
/// As for the system call.
pub unsafe fn recvfrom(
    fd: i32,
    piece: iovec,
    flags: i32,
    name: *const sockaddr,
    len: *mut socklen_t,
    plain: impl Fn() -> isize,
) -> isize {
    // SAFETY: the caller's obligation.
    let r = unsafe { recv(fd, &[piece], flags, plain) };
    if r < 0 || name.is_null() {
        return r;
    }
    // TCP has no name to fill in, and the kernel says so by a zero length: after the receive.
    if crate::faulty(len) {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's obligation.
    let room = unsafe { len.replace(0) };
    if (room as i32) < 0 {
        // SAFETY: as above.
        unsafe { len.write(room) };
        return fail(libc::EINVAL);
    }
    r
}

/// Receives into `iov`: read, recv, readv. `plain` is the application's own call.
///
/// # Safety
/// The memory that `iov` names must be the application's to write.
#[inline(always)]
pub unsafe fn recv(fd: i32, iov: &[iovec], flags: i32, plain: impl Fn() -> isize) -> isize {
    let Some(port) = fds::port(fd) else { return plain() };
    match untouched(port, flags, &plain) {
        Ok(r) => r,
        Err(stay) => match at_once(stay.port(port.index), iov, flags) {
            Some(n) => n,
            None => within_most(iov, |iov| recv_pieces(port.index, stay, iov, flags, &plain)),
        },
    }
}

#[inline(never)]
fn recv_pieces(
    index: u32,
    stay: Stay,
    iov: &[iovec],
    flags: i32,
    plain: &dyn Fn() -> isize,
) -> isize {
    let whole = iov.iter().map(|v| v.iov_len).sum::<usize>();
    let fd = stay.fd();
    receive(index, stay, Pieces::new(iov), flags, |into, fl| {
        if into.left() == whole && fl == flags {
            return plain();
        }
        with_rest(into, |v, n| {
            let mut m = empty_msg(v, n);
            // SAFETY: the application's buffers.
            unsafe { kernel::get().recvmsg(fd, &raw mut m, fl) }
        })
    })
}

/// recvmsg.
///
/// # Safety
/// As for the system call.
pub unsafe fn recvmsg(fd: i32, msg: *mut msghdr, flags: i32) -> isize {
    let world = kernel::get();
    // SAFETY: forwarded.
    let plain = |fl| unsafe { world.recvmsg(fd, msg, fl) };
    let Some(port) = fds::port(fd).filter(|_| !crate::faulty(msg)) else { return plain(flags) };
    // SAFETY: the application's message, which can be read.
    let pieces = unsafe { of_message(msg) };
    // SAFETY: as above.
    let named = unsafe { !(*msg).msg_name.is_null() };
    // SAFETY: as above. The kernel refuses such a length at once.
    let is_bad = named && unsafe { ((*msg).msg_namelen as i32) < 0 };
    let Some(v) = pieces.filter(|_| !is_bad) else { return plain(flags) };
    let stay = match untouched(port, flags, || plain(flags)) {
        Ok(r) => return r,
        Err(stay) => stay,
    };
    // Whether the kernel has filled in the application's own message.
    let mut filled = false;
    let r = within_most(v, |v| {
        let whole = v.iter().map(|e| e.iov_len).sum::<usize>();
        receive(port.index, stay, Pieces::new(v), flags, |into, fl| {
            if into.left() == whole {
                let r = plain(fl);
                filled = r >= 0;
                return r;
            }
            with_rest(into, |v, n| {
                let mut m = empty_msg(v, n);
                // SAFETY: the application's buffers.
                unsafe { world.recvmsg(fd, &raw mut m, fl) }
            })
        })
    });
    if r >= 0 && !filled {
        // SAFETY: the application's message, as above.
        let message = unsafe { &mut *msg };
        message.msg_flags = 0;
        if named {
            message.msg_namelen = 0;
        }
        match port.conn.identity.user_inq.load(Relaxed) {
            0 => message.msg_controllen = 0,
            // SAFETY: as above.
            _ => unsafe { option::tell_left(port.conn, fd, msg) },
        }
    }
    r
}

/// recvmmsg; `plain` is the application's own call. What is left of the time is written back.
///
/// # Safety
/// As for the system call.
pub unsafe fn recvmmsg(
    fd: i32,
    v: *mut mmsghdr,
    n: u32,
    flags: i32,
    time: *mut timespec,
    plain: impl Fn() -> isize,
) -> isize {
    // SAFETY: the caller's obligation.
    let limit = match unsafe { wait::duration(time) } {
        Ok(limit) => limit.map(|limit| kernel::get().now_ns().saturating_add(limit)),
        Err(_) => return plain(),
    };
    let Some(port) = fds::port(fd).filter(|_| !crate::faulty(v)) else { return plain() };
    // Unlike every other receive, it begins with an error that waits, also in front of bytes.
    let mut error = 0;
    if n > 0 {
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }
    if error != 0 && !(settle(port) && port.conn.ended_well()) {
        return fail(error);
    }
    let (mut done, mut left) = (0, None);
    while done < n {
        let m = v.wrapping_add(done as usize);
        let more =
            if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        // The header is what a message begins with.
        // SAFETY: the caller's obligation, for the next of `n` messages.
        let r = unsafe { recvmsg(fd, m.cast(), flags & !libc::MSG_WAITFORONE | more) };
        if r < 0 && done == 0 {
            return r;
        }
        if r < 0 {
            break;
        }
        // SAFETY: as above.
        unsafe { (*m).msg_len = r as u32 };
        done += 1;
        left = limit.map(|limit| limit.saturating_sub(kernel::get().now_ns()));
        if left == Some(0) {
            break;
        }
    }
    if let Some(left) = left {
        let left = core::time::Duration::from_nanos(left);
        let left = timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: the application's, which the kernel would write.
        unsafe { time.write(left) };
    }
    done as isize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{recv, send, serial, upgraded};

    #[test]
    fn a_look_takes_nothing() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(recv(pair.1, 4, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        send(pair.0, b"abcd", 0);
        assert_eq!(recv(pair.1, 2, libc::MSG_PEEK), Ok(b"ab".to_vec()));
        assert_eq!(recv(pair.1, 4, libc::MSG_PEEK | libc::MSG_WAITALL), Ok(b"abcd".to_vec()));
        assert_eq!(recv(pair.1, 4, 0), Ok(b"abcd".to_vec()));
    }

    #[test]
    fn an_end_is_told_behind_the_last_byte() {
        let _turn = serial();
        let pair = upgraded();
        send(pair.0, b"last", 0);
        let shut = || sys::shutdown(pair.0, libc::SHUT_WR);
        assert_eq!(crate::endpoint::shutdown(pair.0, libc::SHUT_WR, shut), 0);
        assert_eq!(send(pair.0, b"more", 0), -(libc::EPIPE as isize));
        assert_eq!(recv(pair.1, 8, libc::MSG_WAITALL), Ok(b"last".to_vec()));
        assert_eq!(recv(pair.1, 8, 0), Ok(Vec::new()));
        assert_eq!(send(pair.1, b"still", 0), 5);
        assert_eq!(recv(pair.0, 8, 0), Ok(b"still".to_vec()));
    }

    #[test]
    fn messages_are_filled_one_after_the_other() {
        let _turn = serial();
        let pair = upgraded();
        send(pair.0, b"12345", 0);
        let mut bytes = [[0u8; 3]; 3];
        let iov: [[iovec; 1]; 3] =
            bytes.each_mut().map(|b| [iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }]);
        let mut all =
            iov.each_ref().map(|v| mmsghdr { msg_hdr: empty_msg(v.as_ptr(), 1), msg_len: 9 });
        // SAFETY: live messages.
        let got = unsafe {
            recvmmsg(
                pair.1,
                all.as_mut_ptr(),
                3,
                libc::MSG_WAITFORONE,
                core::ptr::null_mut(),
                || panic!("it is upgraded"),
            )
        };
        assert_eq!((got, all[0].msg_len, all[1].msg_len), (2, 3, 2));
        assert_eq!(core::hint::black_box(&bytes)[..2], [*b"123", *b"45\0"]);
    }
}
