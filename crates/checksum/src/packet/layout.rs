//! Where in a packet the checksums are and what they cover. Every length is checked before it is
//! used.

use core::ops::Range;

use super::PacketError;
use crate::pseudo::{ICMP, ICMPV6, TCP, UDP, csum_ipv6_nofold, csum_tcpudp_nofold};

pub(super) struct Layout {
    /// Bytes of the IPv4 header; 0 with IPv6, whose header has no checksum.
    pub ipv4_header: usize,
    pub payload: Payload,
}

pub(super) enum Payload {
    Transport(Transport),
    Fragment,
    Other(u8),
}

pub(super) struct Transport {
    pub protocol: u8,
    /// What the checksum covers.
    pub data: Range<usize>,
    /// Where it lies.
    pub field: usize,
    /// The pseudo header's partial sum.
    pub pseudo: u32,
}

impl Layout {
    pub fn of(packet: &[u8]) -> Result<Layout, PacketError> {
        match bytes::<1>(packet, 0)?[0] >> 4 {
            4 => ipv4(packet),
            6 => ipv6(packet),
            version => Err(PacketError::Version(version)),
        }
    }
}

fn bytes<const N: usize>(packet: &[u8], at: usize) -> Result<[u8; N], PacketError> {
    let found = packet.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(PacketError::Truncated { needed: at + N, actual: packet.len() })
}

fn be16(packet: &[u8], at: usize) -> Result<u16, PacketError> {
    bytes(packet, at).map(u16::from_be_bytes)
}

/// The packet without what follows behind its own length.
fn cut(packet: &[u8], length: usize) -> Result<&[u8], PacketError> {
    packet.get(..length).ok_or(PacketError::Truncated { needed: length, actual: packet.len() })
}

fn ipv4(packet: &[u8]) -> Result<Layout, PacketError> {
    let fixed: [u8; 20] = bytes(packet, 0)?;
    let header = usize::from(fixed[0] & 0xf) * 4;
    let packet = cut(packet, usize::from(be16(packet, 2)?))?;
    if header < 20 || packet.len() < header {
        return Err(PacketError::Length);
    }
    // More fragments, or not the first.
    if be16(packet, 6)? & 0x3fff != 0 {
        return Ok(Layout { ipv4_header: header, payload: Payload::Fragment });
    }
    let source = bytes(packet, 12)?;
    let destination = source_route_end(&packet[20..header]).unwrap_or(bytes(packet, 16)?);
    let pseudo = |protocol, length| match protocol {
        ICMP => 0,
        _ => csum_tcpudp_nofold(source, destination, length as u16, protocol, 0),
    };
    let known = [TCP, UDP, ICMP];
    Ok(Layout {
        ipv4_header: header,
        payload: transport(packet, header, fixed[9], &known, false, pseudo)?,
    })
}

/// The last address of a source route that has not been walked to its end: the destination that the
/// transport's sender summed (RFC 1122 section 3.2.1.8 e).
fn source_route_end(mut options: &[u8]) -> Option<[u8; 4]> {
    loop {
        match *options {
            // No operation.
            [1, ref rest @ ..] => options = rest,
            [131 | 137, length, pointer, ..] if pointer < length => {
                return options.get(3..usize::from(length))?.last_chunk().copied();
            }
            [kind, length, ..] if kind > 1 && length > 1 => {
                options = options.get(usize::from(length)..)?
            }
            // The end, or nothing that makes sense.
            _ => return None,
        }
    }
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

fn ipv6(packet: &[u8]) -> Result<Layout, PacketError> {
    let fixed: [u8; 40] = bytes(packet, 0)?;
    let jumbo =
        if be16(packet, 4)? == 0 && fixed[6] == HOP_BY_HOP { jumbo_length(packet)? } else { None };
    let length = jumbo.unwrap_or(usize::from(be16(packet, 4)?));
    let packet = cut(packet, length.saturating_add(40))?;
    let mut destination = bytes(packet, 24)?;
    let (mut next, mut at) = (fixed[6], 40);
    loop {
        let size = match next {
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {
                (usize::from(bytes::<2>(packet, at)?[1]) + 1) * 8
            }
            AUTHENTICATION => (usize::from(bytes::<2>(packet, at)?[1]) + 2) * 4,
            FRAGMENT => 8,
            _ => break,
        };
        let header = packet.get(at..at + size).ok_or(PacketError::Length)?;
        match next {
            // Offset, or more fragments; without either it is a whole packet (RFC 6946).
            FRAGMENT if be16(header, 2)? & 0xfff9 != 0 => {
                return Ok(Layout { ipv4_header: 0, payload: Payload::Fragment });
            }
            ROUTING => destination = routing_end(header)?.unwrap_or(destination),
            _ => {}
        }
        (next, at) = (header[0], at + size);
    }
    let source = bytes(packet, 8)?;
    let pseudo = |protocol, length| csum_ipv6_nofold(source, destination, length, protocol, 0);
    let payload = transport(packet, at, next, &[TCP, UDP, ICMPV6], jumbo.is_some(), pseudo)?;
    Ok(Layout { ipv4_header: 0, payload })
}

/// The payload length in a jumbo option (RFC 2675 section 2), if the hop-by-hop header has one.
fn jumbo_length(packet: &[u8]) -> Result<Option<usize>, PacketError> {
    let size = (usize::from(bytes::<2>(packet, 40)?[1]) + 1) * 8;
    let mut options = &cut(packet, 40 + size)?[42..];
    loop {
        match *options {
            // One byte of padding.
            [0, ref rest @ ..] => options = rest,
            [0xc2, 4, a, b, c, d, ..] => {
                return Ok(Some(u32::from_be_bytes([a, b, c, d]) as usize));
            }
            [_, length, ref rest @ ..] => {
                options = rest.get(usize::from(length)..).ok_or(PacketError::Length)?
            }
            _ => return Ok(None),
        }
    }
}

/// The final destination, if the packet has not reached it yet (RFC 8200 section 8.1).
fn routing_end(header: &[u8]) -> Result<Option<[u8; 16]>, PacketError> {
    let address = |found: Option<&[u8; 16]>| found.copied().map(Some).ok_or(PacketError::Length);
    match (header[2], header[3]) {
        (_, 0) => Ok(None),
        // Source route (deprecated) and mobility: a list in the order of the way.
        (0 | 2, _) => address(header[8..].last_chunk()),
        // Segment routing: a list from the end of the way (RFC 8754).
        (4, _) => address(header[8..].first_chunk()),
        (kind, _) => Err(PacketError::RoutingHeader(kind)),
    }
}

fn transport(
    packet: &[u8],
    start: usize,
    protocol: u8,
    known: &[u8],
    jumbo: bool,
    pseudo: impl Fn(u8, u32) -> u32,
) -> Result<Payload, PacketError> {
    if !known.contains(&protocol) {
        return Ok(Payload::Other(protocol));
    }
    let (header, field) = match protocol {
        TCP => (20, 16),
        UDP => (8, 6),
        _ => (8, 2),
    };
    let available = packet.len() - start;
    if available < header {
        return Err(PacketError::Length);
    }
    let length = match (protocol, be16(packet, start + 4)?) {
        // RFC 2675 section 4: too long for the field.
        (UDP, 0) if jumbo => available,
        (UDP, length) => usize::from(length),
        _ => available,
    };
    if length < header || length > available {
        return Err(PacketError::Length);
    }
    let pseudo = pseudo(protocol, length as u32);
    Ok(Payload::Transport(Transport {
        protocol,
        data: start..start + length,
        field: start + field,
        pseudo,
    }))
}
