//! What the library needs of the world around it, and the front has: calls that sleep, the time,
//! and what is known of signals.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

use libc::{epoll_event, msghdr, nfds_t, pollfd, sigset_t, timespec};
use smc::sys;

/// The world of a front. Results are those of the system calls: a count, or a negative errno.
///
/// What sleeps here may be interrupted by signals, end its thread (a cancellation point), or never
/// return.
pub trait Kernel: Sync {
    /// `recvmsg(2)`.
    ///
    /// # Safety
    /// As for the system call.
    unsafe fn recvmsg(&self, fd: i32, msg: *mut msghdr, flags: i32) -> isize;

    /// `sendmsg(2)`.
    ///
    /// # Safety
    /// As for the system call.
    unsafe fn sendmsg(&self, fd: i32, msg: *const msghdr, flags: i32) -> isize;

    /// `recv(2)` of one byte into nowhere: until there is something, with the flags given.
    fn peek(&self, fd: i32, flags: i32) -> isize;

    /// `ppoll(2)`.
    ///
    /// # Safety
    /// As for the system call.
    unsafe fn ppoll(
        &self,
        list: *mut pollfd,
        n: nfds_t,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize;

    /// `epoll_pwait(2)`.
    ///
    /// # Safety
    /// As for the system call.
    unsafe fn epoll_pwait(
        &self,
        ep: i32,
        out: *mut epoll_event,
        n: i32,
        ms: i32,
        mask: *const sigset_t,
    ) -> isize;

    /// `epoll_pwait2(2)`; -ENOSYS where the kernel has none.
    ///
    /// # Safety
    /// As for the system call.
    unsafe fn epoll_pwait2(
        &self,
        ep: i32,
        out: *mut epoll_event,
        n: i32,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize;

    /// Ends this thread if another one has asked for that.
    fn test_cancel(&self);

    /// Whether a wait that a signal ended would have been restarted in the call that it stands for.
    /// Which signal it was nobody knows: so only if the handlers of all of them ask for it.
    fn restarts(&self) -> bool;

    /// Monotonic nanoseconds.
    fn now_ns(&self) -> u64;
}

/// The world by system calls alone, of a program without a C library.
pub struct Bare;

static WORLD: AtomicPtr<&'static dyn Kernel> = AtomicPtr::new(core::ptr::null_mut());

/// The front's world, for all calls from now on.
pub fn set(world: &'static &'static dyn Kernel) {
    WORLD.store(core::ptr::from_ref(world).cast_mut(), Release);
}

/// The front's world.
#[inline]
pub fn get() -> &'static dyn Kernel {
    let world = WORLD.load(Acquire);
    // SAFETY: null, or from `set`, where it was a reference for good.
    unsafe { world.as_ref() }.map_or(&Bare, |world| *world)
}

/// How often the program has changed a signal handler.
static HANDLERS: AtomicU32 = AtomicU32::new(0);

/// The program has changed a signal handler.
pub fn handlers_changed() {
    HANDLERS.fetch_add(1, Release);
}

/// How often it has, to be compared with later.
pub(crate) fn handlers() -> u32 {
    HANDLERS.load(Acquire)
}

/// Whether the kernel, or who filters its calls, does not know a call: an older container's filter
/// says EPERM of it.
pub(crate) fn is_unknown(r: isize) -> bool {
    r == -(libc::ENOSYS as isize) || r == -(libc::EPERM as isize)
}

/// Whether any thread was ever asked to end.
static CANCELS: AtomicBool = AtomicBool::new(false);

/// A thread is asked to end.
pub fn will_cancel() {
    CANCELS.store(true, SeqCst);
}

/// Whether one was, perhaps this one.
#[inline(always)]
pub(crate) fn may_cancel() -> bool {
    CANCELS.load(Relaxed)
}

/// What a call that POSIX makes a cancellation point does first: one that finds data, room or
/// events never sleeps, and a thread that always finds some could not be cancelled. Nothing is held
/// here: a thread that ends leaves its hooks as it would by a jump.
#[inline(always)]
pub(crate) fn cancellation_point() {
    if may_cancel() {
        get().test_cancel();
    }
}

/// One `ppoll` on one descriptor, without a mask: what happened (0: nothing in time) or an errno.
pub(crate) fn poll_one(fd: i32, events: i16, limit: Option<u64>) -> Result<i16, i32> {
    let mut p = pollfd { fd, events, revents: 0 };
    let limit = limit.map(duration);
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: pointers to live locals.
    match unsafe { get().ppoll(&raw mut p, 1, limit, core::ptr::null()) } {
        0 => Ok(0),
        1.. => Ok(p.revents),
        e => Err(-e as i32),
    }
}

/// Nanoseconds as the kernel takes them.
pub(crate) fn duration(ns: u64) -> timespec {
    timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

// SAFETY, of each call here: the caller's obligation is that of the system call.
impl Kernel for Bare {
    unsafe fn recvmsg(&self, fd: i32, msg: *mut msghdr, flags: i32) -> isize {
        // SAFETY: forwarded.
        unsafe { sys::recvmsg(fd, msg, flags) }
    }

    unsafe fn sendmsg(&self, fd: i32, msg: *const msghdr, flags: i32) -> isize {
        // SAFETY: forwarded.
        unsafe { sys::sendmsg(fd, msg, flags) }
    }

    fn peek(&self, fd: i32, flags: i32) -> isize {
        let mut byte = 0u8;
        // SAFETY: one writable byte.
        unsafe { sys::recv(fd, &raw mut byte, 1, flags | libc::MSG_PEEK) }
    }

    unsafe fn ppoll(
        &self,
        list: *mut pollfd,
        n: nfds_t,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize {
        // SAFETY: forwarded.
        unsafe { sys::ppoll(list, n, limit, mask) }
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
        unsafe { sys::epoll_pwait(ep, out, n, ms, mask) }
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
        unsafe { sys::epoll_pwait2(ep, out, n, limit, mask) }
    }

    /// Threads without a C library are not cancelled.
    fn test_cancel(&self) {}

    fn restarts(&self) -> bool {
        handlers_restart()
    }

    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }
}

/// Whether the handlers of all signals ask for calls to be restarted.
#[cold]
pub fn handlers_restart() -> bool {
    /// Those that libc keeps for itself, and those of a thread's own faults, which come while it
    /// runs: language runtimes catch them without asking for restarts.
    const OTHERS: [i32; 6] = [32, 33, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    (1..=64).filter(|signal| !OTHERS.contains(signal)).filter_map(sys::handler_of).all(
        |(handler, flags)| {
            matches!(handler, libc::SIG_DFL | libc::SIG_IGN) || flags & libc::SA_RESTART != 0
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{SCRIPTED, recv, send, serial, upgraded};

    #[test]
    fn who_always_finds_data_can_be_cancelled() {
        let _turn = serial();
        let pair = upgraded();
        will_cancel();
        let before = SCRIPTED.cancels.load(SeqCst);
        assert_eq!(send(pair.0, b"a", 0), 1);
        assert_eq!(recv(pair.1, 1, 0), Ok(b"a".to_vec()));
        assert_eq!(SCRIPTED.cancels.load(SeqCst), before + 2);
    }

    #[test]
    fn bare_calls_return_errors_and_leave_limits_alone() {
        assert_eq!(Bare.peek(-1, 0), -(libc::EBADF as isize));
        let limit = duration(1_000_000);
        let mut p = pollfd { fd: -1, events: 0, revents: 0 };
        // SAFETY: live locals.
        assert_eq!(unsafe { Bare.ppoll(&raw mut p, 1, &raw const limit, core::ptr::null()) }, 0);
        assert_eq!((limit.tv_sec, limit.tv_nsec), (0, 1_000_000));
    }

    #[test]
    fn handlers_without_restart_are_found() {
        extern "C" fn nothing(_: i32) {}
        let _turn = serial();
        let install = |handler: usize, flags: i32| {
            // SAFETY: all zero is a valid action.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            // SAFETY: a handler that does nothing, or none, for a signal that nobody sends.
            unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut()) };
        };
        let handler = nothing as extern "C" fn(i32) as usize;
        install(handler, libc::SA_RESTART);
        assert!(handlers_restart());
        install(handler, 0);
        assert!(!handlers_restart());
        install(libc::SIG_DFL, 0);
    }
}
