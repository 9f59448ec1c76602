//! The socket library: what each descriptor of a program is, and how the program waits, sends and
//! receives on it.
//!
//! A *front* intercepts a program's calls, by libc's names (`preload`) or by the numbers of system
//! calls, and hands them in. Every call returns a length (or another count) or a negative errno.
//! The library touches neither errno nor the functions of a C library: what it needs of them, calls
//! that sleep above all, is the front's [`Kernel`]. System calls that never sleep it makes itself,
//! by instruction (`smc::sys`).
//!
//! Nothing here allocates from the application's heap, panics, or keeps a lock across a wait.
#![cfg(not(loom))]
#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

extern crate alloc;

pub mod aio;
pub mod descriptors;
pub mod endpoint;
#[allow(clippy::multiple_unsafe_ops_per_block)]
pub mod epoll;
pub mod fds;
pub mod file;
pub mod fork;
pub mod kernel;
pub mod option;
pub mod pass;
pub mod pieces;
pub mod poll;
pub mod programs;
pub mod receive;
pub mod rights;
pub mod select;
pub mod transmit;
pub mod uring;
pub mod wait;

mod bell;
mod deferred;
mod ledger;
mod settle;
mod spin;
#[cfg(test)]
mod tests;

pub use fds::Port;
pub use kernel::Kernel;

/// The library's way of failing: -`e`.
#[cold]
fn fail(e: i32) -> isize {
    if e == libc::ECONNRESET {
        smc::group::heed();
    }
    -(e as isize)
}

/// An address that nothing can be mapped at: the kernel answers EFAULT where we would crash.
#[inline(always)]
pub fn faulty<T>(p: *const T) -> bool {
    smc::sys::faulty(p.cast())
}
