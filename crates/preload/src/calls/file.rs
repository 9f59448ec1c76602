//! sendfile, splice and the socket options.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};

use libc::{off_t, size_t, socklen_t, ssize_t};
use socket::{file, option};

use crate::{next, tell, told};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, input: c_int, off: *mut off_t, n: size_t) -> ssize_t {
    let null = core::ptr::null_mut();
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    unsafe {
        let call = |n| told(next::sendfile(out, input, off, n));
        let splice = |flags, n| told(next::splice(input, null, out, null, n, flags));
        tell(file::sendfile(out, input, off, n, &call, &splice))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    input: c_int,
    off: *mut off_t,
    n: size_t,
) -> ssize_t {
    unsafe { sendfile(out, input, off, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    i: c_int,
    io: *mut i64,
    o: c_int,
    oo: *mut i64,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    tell(file::splice(i, io, o, oo, n, flags, |n| {
        told(unsafe { next::splice(i, io, o, oo, n, flags) })
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    v: *const c_void,
    l: socklen_t,
) -> c_int {
    unsafe {
        let plain = || told(next::setsockopt(fd, level, name, v, l) as isize);
        tell(option::set(fd, level, name, v, l, plain)) as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    v: *mut c_void,
    l: *mut socklen_t,
) -> c_int {
    unsafe {
        let plain = || told(next::getsockopt(fd, level, name, v, l) as isize);
        tell(option::get(fd, level, name, v, l, plain)) as c_int
    }
}
