//! System calls by number, and what of the socket library answers each.

use core::ffi::c_int;

use libc::{epoll_event, iovec, mmsghdr, msghdr, pollfd, sigset_t, timespec, timeval};
use sites::Call;
use smc::sys;
use socket::pieces::{one, slice};
use socket::select::Selected;
use socket::wait::duration;
use socket::{
    aio, descriptors, endpoint, epoll, faulty, fds, file, option, pass, poll, receive, rights,
    select, transmit, uring,
};

use crate::arch::{
    SYS_access, SYS_creat, SYS_dup2, SYS_epoll_create, SYS_epoll_wait, SYS_open, SYS_poll,
    SYS_readlink, SYS_select, SYS_stat,
};
use crate::{call, itself, later};

/// Nanoseconds of a limit in milliseconds; None: for ever.
fn ms(timeout: c_int) -> Option<u64> {
    (timeout >= 0).then(|| timeout as u64 * 1_000_000)
}

/// The result of a call, or None if it is to be made as if nobody had looked.
///
/// # Safety
/// The arguments must be the program's own, for that call.
// One obligation for all of it, which is forwarded.
#[expect(clippy::multiple_unsafe_ops_per_block)]
pub unsafe fn answer(made: &Call) -> Option<isize> {
    let [a, b, c, d, e, f] = made.given;
    let fd = a as c_int;
    let number = made.number();
    let plain = || call::plain(made);
    let is_other = || fds::kind(fd) == fds::Kind::Other;
    // SAFETY: the caller's obligation.
    let result = unsafe {
        match number {
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_recvfrom
            | libc::SYS_sendto
                if is_other() =>
            {
                return None;
            }
            // Unlike recv, read of nothing never waits.
            libc::SYS_read if c == 0 => return None,
            libc::SYS_read => receive::recv(fd, &[one(b as *const _, c)], 0, plain),
            libc::SYS_write => transmit::send(fd, &[one(b as *const _, c)], 0, plain),
            libc::SYS_recvfrom => {
                receive::recvfrom(fd, one(b as _, c), d as c_int, e as _, f as _, plain)
            }
            libc::SYS_sendto => {
                transmit::sendto(fd, one(b as _, c), d as c_int, e as _, f as u32, plain)
            }
            libc::SYS_readv | libc::SYS_preadv2 => {
                let v = slice(b as *const iovec, c as isize)?;
                let is_here = number == libc::SYS_readv || d as i64 == -1;
                if !is_here || v.iter().all(|piece| piece.iov_len == 0) {
                    return None;
                }
                match vector_flags(number, f) {
                    Ok(flags) => receive::recv(fd, v, flags, plain),
                    Err(e) => e,
                }
            }
            libc::SYS_writev | libc::SYS_pwritev2 => {
                let v = slice(b as *const iovec, c as isize)?;
                if number == libc::SYS_pwritev2 && d as i64 != -1 {
                    return None;
                }
                match vector_flags(number, f) {
                    Ok(flags) => transmit::send(fd, v, flags, plain),
                    Err(e) => e,
                }
            }
            libc::SYS_recvmsg if is_other() => {
                let r = plain();
                let msg = b as *mut msghdr;
                if r >= 0 && !faulty(msg) && (*msg).msg_controllen > 0 {
                    pass::after(msg);
                }
                r
            }
            libc::SYS_recvmsg => receive::recvmsg(fd, b as _, c as c_int),
            libc::SYS_sendmsg if is_other() => {
                let msg = b as *const msghdr;
                if faulty(msg) || (*msg).msg_controllen == 0 {
                    return None;
                }
                pass::before(msg);
                let r = plain();
                if r < 0 {
                    pass::undo(msg);
                }
                r
            }
            libc::SYS_sendmsg => transmit::sendmsg(fd, b as _, c as c_int),
            libc::SYS_recvmmsg if is_other() => pass::recvmmsg(b as _, plain),
            libc::SYS_recvmmsg => {
                receive::recvmmsg(fd, b as _, c as u32, d as c_int, e as *mut timespec, plain)
            }
            libc::SYS_sendmmsg => {
                let v = b as *mut mmsghdr;
                if !faulty(v) && fds::port(fd).is_some() {
                    transmit::sendmmsg(fd, v, c as u32, d as c_int)
                } else {
                    pass::sendmmsg(v, c as u32, plain)
                }
            }
            libc::SYS_close => descriptors::close(fd, plain),
            libc::SYS_close_range => {
                descriptors::close_range(a as u32, b as u32, c as c_int, |first, last| {
                    sys::by_number(number, first as usize, last as usize, c, 0, 0, 0)
                })
            }
            libc::SYS_dup => descriptors::dup(fd, plain),
            SYS_dup2 if a == b => return None,
            SYS_dup2 | libc::SYS_dup3 => descriptors::dup_over(fd, b as c_int, plain),
            libc::SYS_fcntl => descriptors::fcntl(fd, b as c_int, c, plain),
            libc::SYS_ioctl => descriptors::ioctl(fd, b as u64, c, plain),
            libc::SYS_shutdown => endpoint::shutdown(fd, b as c_int, plain),
            libc::SYS_socket => endpoint::made(fd, b as c_int, c as c_int, plain()),
            libc::SYS_accept | libc::SYS_accept4 => endpoint::accepted(fd, plain()),
            libc::SYS_connect => {
                endpoint::before_connect(fd, b as _, c as u32);
                let r = plain();
                if smc::meet::may_offer() {
                    endpoint::connected(fd, b as _, c as u32, r)
                } else {
                    r
                }
            }
            libc::SYS_sendfile => {
                let send = |n| sys::by_number(number, a, b, c, n, 0, 0);
                let splice =
                    |flags: u32, n| sys::by_number(libc::SYS_splice, b, 0, a, 0, n, flags as usize);
                file::sendfile(fd, b as c_int, c as _, d, &send, &splice)
            }
            libc::SYS_splice => {
                let call = |n| sys::by_number(number, a, b, c, d, n, f);
                file::splice(fd, b as _, c as c_int, d as _, e, f as u32, call)
            }
            libc::SYS_setsockopt => {
                option::set(fd, b as c_int, c as c_int, d as _, e as u32, plain)
            }
            libc::SYS_getsockopt => option::get(fd, b as c_int, c as c_int, d as _, e as _, plain),
            SYS_epoll_create | libc::SYS_epoll_create1 => epoll::open(plain() as c_int) as isize,
            libc::SYS_epoll_ctl => {
                let own = d as *mut epoll_event;
                let change = |other: Option<&mut epoll_event>| {
                    let event = other.map_or(own, core::ptr::from_mut);
                    sys::by_number(number, a, b, c, event as usize, 0, 0)
                };
                epoll::control(fd, b as c_int, c as c_int, own, change)
            }
            SYS_epoll_wait => {
                let limit = ms(d as c_int);
                epoll::wait(fd, b as _, c as c_int, limit, core::ptr::null(), plain)
            }
            libc::SYS_epoll_pwait => {
                epoll::wait(fd, b as _, c as c_int, ms(d as c_int), e as *const sigset_t, plain)
            }
            libc::SYS_epoll_pwait2 => {
                let limit = duration(d as *const timespec).ok()?;
                epoll::wait(fd, b as _, c as c_int, limit, e as *const sigset_t, plain)
            }
            SYS_poll => {
                let limit = ms(c as c_int);
                poll::poll(a as *mut pollfd, b as u64, limit, core::ptr::null(), plain)
            }
            libc::SYS_ppoll => {
                let t = c as *mut timespec;
                let limit = duration(t).ok()?;
                let start = sys::now_ns();
                let r = poll::poll(a as _, b as u64, limit, d as *const sigset_t, plain);
                leave(t, limit, start, r);
                r
            }
            SYS_select => {
                let t = e as *mut timeval;
                // Of a negative time the kernel tells that it is none.
                if !t.is_null() && (faulty(t) || (*t).tv_sec < 0 || (*t).tv_usec < 0) {
                    return None;
                }
                let limit = t.as_ref().map(|t| {
                    let whole = (t.tv_sec as u64).saturating_mul(1_000_000_000);
                    whole.saturating_add((t.tv_usec as u64).saturating_mul(1000))
                });
                let start = sys::now_ns();
                let sets = [b as _, c as _, d as _];
                match select::select(fd, sets, limit, core::ptr::null()) {
                    Selected::Here(got) => {
                        // Linux leaves the time that was left.
                        if let (Some(t), Some(limit)) = (t.as_mut(), limit) {
                            let left = limit.saturating_sub(sys::now_ns() - start);
                            t.tv_sec = (left / 1_000_000_000) as i64;
                            t.tv_usec = (left % 1_000_000_000 / 1000) as i64;
                        }
                        got
                    }
                    Selected::Kernel(n) => sys::by_number(number, n as usize, b, c, d, e, 0),
                }
            }
            libc::SYS_pselect6 => {
                let (t, mask) = (e as *mut timespec, f as *const [usize; 2]);
                if !mask.is_null() && faulty(mask) {
                    return None;
                }
                let limit = duration(t).ok()?;
                let start = sys::now_ns();
                let mask = mask.as_ref().map_or(core::ptr::null(), |m| m[0] as *const sigset_t);
                match select::select(fd, [b as _, c as _, d as _], limit, mask) {
                    Selected::Here(got) => {
                        leave(t, limit, start, got);
                        got
                    }
                    Selected::Kernel(n) => sys::by_number(number, n as usize, b, c, d, e, f),
                }
            }
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                rights::change_user(plain)
            }
            libc::SYS_capset => {
                fds::go_back_from_copies();
                return None;
            }
            libc::SYS_prctl
            | libc::SYS_seccomp
            | libc::SYS_unshare
            | libc::SYS_landlock_restrict_self => {
                rights::leave_for(number, a, b);
                return None;
            }
            libc::SYS_mmap => later::map(made),
            libc::SYS_mprotect => later::protect_as_asked(made),
            libc::SYS_munmap => later::unmap(made),
            SYS_readlink | libc::SYS_readlinkat => return itself::read_name(made),
            SYS_open
            | SYS_creat
            | libc::SYS_openat
            | libc::SYS_openat2
            | SYS_stat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | SYS_access
            | libc::SYS_faccessat
            | libc::SYS_faccessat2 => return itself::look(made),
            libc::SYS_io_submit => {
                aio::before_submit(b as isize, c as _);
                return None;
            }
            libc::SYS_io_uring_setup => uring::setup(b as _, plain),
            libc::SYS_io_uring_enter => {
                let enter = |submit: u32, wait: u32, flags: u32| {
                    let (submit, wait) = (submit as usize, wait as usize);
                    sys::by_number(number, a, submit, wait, flags as usize, e, f)
                };
                uring::enter(fd, b as u32, c as u32, d as u32, enter)
            }
            libc::SYS_io_uring_register => uring::register(b as u32, c, d as u32, plain),
            _ => return None,
        }
    };
    Some(result)
}

/// Notes what is left of a time limit when a signal has ended the call `r`: nobody waits again after
/// any other end, and a limit in read-only memory, which the kernel tolerates, would be our crash.
///
/// # Safety
/// `t` is null or what the program gave the system call.
unsafe fn leave(t: *mut timespec, limit: Option<u64>, start: u64, r: isize) {
    // SAFETY: the caller's obligation; `limit` was read there.
    if let (Some(t), Some(limit)) = (unsafe { t.as_mut() }, limit)
        && r == -(libc::EINTR as isize)
    {
        let left = limit.saturating_sub(sys::now_ns() - start);
        t.tv_sec = (left / 1_000_000_000) as i64;
        t.tv_nsec = (left % 1_000_000_000) as i64;
    }
}

/// The flags of recv or send that stand for those of preadv2 or pwritev2; an error where Linux
/// refuses them.
fn vector_flags(number: i64, flags: usize) -> Result<c_int, isize> {
    // The offset takes two of its arguments, the upper half unused: flags are the sixth.
    match number {
        libc::SYS_preadv2 | libc::SYS_pwritev2 => socket::pieces::flags(flags as c_int),
        _ => Ok(0),
    }
}
