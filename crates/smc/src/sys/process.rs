//! Processes, threads and signals.
#![allow(unsafe_code)]

use core::ffi::c_int;

use super::raw::syscall;

/// `getpid()`, never cached: a vfork child shares our memory but not our pid.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Sleeps for a millisecond.
pub fn nap() {
    sleep_ns(1_000_000);
}

/// Sleeps for less than a second.
pub fn sleep_ns(ns: u32) {
    let t = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: `t` is live.
    unsafe { syscall(libc::SYS_nanosleep, &raw const t as usize, 0, 0, 0, 0, 0) };
}

/// Leaves the processor to others that want it.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_sched_yield, 0, 0, 0, 0, 0, 0) };
}

/// Until dropped the calling thread takes no signals but those of its own faults.
pub struct SignalsHeld {
    before: u64,
}

impl SignalsHeld {
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    /// Holds them back from now on.
    pub fn new() -> Self {
        let own =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let mask = own.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        let mut held = Self { before: 0 };
        set_signal_mask(&mask, &raw mut held.before);
        held
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        set_signal_mask(&self.before, core::ptr::null_mut());
    }
}

fn set_signal_mask(mask: &u64, before: *mut u64) {
    let (how, mask) = (libc::SIG_SETMASK as usize, core::ptr::from_ref(mask) as usize);
    // SAFETY: live words of the kernel's size of a mask.
    unsafe {
        syscall(libc::SYS_rt_sigprocmask, how, mask, before as usize, size_of::<u64>(), 0, 0)
    };
}

/// `getppid()`; 0 where the parent is in another PID namespace.
pub fn getppid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getppid, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Whether the kernel knows no process of this number. Doubts count as no.
pub fn is_unknown(pid: u32) -> bool {
    // SAFETY: integers only; signal 0 is none.
    unsafe { syscall(libc::SYS_kill, pid as usize, 0, 0, 0, 0, 0) == -(libc::ESRCH as isize) }
}

/// `pidfd_open(pid)`; a descriptor or a negative errno.
pub fn pidfd(pid: u32) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_pidfd_open, pid as usize, 0, 0, 0, 0, 0) }
}

/// Ends the process, without what libc does before.
pub fn exit(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { syscall(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }
}

/// The limit of open descriptors: what holds, and how far the process may raise it.
pub fn descriptor_limit() -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let at = &raw mut limit as usize;
    // SAFETY: `limit` is a live rlimit.
    let r = unsafe { syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE as usize, 0, at, 0, 0) };
    (r == 0).then_some((limit.rlim_cur, limit.rlim_max))
}

/// A signal's handler (SIG_DFL, SIG_IGN or an address) and its flags.
pub fn handler_of(signal: c_int) -> Option<(usize, c_int)> {
    /// As the kernel has it.
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: usize,
        restorer: usize,
        mask: u64,
    }
    let mut action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: a live action to fill in, of the kernel's layout and size of mask.
    let r = unsafe {
        syscall(libc::SYS_rt_sigaction, signal as usize, 0, &raw mut action as usize, MASK, 0, 0)
    };
    (r >= 0).then_some((action.handler, action.flags as c_int))
}

/// Bytes of a set of signals in the kernel.
pub(super) const MASK: usize = 8;

/// Random bytes that are there without waiting; None at the start of a machine.
pub fn random() -> Option<u64> {
    let mut bytes = [0u8; 8];
    let flags = libc::GRND_NONBLOCK as usize;
    // SAFETY: `bytes` is live.
    let r = unsafe {
        syscall(libc::SYS_getrandom, bytes.as_mut_ptr() as usize, bytes.len(), flags, 0, 0, 0)
    };
    (r == 8).then(|| u64::from_ne_bytes(bytes))
}
