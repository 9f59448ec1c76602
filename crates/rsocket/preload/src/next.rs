//! The functions behind ours: of the next library that has them, in the end libc.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};

pub type Place = AtomicPtr<c_void>;

/// Null if there is none.
pub fn find(place: &Place, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name that ends with zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Relaxed);
    found
}

macro_rules! next {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $missing:expr;)*) => {$(
        /// # Safety
        /// As the function of this name.
        pub unsafe fn $name($($arg: $kind),*) -> $result {
            static PLACE: Place = Place::new(core::ptr::null_mut());
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                };
            let found = find(&PLACE, NAME);
            if found.is_null() {
                // An older libc: as a kernel without the call.
                crate::set_errno(shm::Errno::NOSYS);
                return $missing;
            }
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: the function of this name, whose signature this is.
            let found: Function = unsafe { core::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: by the contract.
            unsafe { found($($arg),*) }
        }
    )*};
}

next! {
    listen(fd: c_int, backlog: c_int) -> c_int = -1;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = -1;
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    shutdown(fd: c_int, how: c_int) -> c_int = -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = -1;
    close(fd: c_int) -> c_int = -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = -1;
    dup(fd: c_int) -> c_int = -1;
    dup2(fd: c_int, to: c_int) -> c_int = -1;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = -1;
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int = -1;
    fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int = -1;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = -1;
    fdopen(fd: c_int, mode: *const libc::c_char) -> *mut FILE = core::ptr::null_mut();
    vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int = -1;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int = -1;
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = -1;
    __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t = -1;
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = -1;
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = -1;
    __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t = -1;
    recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = -1;
    __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = -1;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = -1;
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = -1;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = -1;
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = -1;
    sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t = -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = -1;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int = -1;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = -1;
    splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t = -1;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = -1;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int = -1;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int = -1;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = -1;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int = -1;
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = -1;
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
}
