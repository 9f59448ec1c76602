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
    mappings: FlowTable<Mapping, AGES>,
    /// By protocol.
    outside: [Outside; 3],
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
    /// Most ports of hosts inside that are mapped at once, 1 to 196608. Where there are so many, or no
    /// port outside is left, the one goes that was of no use for longest when another begins.
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
/// Mappings of which hosts inside make no use are known for this long, by age: ICMP (RFC 5508, REQ-1),
/// TCP that begins or ends (RFC 5382, REQ-5), UDP (RFC 4787, REQ-5), TCP, for ever.
const AGES: usize = 5;
const LIVES: [u64; AGES] =
    [240_000_000_000, 240_000_000_000, 300_000_000_000, 7_440_000_000_000, u64::MAX];
const BRIEF_TCP: usize = 1;
const LASTING_TCP: usize = 3;
const FOR_EVER: usize = AGES - 1;

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

/// The ports outside of a protocol.
struct Outside {
    /// By port: the place of the mapping.
    mappings: Box<[u32]>,
    /// Those that a host may get, in any order.
    free: Vec<u16>,
    /// By port: its place there, if it is free.
    places: Box<[u16]>,
}

impl Outside {
    fn new(first: u16, last: u16) -> Self {
        let mut places = vec![0; 1 << 16];
        for (place, port) in (first..=last).enumerate() {
            places[usize::from(port)] = place as u16;
        }
        Self {
            mappings: vec![NONE; 1 << 16].into(),
            free: (first..=last).collect(),
            places: places.into(),
        }
    }

    fn is_free(&self, port: u16) -> bool {
        self.free.get(usize::from(self.places[usize::from(port)])) == Some(&port)
    }

    fn take(&mut self, port: u16, mapping: u32) {
        self.mappings[usize::from(port)] = mapping;
        if self.is_free(port) {
            let place = self.places[usize::from(port)];
            self.free.swap_remove(usize::from(place));
            if let Some(moved) = self.free.get(usize::from(place)) {
                self.places[usize::from(*moved)] = place;
            }
        }
    }

    /// Of a host: those of forwards are never given back.
    fn give_back(&mut self, port: u16) {
        self.mappings[usize::from(port)] = NONE;
        self.places[usize::from(port)] = self.free.len() as u16;
        self.free.push(port);
    }
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

/// The ages that mappings of a protocol have, the shortest first.
fn ages(protocol: u8) -> &'static [usize] {
    match protocol {
        TCP => &[BRIEF_TCP, LASTING_TCP],
        UDP => &[2],
        _ => &[0],
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
            mappings: FlowTable::new(args.mappings),
            outside: [(); 3].map(|()| Outside::new(args.ports[0], args.ports[1])),
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
            if let Some(at) = nat.mappings.insert(key, mapping, FOR_EVER, 0) {
                nat.outside[place].take(forward.port, at);
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
        let place = place(protocol)?;
        let ports_are_left = !self.outside[place].free.is_empty();
        if self.mappings.is_full() || !ports_are_left {
            let all: &[usize] = if ports_are_left { &[0, 1, 2, 3] } else { ages(protocol) };
            let (oldest, _) = all.iter().find_map(|age| self.mappings.oldest(*age))?;
            self.forget(oldest);
        }
        // The same port as inside if nobody has it, else a random one (RFC 6056). Ports that hosts do
        // not get are for forwards, also where hosts have such.
        let outer = if self.outside[place].is_free(port) {
            port
        } else {
            let random = self.random() as usize;
            let free = &self.outside[place].free;
            *free.get(random % free.len().max(1))?
        };
        let mapping = Mapping { host, port, outer, protocol, ended: [false; 2] };
        let at = self.mappings.insert(key, mapping, ages(protocol)[0], self.now)?;
        self.outside[place].take(outer, at);
        Some(at)
    }

    fn forget(&mut self, at: u32) {
        let mapping = self.mappings.remove(at);
        if let Some(place) = place(mapping.protocol) {
            self.outside[place].give_back(mapping.outer);
        }
    }

    /// A packet of the mapping passes, from this side. It is one for all that the host's port talks
    /// to, and anybody outside may send to it: only what the host sends keeps it (RFC 4787, REQ-6), and
    /// nothing from outside ends it by itself.
    fn used(&mut self, at: u32, packet: &Flow, carries: bool, from: usize) {
        let age = self.mappings.age(at);
        if age == FOR_EVER {
            return;
        }
        let ended = &mut self.mappings.value_mut(at).ended;
        let ends = packet.flags & (FIN | RST) != 0;
        if from == OUTSIDE {
            ended[OUTSIDE] |= ends;
            return;
        }
        if ends {
            *ended = [true, ended[OUTSIDE] || packet.flags & RST != 0];
        } else if packet.flags & SYN != 0 {
            *ended = [false; 2];
        } else if carries {
            // Behind an end it is another connection; the other end of this one may have ended before.
            ended[INSIDE] = false;
        }
        let begins = packet.flags & (SYN | ACK) == SYN && age == BRIEF_TCP;
        let age = match packet.protocol {
            TCP if begins || *ended == [true; 2] => BRIEF_TCP,
            TCP => LASTING_TCP,
            other => ages(other)[0],
        };
        self.mappings.touch(at, age, self.now);
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
        let carries = packet.protocol == TCP
            && packet.end > packet.upper + usize::from(ip[packet.upper + 12] >> 4) * 4;
        self.used(mapping, &packet, carries, INSIDE);
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
        let at = self.outside[place].mappings[usize::from(packet.ports[1])];
        if at == NONE {
            return false;
        }
        self.used(at, packet, false, OUTSIDE);
        let Mapping { host, port, .. } = *self.mappings.value(at);
        rewrite(ip, packet, Which::Destination, host, port);
        true
    }

    /// An ICMP error: the packet that it quotes went the other way, and is translated as that was.
    fn error(&mut self, ip: &mut [u8], packet: &Flow, quoted: usize, from: usize) -> Verdict {
        let about = match flow(&ip[quoted..packet.end], true) {
            Ok(about) if !about.v6 => about,
            Ok(_) | Err(Unknown::Malformed) => return Verdict::Malformed,
            Err(Unknown::Fragment) => return Verdict::Fragments,
        };
        let Some(place) = place(about.protocol) else { return Verdict::NotTranslated };
        let is_ours = |address: &[u8; 16]| address[..4] == self.address;
        // From inside to the address outside it is about a packet from there to another host inside,
        // and goes the way of an error from outside then (RFC 5508, REQ-7).
        let goes_in = is_ours(&packet.destination);
        let verdict = match (from == OUTSIDE, goes_in) {
            (true, false) => return Verdict::Unmapped,
            (true, true) => Verdict::In,
            (false, true) => Verdict::Hairpin,
            (false, false) => Verdict::Out,
        };
        let mut sender = NONE;
        if goes_in {
            if is_ours(&about.source) {
                sender = self.outside[place].mappings[usize::from(about.ports[0])];
            }
            if sender == NONE {
                return Verdict::Unmapped;
            }
        }
        let end = packet.end;
        if from == INSIDE {
            let [a, b, c, d, ..] = about.destination;
            let key = key([a, b, c, d], about.ports[1], about.protocol);
            let Some(receiver) = self.mappings.find(&key) else { return Verdict::Unmapped };
            let outer = self.mappings.value(receiver).outer;
            rewrite(&mut ip[quoted..end], &about, Which::Destination, self.address, outer);
            address_to(ip, 12, self.address);
        }
        if goes_in {
            let Mapping { host, port, .. } = *self.mappings.value(sender);
            rewrite(&mut ip[quoted..end], &about, Which::Source, host, port);
            address_to(ip, 16, host);
        }
        // The checksum of the error is over all that it quotes. All of it that changes: addresses
        // and ports, and the sums over these.
        let upper = packet.upper;
        ip[upper + 2..upper + 4].fill(0);
        let sum = checksum::checksum(&ip[upper..end]);
        ip[upper + 2..upper + 4].copy_from_slice(&sum.to_ne_bytes());
        verdict
    }

    fn expire(&mut self) {
        for (age, life) in LIVES[..FOR_EVER].iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    const US: [u8; 4] = [203, 0, 113, 7];
    const HOST: [u8; 4] = [10, 0, 0, 5];
    const THERE: [u8; 4] = [192, 0, 2, 9];
    const STRANGER: [u8; 4] = [198, 51, 100, 1];
    const SECOND: u64 = 1_000_000_000;

    fn nat() -> Nat {
        let args = NatArgs {
            address: US.into(),
            ports: ports(),
            mappings: mappings(),
            forwards: Vec::new(),
        };
        Nat::new(args, &Context { name: "nat".into(), thread: 0 }).unwrap()
    }

    /// A frame of TCP or UDP; whether it was translated.
    fn pass(
        nat: &mut Nat,
        from: usize,
        (source, destination): (([u8; 4], u16), ([u8; 4], u16)),
        flags: Option<u8>,
        data: &[u8],
    ) -> bool {
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
        let builder = builder.ipv4(source.0, destination.0, 64);
        let mut frame = Vec::new();
        match flags {
            None => builder.udp(source.1, destination.1).write(&mut frame, data).unwrap(),
            Some(_) => {
                builder.tcp(source.1, destination.1, 1, 9).write(&mut frame, data).unwrap();
            }
        }
        if let Some(flags) = flags {
            frame[14 + 20 + 13] = flags;
        }
        let verdict = nat.translate(&mut Packet::from_slice(&frame).unwrap(), from);
        matches!(verdict, Verdict::Out | Verdict::In)
    }

    fn tcp_out(nat: &mut Nat, to: [u8; 4], flags: u8, data: &[u8]) -> bool {
        pass(nat, INSIDE, ((HOST, 5000), (to, 80)), Some(flags), data)
    }

    fn tcp_in(nat: &mut Nat, from: [u8; 4], flags: u8) -> bool {
        pass(nat, OUTSIDE, ((from, 80), (US, 5000)), Some(flags), b"")
    }

    fn established() -> Nat {
        let mut nat = nat();
        assert!(tcp_out(&mut nat, THERE, SYN, b""));
        assert!(tcp_in(&mut nat, THERE, SYN | ACK));
        assert!(tcp_out(&mut nat, THERE, ACK, b""));
        nat
    }

    /// Whether the mapping is there after so many seconds in which nothing comes from inside.
    fn lives(mut nat: Nat, seconds: u64) -> bool {
        nat.now += seconds * SECOND;
        nat.expire();
        tcp_in(&mut nat, THERE, ACK)
    }

    #[test]
    fn strangers_neither_end_a_mapping_nor_keep_it() {
        assert!(lives(established(), 7000) && !lives(established(), 7500));
        for flags in [RST, FIN, FIN | ACK, SYN] {
            let mut nat = established();
            tcp_in(&mut nat, STRANGER, flags);
            assert!(tcp_out(&mut nat, THERE, ACK, b""));
            assert!(lives(nat, 300), "{flags}");
        }
        let mut nat = established();
        nat.now += 7000 * SECOND;
        tcp_in(&mut nat, STRANGER, ACK);
        assert!(!lives(nat, 1000));
    }

    #[test]
    fn what_its_host_ends_lives_for_minutes_and_what_goes_on_longer() {
        let ended = || {
            let mut nat = established();
            tcp_in(&mut nat, THERE, FIN | ACK);
            tcp_out(&mut nat, THERE, FIN | ACK, b"");
            tcp_in(&mut nat, THERE, ACK);
            // The last acknowledgement begins nothing.
            tcp_out(&mut nat, THERE, ACK, b"");
            nat
        };
        assert!(lives(ended(), 200) && !lives(ended(), 300));
        let mut nat = established();
        tcp_out(&mut nat, THERE, RST, b"");
        assert!(!lives(nat, 300));
        // What ends first may be told more: of TLS, that it is over here as well.
        let mut nat = established();
        tcp_in(&mut nat, THERE, FIN | ACK);
        tcp_out(&mut nat, THERE, ACK, b"over");
        tcp_out(&mut nat, THERE, FIN | ACK, b"");
        tcp_in(&mut nat, THERE, ACK);
        assert!(!lives(nat, 300));
        // The same port talks to others, too.
        let mut nat = ended();
        tcp_out(&mut nat, STRANGER, ACK, b"data");
        assert!(lives(nat, 300));
        let mut nat = established();
        tcp_out(&mut nat, STRANGER, SYN, b"");
        assert!(lives(nat, 300), "a beginning is no end of what there is");
        let mut begun = self::nat();
        tcp_out(&mut begun, THERE, SYN, b"");
        assert!(!lives(begun, 300));
    }

    #[test]
    fn who_takes_all_ports_does_not_keep_others_out() {
        let mut nat = nat();
        let datagram = |nat: &mut Nat, host: [u8; 4], port| {
            pass(nat, INSIDE, ((host, port), (THERE, 53)), None, b"data")
        };
        assert!(tcp_out(&mut nat, THERE, SYN, b""));
        for port in 1..=u16::MAX {
            nat.now += 1;
            assert!(datagram(&mut nat, HOST, port));
        }
        let all = usize::from(u16::MAX - 1023);
        assert_eq!(nat.mappings.len(), all + 1, "all ports of UDP, and one of TCP");
        assert!(datagram(&mut nat, [10, 0, 0, 6], 5000));
        assert_eq!(nat.mappings.len(), all + 1);
        assert!(nat.mappings.find(&key(HOST, 5000, TCP)).is_some());
        assert!(nat.outside[1].free.is_empty());
    }

    #[test]
    fn ports_are_given_back() {
        let mut outside = Outside::new(10, 19);
        let mut random = 1u32;
        let mut taken = [false; 30];
        for step in 0..10_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let port = 10 + (random >> 16) as u16 % 10;
            assert_eq!(outside.is_free(port), !taken[usize::from(port)]);
            if taken[usize::from(port)] {
                outside.give_back(port);
            } else {
                outside.take(port, step);
                assert_eq!(outside.mappings[usize::from(port)], step);
            }
            taken[usize::from(port)] ^= true;
            let mut free = outside.free.clone();
            free.sort_unstable();
            let model = (0..30).filter(|port| (10..20).contains(port) && !taken[*port]);
            assert!(free.iter().map(|port| usize::from(*port)).eq(model));
            assert!(!outside.is_free(9) && !outside.is_free(20));
        }
    }
}
