//! An IP router: longest prefix match, hop limits, checksums updated in place.
//!
//! Limits: next hops are configured with their MAC address; no ICMP errors are sent; nothing is
//! fragmented.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Direction, Io, Kind, Ports, Reconfigured};
use crate::apps::headers::{ETHERNET, IPV4, IPV6, Mac, addresses, be16};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::lpm::{Prefix, Table};
use crate::packet::Packet;
use crate::registry::Registry;
use checksum::{csum_fold, csum_partial, csum_replace2};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Forwarder>();
}

/// Forwards IPv4 and IPv6 between its ports. A port is an input and an output of the same name.
pub struct Forwarder {
    table: Table,
    hops: Vec<Hop>,
    /// The address of each port, which frames must be sent to.
    macs: BTreeMap<String, Mac>,
    /// By the index of the input.
    inputs: Vec<Option<Mac>>,
    outputs: BTreeMap<String, usize>,
    counts: [u64; COUNTERS.len()],
}

/// Where a route leads.
struct Hop {
    port: String,
    output: Option<usize>,
    /// Destination and source of the frame.
    addresses: [u8; 12],
}

/// Arguments of [`Forwarder`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwarderArgs {
    /// Ports with their MAC addresses.
    pub ports: BTreeMap<String, Mac>,
    /// The routing table; the longest prefix that matches wins.
    pub routes: Vec<Route>,
}

/// Where packets to some addresses go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The destinations that it is for.
    pub prefix: Prefix,
    /// The port that they leave by, one of [`ForwarderArgs::ports`].
    pub port: String,
    /// The next hop.
    pub mac: Mac,
}

const COUNTERS: &[&str] =
    &["forwarded", "no_route", "expired", "bad_checksum", "malformed", "not_ours", "not_ip"];
const FORWARDED: usize = 0;

/// Why a packet is not forwarded: the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drop {
    NoRoute = 1,
    Expired = 2,
    BadChecksum = 3,
    Malformed = 4,
    NotOurs = 5,
    NotIp = 6,
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
        match args.routes.iter().find(|route| !args.ports.contains_key(&route.port)) {
            Some(Route { prefix, port, .. }) => Err(ArgError::wrong(
                "routes",
                format!("the route to {prefix} names port '{port}', which 'ports' lacks"),
            )),
            None => Ok(()),
        }
    }

    fn new(args: ForwarderArgs, _context: &Context) -> Result<Self, AppError> {
        let hops = args.routes.iter().map(|route| {
            let mut addresses = [0; 12];
            addresses[..6].copy_from_slice(&route.mac.0);
            addresses[6..].copy_from_slice(&args.ports[&route.port].0);
            Hop { port: route.port.clone(), output: None, addresses }
        });
        Ok(Self {
            hops: hops.collect(),
            table: Table::new(args.routes.iter().map(|route| route.prefix).zip(0..)),
            macs: args.ports,
            inputs: Vec::new(),
            outputs: BTreeMap::new(),
            counts: [0; COUNTERS.len()],
        })
    }

    fn reconfigure(&mut self, args: ForwarderArgs) -> Result<Reconfigured, AppError> {
        if args.ports != self.macs {
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
    /// Gives each next hop the index of its output.
    fn join(&mut self) {
        for hop in &mut self.hops {
            hop.output = self.outputs.get(&hop.port).copied();
        }
    }

    /// Changes the packet for its next hop and returns the output.
    fn forward(&self, packet: &mut Packet, ours: Option<Mac>) -> Result<usize, Drop> {
        let (destination, _) = addresses(packet).ok_or(Drop::Malformed)?;
        if ours != Some(destination) {
            return Err(Drop::NotOurs);
        }
        let hop = match be16(packet, 12) {
            Some(IPV4) => self.v4(&mut packet[ETHERNET..])?,
            Some(IPV6) => self.v6(&mut packet[ETHERNET..])?,
            Some(_) => return Err(Drop::NotIp),
            None => return Err(Drop::Malformed),
        };
        let hop = &self.hops[hop as usize];
        packet[..12].copy_from_slice(&hop.addresses);
        hop.output.ok_or(Drop::NoRoute)
    }

    fn v4(&self, packet: &mut [u8]) -> Result<u32, Drop> {
        let start: &[u8; 20] = packet.first_chunk().ok_or(Drop::Malformed)?;
        let header = usize::from(start[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([start[2], start[3]]));
        if start[0] >> 4 != 4 || header < 20 || total < header || total > packet.len() {
            return Err(Drop::Malformed);
        }
        if csum_fold(csum_partial(&packet[..header], 0)) != 0 {
            return Err(Drop::BadChecksum);
        }
        let start: &mut [u8; 20] = packet.first_chunk_mut().ok_or(Drop::Malformed)?;
        if start[8] <= 1 {
            return Err(Drop::Expired);
        }
        let destination = std::net::Ipv4Addr::new(start[16], start[17], start[18], start[19]);
        let hop = self.table.v4(destination).ok_or(Drop::NoRoute)?;
        let (old, new) = ([start[8], start[9]], [start[8] - 1, start[9]]);
        let check = csum_replace2(u16::from_ne_bytes([start[10], start[11]]), old, new);
        start[8] = new[0];
        start[10..12].copy_from_slice(&check.to_ne_bytes());
        Ok(hop)
    }

    fn v6(&self, packet: &mut [u8]) -> Result<u32, Drop> {
        let length = packet.len();
        let start: &mut [u8; 40] = packet.first_chunk_mut().ok_or(Drop::Malformed)?;
        let payload = usize::from(u16::from_be_bytes([start[4], start[5]]));
        if start[0] >> 4 != 6 || 40 + payload > length {
            return Err(Drop::Malformed);
        }
        if start[7] <= 1 {
            return Err(Drop::Expired);
        }
        let destination: [u8; 16] = *start.last_chunk().ok_or(Drop::Malformed)?;
        let hop = self.table.v6(destination.into()).ok_or(Drop::NoRoute)?;
        start[7] -= 1;
        Ok(hop)
    }
}

impl App for Forwarder {
    fn push(&mut self, io: &Io) {
        let mut batch = Batch::new();
        for index in 0..self.inputs.len() {
            let (Some(input), ours) = (io.input(index), self.inputs[index]) else { continue };
            let mut waiting = input.length();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                for mut packet in batch.drain() {
                    let way = self.forward(&mut packet, ours);
                    self.counts[way.map_or_else(|drop| drop as usize, |_| FORWARDED)] += 1;
                    if let Some(output) = way.ok().and_then(|output| io.output(output)) {
                        output.transmit(packet);
                    }
                }
            }
        }
    }

    fn link(&mut self, direction: Direction, name: &str, index: usize) {
        match direction {
            Direction::Input => {
                self.inputs.resize(self.inputs.len().max(index + 1), None);
                self.inputs[index] = self.macs.get(name).copied();
            }
            Direction::Output => {
                self.outputs.insert(name.to_string(), index);
                self.join();
            }
        }
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
