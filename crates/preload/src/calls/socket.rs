//! Sockets come into being, listen, connect, shut down.
#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use socket::{endpoint, fds};

use crate::{next, tell, told};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, proto: c_int) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    endpoint::made(domain, kind, proto, unsafe { next::socket(domain, kind, proto) } as isize)
        as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, a: *mut sockaddr, l: *mut socklen_t) -> c_int {
    endpoint::accepted(fd, unsafe { next::accept(fd, a, l) } as isize) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    a: *mut sockaddr,
    l: *mut socklen_t,
    flags: c_int,
) -> c_int {
    endpoint::accepted(fd, unsafe { next::accept4(fd, a, l, flags) } as isize) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, a: *const sockaddr, l: socklen_t) -> c_int {
    unsafe {
        endpoint::before_connect(fd, a, l);
        let r = next::connect(fd, a, l);
        if !smc::meet::may_offer() {
            return r;
        }
        tell(endpoint::connected(fd, a, l, told(r as isize))) as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __connect(fd: c_int, a: *const sockaddr, l: socklen_t) -> c_int {
    unsafe { connect(fd, a, l) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    tell(endpoint::shutdown(fd, how, || told(unsafe { next::shutdown(fd, how) } as isize))) as c_int
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
pub unsafe extern "C" fn socketpair(
    domain: c_int,
    kind: c_int,
    proto: c_int,
    pair: *mut c_int,
) -> c_int {
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
