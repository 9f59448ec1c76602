//! read and write in all their forms.
#![allow(unsafe_code)]

pub mod deferred;
mod receive;
mod transmit;

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::sync::atomic::Ordering::*;

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use smc::conn::{Conn, Pieces};
use smc::{meet, sys};

use receive::{receive, recv_iov};
use transmit::{send_iov, transmit, transmit_deferred};

use crate::{errno, fail, fds, next};

/// Counts an operation over TCP and takes the upgrade on when it is time.
#[inline]
pub fn after_op(index: u32, c: &Conn, fd: c_int, bytes: usize) {
    let ops = c.ops.load(Relaxed).wrapping_add(1);
    c.ops.store(ops, Relaxed);
    let total = c.tcp_bytes.load(Relaxed) + bytes as u64;
    c.tcp_bytes.store(total, Relaxed);
    let limit = smc::config::CONFIG.after_bytes.load(Relaxed);
    if ops >= c.next_try.load(Relaxed) || (total >= limit && total - (bytes as u64) < limit) {
        upgrade(index, c, fd);
    }
}

/// How long a step of another thread is waited for, 50 us each: that thread may be put off by a busy machine.
const STEPS: u32 = 10_000;

#[cold]
fn upgrade(index: u32, c: &Conn, fd: c_int) {
    let e = errno();
    // A step needs more stack than a handler may have been given. It is taken up with the next operation elsewhere.
    if shm::lock::on_signal_stack() {
        return;
    }
    if meet::step(c, fd, || fds::is_shared(index)) && c.switched() {
        fds::on_upgraded(index, fd);
    }
    crate::set_errno(e);
}

/// Takes the step without which the peer, which has left TCP, cannot be asked for doorbells; waits for another thread that is
/// taking it. Following the peer without it, a thread would read what others sleep for, and leave them asleep.
#[cold]
fn finish_upgrade(index: u32, c: &Conn, fd: c_int) {
    for _ in 0..STEPS {
        let elsewhere = c.is_upgraded_elsewhere();
        upgrade(index, c, fd);
        if c.is_committed() || c.is_frozen() || c.is_closed() || !elsewhere {
            return;
        }
        let t = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        // SAFETY: `t` is live.
        unsafe { sys::syscall(libc::SYS_nanosleep, &raw const t as usize, 0, 0, 0, 0, 0) };
    }
}

/// Lets receives follow the peer off TCP. True when they come from the ring.
pub fn settle(index: u32, c: &Conn, fd: c_int) -> bool {
    let ph = c.phase();
    if ph.receives_on_ring() {
        if !ph.is_committed() {
            finish_upgrade(index, c, fd);
        }
        return true;
    }
    if !ph.is_exposed() {
        return false;
    }
    if ph.may_switch_sends() {
        if c.try_switch_tx(fd) {
            fds::on_upgraded(index, fd);
        }
        if deferred::any() {
            transmit_deferred(index, c, fd);
        }
    }
    if !c.switch_due() {
        return false;
    }
    if !ph.is_committed() {
        // The peer confirmed before it switched, so its Confirm is there to be read.
        finish_upgrade(index, c, fd);
    }
    if !c.settle_rx(fd) {
        return false;
    }
    fds::on_upgraded(index, fd);
    true
}

/// Runs `f` with what is left as an iovec array.
fn with_rest<R>(pieces: &Pieces, f: impl FnOnce(*const iovec, usize) -> R) -> R {
    let mut few = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 16];
    let n = pieces.rest(&mut few);
    if n < few.len() {
        return f(few.as_ptr(), n);
    }
    let mut many = vec![few[0]; libc::UIO_MAXIOV as usize];
    let n = pieces.rest(&mut many);
    f(many.as_ptr(), n)
}

fn empty_msg(iov: *const iovec, n: usize) -> msghdr {
    // SAFETY: all-zero is a valid msghdr.
    let mut m: msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = iov.cast_mut();
    m.msg_iovlen = n;
    m
}

#[inline(always)]
fn one(buf: *const c_void, n: size_t) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: n.min(MOST) }
}

unsafe fn slice<'a>(iov: *const iovec, n: c_long) -> Option<&'a [iovec]> {
    if !(0..=libc::UIO_MAXIOV as c_long).contains(&n) || (n > 0 && crate::faulty(iov)) {
        return None;
    }
    // SAFETY: the application vouches for n elements.
    let v = if n == 0 { &[] } else { unsafe { core::slice::from_raw_parts(iov, n as usize) } };
    let mut total = 0usize;
    // The kernel refuses a negative length or sum; let it.
    v.iter()
        .all(|e| {
            total = total.saturating_add(e.iov_len);
            total <= isize::MAX as usize
        })
        .then_some(v)
}

/// The kernel cuts a request at this length, and so must a ring: counts of calls are ints in places.
const MOST: usize = 0x7fff_f000;

/// Runs `f` with as much of `iov` as one call may move.
#[inline]
fn within_most<R>(iov: &[iovec], f: impl FnOnce(&[iovec]) -> R) -> R {
    if iov.iter().map(|e| e.iov_len).sum::<usize>() <= MOST {
        return f(iov);
    }
    let mut left = MOST;
    let cut: Vec<iovec> = iov
        .iter()
        .map(|e| {
            let n = e.iov_len.min(left);
            left -= n;
            iovec { iov_base: e.iov_base, iov_len: n }
        })
        .collect();
    f(&cut)
}

macro_rules! watched {
    ($fd:expr, $plain:expr) => {
        if fds::kind($fd) == fds::Kind::Other {
            return $plain;
        }
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    watched!(fd, unsafe { next::read(fd, buf, n) });
    if n == 0 {
        // Unlike recv, read of nothing never waits.
        return unsafe { next::read(fd, buf, n) };
    }
    unsafe { recv_iov(fd, &[one(buf, n)], 0, || next::read(fd, buf, n)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    watched!(fd, unsafe { next::recv(fd, buf, n, flags) });
    unsafe { recv_iov(fd, &[one(buf, n)], flags, || next::recv(fd, buf, n, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    a: *mut sockaddr,
    l: *mut socklen_t,
) -> ssize_t {
    watched!(fd, unsafe { next::recvfrom(fd, buf, n, flags, a, l) });
    unsafe {
        let r = recv_iov(fd, &[one(buf, n)], flags, || next::recvfrom(fd, buf, n, flags, a, l));
        // TCP fills no address in; the kernel says so by a zero length.
        if r >= 0 && !a.is_null() && !crate::faulty(l) {
            *l = 0;
        }
        r
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    watched!(fd, unsafe { next::readv(fd, iov, n) });
    unsafe {
        match slice(iov, n.into()) {
            Some(v) if v.iter().any(|e| e.iov_len > 0) => recv_iov(fd, v, 0, || next::readv(fd, iov, n)),
            Some(_) => next::readv(fd, iov, n),
            None => next::readv(fd, iov, n),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
    watched!(fd, unsafe { next::preadv2(fd, iov, n, off, flags) });
    unsafe {
        match slice(iov, n.into()) {
            // As for readv: of nothing it never waits.
            Some(v) if off == -1 && v.iter().any(|e| e.iov_len > 0) => {
                let fl = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
                recv_iov(fd, v, fl, || next::preadv2(fd, iov, n, off, flags))
            }
            _ => next::preadv2(fd, iov, n, off, flags),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    unsafe {
        if fds::kind(fd) == fds::Kind::Other {
            let r = next::recvmsg(fd, msg, flags);
            if r >= 0 && !crate::faulty(msg) && (*msg).msg_controllen > 0 {
                super::fd::after_passing(msg);
            }
            return r;
        }
        if crate::faulty(msg) {
            return next::recvmsg(fd, msg, flags);
        }
        let Some((index, c)) = fds::conn_of(fd) else { return next::recvmsg(fd, msg, flags) };
        let Some(v) = slice((*msg).msg_iov, (*msg).msg_iovlen as c_long) else { return next::recvmsg(fd, msg, flags) };
        let stay = match receive::untouched(index, c, fd, flags, || next::recvmsg(fd, msg, flags)) {
            Ok(r) => return r,
            Err(stay) => stay,
        };
        let mut asked = false;
        let r = within_most(v, |v| {
            let whole = v.iter().map(|e| e.iov_len).sum::<usize>();
            receive(index, stay, Pieces::new(v), flags, |into, fl| {
                asked = true;
                if into.left() == whole {
                    return next::recvmsg(fd, msg, fl);
                }
                with_rest(into, |v, n| {
                    let mut m = empty_msg(v, n);
                    next::recvmsg(fd, &raw mut m, fl)
                })
            })
        });
        if r >= 0 && !asked {
            (*msg).msg_namelen = 0;
            (*msg).msg_flags = 0;
            match c.user_inq.load(Relaxed) {
                0 => (*msg).msg_controllen = 0,
                _ => super::option::tell_left(c, fd, msg),
            }
        }
        r
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int, t: *mut timespec) -> c_int {
    watched!(fd, unsafe { next::recvmmsg(fd, v, n, flags, t) });
    unsafe {
        let bad_limit = |t: *mut timespec| {
            !t.is_null() && (crate::faulty(t) || (*t).tv_sec < 0 || !(0..1_000_000_000).contains(&(*t).tv_nsec))
        };
        let (false, false, Some((index, c))) = (crate::faulty(v), bad_limit(t), fds::conn_of(fd)) else {
            return next::recvmmsg(fd, v, n, flags, t);
        };
        // Unlike every other receive, it begins with an error that waits, also in front of bytes.
        let mut error = 0;
        if n > 0 {
            smc::sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        }
        if error != 0 && !(settle(index, c, fd) && c.ended_well()) {
            return fail(error) as c_int;
        }
        let limit =
            (!t.is_null()).then(|| smc::sys::now_ns() + (*t).tv_sec as u64 * 1_000_000_000 + (*t).tv_nsec as u64);
        let mut done = 0;
        while done < n {
            let m = v.add(done as usize);
            let more = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
            let r = recvmsg(fd, &raw mut (*m).msg_hdr, flags & !libc::MSG_WAITFORONE | more);
            if r < 0 {
                return if done > 0 { done as c_int } else { -1 };
            }
            (*m).msg_len = r as c_uint;
            done += 1;
            if limit.is_some_and(|l| smc::sys::now_ns() >= l) {
                break;
            }
        }
        done as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    watched!(fd, unsafe { next::write(fd, buf, n) });
    unsafe { send_iov(fd, &[one(buf, n)], 0, || next::write(fd, buf, n)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    watched!(fd, unsafe { next::send(fd, buf, n, flags) });
    unsafe { send_iov(fd, &[one(buf, n)], flags, || next::send(fd, buf, n, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    a: *const sockaddr,
    l: socklen_t,
) -> ssize_t {
    watched!(fd, unsafe { next::sendto(fd, buf, n, flags, a, l) });
    // An address on a connected TCP socket is ignored, except by TCP fast open on one that is not connected.
    unsafe { send_iov(fd, &[one(buf, n)], flags, || next::sendto(fd, buf, n, flags, a, l)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    watched!(fd, unsafe { next::writev(fd, iov, n) });
    unsafe {
        match slice(iov, n.into()) {
            Some(v) => send_iov(fd, v, 0, || next::writev(fd, iov, n)),
            None => next::writev(fd, iov, n),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
    watched!(fd, unsafe { next::pwritev2(fd, iov, n, off, flags) });
    unsafe {
        match slice(iov, n.into()) {
            Some(v) if off == -1 => {
                let fl = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
                send_iov(fd, v, fl, || next::pwritev2(fd, iov, n, off, flags))
            }
            _ => next::pwritev2(fd, iov, n, off, flags),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    unsafe {
        if fds::kind(fd) == fds::Kind::Other {
            if crate::faulty(msg) || (*msg).msg_controllen == 0 {
                return next::sendmsg(fd, msg, flags);
            }
            super::fd::before_passing(msg);
            let r = next::sendmsg(fd, msg, flags);
            if r < 0 {
                let e = errno();
                super::fd::undo_passing(msg);
                crate::set_errno(e);
            }
            return r;
        }
        if crate::faulty(msg) {
            return next::sendmsg(fd, msg, flags);
        }
        let Some((index, c)) = fds::conn_of(fd) else { return next::sendmsg(fd, msg, flags) };
        let Some(v) = slice((*msg).msg_iov, (*msg).msg_iovlen as c_long) else { return next::sendmsg(fd, msg, flags) };
        if let Some(r) = transmit::untouched(index, c, fd, flags, || next::sendmsg(fd, msg, flags)) {
            return r;
        }
        if (*msg).msg_controllen > 0 && c.sends_on_ring() {
            // The kernel looks at what comes with the bytes, and may refuse it.
            let nothing = msghdr { msg_iovlen: 0, ..*msg };
            if next::sendmsg(fd, &raw const nothing, flags) < 0 {
                return -1;
            }
        }
        within_most(v, |v| {
            let whole = v.iter().map(|e| e.iov_len).sum::<usize>();
            let all = Pieces::new(v).before_more(flags & libc::MSG_MORE != 0);
            transmit(index, c, fd, all, flags, |from, fl| {
                if from.left() == whole {
                    return next::sendmsg(fd, msg, fl);
                }
                with_rest(from, |v, n| {
                    let m = empty_msg(v, n);
                    next::sendmsg(fd, &raw const m, fl)
                })
            })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    unsafe {
        if crate::faulty(v) {
            return next::sendmmsg(fd, v, n, flags);
        }
        if fds::conn_of(fd).is_none() {
            for i in 0..n as usize {
                if (*v.add(i)).msg_hdr.msg_controllen > 0 {
                    super::fd::before_passing(&raw const (*v.add(i)).msg_hdr);
                }
            }
            return next::sendmmsg(fd, v, n, flags);
        }
        for done in 0..n {
            let m = v.add(done as usize);
            let r = sendmsg(fd, &raw const (*m).msg_hdr, flags);
            if r < 0 {
                return if done > 0 { done as c_int } else { -1 };
            }
            (*m).msg_len = r as c_uint;
            let h = &raw const (*m).msg_hdr;
            let whole = slice((*h).msg_iov, (*h).msg_iovlen as c_long).map_or(0, |v| v.iter().map(|e| e.iov_len).sum());
            if (r as usize) < whole {
                // Going on with the next message would leave a hole in the stream.
                return done as c_int + 1;
            }
        }
        n as c_int
    }
}

macro_rules! alias {
    ($($name:ident ( $($a:ident : $t:ty),* ) -> $r:ty = $of:expr;)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> $r {
            // SAFETY: the same contract under another name.
            unsafe { $of }
        })*
    };
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// What _FORTIFY_SOURCE checks.
unsafe fn fits(n: size_t, room: size_t) {
    if n > room {
        // SAFETY: ends the process, as glibc does.
        unsafe { __chk_fail() }
    }
}

alias! {
    __read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = read(fd, buf, n);
    __write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = write(fd, buf, n);
    __send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t = send(fd, buf, n, flags);
    __recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t = recv(fd, buf, n, flags);
    __sendmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = sendmmsg(fd, v, n, flags);
    preadv64v2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, fl: c_int) -> ssize_t = preadv2(fd, iov, n, off, fl);
    pwritev64v2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, fl: c_int) -> ssize_t = pwritev2(fd, iov, n, off, fl);
    __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t = { fits(n, room); read(fd, buf, n) };
    __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, fl: c_int) -> ssize_t =
        { fits(n, room); recv(fd, buf, n, fl) };
    __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, fl: c_int, a: *mut sockaddr, l: *mut socklen_t)
        -> ssize_t = { fits(n, room); recvfrom(fd, buf, n, fl, a, l) };
}
