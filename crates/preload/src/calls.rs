//! The exported names, by subject.

pub mod fd;
pub mod file;
pub mod io;
pub mod option;
pub mod process;
pub mod ready;
pub mod socket;
