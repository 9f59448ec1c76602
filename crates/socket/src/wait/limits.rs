//! How long a call may wait: what its arguments, or the options of its socket, say.
#![allow(unsafe_code)]

use crate::kernel;
use smc::sys;

/// A time limit that the kernel does not take.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

/// A time limit in nanoseconds, None for ever.
///
/// # Safety
/// `limit` must be null, or a timespec of the application, or not readable.
pub unsafe fn duration(limit: *const libc::timespec) -> Result<Option<u64>, Refused> {
    if limit.is_null() {
        return Ok(None);
    }
    if crate::faulty(limit) {
        return Err(Refused);
    }
    // SAFETY: the caller's obligation.
    let t = unsafe { limit.read() };
    if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
        return Err(Refused);
    }
    Ok(Some((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)))
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a call that began at `since`, as a point in time.
pub(super) fn limit_of(fd: i32, option: i32, since: u64) -> Option<u64> {
    let mut tv = [0i64; 2];
    sys::getsockopt(fd, libc::SOL_SOCKET, option, &mut tv);
    (tv != [0, 0]).then(|| since + tv[0] as u64 * 1_000_000_000 + tv[1] as u64 * 1000)
}

/// Whether a receive that has nothing goes on after the error of its wait: as in the kernel, behind
/// a handler that asks for it if there is no time limit.
#[cold]
pub(super) fn is_restarted(e: i32, limit: Option<u64>) -> bool {
    e == libc::EINTR && limit.is_none() && kernel::get().restarts()
}
