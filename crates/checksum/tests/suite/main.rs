//! What must hold for every kernel and every function of the crate.

mod corpus;
mod huge;
mod kernels;
mod oracle;
mod packets;
mod properties;
