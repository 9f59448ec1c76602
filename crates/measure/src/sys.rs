//! What neither the standard library nor rustix does: a program that is pinned and ends with this
//! process, a network of one's own, the rivals of `bench lock` and what disturbs them, and a fork
//! for `rstream`.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::processors;

/// Runs in the new process before its program: pins it, and has it ended should this process be
/// killed.
pub fn at_start(command: &mut Command, cpu: Option<usize>) {
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        cpu.map_or(Ok(()), processors::run_on)
    };
    // SAFETY: only two system calls happen between fork and exec; nothing is allocated, no lock is
    // taken.
    unsafe { command.pre_exec(prepare) };
}

/// Gives this thread, and those that it starts, a network of its own.
pub fn new_network_namespace() -> io::Result<()> {
    // SAFETY: only the network changes; descriptors stay shared.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?)
}

/// A mutex of the C library, with what it protects.
pub struct PthreadMutex<T> {
    // In a box: it must not move once it was used.
    mutex: Box<std::cell::UnsafeCell<libc::pthread_mutex_t>>,
    value: std::cell::UnsafeCell<T>,
}

// SAFETY: the value is only reached under the mutex.
unsafe impl<T: Send> Sync for PthreadMutex<T> {}
// SAFETY: a mutex that nobody holds is bound to no thread.
unsafe impl<T: Send> Send for PthreadMutex<T> {}

impl<T> PthreadMutex<T> {
    pub fn new(value: T) -> Self {
        Self { mutex: Box::new(libc::PTHREAD_MUTEX_INITIALIZER.into()), value: value.into() }
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: initialised, and at a fixed address.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        // SAFETY: under the mutex.
        let result = f(unsafe { &mut *self.value.get() });
        // SAFETY: locked above by this thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
        result
    }
}

/// Signals that arrive at this process until it is dropped; calls are interrupted, not restarted.
pub struct Storm;

impl Storm {
    pub fn start(every: std::time::Duration) -> std::io::Result<Self> {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: all of a sigaction may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        // SAFETY: initialised; the handler does nothing.
        if unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Self::set(every)?;
        Ok(Self)
    }

    fn set(every: std::time::Duration) -> std::io::Result<()> {
        let time = libc::timeval { tv_sec: 0, tv_usec: every.subsec_micros().into() };
        let timer = libc::itimerval { it_interval: time, it_value: time };
        // SAFETY: initialised.
        match unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = Self::set(std::time::Duration::ZERO);
    }
}

/// The other side of [`fork`].
pub struct Forked(libc::pid_t);

impl Forked {
    /// Until it has ended, well or not.
    pub fn wait(self) -> anyhow::Result<()> {
        let mut status = 0;
        // SAFETY: our own child, and a number to write to.
        while unsafe { libc::waitpid(self.0, &mut status, 0) } != self.0 {}
        anyhow::ensure!(status == 0, "the forked server failed");
        Ok(())
    }
}

/// Goes on as two processes: None in the new one. For a process with one thread.
pub fn fork() -> io::Result<Option<Forked>> {
    // SAFETY: by the condition above, no other thread can hold a lock.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Some(Forked(child))),
    }
}

/// Opens memory to direct writes at offset 0; the caller unmaps it.
pub fn map(stream: &shortwire_rsocket::net::RsocketStream, memory: &mut [u8]) -> io::Result<()> {
    // SAFETY: bytes have no invalid value; the caller keeps them, and looks at them when the peer
    // has said that it wrote.
    unsafe { stream.map(memory.as_mut_ptr(), memory.len(), Some(0)) }.map(drop)
}
