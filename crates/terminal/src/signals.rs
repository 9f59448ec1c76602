//! Signals by which a person ends a command.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends quietly when the reader of our output has gone.
pub fn default_sigpipe() {
    // SAFETY: installs no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// From now on SIGINT, SIGTERM and SIGHUP only set a flag, so that whoever waits can clean up.
pub fn catch_interrupts() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zero is a valid value of every field; no SA_RESTART, so a sleeping call returns at once.
        unsafe { (*action.as_mut_ptr()).sa_sigaction = note as extern "C" fn(libc::c_int) as usize };
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::sigaction(signal, action.as_ptr(), ptr::null_mut()) };
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
