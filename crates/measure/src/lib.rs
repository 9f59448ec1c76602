//! The programs of the `shortwire` command that measure: `bench`, `demo`, `rstream`, and `tune`,
//! which writes down what it found.
//!
//! `unsafe` is in `sys`; in `bench/engine/bare`, where frames are lent to the kernel; in
//! `bench/lock` and `rstream/limits`.

pub mod bench;
pub mod pending;
mod processors;
pub mod profile;
pub mod rstream;
mod sys;
pub mod tune;

use std::ffi::OsString;

/// The words that start a program under the library, up to the options: `shortwire run --quiet`. An
/// error, which says what to do, if there is no library.
pub type Run = fn() -> anyhow::Result<Vec<OsString>>;
