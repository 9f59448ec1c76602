//! RDMA verbs: libibverbs and librdmacm, opened at run time, and a provider in software that works
//! between processes.
//!
//! What uses the tables of functions here ([`abi::Ibv`], [`abi::Api`]) does not know whether
//! hardware is behind them, the kernel's emulation of it, or [`software`].
//!
//! Handles belong to the process that made them: none is of any use in the child of a fork. The
//! child of a vfork is in the memory of its parent, and uses them in its stead.
#![cfg_attr(shortwire_raw, no_std)]
#![deny(missing_docs)]
#![deny(clippy::multiple_unsafe_ops_per_block)]
#![allow(unsafe_code)]

extern crate alloc;

pub mod abi;
pub mod far;
pub mod software;
#[cfg(test)]
#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls of the C interface, one behind the other"
)]
mod tests;

pub use shm::Errno;

/// Whether this is the process `owner`, or a child of a vfork in its memory.
pub fn is_in_memory_of(owner: i32) -> bool {
    const KCMP_VM: usize = 1;
    let here = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: integers only.
    owner == here
        || unsafe {
            libc::syscall(libc::SYS_kcmp, owner as usize, here as usize, KCMP_VM, 0usize, 0usize)
        } == 0
}
