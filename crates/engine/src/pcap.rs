//! Capture files: classic pcap in its four variants (byte orders, microseconds and nanoseconds) and
//! pcapng; both are read and written. Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

mod classic;
mod ng;
mod ng_write;
mod read;
mod write;

pub use ng_write::NgWriter;
pub use read::{Damage, PcapError, Reader, Record};
pub use write::Writer;

/// Ethernet, the only link type that the engine's packets have.
pub const ETHERNET: u32 = 1;

/// Longest packet that a reader believes in; libpcap's own limit.
pub const LONGEST: u32 = 262_144;

/// Whether both paths lead to one ordinary file, which a writer would empty under its reader. One
/// that is not there yet is known by its folder and its name. Pipes and devices may have both.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => {
            let folder = |path: &Path| {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let found = fs::metadata(parent.unwrap_or(Path::new("."))).ok()?;
                Some((found.dev(), found.ino()))
            };
            a.file_name() == b.file_name() && folder(a).is_some_and(|at| folder(b) == Some(at))
        }
        _ => false,
    }
}

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
