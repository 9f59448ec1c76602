//! Sockets come into being, listen, connect, shut down.
#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use smc::sys;

use crate::fds::{self, Kind};
use crate::{errno, next};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, proto: c_int) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    let fd = unsafe { next::socket(domain, kind, proto) };
    if fd >= 0 {
        let stream = kind & 0xf == libc::SOCK_STREAM;
        let inet = domain == libc::AF_INET || domain == libc::AF_INET6;
        fds::mark(
            fd,
            if stream && inet && (proto == 0 || proto == libc::IPPROTO_TCP) { Kind::Tcp } else { Kind::Other },
        );
    }
    fd
}

/// Marks what accept returned.
fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd < 0 || fds::has_left() {
        return fds::purge(fd);
    }
    let tcp = match fds::kind(listener) {
        Kind::Tcp | Kind::Conn(_) => true,
        // A listener from before our time, by exec or SCM_RIGHTS: ask what it is.
        _ => {
            let e = errno();
            let mut proto = 0i32;
            sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut proto);
            crate::set_errno(e);
            proto == libc::IPPROTO_TCP
        }
    };
    fds::mark(fd, if tcp { Kind::Tcp } else { Kind::Other });
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, a: *mut sockaddr, l: *mut socklen_t) -> c_int {
    accepted(fd, unsafe { next::accept(fd, a, l) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, a: *mut sockaddr, l: *mut socklen_t, flags: c_int) -> c_int {
    accepted(fd, unsafe { next::accept4(fd, a, l, flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, a: *const sockaddr, l: socklen_t) -> c_int {
    if let Some((index, c)) = fds::existing(fd) {
        // AF_UNSPEC dissolves the connection; the next one on this descriptor begins anew, on TCP.
        // SAFETY: an address of at least two bytes.
        let dissolves = l >= 2 && !crate::faulty(a) && unsafe { (*a).sa_family } == libc::AF_UNSPEC as u16;
        if dissolves && c.switched() {
            // What is unread goes with it, so nothing is for our own receives to find.
            fds::leave_ring(index, c, fd, smc::reason::REVERTED.code());
        }
    }
    unsafe { next::connect(fd, a, l) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __connect(fd: c_int, a: *const sockaddr, l: socklen_t) -> c_int {
    unsafe { connect(fd, a, l) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some((index, c)) = fds::existing(fd)
        && (0..=2).contains(&how)
    {
        super::io::settle(index, c, fd);
        let first = !c.sends_are_shut();
        c.shutdown(fd, how);
        let before = crate::errno();
        let r = unsafe { next::shutdown(fd, how) };
        let none = r < 0 && crate::errno() == libc::ENOTCONN;
        if none && first && c.is_reset_by_doorbell() {
            if how != libc::SHUT_RD {
                // Or the next send would be told of the reset, instead of this shutdown.
                smc::sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut 0i32);
            }
            crate::set_errno(before);
            return 0;
        }
        return r;
    }
    unsafe { next::shutdown(fd, how) }
}

/// Two descriptors that cannot be ours.
unsafe fn made(r: c_int, pair: *mut c_int) -> c_int {
    if r >= 0 {
        // SAFETY: two ints, written just now.
        unsafe {
            fds::purge(*pair);
            fds::purge(*pair.add(1));
        }
    }
    r
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socketpair(domain: c_int, kind: c_int, proto: c_int, pair: *mut c_int) -> c_int {
    unsafe { made(next::socketpair(domain, kind, proto, pair), pair) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pipe2(pair: *mut c_int, flags: c_int) -> c_int {
    unsafe { made(next::pipe2(pair, flags), pair) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pipe(pair: *mut c_int) -> c_int {
    unsafe { made(next::pipe(pair), pair) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn eventfd(initial: libc::c_uint, flags: c_int) -> c_int {
    fds::purge(unsafe { next::eventfd(initial, flags) })
}
