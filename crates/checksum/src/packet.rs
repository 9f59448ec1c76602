//! Verify and fill the checksums of whole packets: IPv4 or IPv6, over it TCP, UDP, ICMP or ICMPv6.
//!
//! A packet begins with its IP header. What follows behind its length, Ethernet padding for one, is
//! left alone.
//!
//! ```
//! use shortwire_checksum::packet::{Outcome, PacketError, fill, verify};
//!
//! let mut packet = [
//!     0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, // IPv4, UDP
//!     0x30, 0x39, 0, 53, 0, 10, 0, 0, b'h', b'i',
//! ];
//! assert_eq!(fill(&mut packet), Ok(Outcome::Complete));
//! assert_eq!(verify(&packet), Ok(Outcome::Complete));
//! packet[29] ^= 1;
//! assert_eq!(verify(&packet), Err(PacketError::TransportChecksum));
//! ```

use core::fmt;

use crate::pseudo::UDP;
use crate::{csum_fold, csum_header20, csum_partial, csum_replace2};

mod layout;
mod plain;

use layout::{Layout, Payload, Transport};
use plain::Plain;

/// What could be checked or filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every checksum that the packet has.
    Complete,
    /// UDP over IPv4 whose sender computed no checksum (RFC 768); that of the IP header was
    /// checked.
    NoChecksum,
    /// One of several fragments: the transport's checksum covers data that is in the others. That
    /// of an IPv4 header was checked or filled.
    Fragment,
    /// A protocol, by its number, that this crate does not know. The checksum of an IPv4 header was
    /// checked or filled.
    OtherProtocol(u8),
}

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// There are fewer bytes than the headers say.
    Truncated {
        /// Bytes that must be there, at least.
        needed: usize,
        /// Bytes that are there.
        actual: usize,
    },
    /// Neither version 4 nor 6.
    Version(u8),
    /// A length in a header does not fit: smaller than the header itself, or larger than what holds
    /// it.
    Length,
    /// A routing header of this type still has segments to visit, and where its last destination
    /// lies is not known.
    RoutingHeader(u8),
    /// The IPv4 header's checksum is wrong.
    HeaderChecksum,
    /// The checksum of the TCP, UDP, ICMP or ICMPv6 part is wrong.
    TransportChecksum,
    /// UDP over IPv6 without a checksum (RFC 8200 section 8.1: to be discarded; RFC 6935 has
    /// exceptions for tunnels).
    MissingChecksum,
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketError::Truncated { needed, actual } => {
                write!(f, "packet truncated: {actual} bytes of at least {needed}")
            }
            PacketError::Version(version) => write!(f, "IP version {version}, neither 4 nor 6"),
            PacketError::Length => f.write_str("a length in a header does not fit the packet"),
            PacketError::RoutingHeader(kind) => {
                write!(f, "unknown routing header type {kind} with segments left")
            }
            PacketError::HeaderChecksum => f.write_str("wrong IPv4 header checksum"),
            PacketError::TransportChecksum => f.write_str("wrong transport checksum"),
            PacketError::MissingChecksum => f.write_str("UDP over IPv6 without a checksum"),
        }
    }
}

impl core::error::Error for PacketError {}

/// Checks all checksums of a packet.
///
/// # Errors
/// The first thing that is wrong, the headers' form before the checksums.
pub fn verify(packet: &[u8]) -> Result<Outcome, PacketError> {
    // What is wrong, if something is, is told by the other way.
    match Plain::of(packet) {
        Some(plain) if plain.is_right(packet) => Ok(Outcome::Complete),
        Some(_) => verify_any(packet),
        None => match plain::of_header_alone(packet) {
            Some(outcome) if plain::header(packet).is_some_and(|(check, _)| check == 0) => {
                Ok(outcome)
            }
            _ => verify_any(packet),
        },
    }
}

#[inline(never)]
fn verify_any(packet: &[u8]) -> Result<Outcome, PacketError> {
    let Layout { ipv4_header, payload } = Layout::of(packet)?;
    if csum_fold(csum_partial(&packet[..ipv4_header], 0)) != 0 && ipv4_header != 0 {
        return Err(PacketError::HeaderChecksum);
    }
    let transport = match payload {
        Payload::Transport(transport) => transport,
        Payload::Fragment => return Ok(Outcome::Fragment),
        Payload::Other(protocol) => return Ok(Outcome::OtherProtocol(protocol)),
    };
    let Transport { protocol, data, field, pseudo } = transport;
    if protocol == UDP && packet[field..field + 2] == [0, 0] {
        return if ipv4_header != 0 {
            Ok(Outcome::NoChecksum)
        } else {
            Err(PacketError::MissingChecksum)
        };
    }
    match csum_fold(csum_partial(&packet[data], pseudo)) {
        0 => Ok(Outcome::Complete),
        _ => Err(PacketError::TransportChecksum),
    }
}

/// Writes all checksums of a packet. What the fields held before does not matter.
///
/// # Errors
/// If the headers' form is wrong; then nothing was written.
pub fn fill(packet: &mut [u8]) -> Result<Outcome, PacketError> {
    if let Some(plain) = Plain::of(packet) {
        return match plain.fill(packet) {
            Some(()) => Ok(Outcome::Complete),
            None => fill_any(packet),
        };
    }
    match plain::of_header_alone(packet) {
        Some(outcome) if plain::fill_header(packet).is_some() => Ok(outcome),
        _ => fill_any(packet),
    }
}

#[inline(never)]
fn fill_any(packet: &mut [u8]) -> Result<Outcome, PacketError> {
    let Layout { ipv4_header, payload } = Layout::of(packet)?;
    if ipv4_header != 0 {
        let check = match packet[..ipv4_header].try_into() {
            Ok(header) => csum_header20(header),
            Err(_) => csum_fold(csum_partial(&packet[..ipv4_header], 0)),
        };
        // The old one is taken off again, as in `Plain::fill`.
        let check = csum_replace2(check, [packet[10], packet[11]], [0, 0]);
        packet[10..12].copy_from_slice(&check.to_ne_bytes());
    }
    match payload {
        Payload::Transport(Transport { protocol, data, field, pseudo }) => {
            // In front of the sum: ICMP has no pseudo header, and of nothing but zeros the old one
            // cannot be taken off.
            packet[field..field + 2].fill(0);
            let check = match csum_fold(csum_partial(&packet[data], pseudo)) {
                // 0 would say that there is none; 0xffff is the same to the receiver's sum (RFC
                // 768).
                0 if protocol == UDP => 0xffff,
                check => check,
            };
            packet[field..field + 2].copy_from_slice(&check.to_ne_bytes());
            Ok(Outcome::Complete)
        }
        Payload::Fragment => Ok(Outcome::Fragment),
        Payload::Other(protocol) => Ok(Outcome::OtherProtocol(protocol)),
    }
}
