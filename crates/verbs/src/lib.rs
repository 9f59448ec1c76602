//! RDMA verbs: libibverbs and librdmacm, opened at run time, and a provider in software that works between processes.
//!
//! What uses the tables of functions here ([`abi::Ibv`], [`abi::Api`]) does not know whether hardware is behind them, the
//! kernel's emulation of it, or [`software`].
//!
//! Handles belong to the process that made them: none is of any use in the child of a fork.

pub mod abi;
pub mod far;
pub mod software;
#[cfg(test)]
mod tests;

pub use shm::Errno;
