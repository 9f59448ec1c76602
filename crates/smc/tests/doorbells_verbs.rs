//! The same tests over the verbs device: `common::device` goes by the name of this binary.

#[path = "doorbells.rs"]
mod doorbells;
