//! The same tests over the ism device with its checksum: `common::serial` goes by the name of this binary.

#[path = "revert.rs"]
mod revert;
