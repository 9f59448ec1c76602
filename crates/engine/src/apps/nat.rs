//! Network address and port translation for IPv4: many hosts inside behind one address outside.
//!
//! A host's port has the same port outside towards everybody (RFC 4787, endpoint-independent
//! mapping), and everybody may send to it: who may is for [`Acl`](super::acl::Acl), which stands on
//! the inner side.

use std::net::Ipv4Addr;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::headers::{IPV4, payload};
use crate::apps::transport::{ACK, FIN, Flow, RST, SYN, Unknown, flow};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::flow_table::{FlowTable, Key};
use crate::packet::{NEEDS_CHECKSUM, Packet};
use crate::registry::Registry;
use checksum::{ICMP, TCP, UDP, csum_replace2, csum_replace4};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Nat>();
}

/// Translates between `inside` and `outside`. What is no IPv4 passes.
pub struct Nat {
    address: [u8; 4],
    first: u16,
    last: u16,
    mappings: FlowTable<Mapping, AGES>,
    /// By protocol and port outside: the place of the mapping.
    outside: [Box<[u32]>; 3],
    forwards: Vec<Forward>,
    random: u64,
    now: u64,
    counts: [u64; COUNTERS.len()],
}

/// Arguments of [`Nat`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatArgs {
    /// The address outside.
    pub address: Ipv4Addr,
    /// The first and the last port outside that hosts inside may get.
    #[serde(default = "ports")]
    pub ports: [u16; 2],
    /// Most ports of hosts inside that are mapped at once, 1 to 196608; of those that were of no
    /// use for longest one goes when another begins.
    #[serde(default = "mappings")]
    pub mappings: usize,
    /// Ports outside that always lead to a host inside.
    #[serde(default)]
    pub forwards: Vec<Forward>,
}

/// A port outside that leads to a port of a host inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// `tcp` or `udp`.
    pub protocol: Carried,
    /// The port outside.
    pub port: u16,
    /// The host inside.
    pub to: Ipv4Addr,
    /// Its port.
    pub to_port: u16,
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carried {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

fn ports() -> [u16; 2] {
    [1024, 65535]
}

fn mappings() -> usize {
    65536
}

const INSIDE: usize = 0;
const OUTSIDE: usize = 1;
const NONE: u32 = u32::MAX;
/// Mappings without packets are known for this long, by age: ICMP and TCP that begins or ends (RFC
/// 5508, REQ-1; RFC 5382, REQ-5), UDP (RFC 4787, REQ-5), TCP, for ever.
const AGES: usize = 4;
const LIVES: [u64; AGES] = [240_000_000_000, 300_000_000_000, 7_440_000_000_000, u64::MAX];

const COUNTERS: &[&str] = &[
    "out",
    "in",
    "hairpin",
    "unmapped",
    "not_translated",
    "fragments",
    "malformed",
    "no_port",
    "passed",
    "mappings",
];

/// What became of a packet: the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Out = 0,
    In = 1,
    /// From inside to the address outside and back in.
    Hairpin = 2,
    /// To a port outside that nobody has.
    Unmapped = 3,
    /// A protocol without ports.
    NotTranslated = 4,
    Fragments = 5,
    Malformed = 6,
    /// No port is left.
    NoPort = 7,
    /// No IPv4.
    Passed = 8,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mapping {
    host: [u8; 4],
    /// Ports inside and outside.
    port: u16,
    outer: u16,
    protocol: u8,
    /// TCP: which sides have ended.
    ended: [bool; 2],
}

/// The place of a protocol in [`Nat::outside`].
fn place(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(0),
        UDP => Some(1),
        ICMP => Some(2),
        _ => None,
    }
}

fn key(host: [u8; 4], port: u16, protocol: u8) -> Key {
    let mut key = [0; 40];
    key[..4].copy_from_slice(&host);
    key[4..6].copy_from_slice(&port.to_be_bytes());
    key[6] = protocol;
    key
}

impl Kind for Nat {
    const NAME: &'static str = "Nat";
    const ABOUT: &'static str =
        "translates IPv4 addresses and ports of hosts 'inside' to one address 'outside'";
    const INPUTS: Ports = Ports::Named(&["inside", "outside"]);
    const OUTPUTS: Ports = Ports::Named(&["inside", "outside"]);
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = NatArgs;

    fn check(args: &NatArgs) -> Result<(), ArgError> {
        if args.ports[0] == 0 || args.ports[0] > args.ports[1] {
            return Err(ArgError::wrong(
                "ports",
                "is the first and the last port, from 1 to 65535",
            ));
        }
        if !(1..=3 << 16).contains(&args.mappings) || args.mappings < args.forwards.len() {
            let problem = "is a number from 1 to 196608, not below that of forwards";
            return Err(ArgError::wrong("mappings", problem));
        }
        for (number, forward) in args.forwards.iter().enumerate() {
            let same = |other: &Forward| {
                let outer = (other.protocol, other.port) == (forward.protocol, forward.port);
                let inner = (other.to, other.to_port) == (forward.to, forward.to_port);
                outer || (inner && other.protocol == forward.protocol)
            };
            if args.forwards[..number].iter().any(same) {
                let problem = format!(
                    "port {} is forwarded twice, or to a port that another is",
                    forward.port
                );
                return Err(ArgError::wrong("forwards", problem));
            }
        }
        Ok(())
    }

    fn new(args: NatArgs, _context: &Context) -> Result<Self, AppError> {
        let mut seed = [0; 8];
        getrandom(&mut seed, GetRandomFlags::empty())
            .map_err(|error| AppError::os("a random number", error))?;
        let mut nat = Self {
            address: args.address.octets(),
            first: args.ports[0],
            last: args.ports[1],
            mappings: FlowTable::new(args.mappings),
            outside: [(); 3].map(|()| vec![NONE; 1 << 16].into()),
            forwards: args.forwards,
            random: u64::from_ne_bytes(seed) | 1,
            now: 0,
            counts: [0; COUNTERS.len()],
        };
        for forward in std::mem::take(&mut nat.forwards) {
            let (protocol, place) =
                if forward.protocol == Carried::Tcp { (TCP, 0) } else { (UDP, 1) };
            let mapping = Mapping {
                host: forward.to.octets(),
                port: forward.to_port,
                outer: forward.port,
                protocol,
                ended: [false; 2],
            };
            let key = key(mapping.host, mapping.port, protocol);
            if let Some(at) = nat.mappings.insert(key, mapping, AGES - 1, 0) {
                nat.outside[place][usize::from(forward.port)] = at;
            }
        }
        Ok(nat)
    }
}

impl Nat {
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// The mapping of a host's port; a new one if there is none.
    fn map(&mut self, host: [u8; 4], port: u16, protocol: u8) -> Option<u32> {
        let key = key(host, port, protocol);
        if let Some(at) = self.mappings.find(&key) {
            return Some(at);
        }
        if self.mappings.is_full() {
            let (oldest, _) = (0..AGES - 1).find_map(|age| self.mappings.oldest(age))?;
            self.forget(oldest);
        }
        let outer = self.free_port(port, protocol)?;
        let mapping = Mapping { host, port, outer, protocol, ended: [false; 2] };
        let age = usize::from(protocol == UDP);
        let at = self.mappings.insert(key, mapping, age, self.now)?;
        self.outside[place(protocol)?][usize::from(outer)] = at;
        Some(at)
    }

    /// The same port as inside if nobody has it, else one from a random place on (RFC 6056), or
    /// None. Ports below `first` are for forwards, also where hosts have such.
    fn free_port(&mut self, wanted: u16, protocol: u8) -> Option<u16> {
        let (first, last) = (u64::from(self.first), u64::from(self.last));
        let count = last - first + 1;
        let begin = self.random() % count;
        let ports = &self.outside[place(protocol)?];
        let free = |port: &u16| ports[usize::from(*port)] == NONE;
        let fits = (self.first..=self.last).contains(&wanted);
        Some(wanted)
            .filter(|port| fits && free(port))
            .or_else(|| (0..count).map(|step| (first + (begin + step) % count) as u16).find(free))
    }

    fn forget(&mut self, at: u32) {
        let mapping = self.mappings.remove(at);
        if let Some(place) = place(mapping.protocol) {
            self.outside[place][usize::from(mapping.outer)] = NONE;
        }
    }

    /// A packet of the mapping passes, from this side.
    fn used(&mut self, at: u32, packet: &Flow, from: usize) {
        let now = self.now;
        let forever = self.mappings.age(at) == AGES - 1;
        let mapping = self.mappings.value_mut(at);
        let age = match packet.protocol {
            _ if forever => AGES - 1,
            TCP => {
                if packet.flags & RST != 0 {
                    mapping.ended = [true; 2];
                } else if packet.flags & FIN != 0 {
                    mapping.ended[from] = true;
                } else if packet.flags & SYN != 0 {
                    mapping.ended = [false; 2];
                }
                let begins = packet.flags & (SYN | ACK) == SYN;
                if begins || mapping.ended == [true; 2] { 0 } else { 2 }
            }
            UDP => 1,
            _ => 0,
        };
        // Only what hosts inside send keeps a mapping (RFC 4787, REQ-6): nobody outside can.
        if from == INSIDE || packet.protocol == TCP {
            self.mappings.touch(at, age, now);
        }
    }

    fn translate(&mut self, frame: &mut Packet, from: usize) -> Verdict {
        let Some((IPV4, at)) = payload(frame) else { return Verdict::Passed };
        if frame.flags & NEEDS_CHECKSUM != 0 {
            // What is damaged is found out below.
            let _ = checksum::packet::fill(&mut frame[at..]);
            frame.flags = 0;
        }
        let ip = &mut frame[at..];
        let packet = match flow(ip, false) {
            Ok(packet) => packet,
            Err(Unknown::Fragment) => return Verdict::Fragments,
            Err(Unknown::Malformed) => return Verdict::Malformed,
        };
        if let Some(quoted) = packet.quoted {
            return self.error(ip, &packet, quoted, from);
        }
        let Some(place) = place(packet.protocol) else { return Verdict::NotTranslated };
        // Of ICMP only echoes have a port.
        if packet.protocol == ICMP && !matches!(ip[packet.upper], 0 | 8) {
            return Verdict::NotTranslated;
        }
        if from == OUTSIDE {
            return match self.inwards(ip, &packet, place) {
                true => Verdict::In,
                false => Verdict::Unmapped,
            };
        }
        let [a, b, c, d, ..] = packet.source;
        let Some(mapping) = self.map([a, b, c, d], packet.ports[0], packet.protocol) else {
            return Verdict::NoPort;
        };
        self.used(mapping, &packet, INSIDE);
        let outer = self.mappings.value(mapping).outer;
        rewrite(ip, &packet, Which::Source, self.address, outer);
        if packet.destination[..4] != self.address {
            return Verdict::Out;
        }
        match self.inwards(ip, &packet, place) {
            true => Verdict::Hairpin,
            false => Verdict::Unmapped,
        }
    }

    /// Gives a packet to a port outside its host inside.
    fn inwards(&mut self, ip: &mut [u8], packet: &Flow, place: usize) -> bool {
        if packet.destination[..4] != self.address {
            return false;
        }
        let at = self.outside[place][usize::from(packet.ports[1])];
        if at == NONE {
            return false;
        }
        self.used(at, packet, OUTSIDE);
        let Mapping { host, port, .. } = *self.mappings.value(at);
        rewrite(ip, packet, Which::Destination, host, port);
        true
    }

    /// An ICMP error: the packet that it quotes went the other way, and is translated as that was.
    fn error(&mut self, ip: &mut [u8], packet: &Flow, quoted: usize, from: usize) -> Verdict {
        let about = match flow(&ip[quoted..], true) {
            Ok(about) if !about.v6 => about,
            Ok(_) | Err(Unknown::Malformed) => return Verdict::Malformed,
            Err(Unknown::Fragment) => return Verdict::Fragments,
        };
        let Some(place) = place(about.protocol) else { return Verdict::NotTranslated };
        let (old, which) = if from == OUTSIDE {
            if about.source[..4] != self.address || packet.destination[..4] != self.address {
                return Verdict::Unmapped;
            }
            (self.outside[place][usize::from(about.ports[0])], Which::Source)
        } else {
            let [a, b, c, d, ..] = about.destination;
            let key = key([a, b, c, d], about.ports[1], about.protocol);
            (self.mappings.find(&key).unwrap_or(NONE), Which::Destination)
        };
        if old == NONE {
            return Verdict::Unmapped;
        }
        let Mapping { host, port, outer, .. } = *self.mappings.value(old);
        let (address, port) = if from == OUTSIDE { (host, port) } else { (self.address, outer) };
        // The checksum of the error is over all that it quotes. All of it that changes: addresses
        // and ports, and the sums over these.
        let upper = packet.upper;
        let end = usize::from(u16::from_be_bytes([ip[2], ip[3]])).min(ip.len());
        rewrite(&mut ip[quoted..end], &about, which, address, port);
        ip[upper + 2..upper + 4].fill(0);
        let sum = checksum::checksum(&ip[upper..end]);
        ip[upper + 2..upper + 4].copy_from_slice(&sum.to_ne_bytes());
        let (at, address) = if from == OUTSIDE { (16, host) } else { (12, self.address) };
        address_to(ip, at, address);
        if from == OUTSIDE { Verdict::In } else { Verdict::Out }
    }

    fn expire(&mut self) {
        for (age, life) in LIVES[..AGES - 1].iter().enumerate() {
            while let Some((at, time)) = self.mappings.oldest(age)
                && self.now.saturating_sub(time) >= *life
            {
                self.forget(at);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Source,
    Destination,
}

/// Changes an address of an IPv4 header and its checksum; returns the old one.
fn address_to(ip: &mut [u8], at: usize, address: [u8; 4]) -> [u8; 4] {
    let old = [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
    let check = csum_replace4(u16::from_ne_bytes([ip[10], ip[11]]), old, address);
    ip[10..12].copy_from_slice(&check.to_ne_bytes());
    ip[at..at + 4].copy_from_slice(&address);
    old
}

/// Changes an address and a port, and the checksums over them as far as they are there.
fn rewrite(ip: &mut [u8], packet: &Flow, which: Which, address: [u8; 4], port: u16) {
    let old = address_to(ip, if which == Which::Source { 12 } else { 16 }, address);
    let upper = &mut ip[packet.upper..];
    let (sum, pseudo, at) = match packet.protocol {
        TCP => (16, true, if which == Which::Source { 0 } else { 2 }),
        UDP => (6, true, if which == Which::Source { 0 } else { 2 }),
        // The identifier of an echo, whose checksum is over the message alone.
        _ => (2, false, 4),
    };
    let Some(field) = upper.get_mut(at..at + 2) else { return };
    let old_port = [field[0], field[1]];
    field.copy_from_slice(&port.to_be_bytes());
    let Some(field) = upper.get_mut(sum..sum + 2) else { return };
    let check = u16::from_ne_bytes([field[0], field[1]]);
    if packet.protocol == UDP && check == 0 {
        return;
    }
    let check = csum_replace2(check, old_port, port.to_be_bytes());
    let check = if pseudo { csum_replace4(check, old, address) } else { check };
    let check = if packet.protocol == UDP && check == 0 { 0xffff } else { check };
    field.copy_from_slice(&check.to_ne_bytes());
}

impl App for Nat {
    fn push(&mut self, io: &Io) {
        self.now = io.now();
        for (from, to) in [(INSIDE, OUTSIDE), (OUTSIDE, INSIDE)] {
            let Some(input) = io.input(from) else { continue };
            let mut waiting = input.length();
            let mut batch = Batch::new();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                for mut packet in batch.drain() {
                    let verdict = self.translate(&mut packet, from);
                    self.counts[verdict as usize] += 1;
                    let output = match verdict {
                        Verdict::Out | Verdict::In | Verdict::Passed => io.output(to),
                        Verdict::Hairpin => io.output(INSIDE),
                        _ => None,
                    };
                    if let Some(output) = output {
                        output.transmit(packet);
                    }
                }
            }
        }
    }

    fn tick(&mut self, io: &Io) {
        self.now = io.now();
        self.expire();
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
        if let Some(last) = values.last_mut() {
            *last = self.mappings.len() as u64;
        }
    }
}
