//! RDMA hardware, or the kernel's emulation of it, through libibverbs and librdmacm.
//!
//! What goes over the wire is what librdmacm's rsockets send: the same private data, the same
//! writes with the same immediate data. The memory of one connection is one region, where librdmacm
//! has two, which the peer cannot tell, as each entry has its own key.
//!
//! Handles of these libraries belong to the process that made them: a connection does not survive a
//! fork in the child, as with librdmacm.
#![allow(unsafe_code)]

pub mod connect;
mod endpoint;
#[cfg(test)]
#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a C interface for tests, whose callers are known"
)]
pub mod software;
#[cfg(test)]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "calls of a C interface")]
pub mod tests;

pub use ::verbs::abi;
pub use endpoint::VerbsEndpoint;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, RawFd};
use shm::Errno;

/// What new sockets go over: the system's libraries, or in tests those in software where asked for.
pub fn api() -> Option<&'static abi::Api> {
    #[cfg(test)]
    if software::is_chosen() {
        return Some(software::api());
    }
    abi::Api::system()
}

/// The errno that a call of these libraries has left.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// -1 and errno, as librdmacm has it.
fn check(result: i32) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn readable(fd: RawFd) -> bool {
    // SAFETY: for one system call; a number that is not open is not readable.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}
