//! Descriptors: close, dup, fcntl, ioctl, passing.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{FILE, aiocb};
use smc::{hidden, reason};
use socket::fds::{self, Kind};
use socket::{aio, descriptors, fork, rights, uring};

use crate::{next, tell, told};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    tell(descriptors::close(fd, || told(unsafe { next::close(fd) } as isize))) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __close(fd: c_int) -> c_int {
    unsafe { close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let call = |first, last| told(unsafe { next::close_range(first, last, flags) } as isize);
    tell(descriptors::close_range(first, last, flags, call)) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    if unsafe { close_range(first as c_uint, c_uint::MAX, 0) } < 0 {
        // A kernel before 5.9: one by one, as far as descriptors go.
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 0 };
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        (first..limit.rlim_cur.min(1 << 20) as c_int).filter(|fd| !hidden::contains(*fd)).for_each(
            |fd| {
                unsafe { close(fd) };
            },
        );
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    tell(descriptors::dup(fd, || told(unsafe { next::dup(fd) } as isize))) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        return unsafe { next::dup2(old, new) };
    }
    tell(descriptors::dup_over(old, new, || told(unsafe { next::dup2(old, new) } as isize)))
        as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __dup2(old: c_int, new: c_int) -> c_int {
    unsafe { dup2(old, new) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    tell(descriptors::dup_over(old, new, || told(unsafe { next::dup3(old, new, flags) } as isize)))
        as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    tell(descriptors::fcntl(fd, cmd, arg, || told(unsafe { next::fcntl64(fd, cmd, arg) } as isize)))
        as c_int
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
    unsafe {
        tell(descriptors::ioctl(fd, req, arg, || told(next::ioctl(fd, req, arg) as isize))) as c_int
    }
}

/// libc's makes the system call inside itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    const SIOCATMARK: c_ulong = 0x8905;
    let mut is_at: c_int = 0;
    if unsafe { ioctl(fd, SIOCATMARK, &raw mut is_at as usize) } < 0 { -1 } else { is_at }
}

/// stdio reads and writes the descriptor past every hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(port) = fds::port(fd) {
        fds::go_back_for_others(port, reason::STDIO.code());
    }
    unsafe { next::fdopen(fd, mode) }
}

/// The threads of libc that do asynchronous input and output pass every hook.
///
/// # Safety
/// `cb` must be null, or valid for libc's call.
unsafe fn leave_for_aio(cb: *const aiocb) {
    if socket::faulty(cb) {
        return;
    }
    // SAFETY: the caller's obligation.
    let fd = unsafe { (*cb).aio_fildes };
    if let Some(port) = fds::port(fd) {
        fds::go_back_for_others(port, reason::ASYNC_IO.code());
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
pub unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    n: c_int,
    sig: *mut libc::sigevent,
) -> c_int {
    unsafe {
        for i in 0..if socket::faulty(list) { 0 } else { n.max(0) as usize } {
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

/// What libuv and others ask for by number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    use super::{io, ready, socket as made};
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
            libc::SYS_recvmmsg => {
                c_long::from(io::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _))
            }
            libc::SYS_sendmmsg => c_long::from(io::sendmmsg(fd, b as _, c as c_uint, d as c_int)),
            libc::SYS_close => c_long::from(close(fd)),
            libc::SYS_close_range => {
                c_long::from(close_range(a as c_uint, b as c_uint, c as c_int))
            }
            libc::SYS_dup => c_long::from(dup(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(dup2(fd, b as c_int)),
            libc::SYS_dup3 => c_long::from(dup3(fd, b as c_int, c as c_int)),
            libc::SYS_shutdown => c_long::from(made::shutdown(fd, b as c_int)),
            libc::SYS_socket => c_long::from(made::socket(fd, b as c_int, c as c_int)),
            libc::SYS_accept4 => c_long::from(made::accept4(fd, b as _, c as _, d as c_int)),
            libc::SYS_connect => c_long::from(made::connect(fd, b as _, c as u32)),
            libc::SYS_sendfile => super::file::sendfile(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_epoll_ctl => {
                c_long::from(ready::epoll_ctl(fd, b as c_int, c as c_int, d as _))
            }
            libc::SYS_epoll_pwait => {
                c_long::from(ready::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => {
                c_long::from(ready::epoll_wait(fd, b as _, c as c_int, d as c_int))
            }
            libc::SYS_epoll_pwait2 => {
                c_long::from(ready::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => c_long::from(ready::poll(a as _, b as u64, c as c_int)),
            libc::SYS_ppoll => {
                c_long::from(ready::ppoll_by_number(a as _, b as u64, c as _, d as _))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => c_long::from(ready::select(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_pselect6 => {
                match ready::pselect6(fd, [b as _, c as _, d as _], e as _, f as _) {
                    Some(r) => c_long::from(r),
                    None => next::syscall(n, a, b, c, d, e, f),
                }
            }
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                rights::change_user(|| next::syscall(n, a, b, c, d, e, f))
            }
            libc::SYS_fcntl => c_long::from(fcntl64(fd, b as c_int, c)),
            libc::SYS_ioctl => c_long::from(ioctl(fd, b as c_ulong, c)),
            libc::SYS_setsockopt => {
                c_long::from(super::file::setsockopt(fd, b as c_int, c as c_int, d as _, e as u32))
            }
            libc::SYS_getsockopt => {
                c_long::from(super::file::getsockopt(fd, b as c_int, c as c_int, d as _, e as _))
            }
            libc::SYS_accept => c_long::from(made::accept(fd, b as _, c as _)),
            libc::SYS_splice => {
                super::file::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long
            }
            libc::SYS_preadv2 => io::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
            libc::SYS_pwritev2 => {
                io::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => c_long::from(ready::epoll_create(fd)),
            libc::SYS_epoll_create1 => c_long::from(ready::epoll_create1(fd)),
            libc::SYS_prctl
            | libc::SYS_seccomp
            | libc::SYS_unshare
            | libc::SYS_capset
            | libc::SYS_landlock_restrict_self => {
                rights::leave_for(n, a, b);
                next::syscall(n, a, b, c, d, e, f)
            }
            libc::SYS_io_submit => {
                aio::before_submit(b as isize, c as _);
                next::syscall(n, a, b, c, d, e, f)
            }
            libc::SYS_io_uring_setup => {
                let call = || told(next::syscall(n, a, b, c, d, e, f) as isize);
                tell(uring::setup(b as _, call)) as c_long
            }
            libc::SYS_io_uring_enter => {
                let call = |submit: u32, wait: u32, flags: u32| {
                    let (submit, wait) = (submit as usize, wait as usize);
                    told(next::syscall(n, a, submit, wait, flags as usize, e, f) as isize)
                };
                tell(uring::enter(fd, b as u32, c as u32, d as u32, call)) as c_long
            }
            libc::SYS_io_uring_register => {
                let call = || told(next::syscall(n, a, b, c, d, e, f) as isize);
                tell(uring::register(b as u32, c, d as u32, call)) as c_long
            }
            libc::SYS_execve => c_long::from(super::exec::execve(a as _, b as _, c as _)),
            libc::SYS_execveat => {
                c_long::from(super::exec::execveat(fd, b as _, c as _, d as _, e as c_int))
            }
            _ if fork::is_fork(n, a, b) => {
                super::process::fork_by(|| next::syscall(n, a, b, c, d, e, f))
            }
            _ => next::syscall(n, a, b, c, d, e, f),
        }
    }
}
