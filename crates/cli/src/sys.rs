//! The few things that neither the standard library nor rustix does: replacing this process without
//! changing signals, a socket option, what a file and what this process may.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

static SIGPIPE_AT_START: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// Rust's runtime ignores SIGPIPE before `main`; the program that `run` becomes must get what we
/// were given.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER_SIGPIPE: extern "C" fn() = {
    extern "C" fn remember() {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks for the current action, into memory of the right type.
        let known =
            unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) } == 0;
        if known {
            // SAFETY: the call filled it in.
            SIGPIPE_AT_START.store(unsafe { action.assume_init() }.sa_sigaction, Ordering::Relaxed);
        }
    }
    remember
};

/// Becomes `program`. Returns only when that failed. Signal mask and dispositions stay as this
/// process got them, which the standard library's `exec` would reset.
pub fn exec(
    program: &Path,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> io::Error {
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

/// The kernel's TCP_INFO as raw bytes; as many as this kernel knows of the 256 asked for.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut info = vec![0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of `info`; the kernel writes at most `length` bytes.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
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
    rustix::fs::getxattr(path, OsStr::new("security.capability"), &mut value)
        .is_ok_and(|length| length > 0)
}

/// Whether this kernel sends system calls of a program's own code to a handler of its process.
pub fn has_user_dispatch() -> bool {
    const SET_SYSCALL_USER_DISPATCH: i32 = 59;
    // SAFETY: integers: switches off what nobody has switched on in this thread.
    unsafe { libc::prctl(SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) == 0 }
}

/// Whether a process may write to the memory of another one of its user that is not its child:
/// asked by a child of this one, of this one.
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
