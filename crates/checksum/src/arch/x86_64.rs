//! x86-64: add-with-carry chains, and vectors of 256 and 512 bits.

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod carry;
pub(crate) mod few;
