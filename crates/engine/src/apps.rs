//! The apps of this crate, one file or folder per device or function.

use crate::registry::Registry;

pub mod acl;
pub mod basic;
pub mod bridge;
pub mod checksum;
mod connections;
pub mod forwarder;
pub mod fragment;
pub mod headers;
mod icmp;
pub mod ipfix;
pub mod memif;
mod mmsg;
pub mod nat;
pub mod neighbour;
pub mod pcap;
mod peer;
pub(crate) mod presence;
pub mod rate_limiter;
pub mod raw_socket;
pub mod rss;
mod segment;
pub mod shm_link;
pub mod tap;
mod transport;
pub mod tunnel;
pub mod unix_socket;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;
pub mod vlan;
pub(crate) mod vnet;
pub mod xdp;

pub(crate) fn register(registry: &mut Registry) {
    acl::register(registry);
    basic::register(registry);
    bridge::register(registry);
    checksum::register(registry);
    forwarder::register(registry);
    fragment::register(registry);
    ipfix::register(registry);
    memif::register(registry);
    nat::register(registry);
    neighbour::register(registry);
    pcap::register(registry);
    rate_limiter::register(registry);
    raw_socket::register(registry);
    rss::register(registry);
    shm_link::register(registry);
    tap::register(registry);
    tunnel::register(registry);
    unix_socket::register(registry);
    #[cfg(feature = "vhost-user")]
    vhost_user::register(registry);
    vlan::register(registry);
    xdp::register(registry);
    crate::nic::i82574::register(registry);
    crate::nic::i82599::app::register(registry);
}
