//! The one place of this crate that chooses between the atomics of core and those of loom.

pub use shm::sync::{AtomicU32, AtomicU64, Ordering};
