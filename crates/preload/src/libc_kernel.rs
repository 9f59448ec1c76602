//! The socket library's world: libc's own functions, which are cancellation points and count as
//! such.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering::*};

use libc::{epoll_event, msghdr, nfds_t, pollfd, sigset_t, timespec};
use socket::kernel::{self, Kernel};

use crate::{next, told};

pub static LIBC: &dyn Kernel = &Libc;

/// A handler that interrupts and is taken out by its signal was ever installed: afterwards nobody
/// sees that it was there.
pub static ONE_SHOT: AtomicBool = AtomicBool::new(false);

struct Libc;

// SAFETY, for all of it: the caller's obligations are those of the functions.
impl Kernel for Libc {
    unsafe fn recvmsg(&self, fd: i32, msg: *mut msghdr, flags: i32) -> isize {
        // SAFETY: forwarded.
        told(unsafe { next::recvmsg(fd, msg, flags) })
    }

    unsafe fn sendmsg(&self, fd: i32, msg: *const msghdr, flags: i32) -> isize {
        // SAFETY: forwarded.
        told(unsafe { next::sendmsg(fd, msg, flags) })
    }

    fn peek(&self, fd: i32, flags: i32) -> isize {
        let mut byte = 0u8;
        // SAFETY: one writable byte.
        told(unsafe { next::recv(fd, (&raw mut byte).cast(), 1, flags | libc::MSG_PEEK) })
    }

    unsafe fn ppoll(
        &self,
        list: *mut pollfd,
        n: nfds_t,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize {
        // SAFETY: forwarded.
        told(unsafe { next::ppoll(list, n, limit, mask) } as isize)
    }

    unsafe fn epoll_pwait(
        &self,
        ep: i32,
        out: *mut epoll_event,
        n: i32,
        ms: i32,
        mask: *const sigset_t,
    ) -> isize {
        // SAFETY: forwarded.
        told(unsafe { next::epoll_pwait(ep, out, n, ms, mask) } as isize)
    }

    unsafe fn epoll_pwait2(
        &self,
        ep: i32,
        out: *mut epoll_event,
        n: i32,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize {
        // SAFETY: forwarded.
        told(unsafe { next::epoll_pwait2(ep, out, n, limit, mask) } as isize)
    }

    fn test_cancel(&self) {
        // SAFETY: the library holds nothing here.
        unsafe { next::pthread_testcancel() };
    }

    fn restarts(&self) -> bool {
        !ONE_SHOT.load(Relaxed) && kernel::handlers_restart()
    }

    fn now_ns(&self) -> u64 {
        smc::sys::now_ns()
    }
}
