//! poll and select. Where no rsocket is among the descriptors it is the kernel's call.

use crate::next;
use core::ffi::c_int;
use core::ptr::null_mut;
use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use shortwire_rsocket::{capi, sockets};

/// # Safety
/// As `poll`.
unsafe fn has_rsockets(fds: *const pollfd, count: nfds_t) -> bool {
    if fds.is_null() || count == 0 {
        return false;
    }
    // SAFETY: by the contract.
    let fds = unsafe { core::slice::from_raw_parts(fds, count as usize) };
    fds.iter().any(|entry| sockets::is_rsocket(entry.fd))
}

/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's obligation, as for the function of libc; so in this whole file.
    match unsafe { has_rsockets(fds, count) } {
        // SAFETY: as above.
        true => unsafe { capi::rpoll(fds, count, timeout) },
        // SAFETY: as above.
        false => unsafe { next::poll(fds, count, timeout) },
    }
}

/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: as above.
    match unsafe { has_rsockets(fds, count) } && room / size_of::<pollfd>() >= count as usize {
        // SAFETY: as above.
        true => unsafe { capi::rpoll(fds, count, timeout) },
        // SAFETY: as above.
        false => unsafe { next::__poll_chk(fds, count, timeout, room) },
    }
}

/// # Safety
/// As `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    if !unsafe { has_rsockets(fds, count) } {
        // SAFETY: as above.
        return unsafe { next::ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: as above.
    let millis = unsafe { timeout.as_ref() }.map_or(-1, millis);
    // SAFETY: as above.
    unsafe { capi::rpoll_under(mask, fds, count, millis) }
}

/// Rounded up: nobody is to be woken before his time.
pub fn millis(time: &timespec) -> c_int {
    let nanos = time.tv_nsec.clamp(0, 999_999_999);
    let millis = time.tv_sec.saturating_mul(1000).saturating_add((nanos + 999_999) / 1_000_000);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// # Safety
/// As `select`.
unsafe fn selects_rsockets(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return false;
    }
    (0..count).any(|fd| {
        sockets::is_rsocket(fd)
            // SAFETY: as above: null, or a set of FD_SETSIZE bits.
            && sets.iter().any(|set| !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) })
    })
}

/// # Safety
/// As `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as above.
    match unsafe { selects_rsockets(count, [read, write, except]) } {
        // SAFETY: as above.
        true => unsafe { capi::rselect(count, read, write, except, timeout) },
        // SAFETY: as above.
        false => unsafe { next::select(count, read, write, except, timeout) },
    }
}

/// # Safety
/// As `pselect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    if !unsafe { selects_rsockets(count, [read, write, except]) } {
        // SAFETY: as above.
        return unsafe { next::pselect(count, read, write, except, timeout, mask) };
    }
    // SAFETY: as above.
    let mut time = unsafe { timeout.as_ref() }.map(|t| match t.tv_nsec {
        // It would be a million, which is refused.
        999_999_001..=999_999_999 => timeval { tv_sec: t.tv_sec.saturating_add(1), tv_usec: 0 },
        nsec => timeval { tv_sec: t.tv_sec, tv_usec: nsec.saturating_add(999) / 1000 },
    });
    let time = time.as_mut().map_or(null_mut(), |time| &raw mut *time);
    // SAFETY: as above.
    unsafe { capi::rselect_under(mask, count, [read, write, except], time) }
}
