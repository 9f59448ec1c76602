//! Descriptors: close, dup, fcntl, ioctl, passing.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::Ordering::*;

use libc::{FILE, aiocb, msghdr};
use smc::{hidden, reason, sys};

use crate::fds::{self, Kind};
use crate::{fail, next};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if hidden::contains(fd) {
        return fail(libc::EBADF) as c_int;
    }
    fds::before_close(fd);
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    unsafe { next::close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __close(fd: c_int) -> c_int {
    unsafe { close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    const UNSHARE: c_int = 2;
    if flags & UNSHARE != 0 {
        super::process::leave_for(libc::SYS_unshare, libc::CLONE_FILES as usize, 0);
    }
    if flags & CLOEXEC != 0 || first > last {
        return unsafe { next::close_range(first, last, flags) };
    }
    let end = (last as i64).min(i64::from(fds::high()) - 1);
    for fd in i64::from(first)..=end {
        fds::before_close(fd as c_int);
    }
    // Around our own descriptors, which the application does not know of. A vfork child is about to exec, which
    // closes them anyway.
    let mut from = first;
    let mut r = 0;
    let mut ours: Vec<u32> = if fds::owner() { hidden::all().map(|fd| fd as u32).collect() } else { Vec::new() };
    ours.sort_unstable();
    for fd in ours.into_iter().filter(|f| (first..=last).contains(f)) {
        if fd > from {
            r |= unsafe { next::close_range(from, fd - 1, flags) };
        }
        from = fd + 1;
    }
    if from <= last {
        r |= unsafe { next::close_range(from, last, flags) };
    }
    r
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    if unsafe { close_range(first as c_uint, c_uint::MAX, 0) } < 0 {
        // A kernel before 5.9: one by one, as far as descriptors go.
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 0 };
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        (first..limit.rlim_cur.min(1 << 20) as c_int).filter(|fd| !hidden::contains(*fd)).for_each(|fd| {
            sys::close(fd);
        });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let new = unsafe { next::dup(fd) };
    if new >= 0 && fds::owner() {
        fds::share(fd, new);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        return unsafe { next::dup2(old, new) };
    }
    unsafe { dup3_as(old, new, || next::dup2(old, new)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __dup2(old: c_int, new: c_int) -> c_int {
    unsafe { dup2(old, new) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    unsafe { dup3_as(old, new, || next::dup3(old, new, flags)) }
}

fn dup3_as(old: c_int, new: c_int, call: impl Fn() -> c_int) -> c_int {
    if hidden::contains(new) && fds::owner() {
        fds::make_way(new);
    }
    if !fds::owner() {
        return call();
    }
    // The kernel closes `new` inside the call. What an upgraded connection there must do before its end is done
    // on another descriptor of it, kept for that moment.
    let mut kept = -1;
    if let Kind::Conn(_) = fds::kind(new)
        && sys::fcntl(old, libc::F_GETFD, 0) >= 0
    {
        kept = sys::fcntl(new, libc::F_DUPFD_CLOEXEC, 0) as c_int;
        if kept >= 0 {
            fds::share(new, kept);
        }
    }
    let r = call();
    if r >= 0 {
        fds::share_over(old, new);
    }
    if kept >= 0 {
        fds::before_close(kept);
        let e = crate::errno();
        sys::close(kept);
        crate::set_errno(e);
    }
    r
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    let r = unsafe { next::fcntl64(fd, cmd, arg) };
    if r >= 0 && (cmd == libc::F_DUPFD || cmd == libc::F_DUPFD_CLOEXEC) && fds::owner() {
        fds::share(fd, r);
    }
    if r >= 0
        && cmd == libc::F_SETFL
        && arg as c_int & libc::O_ASYNC != 0
        && let Some((index, c)) = fds::existing(fd)
    {
        // SIGIO comes from the kernel's socket: its readiness must be the whole truth.
        fds::freeze(index, c, fd, reason::ASYNC_IO.code());
    }
    r
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    unsafe { fcntl64(fd, cmd, arg) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    unsafe { fcntl64(fd, cmd, arg) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, req: c_ulong, arg: usize) -> c_int {
    const SIOCINQ: c_ulong = libc::FIONREAD as c_ulong;
    const SIOCOUTQ: c_ulong = libc::TIOCOUTQ as c_ulong;
    const SIOCOUTQNSD: c_ulong = 0x894B;
    const SIOCATMARK: c_ulong = 0x8905;
    // What the kernel would refuse is left to it.
    if let Some((index, c)) = fds::existing(fd) {
        let arg = if crate::faulty(arg as *const c_int) { 0 } else { arg };
        match req {
            SIOCINQ if arg != 0 && super::io::settle(index, c, fd) => {
                // SAFETY: the application gives an int.
                unsafe { *(arg as *mut c_int) = c.unread(fd) as c_int };
                return 0;
            }
            SIOCOUTQ if arg != 0 && c.sends_on_ring() => {
                // What is in the ring has been delivered: TCP counts what the peer's kernel has not acknowledged.
                unsafe { *(arg as *mut c_int) = 0 };
                return 0;
            }
            SIOCOUTQNSD if arg != 0 && c.sends_on_ring() => {
                unsafe { *(arg as *mut c_int) = 0 };
                return 0;
            }
            SIOCATMARK if arg != 0 && c.receives_on_ring() => {
                // The mark lies behind the ring: its sender has gone back to TCP for the urgent byte.
                if c.unread(fd) > 0 {
                    unsafe { *(arg as *mut c_int) = 0 };
                    return 0;
                }
                c.try_back_to_tcp(fd);
            }
            r if r == libc::FIOASYNC as c_ulong => fds::freeze(index, c, fd, reason::ASYNC_IO.code()),
            _ => {}
        }
    }
    unsafe { next::ioctl(fd, req, arg) }
}

/// stdio reads and writes the descriptor past every hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some((index, c)) = fds::conn_of(fd) {
        fds::give_up(index, c, fd, reason::STDIO.code());
    }
    unsafe { next::fdopen(fd, mode) }
}

/// The threads of libc that do asynchronous input and output pass every hook.
///
/// # Safety
/// `cb` must be null, or valid for libc's call.
unsafe fn leave_for_aio(cb: *const aiocb) {
    if crate::faulty(cb) {
        return;
    }
    // SAFETY: the caller's obligation.
    let fd = unsafe { (*cb).aio_fildes };
    if let Some((index, c)) = fds::conn_of(fd) {
        fds::give_up(index, c, fd, reason::ASYNC_IO.code());
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_read(cb: *mut aiocb) -> c_int {
    unsafe {
        leave_for_aio(cb);
        next::aio_read(cb)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_read64(cb: *mut aiocb) -> c_int {
    unsafe { aio_read(cb) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_write(cb: *mut aiocb) -> c_int {
    unsafe {
        leave_for_aio(cb);
        next::aio_write(cb)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aio_write64(cb: *mut aiocb) -> c_int {
    unsafe { aio_write(cb) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, sig: *mut libc::sigevent) -> c_int {
    unsafe {
        for i in 0..if crate::faulty(list) { 0 } else { n.max(0) as usize } {
            leave_for_aio(*list.add(i));
        }
        next::lio_listio(mode, list, n, sig)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lio_listio64(
    mode: c_int,
    list: *const *mut aiocb,
    n: c_int,
    sig: *mut libc::sigevent,
) -> c_int {
    unsafe { lio_listio(mode, list, n, sig) }
}

/// stdio closes the descriptor past every hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(f: *mut FILE) -> c_int {
    if !f.is_null() {
        let fd = unsafe { libc::fileno(f) };
        if fds::kind(fd) != Kind::Other {
            unsafe { libc::fflush(f) };
            fds::before_close(fd);
        }
    }
    unsafe { next::fclose(f) }
}

/// Every descriptor in a message's SCM_RIGHTS.
///
/// # Safety
/// `msg` must be a valid msghdr.
unsafe fn each_passed(msg: *const msghdr, mut f: impl FnMut(c_int)) {
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(at).cast::<c_int>();
                let n = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize) / 4;
                (0..n).for_each(|i| f(data.add(i).read_unaligned()));
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
}

/// Descriptors that are about to leave over a Unix socket go back to TCP: whoever gets them may know nothing of rings.
///
/// # Safety
/// `msg` must be a valid msghdr.
pub unsafe fn before_passing(msg: *const msghdr) {
    let prepare = |fd| {
        if let Some((index, c)) = fds::conn_of(fd)
            && !fds::travel::pass(c, fd)
        {
            fds::give_up(index, c, fd, reason::PASSED_FD.code());
        }
    };
    unsafe { each_passed(msg, prepare) }
}

/// The message was not sent after all: the references that were to travel stay. What is frozen may have been given up
/// instead of counted; a reference too many only keeps it on TCP.
///
/// # Safety
/// `msg` must be a valid msghdr.
pub unsafe fn undo_passing(msg: *const msghdr) {
    let undo = |fd| {
        if let Some((_, c)) = fds::existing(fd)
            && !(c.is_exposed() || c.is_frozen())
        {
            fds::travel::stays(c);
        }
    };
    unsafe { each_passed(msg, undo) }
}

/// Descriptors that have come over a Unix socket.
///
/// # Safety
/// `msg` must be a msghdr that recvmsg has filled.
pub unsafe fn after_passing(msg: *const msghdr) {
    unsafe { each_passed(msg, fds::travel::receive) }
}

/// What libuv and others ask for by number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    use super::{io, ready, socket};
    let fd = a as c_int;
    unsafe {
        match n {
            libc::SYS_read => io::read(fd, b as *mut c_void, c) as c_long,
            libc::SYS_write => io::write(fd, b as *const c_void, c) as c_long,
            libc::SYS_readv => io::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_writev => io::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom => io::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendto => io::sendto(fd, b as _, c, d as c_int, e as _, f as u32) as c_long,
            libc::SYS_recvmsg => io::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmsg => io::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvmmsg => c_long::from(io::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _)),
            libc::SYS_sendmmsg => c_long::from(io::sendmmsg(fd, b as _, c as c_uint, d as c_int)),
            libc::SYS_close => c_long::from(close(fd)),
            libc::SYS_close_range => c_long::from(close_range(a as c_uint, b as c_uint, c as c_int)),
            libc::SYS_dup => c_long::from(dup(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(dup2(fd, b as c_int)),
            libc::SYS_dup3 => c_long::from(dup3(fd, b as c_int, c as c_int)),
            libc::SYS_shutdown => c_long::from(socket::shutdown(fd, b as c_int)),
            libc::SYS_socket => c_long::from(socket::socket(fd, b as c_int, c as c_int)),
            libc::SYS_accept4 => c_long::from(socket::accept4(fd, b as _, c as _, d as c_int)),
            libc::SYS_connect => c_long::from(socket::connect(fd, b as _, c as u32)),
            libc::SYS_sendfile => super::file::sendfile(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_epoll_ctl => c_long::from(ready::epoll_ctl(fd, b as c_int, c as c_int, d as _)),
            libc::SYS_epoll_pwait => c_long::from(ready::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => c_long::from(ready::epoll_wait(fd, b as _, c as c_int, d as c_int)),
            libc::SYS_epoll_pwait2 => c_long::from(ready::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => c_long::from(ready::poll(a as _, b as u64, c as c_int)),
            libc::SYS_ppoll => c_long::from(ready::ppoll(a as _, b as u64, c as _, d as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => c_long::from(ready::select(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_pselect6 => match ready::pselect6(fd, [b as _, c as _, d as _], e as _, f as _) {
                Some(r) => c_long::from(r),
                None => next::syscall(n, a, b, c, d, e, f),
            },
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                super::process::change_user(|| next::syscall(n, a, b, c, d, e, f))
            }
            libc::SYS_fcntl => c_long::from(fcntl64(fd, b as c_int, c)),
            libc::SYS_ioctl => c_long::from(ioctl(fd, b as c_ulong, c)),
            libc::SYS_setsockopt => {
                c_long::from(super::option::setsockopt(fd, b as c_int, c as c_int, d as _, e as u32))
            }
            libc::SYS_getsockopt => c_long::from(super::option::getsockopt(fd, b as c_int, c as c_int, d as _, e as _)),
            libc::SYS_accept => c_long::from(socket::accept(fd, b as _, c as _)),
            libc::SYS_splice => super::file::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long,
            libc::SYS_preadv2 => io::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
            libc::SYS_pwritev2 => io::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
            libc::SYS_epoll_create1 => c_long::from(ready::epoll_create1(fd)),
            libc::SYS_prctl
            | libc::SYS_seccomp
            | libc::SYS_unshare
            | libc::SYS_capset
            | libc::SYS_landlock_restrict_self => {
                super::process::leave_for(n, a, b);
                next::syscall(n, a, b, c, d, e, f)
            }
            libc::SYS_io_uring_setup => {
                if smc::config::CONFIG.deny_io_uring.load(Relaxed) {
                    return fail(libc::ENOSYS) as c_long;
                }
                super::process::leave_for_io_uring();
                next::syscall(n, a, b, c, d, e, f)
            }
            _ if super::process::is_fork(n, a, b) => super::process::fork_by(|| next::syscall(n, a, b, c, d, e, f)),
            _ => next::syscall(n, a, b, c, d, e, f),
        }
    }
}
