//! Capture files: classic pcap in its four variants (byte orders, microseconds and nanoseconds) and
//! pcapng, read; classic pcap, written. Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

mod classic;
mod ng;
mod read;
mod write;

pub use read::{Damage, PcapError, Reader, Record};
pub use write::Writer;

/// Ethernet, the only link type that the engine's packets have.
pub const ETHERNET: u32 = 1;

/// Longest packet that a reader believes in; libpcap's own limit.
pub const LONGEST: u32 = 262_144;

/// Names of link types that people meet.
pub fn link_type_name(link_type: u32) -> &'static str {
    match link_type {
        0 => "BSD loopback",
        1 => "Ethernet",
        9 => "PPP",
        12 | 101 => "raw IP",
        105 => "IEEE 802.11",
        113 => "Linux cooked",
        127 => "IEEE 802.11 radiotap",
        228 => "raw IPv4",
        229 => "raw IPv6",
        276 => "Linux cooked v2",
        _ => "not known here",
    }
}
