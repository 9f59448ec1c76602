//! The kernels, by instruction set.

pub(crate) mod portable;
