//! Tunnels: whole packets inside of others. What all kinds have in common is here.
//!
//! A tunnel app has the ports `inner` and `outer`, each an input and an output. What comes in by
//! `inner` leaves by `outer` with headers around it; what comes in by `outer` and belongs to the
//! tunnel leaves by `inner` without them; the rest is discarded and counted.

use std::net::IpAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::app::{Io, Ports};
use crate::apps::headers::{
    CE, ETHERNET, IPV4, IPV6, Mac, NOT_ECT, be16, ecn, mark_congestion, payload,
};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::packet::{NEEDS_CHECKSUM, Packet};
use crate::registry::Registry;
use checksum::{UDP, csum_fold, csum_ipv6_magic, csum_partial, csum_tcpudp_magic};

mod esp;
mod gre;
mod l2tp;
mod replay;
mod vxlan;

pub use esp::{Association, Esp, EspArgs};
pub use gre::{Gre, GreArgs, Mode};
pub use l2tp::{Carrier, L2tpv3, L2tpv3Args};
pub use vxlan::{Vxlan, VxlanArgs};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Esp>();
    registry.register::<Gre>();
    registry.register::<L2tpv3>();
    registry.register::<Vxlan>();
}

const PORTS: Ports = Ports::Named(&["inner", "outer"]);
const INNER: usize = 0;
const OUTER: usize = 1;

const COUNTERS: &[&str] = &[
    "sent",
    "received",
    "too_long",
    "not_ours",
    "malformed",
    "bad_checksum",
    "out_of_order",
    "congested",
];
/// Linux puts one in front of what its GRE tunnels over IPv6 carry: how many tunnels there may be in
/// each other (RFC 2473).
const DESTINATION_OPTIONS: u8 = 60;
const SENT: usize = 0;
const RECEIVED: usize = 1;

/// Why a packet does not go through: the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::apps) enum Refused {
    /// With the tunnel's headers it would exceed what a packet holds.
    TooLong = 2,
    /// Of another tunnel, or of none, or what the tunnel does not carry.
    NotOurs = 3,
    /// Cut off, or of a form that the protocol does not have.
    Malformed = 4,
    /// Or what stands for one and shows who made it.
    BadChecksum = 5,
    /// Older than one that has come, or come before, where numbers are kept.
    OutOfOrder = 6,
    /// A router on the way has marked it instead of dropping it, and its sender would not understand
    /// (RFC 6040, 4.2).
    Congested = 7,
    /// No number is left to send with.
    Exhausted = 8,
}

type Counts = [u64; COUNTERS.len()];

/// A kind of tunnel.
trait Encapsulation {
    /// Puts the headers around a frame.
    fn wrap(&mut self, packet: &mut Packet) -> Result<(), Refused>;
    /// Takes them off.
    fn unwrap(&mut self, packet: &mut Packet) -> Result<(), Refused>;
    fn counts(&mut self) -> &mut [u64];
}

/// All that waits, in both directions.
fn run(io: &Io, tunnel: &mut impl Encapsulation) {
    for (from, to) in [(INNER, OUTER), (OUTER, INNER)] {
        let Some(input) = io.input(from) else { continue };
        let mut waiting = input.length();
        let mut batch = Batch::new();
        while waiting > 0 {
            waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
            batch.retain(|packet| {
                let (done, place) = match from {
                    INNER => (tunnel.wrap(packet), SENT),
                    _ => {
                        let outer = packet.get(ETHERNET..).and_then(ecn);
                        let done = tunnel.unwrap(packet);
                        let is_marked = outer == Some(CE) && done.is_ok();
                        (if is_marked { pass_mark_on(packet) } else { done }, RECEIVED)
                    }
                };
                tunnel.counts()[done.map_or_else(|refused| refused as usize, |()| place)] += 1;
                done.is_ok()
            });
            match io.output(to) {
                Some(output) => output.transmit_batch(&mut batch),
                None => batch.clear(),
            }
        }
    }
}

/// Tells an inner packet what a router has told the outer one.
#[cold]
fn pass_mark_on(packet: &mut Packet) -> Result<(), Refused> {
    let Some((IPV4 | IPV6, at)) = payload(packet) else { return Ok(()) };
    match packet.get(at..).and_then(ecn) {
        None | Some(CE) => {}
        Some(NOT_ECT) => return Err(Refused::Congested),
        Some(_) => mark_congestion(&mut packet[at..]),
    }
    Ok(())
}

/// The way of a tunnel's packets: the addresses of their outer headers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OuterArgs {
    /// Our address, of the same version as the other.
    pub local: IpAddr,
    /// The address of the tunnel's other end.
    pub remote: IpAddr,
    /// Our MAC address.
    pub mac: Mac,
    /// The MAC address of the other end, or of the router that leads there; without it a
    /// `Neighbour` behind `outer` finds it.
    #[serde(default)]
    pub next_hop: Mac,
    /// Hop limit of what is sent.
    #[serde(default = "ttl")]
    pub ttl: u8,
}

fn ttl() -> u8 {
    64
}

impl OuterArgs {
    /// `key` is the argument that holds them.
    pub(in crate::apps) fn check(&self, key: &str) -> Result<(), ArgError> {
        if self.local.is_ipv4() != self.remote.is_ipv4() {
            let problem = "local and remote are addresses of one version of IP";
            return Err(ArgError::wrong(key, problem));
        }
        if self.ttl == 0 {
            return Err(ArgError::wrong(key, "ttl is a number from 1 to 255"));
        }
        Ok(())
    }
}

/// Ethernet and IP headers, made once.
pub(in crate::apps) struct Outer {
    /// As they are sent, but for lengths, identification and checksum.
    template: [u8; ETHERNET + 40],
    length: usize,
    protocol: u8,
    /// Of IPv4: tunnels leave it to routers on the way to cut packets, which takes a number for
    /// each.
    id: u16,
}

impl Outer {
    pub(in crate::apps) fn new(args: &OuterArgs, protocol: u8) -> Self {
        let mut template = [0; ETHERNET + 40];
        template[..6].copy_from_slice(&args.next_hop.0);
        template[6..12].copy_from_slice(&args.mac.0);
        let ip = &mut template[ETHERNET..];
        let (length, kind) = match (args.local, args.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                (ip[0], ip[8], ip[9]) = (0x45, args.ttl, protocol);
                ip[12..16].copy_from_slice(&local.octets());
                ip[16..20].copy_from_slice(&remote.octets());
                (20, IPV4)
            }
            (local, remote) => {
                let bytes = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                (ip[0], ip[6], ip[7]) = (0x60, protocol, args.ttl);
                ip[8..24].copy_from_slice(&bytes(local));
                ip[24..40].copy_from_slice(&bytes(remote));
                (40, IPV6)
            }
        };
        template[12..14].copy_from_slice(&kind.to_be_bytes());
        Self { template, length: ETHERNET + length, protocol, id: 0 }
    }

    fn is_v6(&self) -> bool {
        self.length == ETHERNET + 40
    }

    /// Puts the headers in front of what the packet holds. The caller has seen to its length.
    fn wrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        let inner = packet.length();
        if !packet.prepend(&self.template[..self.length]) {
            return Err(Refused::TooLong);
        }
        let v6 = self.is_v6();
        let ip = &mut packet[ETHERNET..self.length];
        if v6 {
            ip[4..6].copy_from_slice(&(inner as u16).to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&(20 + inner as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&self.id.to_be_bytes());
            self.id = self.id.wrapping_add(1);
            let sum = csum_fold(csum_partial(ip, 0));
            ip[10..12].copy_from_slice(&sum.to_ne_bytes());
        }
        packet.flags = 0;
        Ok(())
    }

    /// As [`Self::wrap`], behind a UDP header. The checksum is left out over IPv4, as the protocols
    /// of tunnels allow, and put in over IPv6.
    pub(in crate::apps) fn wrap_udp(
        &mut self,
        packet: &mut Packet,
        ports: [u16; 2],
    ) -> Result<(), Refused> {
        let length = (packet.length() + 8) as u16;
        let [[a, b], [c, d], [e, f]] = [ports[0], ports[1], length].map(u16::to_be_bytes);
        if !packet.prepend(&[a, b, c, d, e, f, 0, 0]) {
            return Err(Refused::TooLong);
        }
        if self.is_v6() {
            let check = match self.udp_sum(packet) {
                0 => 0xffff,
                check => check,
            };
            packet[6..8].copy_from_slice(&check.to_ne_bytes());
        }
        self.wrap(packet)
    }

    /// The UDP checksum over a datagram between the two ends, in either direction.
    fn udp_sum(&self, datagram: &[u8]) -> u16 {
        let sum = csum_partial(datagram, 0);
        let ip = &self.template[ETHERNET..];
        let length = datagram.len() as u32;
        match (ip[8..24].first_chunk(), ip[24..40].first_chunk()) {
            (Some(source), Some(destination)) if self.is_v6() => {
                csum_ipv6_magic(*source, *destination, length, UDP, sum)
            }
            _ => {
                let address = |at: usize| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
                csum_tcpudp_magic(address(12), address(16), length as u16, UDP, sum)
            }
        }
    }

    /// Where what the outer headers carry lies in a frame, if it came from the other end to us.
    /// Fragments are not ours: they are put together before.
    fn unwrap(&self, frame: &[u8]) -> Result<Range<usize>, Refused> {
        let theirs = frame.get(..self.length).ok_or(Refused::NotOurs)?;
        if theirs[..6] != self.template[6..12] || theirs[12..14] != self.template[12..14] {
            return Err(Refused::NotOurs);
        }
        let (ip, ours) = (&frame[ETHERNET..], &self.template[ETHERNET..]);
        if ip[0] >> 4 != ours[0] >> 4 {
            return Err(Refused::NotOurs);
        }
        let (header, total) = if self.is_v6() {
            let (mut next, mut header) = (ip[6], 40);
            if next == DESTINATION_OPTIONS {
                let [following, length, ..] = ip[40..] else { return Err(Refused::Malformed) };
                (next, header) = (following, 48 + usize::from(length) * 8);
            }
            if next != self.protocol || ip[8..24] != ours[24..40] || ip[24..40] != ours[8..24] {
                return Err(Refused::NotOurs);
            }
            (header, 40 + usize::from(be16(ip, 4).ok_or(Refused::Malformed)?))
        } else {
            let header = usize::from(ip[0] & 15) * 4;
            let fragment = be16(ip, 6).is_none_or(|word| word & 0x3fff != 0);
            let addresses = ip[12..16] == ours[16..20] && ip[16..20] == ours[12..16];
            if ip[9] != self.protocol || !addresses || fragment {
                return Err(Refused::NotOurs);
            }
            let header_bytes = ip.get(..header.max(20)).ok_or(Refused::Malformed)?;
            if csum_fold(csum_partial(header_bytes, 0)) != 0 {
                return Err(Refused::BadChecksum);
            }
            (header, usize::from(be16(ip, 2).ok_or(Refused::Malformed)?))
        };
        if header < 20 || total < header || total > ip.len() {
            return Err(Refused::Malformed);
        }
        Ok(ETHERNET + header..ETHERNET + total)
    }

    /// As [`Self::unwrap`], behind a UDP header to this port, whose checksum is right if it is
    /// there.
    fn unwrap_udp(&self, frame: &[u8], port: u16) -> Result<Range<usize>, Refused> {
        let outer = self.unwrap(frame)?;
        let datagram = &frame[outer.clone()];
        if be16(datagram, 2) != Some(port) {
            return Err(Refused::NotOurs);
        }
        let length = usize::from(be16(datagram, 4).ok_or(Refused::Malformed)?);
        let datagram = datagram.get(..length).filter(|datagram| datagram.len() >= 8);
        let datagram = datagram.ok_or(Refused::Malformed)?;
        if datagram[6..8] != [0, 0] && self.udp_sum(datagram) != 0 {
            return Err(Refused::BadChecksum);
        }
        Ok(outer.start + 8..outer.start + length)
    }
}

/// Leaves only this range of the frame in the packet.
fn cut(packet: &mut Packet, range: Range<usize>) {
    packet.truncate(range.end);
    packet.shrink_front(range.start);
    packet.flags = 0;
}

/// Nobody behind a tunnel fills checksums in.
fn finish(packet: &mut Packet) {
    if packet.flags & NEEDS_CHECKSUM != 0 {
        if let Some((IPV4 | IPV6, at)) = payload(packet) {
            // What is damaged travels as it is.
            let _ = checksum::packet::fill(&mut packet[at..]);
        }
        packet.flags = 0;
    }
}

/// Takes the Ethernet header off an IP packet, and what stands behind the packet. Returns its
/// type.
fn strip(packet: &mut Packet) -> Result<u16, Refused> {
    let kind = be16(packet, 12).ok_or(Refused::Malformed)?;
    let ip = &packet[ETHERNET..];
    let total = match kind {
        IPV4 => be16(ip, 2).map(usize::from),
        IPV6 => be16(ip, 4).map(|length| 40 + usize::from(length)),
        _ => return Err(Refused::NotOurs),
    };
    let total = total.filter(|total| *total <= ip.len()).ok_or(Refused::Malformed)?;
    cut(packet, ETHERNET..ETHERNET + total);
    Ok(kind)
}
