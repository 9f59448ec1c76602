//! Calls of the kernel under numbers of our own sockets. Never libc's functions: with
//! `libshortwire_rspreload.so` those of the same names are its own, and would lead back here.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_long, c_void};
use core::ptr::null;
use libc::{epoll_event, msghdr, pollfd, sigset_t, sockaddr, socklen_t, syscall, timespec};

macro_rules! calls {
    ($($name:ident = $number:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function of this name; -1 and errno, too.
        pub unsafe fn $name($($arg: $kind),*) -> $result {
            // SAFETY: by the contract.
            unsafe { syscall(libc::$number $(, $arg)*) as $result }
        }
    )*};
}

calls! {
    socket = SYS_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = SYS_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    listen = SYS_listen(fd: c_int, backlog: c_int) -> c_int;
    accept4 = SYS_accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect = SYS_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    getsockname = SYS_getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername = SYS_getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt = SYS_getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt = SYS_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    shutdown = SYS_shutdown(fd: c_int, how: c_int) -> c_int;
    fcntl = SYS_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    close = SYS_close(fd: c_int) -> c_int;
    sendmsg = SYS_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    recvmsg = SYS_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    epoll_ctl = SYS_epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
}

/// # Safety
/// As `epoll_wait`.
pub unsafe fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    millis: c_int,
) -> c_int {
    let size = size_of::<u64>();
    // SAFETY: by the contract; no mask of signals.
    unsafe {
        syscall(libc::SYS_epoll_pwait, set, events, count, millis, null::<u64>(), size) as c_int
    }
}

/// # Safety
/// As `ppoll`.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: usize,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // The kernel writes into it what is left.
    // SAFETY: by the contract.
    let mut time = unsafe { timeout.as_ref() }.copied();
    let time = time.as_mut().map_or(null(), |time| &raw const *time);
    let size = size_of::<u64>();
    // SAFETY: by the contract; the kernel's set is the beginning of libc's.
    unsafe { syscall(libc::SYS_ppoll, fds, count, time, mask, size) as c_int }
}
