//! What must hold for every kernel and every function of the crate.

mod huge;
mod kernels;
mod oracle;
mod packets;
mod properties;
