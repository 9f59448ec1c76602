//! The exported names, by subject.
//!
//! SAFETY, for the whole folder: a hook has the contract of the libc function whose name it bears,
//! in its manual page. Its unsafe blocks forward that contract to the next definition, or use the
//! pointers as the contract allows. Blocks with an obligation beyond that say so.
#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]

pub mod exec;
pub mod fd;
pub mod file;
pub mod io;
pub mod process;
pub mod ready;
pub mod socket;
mod uring;
