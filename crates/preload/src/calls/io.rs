//! read and write in all their forms.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use socket::pieces::{one, slice};
use socket::{fds, pass, receive, transmit};

use crate::{errno, next, set_errno, tell, told};

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
    tell(unsafe { receive::recv(fd, &[one(buf, n)], 0, || told(next::read(fd, buf, n))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    watched!(fd, unsafe { next::recv(fd, buf, n, flags) });
    tell(unsafe {
        receive::recv(fd, &[one(buf, n)], flags, || told(next::recv(fd, buf, n, flags)))
    })
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
    tell(unsafe {
        receive::recvfrom(fd, one(buf, n), flags, a, l, || {
            told(next::recvfrom(fd, buf, n, flags, a, l))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    watched!(fd, unsafe { next::readv(fd, iov, n) });
    unsafe {
        match slice(iov, n as isize) {
            Some(v) if v.iter().any(|e| e.iov_len > 0) => {
                tell(receive::recv(fd, v, 0, || told(next::readv(fd, iov, n))))
            }
            _ => next::readv(fd, iov, n),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    off: off_t,
    flags: c_int,
) -> ssize_t {
    watched!(fd, unsafe { next::preadv2(fd, iov, n, off, flags) });
    unsafe {
        match slice(iov, n as isize) {
            // As for readv: of nothing it never waits.
            Some(v) if off == -1 && v.iter().any(|e| e.iov_len > 0) => {
                let fl = match socket::pieces::flags(flags) {
                    Ok(fl) => fl,
                    Err(e) => return tell(e),
                };
                tell(receive::recv(fd, v, fl, || told(next::preadv2(fd, iov, n, off, flags))))
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
            if r >= 0 && !socket::faulty(msg) && (*msg).msg_controllen > 0 {
                pass::after(msg);
            }
            return r;
        }
        tell(receive::recvmsg(fd, msg, flags))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    v: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    t: *mut timespec,
) -> c_int {
    unsafe {
        if fds::kind(fd) == fds::Kind::Other {
            return pass::recvmmsg(v, || next::recvmmsg(fd, v, n, flags, t) as isize) as c_int;
        }
        tell(receive::recvmmsg(fd, v, n, flags, t, || {
            told(next::recvmmsg(fd, v, n, flags, t) as isize)
        })) as c_int
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    watched!(fd, unsafe { next::write(fd, buf, n) });
    tell(unsafe { transmit::send(fd, &[one(buf, n)], 0, || told(next::write(fd, buf, n))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    watched!(fd, unsafe { next::send(fd, buf, n, flags) });
    tell(unsafe {
        transmit::send(fd, &[one(buf, n)], flags, || told(next::send(fd, buf, n, flags)))
    })
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
    tell(unsafe {
        transmit::sendto(fd, one(buf, n), flags, a, l, || {
            told(next::sendto(fd, buf, n, flags, a, l))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    watched!(fd, unsafe { next::writev(fd, iov, n) });
    unsafe {
        match slice(iov, n as isize) {
            Some(v) => tell(transmit::send(fd, v, 0, || told(next::writev(fd, iov, n)))),
            None => next::writev(fd, iov, n),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    off: off_t,
    flags: c_int,
) -> ssize_t {
    watched!(fd, unsafe { next::pwritev2(fd, iov, n, off, flags) });
    unsafe {
        match slice(iov, n as isize) {
            Some(v) if off == -1 => {
                let fl = match socket::pieces::flags(flags) {
                    Ok(fl) => fl,
                    Err(e) => return tell(e),
                };
                tell(transmit::send(fd, v, fl, || told(next::pwritev2(fd, iov, n, off, flags))))
            }
            _ => next::pwritev2(fd, iov, n, off, flags),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    unsafe {
        if fds::kind(fd) == fds::Kind::Other {
            if socket::faulty(msg) || (*msg).msg_controllen == 0 {
                return next::sendmsg(fd, msg, flags);
            }
            pass::before(msg);
            let r = next::sendmsg(fd, msg, flags);
            if r < 0 {
                let e = errno();
                pass::undo(msg);
                set_errno(e);
            }
            return r;
        }
        tell(transmit::sendmsg(fd, msg, flags))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    unsafe {
        if !socket::faulty(v) && fds::port(fd).is_some() {
            return tell(transmit::sendmmsg(fd, v, n, flags)) as c_int;
        }
        tell(pass::sendmmsg(v, n, || told(next::sendmmsg(fd, v, n, flags) as isize))) as c_int
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
