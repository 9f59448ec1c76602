//! Which flow a packet belongs to, for apps that keep state of connections.

use crate::apps::headers::be16;
use crate::apps::icmp::upper_v6;
use checksum::{ICMP, ICMPV6, TCP, UDP};

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// Addresses and ports of a packet. Addresses of IPv4 are the first four bytes of sixteen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) v6: bool,
    pub(super) protocol: u8,
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    /// Of TCP and UDP; twice the identifier of an echo; 0 else.
    pub(super) ports: [u16; 2],
    /// Flags of TCP.
    pub(super) flags: u8,
    /// An echo request, or no ICMP at all.
    pub(super) begins: bool,
    /// Where what IP carries starts and ends, from the IP header on. A frame may go on behind it, and
    /// what an error quotes may end before.
    pub(super) upper: usize,
    pub(super) end: usize,
    /// The packet is an ICMP error; where the packet starts that it is about.
    pub(super) quoted: Option<usize>,
}

/// Why there is no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// A fragment: ports are in the first one only.
    Fragment,
    /// Cut off or with wrong lengths.
    Malformed,
}

/// The flow of an IP packet, which starts the bytes. One that an error quotes may be cut off
/// behind the ports.
pub(super) fn flow(ip: &[u8], quoted: bool) -> Result<Flow, Unknown> {
    let first = *ip.first().ok_or(Unknown::Malformed)?;
    let (mut source, mut destination) = ([0; 16], [0; 16]);
    let (v6, protocol, upper, total) = if first >> 4 == 4 {
        let start = ip.first_chunk::<20>().ok_or(Unknown::Malformed)?;
        source[..4].copy_from_slice(&start[12..16]);
        destination[..4].copy_from_slice(&start[16..20]);
        if u16::from_be_bytes([start[6], start[7]]) & 0x3fff != 0 {
            return Err(Unknown::Fragment);
        }
        let header = usize::from(first & 15) * 4;
        if header < 20 {
            return Err(Unknown::Malformed);
        }
        (false, start[9], header, usize::from(u16::from_be_bytes([start[2], start[3]])))
    } else if first >> 4 == 6 {
        let start = ip.first_chunk::<40>().ok_or(Unknown::Malformed)?;
        source.copy_from_slice(&start[8..24]);
        destination.copy_from_slice(&start[24..40]);
        // Later fragments have no upper header, and a first one stands for them.
        let (protocol, upper) = upper_v6(ip).ok_or(Unknown::Fragment)?;
        if upper != 40 && has_fragment(ip) {
            return Err(Unknown::Fragment);
        }
        (true, protocol, upper, 40 + usize::from(u16::from_be_bytes([start[4], start[5]])))
    } else {
        return Err(Unknown::Malformed);
    };
    if total < upper || (!quoted && total > ip.len()) {
        return Err(Unknown::Malformed);
    }
    let end = total.min(ip.len());
    let payload = &ip[..end];
    let word = |at: usize| be16(payload, upper + at).ok_or(Unknown::Malformed);
    let mut flow = Flow {
        v6,
        protocol,
        source,
        destination,
        ports: [0; 2],
        flags: 0,
        begins: true,
        upper,
        end,
        quoted: None,
    };
    match (protocol, v6) {
        (TCP | UDP, _) => {
            flow.ports = [word(0)?, word(2)?];
            if protocol == TCP && !quoted {
                flow.flags = *payload.get(upper + 13).ok_or(Unknown::Malformed)?;
                // All of the header must be there, so that those behind need not look again.
                payload.get(upper + 19).ok_or(Unknown::Malformed)?;
            } else if !quoted {
                word(6)?;
            }
        }
        (ICMP, false) | (ICMPV6, true) => {
            let kind = *payload.get(upper).ok_or(Unknown::Malformed)?;
            word(6)?;
            match (kind, v6) {
                (8, false) | (128, true) => flow.ports = [word(4)?; 2],
                (0, false) | (129, true) => {
                    flow.ports = [word(4)?; 2];
                    flow.begins = false;
                }
                (3 | 11 | 12, false) | (1..=4, true) if !quoted => {
                    flow.quoted = Some(upper + 8);
                    flow.begins = false;
                }
                _ => flow.begins = false,
            }
        }
        _ => {}
    }
    Ok(flow)
}

fn has_fragment(ip: &[u8]) -> bool {
    let (mut next, mut at) = (ip[6], 40);
    while matches!(next, 0 | 43 | 60) && at + 1 < ip.len() {
        next = ip[at];
        at += 8 + usize::from(ip[at + 1]) * 8;
    }
    next == 44
}
