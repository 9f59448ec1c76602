//! ICMP as a router sends it: errors (RFC 792, RFC 1191, RFC 4443) and answers to echo requests.
//! A packet is turned into the answer to it where it lies.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::apps::headers::{ETHERNET, be16};
use crate::packet::Packet;
use checksum::{ICMP, ICMPV6, UDP, csum_fold, csum_ipv6_magic, csum_partial, csum_replace2};

/// Hop limit of what a router itself sends.
const HOPS: u8 = 64;
/// Longest error over IPv4 (RFC 1812, 4.3.2.3) and IPv6 (RFC 4443, 2.4 c), with its IP header.
const LONGEST_V4: usize = 576;
const LONGEST_V6: usize = 1280;
/// Headers in front of the packet that an error quotes.
const BEFORE_V4: usize = 28;
const BEFORE_V6: usize = 48;

/// What an error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// No route to the destination.
    NoRoute,
    /// The destination, or the router that leads to it, does not answer on its link.
    Host,
    /// Nothing listens at a port of the router itself.
    Port,
    /// The next link carries packets of this many bytes only.
    TooBig(u16),
    /// The hop limit came to its end.
    Expired,
}

impl Message {
    fn v4(self) -> [u8; 8] {
        let (kind, code, mtu) = match self {
            Self::NoRoute => (3, 0, 0),
            Self::Host => (3, 1, 0),
            Self::Port => (3, 3, 0),
            Self::TooBig(mtu) => (3, 4, mtu),
            Self::Expired => (11, 0, 0),
        };
        let [high, low] = mtu.to_be_bytes();
        [kind, code, 0, 0, 0, 0, high, low]
    }

    fn v6(self) -> [u8; 8] {
        let (kind, code, mtu) = match self {
            Self::NoRoute => (1, 0, 0),
            Self::Host => (1, 3, 0),
            Self::Port => (1, 4, 0),
            Self::TooBig(mtu) => (2, 0, mtu),
            Self::Expired => (3, 0, 0),
        };
        let [high, low] = mtu.to_be_bytes();
        [kind, code, 0, 0, 0, 0, high, low]
    }
}

/// Turns a frame with a well-formed IPv4 packet into the error about it; the Ethernet addresses
/// stay. False, and nothing changed, if nobody may be sent one: the cases of RFC 1812, 4.3.2.7.
pub(super) fn error_v4(frame: &mut Packet, from: Ipv4Addr, message: Message) -> bool {
    let Some(ip) = frame.get(ETHERNET..) else { return false };
    let Some(start) = ip.first_chunk::<20>() else { return false };
    let header = usize::from(start[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([start[2], start[3]]));
    let address = |at: usize| Ipv4Addr::new(start[at], start[at + 1], start[at + 2], start[at + 3]);
    let (source, destination) = (address(12), address(16));
    let one_host = !(source.octets()[0] == 0 || source.octets()[0] >= 224 || source.is_loopback());
    let later_fragment = u16::from_be_bytes([start[6], start[7]]) & 0x1fff != 0;
    // Of ICMP only questions and their answers are told of.
    let about_error = start[9] == ICMP && !matches!(ip.get(header), Some(0 | 8..=10 | 13..=18));
    if !one_host || destination.octets()[0] >= 224 || later_fragment || about_error {
        return false;
    }
    // Precedence: internetwork control (RFC 1812, 4.3.2.5).
    let (id, tos) = ([start[4], start[5]], 0xc0);
    let quoted = total.min(LONGEST_V4 - BEFORE_V4);
    frame.truncate(ETHERNET + quoted);
    if !frame.grow_front(BEFORE_V4) {
        return false;
    }
    frame.copy_within(BEFORE_V4..BEFORE_V4 + ETHERNET, 0);
    let ip = &mut frame[ETHERNET..];
    let length = (ip.len() as u16).to_be_bytes();
    ip[..12]
        .copy_from_slice(&[0x45, tos, length[0], length[1], id[0], id[1], 0, 0, HOPS, ICMP, 0, 0]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&source.octets());
    let sum = csum_fold(csum_partial(&ip[..20], 0));
    ip[10..12].copy_from_slice(&sum.to_ne_bytes());
    ip[20..28].copy_from_slice(&message.v4());
    let sum = csum_fold(csum_partial(&ip[20..], 0));
    ip[22..24].copy_from_slice(&sum.to_ne_bytes());
    frame.flags = 0;
    true
}

/// As [`error_v4`], over IPv6: the cases of RFC 4443, 2.4 (e).
pub(super) fn error_v6(frame: &mut Packet, from: Ipv6Addr, message: Message) -> bool {
    let Some(ip) = frame.get(ETHERNET..) else { return false };
    let Some(start) = ip.first_chunk::<40>() else { return false };
    let total = 40 + usize::from(u16::from_be_bytes([start[4], start[5]]));
    let address = |at: usize| start[at..].first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes));
    let (Some(source), Some(destination)) = (address(8), address(24)) else { return false };
    let to_many = destination.is_multicast() && !matches!(message, Message::TooBig(_));
    let one_host = !(source.is_unspecified() || source.is_multicast() || source.is_loopback());
    let may = match upper_v6(ip.get(..total).unwrap_or(ip)) {
        Some((ICMPV6, at)) => ip.get(at).is_some_and(|kind| *kind >= 128 && *kind != 137),
        Some(_) => true,
        None => false,
    };
    if to_many || !one_host || !may {
        return false;
    }
    frame.truncate(ETHERNET + total.min(LONGEST_V6 - BEFORE_V6));
    if !frame.grow_front(BEFORE_V6) {
        return false;
    }
    frame.copy_within(BEFORE_V6..BEFORE_V6 + ETHERNET, 0);
    let ip = &mut frame[ETHERNET..];
    let payload = (ip.len() - 40) as u16;
    let [high, low] = payload.to_be_bytes();
    ip[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, ICMPV6, HOPS]);
    ip[8..24].copy_from_slice(&from.octets());
    ip[24..40].copy_from_slice(&source.octets());
    ip[40..48].copy_from_slice(&message.v6());
    let sum = csum_partial(&ip[40..], 0);
    let check = csum_ipv6_magic(from.octets(), source.octets(), payload.into(), ICMPV6, sum);
    ip[42..44].copy_from_slice(&check.to_ne_bytes());
    frame.flags = 0;
    true
}

/// The protocol behind the extension headers of an IPv6 packet and where it starts; None for
/// later fragments, for chains of more than eight headers, and where a header is cut off.
pub(super) fn upper_v6(ip: &[u8]) -> Option<(u8, usize)> {
    let (mut next, mut at) = (*ip.get(6)?, 40);
    for _ in 0..8 {
        match next {
            // Hop-by-hop options, routing, destination options, mobility: RFC 8200, 4.
            0 | 43 | 60 | 135 => {
                next = *ip.get(at)?;
                at += 8 + usize::from(*ip.get(at + 1)?) * 8;
            }
            44 => {
                next = *ip.get(at)?;
                (be16(ip, at + 2)? & 0xfff8 == 0).then_some(())?;
                at += 8;
            }
            // The authentication header counts in units of four bytes.
            51 => {
                next = *ip.get(at)?;
                at += 8 + usize::from(*ip.get(at + 1)?) * 4;
            }
            _ => return Some((next, at)),
        }
    }
    None
}

/// What a packet to the router itself asks of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// It was an echo request and is the answer now.
    Echo,
    /// A datagram to a port at which nothing listens.
    Port,
    /// Anything else, or an echo request that is damaged or a fragment.
    Other,
}

/// Answers a well-formed IPv4 packet to the router, `ip` from its header to its end.
pub(super) fn ask_v4(ip: &mut [u8]) -> Asked {
    let header = usize::from(ip[0] & 15) * 4;
    let (protocol, fragment) = (ip[9], be16(ip, 6).is_none_or(|word| word & 0x3fff != 0));
    match (protocol, fragment) {
        (UDP, false) => return Asked::Port,
        (ICMP, false) => {}
        _ => return Asked::Other,
    }
    let message = &mut ip[header..];
    if message.len() < 8 || message[..2] != [8, 0] || csum_fold(csum_partial(message, 0)) != 0 {
        return Asked::Other;
    }
    message[0] = 0;
    let check = u16::from_ne_bytes([message[2], message[3]]);
    let check = csum_replace2(check, [8, 0], [0, 0]);
    message[2..4].copy_from_slice(&check.to_ne_bytes());
    let (source, destination) = ip[12..20].split_at_mut(4);
    source.swap_with_slice(destination);
    let (old, new) = ([ip[8], ip[9]], [HOPS, ip[9]]);
    let check = csum_replace2(u16::from_ne_bytes([ip[10], ip[11]]), old, new);
    ip[8] = HOPS;
    ip[10..12].copy_from_slice(&check.to_ne_bytes());
    Asked::Echo
}

/// As [`ask_v4`], over IPv6. Extension headers in front of the request are not understood.
pub(super) fn ask_v6(ip: &mut [u8]) -> Asked {
    match ip[6] {
        UDP => return Asked::Port,
        ICMPV6 => {}
        _ => return Asked::Other,
    }
    let (header, message) = ip.split_at_mut(40);
    let (addresses, length) = (&mut header[8..40], message.len() as u32);
    let (source, destination) = addresses.split_at_mut(16);
    let (Some(s), Some(d)) = (source.first_chunk(), destination.first_chunk()) else {
        return Asked::Other;
    };
    let right = || csum_ipv6_magic(*s, *d, length, ICMPV6, csum_partial(message, 0)) == 0;
    if message.len() < 8 || message[..2] != [128, 0] || !right() {
        return Asked::Other;
    }
    message[0] = 129;
    let check = u16::from_ne_bytes([message[2], message[3]]);
    let check = csum_replace2(check, [128, 0], [129, 0]);
    message[2..4].copy_from_slice(&check.to_ne_bytes());
    source.swap_with_slice(destination);
    header[7] = HOPS;
    Asked::Echo
}
