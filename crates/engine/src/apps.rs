//! The apps of this crate, one file or folder per device or function.

use crate::registry::Registry;

pub mod basic;
mod mmsg;
mod presence;
pub mod raw_socket;
pub mod shm_link;
pub mod tap;
pub mod unix_socket;
mod vnet;
pub mod xdp;

pub(crate) fn register(registry: &mut Registry) {
    basic::register(registry);
    raw_socket::register(registry);
    shm_link::register(registry);
    tap::register(registry);
    unix_socket::register(registry);
    xdp::register(registry);
}
