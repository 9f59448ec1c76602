//! Asking engines to stop, or to read their configuration again, from another thread or from a
//! signal.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread::Thread;

/// A request to stop. Clones are the same request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Not requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks; it cannot be taken back.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has asked.
    #[inline]
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request to an engine that may rest: to ask what its run may end by, before its next breath is due.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call(Arc<AtomicBool>);

impl Call {
    /// Asks the engine on that thread.
    pub fn request(&self, thread: &Thread) {
        self.request_here();
        thread.unpark();
    }

    /// Asks the engine of this thread, for when it breathes again.
    pub fn request_here(&self) {
        // SYNC: call. Behind what it is about.
        self.0.store(true, Ordering::Release);
    }

    /// True once per request.
    #[inline]
    pub fn take(&self) -> bool {
        // SYNC: call. In front of the look at what it is about.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Acquire)
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);
static RELOAD: AtomicBool = AtomicBool::new(false);
/// What [`Signals::catch_and`] was given; null: nothing.
static ALSO: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// The signals of this process, once [`Signals::catch`] was called.
#[derive(Debug, Clone, Copy)]
pub struct Signals(());

impl Signals {
    /// As [`Self::catch`]; at SIGINT and SIGTERM the handler also calls `also` with the signal,
    /// which does nothing but what a signal handler may.
    #[cfg(feature = "lua")]
    pub(crate) fn catch_and(also: fn(i32)) -> std::io::Result<Self> {
        ALSO.store(also as *mut (), Ordering::Release);
        Self::catch()
    }

    /// From now on SIGINT and SIGTERM ask to stop and SIGHUP asks to reload. A second SIGINT or
    /// SIGTERM ends the process as it would without this.
    pub fn catch() -> std::io::Result<Self> {
        for (signal, flags) in [
            (libc::SIGINT, libc::SA_RESETHAND),
            (libc::SIGTERM, libc::SA_RESETHAND),
            (libc::SIGHUP, 0),
        ] {
            // SAFETY: all zeros is a valid sigaction.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = flags | libc::SA_RESTART;
            // SAFETY: the handler stores to an atomic, and calls what `catch_and` was given.
            if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(Self(()))
    }

    /// Forgets that SIGINT or SIGTERM has come, and waits for the first one again.
    pub fn forget(&self) {
        STOPPED.store(false, Ordering::Relaxed);
        // What succeeded once does so again.
        let _ = Self::catch();
    }

    /// Whether SIGINT or SIGTERM has come.
    pub fn stop_requested(&self) -> bool {
        // SYNC: stop. In front of what is done about it.
        STOPPED.load(Ordering::Acquire)
    }

    /// True once per request.
    pub fn take_reload(&self) -> bool {
        RELOAD.swap(false, Ordering::Relaxed)
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    if signal == libc::SIGHUP {
        RELOAD.store(true, Ordering::Relaxed);
        return;
    }
    let also = ALSO.load(Ordering::Acquire);
    if !also.is_null() {
        // SAFETY: `catch_and` stores functions of this type and nothing else.
        let also = unsafe { std::mem::transmute::<*mut (), fn(i32)>(also) };
        also(signal);
    }
    // SYNC: stop. Behind what else the signal does: whoever hears of it, on any thread, finds that
    // done. Pairs with `stop_requested`.
    STOPPED.store(true, Ordering::Release);
}
