//! Our own descriptors, of which the application does not know: it may close all numbers from one on,
//! and would end its connections by that. `libshortwire_rspreload.so` keeps it from them.
#![allow(unsafe_code)]

use crate::numbers::Numbers;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// The child of a fork has what its parent has.
static HIDDEN: Numbers = Numbers::new();

/// As far as the limit allows, ours are not below this one.
const FLOOR: u64 = 768;

pub fn contains(fd: RawFd) -> bool {
    HIDDEN.has(fd)
}

/// Those from `first` to `last`, the least first.
pub fn within(first: u32, last: u32) -> impl Iterator<Item = u32> {
    HIDDEN.within(first, last)
}

/// One that stays open to the end of the process.
pub fn add(fd: RawFd) {
    HIDDEN.mark(fd, true);
}

/// Moves a descriptor out of the application's way, as far as its limit allows. Ends by [`close`].
pub fn park(fd: OwnedFd) -> RawFd {
    let limit =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let floor = (limit / 4 * 3).min(FLOOR);
    let parked = match rustix::io::fcntl_dupfd_cloexec(&fd, floor as RawFd) {
        Ok(high) => {
            // SAFETY: ours, and replaced.
            unsafe { rustix::io::close(fd.into_raw_fd()) };
            high.into_raw_fd()
        }
        Err(_) => fd.into_raw_fd(),
    };
    add(parked);
    parked
}

/// -1 is none.
pub fn close(fd: RawFd) {
    if fd >= 0 {
        // First: another thread may have the number for something else as soon as it is closed.
        HIDDEN.mark(fd, false);
        // SAFETY: ours, and its last use.
        unsafe { rustix::io::close(fd) };
    }
}

/// A parked descriptor that is closed when it is dropped.
pub struct Hidden(OwnedFd);

impl Hidden {
    pub fn new(fd: OwnedFd) -> Self {
        // SAFETY: nobody else has it.
        Self(unsafe { OwnedFd::from_raw_fd(park(fd)) })
    }
}

impl AsFd for Hidden {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Hidden {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // The close behind this is libc's, which the application is kept from for what is hidden.
        HIDDEN.mark(self.0.as_raw_fd(), false);
    }
}
