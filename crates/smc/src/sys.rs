//! System calls made by instruction, never through libc names.
//!
//! Inside the preloaded library `libc::recv` binds to our own hook, so everything here issues the
//! `syscall` instruction itself and returns a negative errno instead of touching `errno`. Nobody
//! else in the library issues it.

mod file;
mod memory;
mod net;
mod process;
mod raw;
mod time;
mod wait;

pub use file::*;
pub use memory::*;
pub use net::*;
pub use process::*;
pub use raw::{by_list, syscall as by_number};
pub use time::*;
pub use wait::*;

/// A Linux error number.
pub type Errno = i32;
