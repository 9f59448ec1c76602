//! Signals by which a person ends a command.
#![allow(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signal that came last; 0: none.
static CAME: AtomicI32 = AtomicI32::new(0);
/// The same, until somebody takes it.
static UNTAKEN: AtomicI32 = AtomicI32::new(0);

/// Why a command ended before its work was done.
#[derive(Debug)]
pub struct Interrupted {
    signal: u8,
    behind: &'static str,
}

impl Interrupted {
    /// As of a program that the signal itself had ended: 130 after Ctrl-C.
    pub fn exit_status(&self) -> u8 {
        128 + self.signal
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted{}", self.behind)
    }
}

impl Error for Interrupted {}

/// Ends quietly when the reader of our output has gone.
pub fn default_sigpipe() {
    // SAFETY: installs no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// From now on SIGINT, SIGTERM and SIGHUP are only noted, so that whoever waits can clean up.
pub fn catch_interrupts() {
    extern "C" fn note(signal: libc::c_int) {
        UNTAKEN.store(signal, Ordering::Relaxed);
        CAME.store(signal, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zero is a valid value of every field; no SA_RESTART, so a sleeping call returns
        // at once.
        unsafe {
            (*action.as_mut_ptr()).sa_sigaction = note as extern "C" fn(libc::c_int) as usize
        };
        // SAFETY: the handler only stores to atomics.
        unsafe { libc::sigaction(signal, action.as_ptr(), ptr::null_mut()) };
    }
}

pub fn interrupted() -> bool {
    CAME.load(Ordering::Relaxed) != 0
}

/// An error if a signal came; `behind` is what else is to be said of it.
pub fn go_on_unless_interrupted(behind: &'static str) -> Result<(), Interrupted> {
    match CAME.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted { signal: signal as u8, behind }),
    }
}

/// The number of the last signal that nobody has taken yet: for who passes it on.
pub fn take() -> Option<i32> {
    Some(UNTAKEN.swap(0, Ordering::Relaxed)).filter(|&signal| signal != 0)
}
