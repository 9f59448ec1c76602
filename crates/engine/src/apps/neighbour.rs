//! Neighbours on an Ethernet link: answers to those that ask for our addresses, and questions for
//! theirs, by ARP (RFC 826) and neighbour discovery (RFC 4861).
//!
//! Whoever sends a frame to a next hop whose MAC address it does not know leaves the destination at
//! `00:00:00:00:00:00`, which no station has; `Neighbour` puts it in.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::headers::{ARP, IPV6, Mac, be16};
use crate::apps::icmp::{self, Message};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::packet::Packet;
use crate::registry::Registry;

mod cache;
mod hops;
mod message;

pub use hops::NextHop;

use cache::{Cache, Due, Heard, Kept};
use hops::{Hops, Next};
use message::{Arp, Discovery};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Neighbour>();
}

/// Stands between an interface ("south") and the rest ("north"). Questions from the south for its
/// addresses are answered there, and frames from the north that have no destination get that of
/// their next hop; everything else passes both ways.
pub struct Neighbour {
    args: NeighbourArgs,
    hops: Hops,
    cache: Cache,
    counts: [u64; COUNTERS.len()],
}

/// Arguments of [`Neighbour`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourArgs {
    /// The MAC address that is told, and that frames come from whose destination is put in.
    pub mac: Mac,
    /// The addresses that are answered for; questions come from the one that has most in common with
    /// what is asked for.
    pub addresses: Vec<IpAddr>,
    /// Who is on the link and who is behind a router there; the longest prefix that matches wins.
    /// Without routes everybody is on the link.
    #[serde(default)]
    pub routes: Vec<NextHop>,
    /// Most neighbours that are known at once, 2 to 1048576.
    #[serde(default = "neighbours")]
    pub neighbours: usize,
}

fn neighbours() -> usize {
    1024
}

const SOUTH: usize = 0;
const NORTH: usize = 1;

const COUNTERS: &[&str] = &[
    "arp",
    "solicitations",
    "resolved",
    "asked",
    "dropped",
    "no_route",
    "unreachable",
    "neighbours",
];
/// Answers to questions of each kind.
const ARP_ANSWERS: usize = 0;
const ADVERTISEMENTS: usize = 1;
/// Frames that got their destination.
const RESOLVED: usize = 2;
/// Questions.
const ASKED: usize = 3;
/// Frames that could not wait, as too many did.
const DROPPED: usize = 4;
/// Frames without destination that are no IP, or that no route is for.
const NO_ROUTE: usize = 5;
/// Frames whose neighbour does not answer.
const UNREACHABLE: usize = 6;

impl Kind for Neighbour {
    const NAME: &'static str = "Neighbour";
    const ABOUT: &'static str = "answers and asks for MAC addresses on 'south' (ARP, ND), passes the rest to 'north' and back";
    const INPUTS: Ports = Ports::Named(&["south", "north"]);
    const OUTPUTS: Ports = Ports::Named(&["south", "north"]);
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = NeighbourArgs;

    fn check(args: &NeighbourArgs) -> Result<(), ArgError> {
        if !(2..=1 << 20).contains(&args.neighbours) {
            return Err(ArgError::wrong("neighbours", "is a number from 2 to 1048576"));
        }
        args.routes.iter().try_for_each(|route| route.check(&args.addresses))
    }

    fn new(args: NeighbourArgs, _context: &Context) -> Result<Self, AppError> {
        let cache = Cache::new(args.neighbours);
        Ok(Self { hops: Hops::new(&args.routes), args, cache, counts: [0; COUNTERS.len()] })
    }

    fn reconfigure(&mut self, args: NeighbourArgs) -> Result<Reconfigured, AppError> {
        if args.neighbours != self.cache.capacity() {
            return Ok(Reconfigured::NeedsRestart);
        }
        self.hops = Hops::new(&args.routes);
        self.args = args;
        Ok(Reconfigured::Done)
    }
}

impl Neighbour {
    fn is_ours(&self, address: &IpAddr) -> bool {
        self.args.addresses.contains(address)
    }

    /// A frame from the north without destination: it comes back with one, or waits for it.
    fn resolve(&mut self, io: &Io, mut frame: Packet) -> Option<Packet> {
        let mac = match self.hops.next(&frame) {
            Next::Group(mac) => mac,
            Next::Hop(hop) if !self.is_ours(&hop) => match self.cache.mac(hop, io.now()) {
                Some(mac) => mac,
                None => {
                    match self.cache.wait(hop, frame, io.now()) {
                        Kept::Ask => self.ask(io, hop, None),
                        Kept::Waits => {}
                        Kept::Displaced | Kept::Full => self.counts[DROPPED] += 1,
                    }
                    return None;
                }
            },
            _ => {
                self.counts[NO_ROUTE] += 1;
                return None;
            }
        };
        self.counts[RESOLVED] += 1;
        self.send_to(&mut frame, mac);
        Some(frame)
    }

    fn send_to(&self, frame: &mut [u8], mac: Mac) {
        frame[..6].copy_from_slice(&mac.0);
        frame[6..12].copy_from_slice(&self.args.mac.0);
    }

    /// Asks for a neighbour: this station, or all.
    fn ask(&mut self, io: &Io, hop: IpAddr, to: Option<Mac>) {
        let (from, mac) = (self.nearest(&hop), self.args.mac);
        // Without an address of our own the question is that of a station that has none yet.
        let question = match (hop, from) {
            (IpAddr::V4(hop), Some(IpAddr::V4(from))) => message::arp_request((from, mac), hop, to),
            (IpAddr::V4(hop), _) => message::arp_request((Ipv4Addr::UNSPECIFIED, mac), hop, to),
            (IpAddr::V6(hop), Some(IpAddr::V6(from))) => message::solicit((from, mac), hop, to),
            (IpAddr::V6(hop), _) => message::solicit((Ipv6Addr::UNSPECIFIED, mac), hop, to),
        };
        if let (Some(question), Some(south)) = (question, io.output(SOUTH)) {
            self.counts[ASKED] += 1;
            south.transmit(question);
        }
    }

    /// Which of our addresses has most bits in common with this one.
    fn nearest(&self, address: &IpAddr) -> Option<IpAddr> {
        let bits = |address: &IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let same = |ours: &&IpAddr| ours.is_ipv4() == address.is_ipv4();
        let difference = |ours: &&IpAddr| bits(ours) ^ bits(address);
        self.args.addresses.iter().filter(same).min_by_key(difference).copied()
    }

    /// A frame from the south: None if it was for us alone.
    fn hear(&mut self, io: &Io, mut frame: Packet) -> Option<(usize, Packet)> {
        match be16(&frame, 12) {
            Some(ARP) => {
                let Some(heard) = message::arp(&frame) else { return Some((NORTH, frame)) };
                let asked = self.is_ours(&heard.target.into()) && heard.request;
                let answered = self.hear_arp(io, &heard);
                if asked {
                    message::arp_reply(&mut frame, self.args.mac);
                    self.counts[ARP_ANSWERS] += 1;
                    return Some((SOUTH, frame));
                }
                (!answered).then_some((NORTH, frame))
            }
            Some(IPV6) => {
                let Some(heard) = message::discovery(&frame) else { return Some((NORTH, frame)) };
                let asked = self.is_ours(&heard.target.into()) && heard.solicitation;
                let answered = self.hear_discovery(io, &heard);
                if asked {
                    message::advertise(&mut frame, &heard, self.args.mac);
                    self.counts[ADVERTISEMENTS] += 1;
                    return Some((SOUTH, frame));
                }
                (!answered).then_some((NORTH, frame))
            }
            _ => Some((NORTH, frame)),
        }
    }

    /// Whether it answers a question of ours.
    fn hear_arp(&mut self, io: &Io, heard: &Arp) -> bool {
        let to_us = self.is_ours(&heard.target.into());
        let how = Heard {
            solicited: !heard.request && to_us,
            overrides: true,
            creates: heard.request && to_us,
        };
        self.learn(io, heard.sender.into(), Some(heard.sender_mac), how) && how.solicited
    }

    fn hear_discovery(&mut self, io: &Io, heard: &Discovery) -> bool {
        if heard.solicitation {
            let creates = self.is_ours(&heard.target.into());
            let how = Heard { solicited: false, overrides: true, creates };
            // What says nothing of its sender's address changes nothing.
            if heard.mac.is_some() {
                self.learn(io, heard.source.into(), heard.mac, how);
            }
            return false;
        }
        let Discovery { solicited, overrides, .. } = *heard;
        let how = Heard { solicited, overrides, creates: false };
        let to_us = self.is_ours(&heard.destination.into());
        self.learn(io, heard.target.into(), heard.mac, how) && to_us
    }

    /// Whether the neighbour was being asked. What waited for it goes.
    fn learn(&mut self, io: &Io, address: IpAddr, mac: Option<Mac>, how: Heard) -> bool {
        let nobody = mac.is_some_and(|mac| mac.is_group() || mac == Mac::default());
        if address.is_unspecified() || address.is_multicast() || nobody || self.is_ours(&address) {
            return false;
        }
        let learned = self.cache.learn(address, mac, how, io.now());
        for mut frame in learned.waited {
            if let (Some(mac), Some(south)) = (self.cache.mac(address, io.now()), io.output(SOUTH))
            {
                self.counts[RESOLVED] += 1;
                self.send_to(&mut frame, mac);
                south.transmit(frame);
            }
        }
        learned.asked
    }

    /// The sender of a frame whose neighbour does not answer is told.
    fn unreachable(&mut self, io: &Io, mut frame: Packet) {
        self.counts[UNREACHABLE] += 1;
        let Some(source) = hops::source(&frame).filter(|source| !self.is_ours(source)) else {
            return;
        };
        let told = match self.nearest(&source) {
            Some(IpAddr::V4(from)) => icmp::error_v4(&mut frame, from, Message::Host),
            Some(IpAddr::V6(from)) => icmp::error_v6(&mut frame, from, Message::Host),
            None => false,
        };
        if let (true, Some(north)) = (told, io.output(NORTH)) {
            // As if it came from a station of the link, so that whoever routes takes it.
            self.send_to(&mut frame, self.args.mac);
            north.transmit(frame);
        }
    }
}

impl App for Neighbour {
    fn push(&mut self, io: &Io) {
        let mut batch = Batch::new();
        // What is heard first is known to what is sent.
        if let Some(south) = io.input(SOUTH) {
            let mut waiting = south.length();
            while waiting > 0 {
                waiting = waiting.saturating_sub(south.receive_batch(&mut batch));
                for frame in batch.drain() {
                    let Some((to, frame)) = self.hear(io, frame) else { continue };
                    if let Some(output) = io.output(to) {
                        output.transmit(frame);
                    }
                }
            }
        }
        let Some(north) = io.input(NORTH) else { return };
        let mut onwards = Batch::new();
        let mut waiting = north.length();
        while waiting > 0 {
            waiting = waiting.saturating_sub(north.receive_batch(&mut batch));
            for frame in batch.drain() {
                let unknown = frame.first_chunk::<12>().is_some_and(|start| start[..6] == [0; 6]);
                let frame = if unknown { self.resolve(io, frame) } else { Some(frame) };
                if let Some(frame) = frame {
                    onwards.push(frame);
                }
            }
            match io.output(SOUTH) {
                Some(south) => south.transmit_batch(&mut onwards),
                None => onwards.clear(),
            }
        }
    }

    fn tick(&mut self, io: &Io) {
        while let Some(due) = self.cache.due(io.now()) {
            match due {
                Due::Ask(hop, to) => self.ask(io, hop, to),
                Due::Silent(waited) => {
                    waited.into_iter().for_each(|frame| self.unreachable(io, frame))
                }
            }
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
        if let Some(last) = values.last_mut() {
            *last = self.cache.len() as u64;
        }
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        /// Lines, so that a link with many hosts does not fill the report.
        const MOST: usize = 16;
        for (address, mac, state) in self.cache.each().take(MOST) {
            match mac {
                Some(mac) => writeln!(out, "{address} at {mac}, {state}")?,
                None => writeln!(out, "{address}, {state}")?,
            }
        }
        match self.cache.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more"),
        }
    }
}
