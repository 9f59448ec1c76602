//! The few things that neither the standard library nor rustix does: replacing this process without changing signals,
//! a signal handler for Ctrl-C, a socket option, and another process's memory as numbers.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

static SIGPIPE_AT_START: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`; the program that `run` becomes must get what we were given.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER_SIGPIPE: extern "C" fn() = {
    extern "C" fn remember() {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks for the current action, into memory of the right type.
        let known = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) } == 0;
        if known {
            // SAFETY: the call filled it in.
            SIGPIPE_AT_START.store(unsafe { action.assume_init() }.sa_sigaction, Ordering::Relaxed);
        }
    }
    remember
};

/// Ends quietly when the reader of our output has gone.
pub fn default_sigpipe() {
    // SAFETY: installs no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Becomes `program`. Returns only when that failed. Signal mask and dispositions stay as this process got them, which
/// the standard library's `exec` would reset.
pub fn exec(program: &Path, arguments: &[OsString], environment: &[(OsString, OsString)]) -> io::Error {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let arguments: Result<Vec<CString>, _> =
        arguments.iter().map(|argument| CString::new(argument.as_bytes())).collect();
    let variables: Result<Vec<CString>, _> = environment
        .iter()
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let (Ok(arguments), Ok(variables)) = (arguments, variables) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let (argv, envp) = (pointers(&arguments), pointers(&variables));
    // SAFETY: restores a disposition, no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, SIGPIPE_AT_START.load(Ordering::Relaxed)) };
    // SAFETY: path and both arrays are NUL-terminated and outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
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

/// Runs in the new process before its program: pins it, and has it ended should this process be killed.
pub fn at_start(command: &mut Command, cpu: Option<usize>) {
    let set = cpu.map(|cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    });
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        if let Some(set) = &set {
            sched_setaffinity(None, set)?;
        }
        Ok(())
    };
    // SAFETY: only two system calls happen between fork and exec; nothing is allocated, no lock is taken.
    unsafe { command.pre_exec(prepare) };
}

/// Binds this thread, and those that it starts, to processors.
pub fn run_on(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// Gives this thread, and those that it starts, a network of its own.
pub fn new_network_namespace() -> io::Result<()> {
    // SAFETY: only the network changes; descriptors stay shared.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?)
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The kernel's TCP_INFO as raw bytes; as many as this kernel knows of the 256 asked for.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut info = vec![0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of `info`; the kernel writes at most `length` bytes.
    let outcome = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut length)
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    info.truncate(length as usize);
    Ok(info)
}

/// Whether the file carries capabilities that the kernel grants on exec.
pub fn has_file_capabilities(path: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(path, OsStr::new("security.capability"), &mut value).is_ok_and(|length| length > 0)
}

/// Memory of another process as values: what `smc` defines for its shared table, and nothing else.
pub trait Numbers {}
impl Numbers for smc::table::Header {}
impl Numbers for smc::conn::Conn {}
impl Numbers for smc::census::Row {}

/// Reads `count` values from `offset` on. What lies behind the end of the file reads as zero.
pub fn read_numbers<T: Numbers>(file: &File, offset: u64, count: usize) -> io::Result<Box<[T]>> {
    let mut values = Box::<[T]>::new_zeroed_slice(count);
    let length = size_of_val(&*values);
    // SAFETY: the bytes of the allocation, all initialised to zero, borrowed only until the read is done.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), length) };
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    // SAFETY: the implementors of `Numbers` consist of integers, atomics and pointers that are not followed: any bytes
    // are a value of them.
    Ok(unsafe { values.assume_init() })
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

/// Whether a process may write to the memory of another one of its user that is not its child: asked by a child of this
/// one, of this one.
pub fn may_write_to_others() -> io::Result<()> {
    let parent = std::process::id() as i32;
    // SAFETY: the child makes system calls only, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = smc::device::may_write(parent).err().unwrap_or(0);
        // SAFETY: ends the child here.
        unsafe { libc::_exit(code) };
    }
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    // SAFETY: our own child, and a live local.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        // A filter that kills instead of refusing.
        _ if !libc::WIFEXITED(status) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Opens memory to direct writes at offset 0; the caller unmaps it.
pub fn map(stream: &shortwire_rsocket::net::RsocketStream, memory: &mut [u8]) -> io::Result<()> {
    // SAFETY: bytes have no invalid value; the caller keeps them, and looks at them when the peer has said that it wrote.
    unsafe { stream.map(memory.as_mut_ptr(), memory.len(), Some(0)) }.map(drop)
}
