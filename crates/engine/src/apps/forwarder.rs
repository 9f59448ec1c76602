//! An IP router: longest prefix match, hop limits, checksums updated in place, fragments where a
//! packet is too long for its next link and may be cut (IPv4 only), and ICMP.
//!
//! Next hops are configured with their MAC address, or a [`Neighbour`](super::neighbour::Neighbour)
//! behind the port finds it. Errors and answers go back to the station that the packet came from, so
//! that they need no route.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Direction, Io, Kind, Ports, Reconfigured};
use crate::apps::fragment::split_v4;
use crate::apps::headers::{ETHERNET, IPV4, IPV6, Mac, addresses, be16};
use crate::apps::icmp::{self, Asked, Message};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::lpm::{Prefix, Table};
use crate::packet::Packet;
use crate::registry::Registry;
use checksum::{csum_fold, csum_partial, csum_replace2};

mod port;

pub use port::Port;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Forwarder>();
}

/// Forwards IPv4 and IPv6 between its ports. A port is an input and an output of the same name.
pub struct Forwarder {
    /// The place of the next hop; behind the last of them: one of our own addresses.
    table: Table,
    hops: Vec<Hop>,
    ports: BTreeMap<String, Port>,
    /// By the index of the input.
    inputs: Vec<Option<(String, Arrival)>>,
    outputs: BTreeMap<String, usize>,
    errors: Errors,
    counts: [u64; COUNTERS.len()],
}

/// Where a route leads.
struct Hop {
    port: String,
    output: Option<usize>,
    mtu: usize,
    /// Destination and source of the frame.
    addresses: [u8; 12],
}

/// What is known of the port that a packet came in by.
#[derive(Clone, Copy)]
struct Arrival {
    mac: Mac,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    /// The output of the same name.
    back: Option<usize>,
}

/// How many errors may be sent: a token bucket.
struct Errors {
    rate: f64,
    left: f64,
    filled: Option<u64>,
}

/// Errors that may follow each other at once.
const BURST: f64 = 50.0;

impl Errors {
    fn new(rate: f64) -> Self {
        Self { rate, left: BURST.min(rate), filled: None }
    }

    fn fill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.filled.unwrap_or(now)) as f64 / 1e9;
        self.filled = Some(now);
        self.left = (self.left + passed * self.rate).min(BURST.min(self.rate.max(1.0)));
    }

    fn take(&mut self) -> bool {
        let any = self.rate > 0.0 && self.left >= 1.0;
        self.left -= f64::from(u8::from(any));
        any
    }
}

/// Arguments of [`Forwarder`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwarderArgs {
    /// Ports with their MAC addresses, or with all of [`Port`].
    pub ports: BTreeMap<String, Port>,
    /// The routing table; the longest prefix that matches wins.
    pub routes: Vec<Route>,
    /// ICMP errors per second that all ports together may send; 0 for none.
    #[serde(default = "icmp_rate")]
    pub icmp_rate: f64,
}

fn icmp_rate() -> f64 {
    1000.0
}

/// Where packets to some addresses go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The destinations that it is for.
    pub prefix: Prefix,
    /// The port that they leave by, one of [`ForwarderArgs::ports`].
    pub port: String,
    /// The next hop; without it a `Neighbour` behind the port finds the destination or the router
    /// that leads to it.
    #[serde(default)]
    pub mac: Mac,
}

const COUNTERS: &[&str] = &[
    "forwarded",
    "no_route",
    "expired",
    "bad_checksum",
    "malformed",
    "not_ours",
    "not_ip",
    "too_big",
    "local",
    "echoes",
    "fragmented",
    "errors",
    "errors_limited",
    "not_forwardable",
];
const FORWARDED: usize = 0;
const ECHOES: usize = 9;
const FRAGMENTED: usize = 10;
const ERRORS: usize = 11;
const LIMITED: usize = 12;

/// Why a packet is not forwarded: the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drop {
    NoRoute = 1,
    Expired = 2,
    BadChecksum = 3,
    Malformed = 4,
    NotOurs = 5,
    NotIp = 6,
    /// Too long for the next link, and not to be cut.
    TooBig = 7,
    /// To one of our addresses.
    Local = 8,
    /// From or to an address that means something on its own link or host only.
    NotForwardable = 13,
}

/// Where a packet goes.
enum Way {
    /// To the next hop of this number.
    Hop(usize),
    /// As the former, in pieces.
    Pieces(usize),
    /// Nowhere, and why; with what its sender may be told.
    Drop(Drop, Option<Message>),
    /// Back: it is the answer now.
    Back,
}

impl From<Drop> for Way {
    fn from(drop: Drop) -> Self {
        let message = match drop {
            Drop::NoRoute => Some(Message::NoRoute),
            Drop::Expired => Some(Message::Expired),
            _ => None,
        };
        Self::Drop(drop, message)
    }
}

impl From<Asked> for Way {
    fn from(asked: Asked) -> Self {
        match asked {
            Asked::Echo => Self::Back,
            Asked::Port => Self::Drop(Drop::Local, Some(Message::Port)),
            Asked::Other => Self::Drop(Drop::Local, None),
        }
    }
}

/// Whether a packet must not leave its link (RFC 1812, 5.3.7): from or to "this network" or a
/// loopback, from a group, from or to all; from or to an address of a link (RFC 3927, 7); to a group
/// of its link (RFC 5771, 4). The first byte of each address tells it of most.
#[inline]
fn stays_v4(header: &[u8; 20]) -> bool {
    // 0, 127, 169, 224 to 255.
    let may = |first: u8| (first.wrapping_add(32) <= 32) | (first == 127) | (first == 169);
    (may(header[12]) | may(header[16])) && stays_v4_indeed(header)
}

#[inline(never)]
fn stays_v4_indeed(header: &[u8; 20]) -> bool {
    let [.., a, b, c, d, e, f, g, h] = *header;
    let (source, destination) =
        (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
    let is_here = |address: u32| {
        matches!(address >> 24, 0 | 127) || address >> 16 == 0xa9fe || address == u32::MAX
    };
    is_here(source) || is_here(destination) || source >> 28 == 0xe || destination >> 8 == 0xe0_0000
}

/// As [`stays_v4`] (RFC 4291, 2.5.2, 2.5.3 and 2.5.6): from or to nobody, a loopback or an address of
/// a link, from a group; to a group of a link or host, or of no scope (2.7).
#[inline]
fn stays_v6(header: &[u8; 40]) -> bool {
    // 0xfe, 0xff, 0.
    let may = |first: u8| first.wrapping_add(2) <= 2;
    (may(header[8]) | may(header[24])) && stays_v6_indeed(header)
}

#[inline(never)]
fn stays_v6_indeed(header: &[u8; 40]) -> bool {
    let (Some(source), Some(destination)) = (header[8..].first_chunk(), header.last_chunk()) else {
        return false;
    };
    let (source, destination) = (u128::from_be_bytes(*source), u128::from_be_bytes(*destination));
    let is_here = |address: u128| address <= 1 || address >> 118 == 0xfe80 >> 6;
    let is_near = matches!(destination >> 112 & 0xff0f, 0xff00..=0xff02);
    is_here(source) || is_here(destination) || source >> 120 == 0xff || is_near
}

impl Kind for Forwarder {
    const NAME: &'static str = "Forwarder";
    const ABOUT: &'static str =
        "routes IPv4 and IPv6 by longest prefix match; each name is an input and an output";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = ForwarderArgs;

    fn check(args: &ForwarderArgs) -> Result<(), ArgError> {
        let unknown = args.routes.iter().find(|route| !args.ports.contains_key(&route.port));
        if let Some(Route { prefix, port, .. }) = unknown {
            return Err(ArgError::wrong(
                "routes",
                format!("the route to {prefix} names port '{port}', which 'ports' lacks"),
            ));
        }
        if !(0.0..=1e9).contains(&args.icmp_rate) {
            return Err(ArgError::wrong("icmp_rate", "is a number of errors per second, 0 to 1e9"));
        }
        args.ports.iter().try_for_each(|(name, port)| port.check(name))
    }

    fn new(args: ForwarderArgs, _context: &Context) -> Result<Self, AppError> {
        let hops = args.routes.iter().map(|route| {
            let port = &args.ports[&route.port];
            let mut addresses = [0; 12];
            addresses[..6].copy_from_slice(&route.mac.0);
            addresses[6..].copy_from_slice(&port.mac.0);
            let mtu = port.mtu.map_or(usize::MAX, usize::from);
            Hop { port: route.port.clone(), output: None, mtu, addresses }
        });
        let hops: Vec<Hop> = hops.collect();
        // Of equal prefixes the last one counts: our own addresses.
        let ours = args.ports.values().flat_map(|port| &port.addresses).map(|address| {
            let length = if address.is_ipv4() { 32 } else { 128 };
            (Prefix { address: *address, length }, hops.len() as u32)
        });
        Ok(Self {
            table: Table::new(args.routes.iter().map(|route| route.prefix).zip(0..).chain(ours)),
            hops,
            ports: args.ports,
            inputs: Vec::new(),
            outputs: BTreeMap::new(),
            errors: Errors::new(args.icmp_rate),
            counts: [0; COUNTERS.len()],
        })
    }

    fn reconfigure(&mut self, args: ForwarderArgs) -> Result<Reconfigured, AppError> {
        if args.ports != self.ports {
            return Ok(Reconfigured::NeedsRestart);
        }
        let old =
            std::mem::replace(self, Self::new(args, &Context { name: String::new(), thread: 0 })?);
        self.inputs = old.inputs;
        self.outputs = old.outputs;
        self.counts = old.counts;
        self.join();
        Ok(Reconfigured::Done)
    }
}

impl Forwarder {
    /// Gives each next hop, and each port for answers, the index of its output.
    fn join(&mut self) {
        for hop in &mut self.hops {
            hop.output = self.outputs.get(&hop.port).copied();
        }
        for (name, arrival) in self.inputs.iter_mut().flatten() {
            arrival.back = self.outputs.get(name.as_str()).copied();
        }
    }

    /// Changes the packet for its next hop.
    fn forward(&self, packet: &mut Packet, arrival: Option<Arrival>) -> Way {
        let Some((destination, _)) = addresses(packet) else { return Drop::Malformed.into() };
        if arrival.map(|arrival| arrival.mac) != Some(destination) {
            return Drop::NotOurs.into();
        }
        let way = match be16(packet, 12) {
            Some(IPV4) => self.v4(&mut packet[ETHERNET..]),
            Some(IPV6) => self.v6(&mut packet[ETHERNET..]),
            Some(_) => Err(Drop::NotIp.into()),
            None => Err(Drop::Malformed.into()),
        };
        let way = way.unwrap_or_else(|way| way);
        if let Way::Hop(hop) | Way::Pieces(hop) = way {
            packet[..12].copy_from_slice(&self.hops[hop].addresses);
        }
        way
    }

    fn v4(&self, packet: &mut [u8]) -> Result<Way, Way> {
        let start: &[u8; 20] = packet.first_chunk().ok_or(Drop::Malformed)?;
        let header = usize::from(start[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([start[2], start[3]]));
        if start[0] >> 4 != 4 || header < 20 || total < header || total > packet.len() {
            return Err(Drop::Malformed.into());
        }
        if csum_fold(csum_partial(&packet[..header], 0)) != 0 {
            return Err(Drop::BadChecksum.into());
        }
        let start: &mut [u8; 20] = packet.first_chunk_mut().ok_or(Drop::Malformed)?;
        let destination = Ipv4Addr::new(start[16], start[17], start[18], start[19]);
        let hop = self.table.v4(destination);
        if hop == Some(self.hops.len() as u32) {
            return Ok(icmp::ask_v4(&mut packet[..total]).into());
        }
        if stays_v4(start) {
            return Err(Drop::NotForwardable.into());
        }
        if start[8] <= 1 {
            return Err(Drop::Expired.into());
        }
        let hop = hop.ok_or(Drop::NoRoute)? as usize;
        let mtu = self.hops[hop].mtu;
        // Do not fragment.
        if total > mtu && start[6] & 0x40 != 0 {
            return Err(Way::Drop(Drop::TooBig, Some(Message::TooBig(mtu as u16))));
        }
        let (old, new) = ([start[8], start[9]], [start[8] - 1, start[9]]);
        let check = csum_replace2(u16::from_ne_bytes([start[10], start[11]]), old, new);
        start[8] = new[0];
        start[10..12].copy_from_slice(&check.to_ne_bytes());
        Ok(if total > mtu { Way::Pieces(hop) } else { Way::Hop(hop) })
    }

    fn v6(&self, packet: &mut [u8]) -> Result<Way, Way> {
        let length = packet.len();
        let start: &mut [u8; 40] = packet.first_chunk_mut().ok_or(Drop::Malformed)?;
        let total = 40 + usize::from(u16::from_be_bytes([start[4], start[5]]));
        if start[0] >> 4 != 6 || total > length {
            return Err(Drop::Malformed.into());
        }
        let destination: [u8; 16] = *start.last_chunk().ok_or(Drop::Malformed)?;
        let hop = self.table.v6(destination.into());
        if hop == Some(self.hops.len() as u32) {
            return Ok(icmp::ask_v6(&mut packet[..total]).into());
        }
        if stays_v6(start) {
            return Err(Drop::NotForwardable.into());
        }
        if start[7] <= 1 {
            return Err(Drop::Expired.into());
        }
        let hop = hop.ok_or(Drop::NoRoute)? as usize;
        let mtu = self.hops[hop].mtu;
        if total > mtu {
            return Err(Way::Drop(Drop::TooBig, Some(Message::TooBig(mtu as u16))));
        }
        start[7] -= 1;
        Ok(Way::Hop(hop))
    }

    /// Sends what became of the packet where it belongs.
    fn send(&mut self, io: &Io, mut packet: Packet, arrival: Option<Arrival>) {
        match self.forward(&mut packet, arrival) {
            Way::Hop(hop) => match self.hops[hop].output.and_then(|output| io.output(output)) {
                Some(output) => {
                    self.counts[FORWARDED] += 1;
                    output.transmit(packet);
                }
                None => self.counts[Drop::NoRoute as usize] += 1,
            },
            Way::Pieces(hop) => {
                let hop = &self.hops[hop];
                let Some(output) = hop.output.and_then(|output| io.output(output)) else {
                    self.counts[Drop::NoRoute as usize] += 1;
                    return;
                };
                let done = split_v4(&mut packet, ETHERNET, hop.mtu, |piece| output.transmit(piece));
                let place = if done { FORWARDED } else { Drop::TooBig as usize };
                self.counts[place] += 1;
                self.counts[FRAGMENTED] += u64::from(done);
            }
            Way::Drop(drop, message) => {
                self.counts[drop as usize] += 1;
                if let (Some(message), Some(arrival)) = (message, arrival) {
                    self.tell(io, packet, arrival, message);
                }
            }
            Way::Back => {
                self.counts[ECHOES] += 1;
                self.back(io, packet, arrival);
            }
        }
    }

    /// Turns a packet that is not forwarded into an error to its sender, if it may be sent one.
    #[cold]
    fn tell(&mut self, io: &Io, mut packet: Packet, arrival: Arrival, message: Message) {
        let station = addresses(&packet).is_some_and(|(_, source)| !source.is_group());
        let told = station
            && match (be16(&packet, 12), arrival.v4, arrival.v6) {
                (Some(IPV4), Some(from), _) => icmp::error_v4(&mut packet, from, message),
                (Some(IPV6), _, Some(from)) => icmp::error_v6(&mut packet, from, message),
                _ => false,
            };
        if !told {
            return;
        }
        if !self.errors.take() {
            self.counts[LIMITED] += 1;
            return;
        }
        self.counts[ERRORS] += 1;
        self.back(io, packet, Some(arrival));
    }

    /// Sends a frame to the station that it came from.
    fn back(&self, io: &Io, mut packet: Packet, arrival: Option<Arrival>) {
        let Some(arrival) = arrival else { return };
        packet.copy_within(6..12, 0);
        packet[6..12].copy_from_slice(&arrival.mac.0);
        if let Some(output) = arrival.back.and_then(|output| io.output(output)) {
            output.transmit(packet);
        }
    }
}

impl App for Forwarder {
    fn push(&mut self, io: &Io) {
        self.errors.fill(io.now());
        let mut batch = Batch::new();
        for index in 0..self.inputs.len() {
            let Some(input) = io.input(index) else { continue };
            let arrival = self.inputs[index].as_ref().map(|(_, arrival)| *arrival);
            let mut waiting = input.length();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                for packet in batch.drain() {
                    self.send(io, packet, arrival);
                }
            }
        }
    }

    fn link(&mut self, direction: Direction, name: &str, index: usize) {
        match direction {
            Direction::Input => {
                self.inputs.resize_with(self.inputs.len().max(index + 1), || None);
                self.inputs[index] =
                    self.ports.get(name).map(|port| (name.to_string(), port.arrival()));
            }
            Direction::Output => {
                self.outputs.insert(name.to_string(), index);
            }
        }
        self.join();
    }

    fn unlink(&mut self, direction: Direction, name: &str) {
        if direction == Direction::Output {
            self.outputs.remove(name);
            self.join();
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}
