//! Calls on numbers.

use crate::{failed, next};
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use libc::FILE;
use shm::Errno;
use shortwire_rsocket::{capi, sockets};

/// Whether this process may take the rsocket of that number apart: in the child of a `vfork` the
/// table is the parent's, while the descriptors are its own.
fn is_ours_to_close(fd: c_int) -> bool {
    (sockets::is_rsocket(fd) || sockets::is_set(fd)) && sockets::is_own_process()
}

#[unsafe(no_mangle)]
pub extern "C" fn close(fd: c_int) -> c_int {
    if sockets::is_hidden(fd) {
        return failed(Errno::BADF);
    }
    match is_ours_to_close(fd) {
        true => capi::rclose(fd),
        // SAFETY: no pointers.
        false => unsafe { next::close(fd) },
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let call = |first, last| unsafe { next::close_range(first, last, flags) };
    if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0 {
        return call(first, last);
    }
    sockets::close_range(first, last, call)
}

#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    if close_range(first.cast_unsigned(), c_uint::MAX, 0) < 0 {
        // A kernel before 5.9: one by one, as far as descriptors go.
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 0 };
        // SAFETY: a limit.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        for fd in first..limit.rlim_cur.min(1 << 20) as c_int {
            close(fd);
        }
    }
}

/// A second number for an rsocket there is none.
fn cannot_double(fd: c_int) -> bool {
    sockets::is_rsocket(fd) || sockets::is_set(fd)
}

#[unsafe(no_mangle)]
pub extern "C" fn dup(fd: c_int) -> c_int {
    if cannot_double(fd) {
        return failed(Errno::OPNOTSUPP);
    }
    // SAFETY: no pointers.
    unsafe { next::dup(fd) }
}

/// Takes the number for a double: what had it is closed.
fn make_way(fd: c_int, to: c_int) -> Result<(), Errno> {
    if fd == to {
        return Ok(());
    }
    if cannot_double(fd) {
        return Err(Errno::OPNOTSUPP);
    }
    // A child of a fork may have it under the same number, so it cannot be moved away.
    if sockets::is_hidden(to) {
        return Err(Errno::BUSY);
    }
    if is_ours_to_close(to) {
        capi::rclose(to);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    match make_way(fd, to) {
        // SAFETY: no pointers.
        Ok(()) => unsafe { next::dup2(fd, to) },
        Err(error) => failed(error),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    match make_way(fd, to) {
        // SAFETY: no pointers.
        Ok(()) => unsafe { next::dup3(fd, to, flags) },
        Err(error) => failed(error),
    }
}

fn control(fd: c_int, command: c_int, argument: c_long) -> Option<c_int> {
    let doubles = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if doubles && cannot_double(fd) {
        return Some(failed(Errno::OPNOTSUPP));
    }
    let known = [libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, libc::F_SETFD];
    (sockets::is_rsocket(fd) && known.contains(&command))
        .then(|| capi::rfcntl(fd, command, argument))
}

/// Variadic in C: a number, an address or nothing as its third argument.
#[unsafe(no_mangle)]
pub extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as the caller has it.
    control(fd, command, argument).unwrap_or_else(|| unsafe { next::fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
pub extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    control(fd, command, argument)
        // SAFETY: as the caller has it.
        .unwrap_or_else(|| unsafe { next::fcntl64(fd, command, argument) })
}

/// # Safety
/// As `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if sockets::is_rsocket(fd) && !argument.is_null() {
        let number = argument.cast::<c_int>();
        match request {
            libc::FIONBIO => {
                // SAFETY: by the contract.
                let on = unsafe { number.read() } != 0;
                let flags = capi::rfcntl(fd, libc::F_GETFL, 0);
                let bit = libc::O_NONBLOCK;
                let flags = if on { flags | bit } else { flags & !bit };
                return capi::rfcntl(fd, libc::F_SETFL, flags.into());
            }
            libc::FIONREAD => {
                if let Some(n) = sockets::waiting(fd) {
                    // SAFETY: by the contract.
                    unsafe { number.write(c_int::try_from(n).unwrap_or(c_int::MAX)) };
                    return 0;
                }
            }
            _ => {}
        }
    }
    // SAFETY: by the contract.
    unsafe { next::ioctl(fd, request, argument) }
}

/// What `stdio` writes goes past every library: a stream over an rsocket would send into the TCP
/// connection beneath it, where nobody reads. So there is none; and see `print.rs`.
///
/// # Safety
/// As `fdopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const libc::c_char) -> *mut FILE {
    if sockets::is_rsocket(fd) {
        crate::set_errno(Errno::OPNOTSUPP);
        return core::ptr::null_mut();
    }
    // SAFETY: by the contract.
    unsafe { next::fdopen(fd, mode) }
}
