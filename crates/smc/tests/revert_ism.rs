//! The same tests over the ism device: `common::device` goes by the name of this binary.

#[path = "revert.rs"]
mod revert;
