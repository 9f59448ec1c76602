//! rsockets: the sockets of librdmacm, for any machine.
//!
//! Programs use the C names ([`capi`]) or [`net`], which feels like `std::net`. Beneath lie sockets
//! by descriptor (`socket`), the stream protocol ([`stream`]), and what moves its bytes
//! ([`provider`]). doc/rsocket.md describes the protocol.
#![cfg(not(loom))]
#![deny(missing_docs)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

mod beacon;
pub mod capi;
mod census;
mod config;
mod hidden;
mod kept;
mod kernel;
pub mod net;
mod numbers;
mod poll;
mod progress;
pub mod provider;
mod set;
pub mod shared;
mod socket;
pub mod sockets;
pub mod stream;
mod table;
mod verbs;
pub mod wire;

pub use shm::Errno;
