//! Socket options that a doorbell on the TCP stream could not live with are kept in user space.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;

use libc::socklen_t;
use smc::conn::{Conn, RDHUP};
use smc::meet::inherited;
use smc::{reason, sys};

use crate::bell::LIMITS;
use crate::epoll;
use crate::fds::{self, Port};
use crate::pass::{cmsg_len, cmsg_space};
use crate::transmit::send_what_was_deferred;

// Not in the libc crate.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_BUF_LOCK: c_int = 72;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;
const TCP_INQ: c_int = 36;

/// What only the kernel's stream can give: from then on the connection is TCP.
fn is_for_tcp(level: c_int, name: c_int) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_REPAIR) || inherited::is_for_tcp(level, name)
}

/// The int that an option is set to.
unsafe fn int(v: *const c_void, l: socklen_t) -> Option<c_int> {
    // SAFETY: the application gives `l` bytes.
    (!crate::faulty(v) && (size_of::<c_int>() as i32..).contains(&(l as i32)))
        .then(|| unsafe { v.cast::<c_int>().read_unaligned() })
}

/// setsockopt; `plain` is the application's own call.
///
/// # Safety
/// `v` and `l` must be what the application gives to setsockopt.
pub unsafe fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    v: *const c_void,
    l: socklen_t,
    plain: impl Fn() -> isize,
) -> isize {
    // SAFETY: the caller's obligation.
    let value = || unsafe { int(v, l) };
    // On whatever socket: a listener's come to be those of its connections. Nobody can be asked later
    // whether there is a key, so one that the kernel refuses would keep all connections on TCP.
    let is_key = inherited::is_key(level, name);
    if !is_key {
        inherited::note(level, name);
    }
    let plain = || {
        let r = plain();
        if is_key && r == 0 {
            inherited::note(level, name);
        }
        r
    };
    let tracked = match (level, name) {
        _ if value().is_some_and(|v| inherited::is_unset(level, name, v as u32)) => return plain(),
        (libc::IPPROTO_TCP, libc::TCP_ULP | TCP_INQ) | (libc::SOL_SOCKET, libc::SO_OOBINLINE) => {
            fds::port(fd)
        }
        _ if is_for_tcp(level, name) => fds::port(fd),
        _ => fds::existing(fd),
    };
    let Some(port) = tracked else { return plain() };
    let c = port.conn;
    let switched = c.switched();
    if level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) {
        let r = plain();
        // SYNC: limits. Behind the setting.
        LIMITS.fetch_add(1, Release);
        return r;
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) => {
            fds::go_back_for_others(port, reason::KTLS.code());
            plain()
        }
        _ if is_for_tcp(level, name) => {
            fds::go_back(port, reason::SOCK_OPT.code());
            plain()
        }
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => {
            fds::go_back(port, reason::URGENT.code());
            plain()
        }
        (libc::IPPROTO_TCP, TCP_INQ) => {
            let r = plain();
            if r == 0
                && let Some(on) = value()
            {
                c.identity.user_inq.store(on as u32, Relaxed);
            }
            r
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            let r = plain();
            if r == 0
                && let Some(ms) = value()
            {
                c.set_patience(ms as u32);
            }
            r
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => {
            let Some(on) = value() else { return plain() };
            let bit = if name == libc::TCP_NODELAY { 1 } else { 2 };
            c.keep_nodelay(bit, on != 0);
            if !switched {
                let r = plain();
                // SYNC: options. After ours, as the upgrade's setting comes after its mark: the
                // last one always is the upgrade's.
                c.keep_prompt(fd);
                return r;
            }
            if bit == 1 && on != 0 || bit == 2 && on == 0 {
                c.push(fd);
                send_what_was_deferred(port);
            }
            if let Some(t) = smc::table::get() {
                if bit == 1 { &t.stats.nodelay } else { &t.stats.cork }.fetch_add(1, Relaxed);
            }
            0
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
            let Some(low) = value() else { return plain() };
            fds::MARKED.fetch_or(low != 1, Relaxed);
            let new = if low < 0 { i32::MAX as u32 } else { low.max(1) as u32 };
            let before = c.identity.user_rcvlowat.swap(new, SeqCst);
            let r = plain();
            // The kernel has its own idea of the most; 1 is what the upgrade has set in between.
            let mut kept = 1u32;
            sys::getsockopt(fd, level, name, &mut kept);
            if kept > 1 {
                c.identity.user_rcvlowat.store(kept, SeqCst);
            }
            // SYNC: options.
            c.keep_waking(fd);
            if new < before && c.is_exposed() {
                // Who sleeps on a set for more bytes than are there is not rung again for them.
                epoll::on_more_room(port.index);
            }
            r
        }
        (
            libc::SOL_SOCKET,
            libc::SO_SNDBUF
            | libc::SO_RCVBUF
            | libc::SO_SNDBUFFORCE
            | libc::SO_RCVBUFFORCE
            | SO_BUF_LOCK,
        )
        | (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => {
            let r = plain();
            // SYNC: options.
            if c.keep_bounds(fd) {
                epoll::on_more_room(port.index);
            }
            r
        }
        _ => plain(),
    }
}

/// getsockopt; `plain` is the application's own call.
///
/// # Safety
/// `v` and `l` must be what the application gives to getsockopt.
pub unsafe fn get(
    fd: c_int,
    level: c_int,
    name: c_int,
    v: *mut c_void,
    l: *mut socklen_t,
    plain: impl Fn() -> isize,
) -> isize {
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE)
        && let Some(port) = fds::port(fd)
    {
        // It maps the pages of whatever is in the kernel's stream.
        fds::go_back(port, reason::SOCK_OPT.code());
    }
    if let Some(Port { conn: c, .. }) = fds::existing(fd)
        && c.is_exposed()
        && !crate::faulty(v)
        && !crate::faulty(l)
        // SAFETY: a length to read, as libc demands.
        && unsafe { *l } as i32 >= 0
    {
        let kept = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                Some(c.identity.user_nodelay.load(Relaxed) & 1)
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                Some(c.identity.user_nodelay.load(Relaxed) >> 1 & 1)
            }
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
                Some(c.identity.user_rcvlowat.load(Relaxed).max(1))
            }
            _ => None,
        };
        if let Some(value) = kept {
            // SAFETY: a length to read and to write, as libc demands.
            let len = unsafe { &mut *l };
            let n = (*len as usize).min(size_of::<c_int>());
            // SAFETY: the application gives so many bytes; the kernel cuts the answer in the same
            // way.
            unsafe {
                core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), v.cast::<u8>(), n)
            };
            *len = n as socklen_t;
            return 0;
        }
    }
    let r = plain();
    if r == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(Port { conn: c, .. }) = fds::existing(fd)
        && c.switched()
        // SAFETY: the kernel has just written so many bytes there.
        && unsafe { *l } as usize == size_of::<c_int>()
    {
        let error = v.cast::<c_int>();
        // SAFETY: as above.
        let told = unsafe { error.read_unaligned() };
        // SAFETY: as above.
        unsafe { error.write_unaligned(c.error_heard(told)) };
    }
    r
}

/// The control data of a receive of ours, of which the application wants to know how much is left
/// behind it (TCP_INQ).
///
/// # Safety
/// As for recvmsg.
#[cold]
pub unsafe fn tell_left(c: &Conn, fd: c_int, msg: *mut libc::msghdr) {
    const CM_INQ: c_int = TCP_INQ;
    let left = match c.unread(fd) {
        0 if c.ready(fd) & RDHUP != 0 => 1,
        left => left as c_int,
    };
    // SAFETY: the caller's message.
    let msg = unsafe { &mut *msg };
    // SAFETY: a message; null if there is no room for a header.
    let at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    if at.is_null() || crate::faulty(at) {
        msg.msg_flags |= libc::MSG_CTRUNC;
        msg.msg_controllen = 0;
        return;
    }
    let room = msg.msg_controllen;
    let (len, begin) = (cmsg_len(size_of::<c_int>()), cmsg_len(0));
    // SAFETY: the application vouches for the buffer, in which there is room for a header.
    let header = unsafe { &mut *at };
    (header.cmsg_level, header.cmsg_type, header.cmsg_len) =
        (libc::IPPROTO_TCP, CM_INQ, len.min(room));
    if room < len {
        msg.msg_flags |= libc::MSG_CTRUNC;
    }
    let data = at.cast::<u8>().wrapping_add(begin);
    // SAFETY: no more is written than the buffer is long.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const left).cast::<u8>(), data, room.min(len) - begin)
    };
    msg.msg_controllen = cmsg_space(size_of::<c_int>()).min(room);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{port, serial, upgraded};

    fn set_int(fd: c_int, level: c_int, name: c_int, value: c_int) -> isize {
        let v: *const c_void = (&raw const value).cast();
        // SAFETY: a live int.
        unsafe { set(fd, level, name, v, 4, || sys::setsockopt(fd, level, name, &value)) }
    }

    fn get_int(fd: c_int, level: c_int, name: c_int) -> c_int {
        let (mut value, mut len) = (-1, 4);
        let (v, l) = (&raw mut value, &raw mut len);
        let plain = || {
            let mut kernels = 0;
            let n = sys::getsockopt(fd, level, name, &mut kernels);
            // SAFETY: a live local.
            unsafe { *v = kernels };
            // SAFETY: a live local.
            unsafe { *l = n as socklen_t };
            n.min(0)
        };
        // SAFETY: live locals.
        assert_eq!(unsafe { get(fd, level, name, v.cast(), l, plain) }, 0);
        assert_eq!(len, 4);
        value
    }

    #[test]
    fn what_the_upgrade_has_set_is_not_shown() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(get_int(pair.0, libc::IPPROTO_TCP, libc::TCP_NODELAY), 0);
        assert_eq!(set_int(pair.0, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1), 0);
        assert_eq!(get_int(pair.0, libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(set_int(pair.0, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100), 0);
        assert_eq!(get_int(pair.0, libc::SOL_SOCKET, libc::SO_RCVLOWAT), 100);
        assert_eq!(set_int(pair.0, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 0), 0);
        assert_eq!(get_int(pair.0, libc::SOL_SOCKET, libc::SO_RCVLOWAT), 1);
    }

    #[test]
    fn time_stamps_are_the_kernels() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(set_int(pair.0, libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1), 0);
        assert_eq!(port(pair.0).conn.identity.reason.load(Relaxed), reason::SOCK_OPT.code());
    }
}
