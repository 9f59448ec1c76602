//! Memory between processes: sealed segments, byte rings, doorbells, locks and counters.
//!
//! Two rules shape this crate.
//!
//! - *The other side is hostile.* What it can write is only ever loaded through atomics or copied
//!   out of a raw pointer, and checked afterwards; there is no reference to it and no index from
//!   it. [`Cursor::follow`] is the one door through which a peer's position enters.
//! - *Zero is the initial state.* Every shared type is `repr(C)` or transparent over plain atomics,
//!   so that fresh pages of a memfd are ready for use by both sides without a constructor to run.
//!
//! The crate is linked into a preload library, where names of libc lead back to our own hooks. It
//! therefore makes its system calls through rustix alone and never drops an `OwnedFd`.
#![cfg_attr(shortwire_raw, no_std)]
#![cfg_attr(not(any(loom, miri)), deny(missing_docs))]
#![deny(clippy::multiple_unsafe_ops_per_block)]

extern crate alloc;

pub mod address;
pub mod copy;
pub mod counter;
pub mod cursor;
pub mod doorbell;
pub mod futex;
pub mod guarded;
pub mod letters;
pub mod lock;
pub mod ring;
#[cfg(not(loom))]
pub mod rsockets;
pub mod segment;
pub mod sync;
pub mod thread;
pub mod words;

pub use copy::copy;
pub use counter::{Counter, Snapshot};
pub use crossbeam_utils::CachePadded;
pub use cursor::{CURSOR_MASK, Cursor, Violation};
pub use doorbell::{arm, must_ring};
pub use guarded::{Fresh, Guarded};
pub use letters::{Letters, Look};
pub use lock::{FastGuard, FastLock, Reentered};
pub use ring::Ring;
pub use rustix::io::Errno;
pub use segment::{Handle, OpenError, Retired, Segment};
pub use thread::{refresh_thread_id, thread_id};
