//! The same tests over the ism device: `common::over_ism` goes by the name of this binary.

#[path = "doorbells.rs"]
mod doorbells;
