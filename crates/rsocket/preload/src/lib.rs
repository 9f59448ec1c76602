//! Socket calls of programs that know nothing of rsockets, as librdmacm's librspreload has them:
//! what `shortwire run --rsocket` loads for such a program.
//!
//! A TCP socket becomes an rsocket when it listens, or connects to a listener of another such
//! program; its number stays the same (`shortwire_rsocket::sockets`). From then on its calls go to
//! the rsockets library, and those of all other descriptors to the next library. An `epoll` set is a
//! set of `repoll`.
#![allow(unsafe_code)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

mod aliases;
mod descriptors;
mod epoll;
mod exit;
mod next;
mod print;
mod ready;
mod socket;
mod transfer;

use core::ffi::c_int;
use shm::Errno;
pub use shortwire_rsocket::capi::*;

fn set_errno(error: Errno) {
    // SAFETY: it has no obligation.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own errno.
    unsafe { *place = error.raw_os_error() };
}

fn failed(error: Errno) -> c_int {
    set_errno(error);
    -1
}

fn status(result: Result<(), Errno>) -> c_int {
    result.map_or_else(failed, |()| 0)
}
