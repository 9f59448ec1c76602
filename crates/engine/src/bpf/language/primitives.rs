//! What the primitives of a filter expression ask for. The order in which they ask is libpcap's: it
//! decides what becomes of packets that are cut off.

use std::net::Ipv6Addr;

use super::{Parsed, left_out};
use crate::bpf::graph::{Condition, Field, NETWORK, Operator, Test, Value};

// Types of Ethernet frames.
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const REVERSE_ARP: u16 = 0x8035;
// Protocols of IP.
const TCP: u32 = 6;
const UDP: u32 = 17;
const SCTP: u32 = 132;
const ICMPV6: u32 = 58;
/// The next header of a fragment.
const FRAGMENT: u32 = 44;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Ether,
    Ip,
    Ip6,
    Arp,
    ReverseArp,
    /// By number: carried by either.
    Either(u32),
    /// Carried by IPv4 only.
    Over4(u32),
    /// Carried by IPv6 only.
    Over6(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Source,
    Destination,
    /// Also where nothing is said.
    Either,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Host,
    Net,
    Port,
    PortRange,
}

/// What stands before an address or a number.
#[derive(Debug, Clone, Copy)]
pub struct Qualifiers {
    pub protocol: Option<Protocol>,
    pub direction: Direction,
    pub kind: Kind,
}

fn compare(field: Field, mask: u32, operator: Operator, constant: u32) -> Condition {
    Condition::Test(Test { value: Value { field, mask }, operator, constant })
}

fn equal(field: Field, constant: u32) -> Condition {
    compare(field, u32::MAX, Operator::Equal, constant)
}

pub fn carried_in_frame(kind: u16) -> Condition {
    equal(Field::At(12, 2), kind.into())
}

/// A byte or more of the header that follows the Ethernet header.
fn network(place: u32, bytes: u8) -> Field {
    Field::At(NETWORK + place, bytes)
}

/// The later fragments of an IPv4 packet have no header of what it carries.
pub fn no_later_fragment() -> Condition {
    compare(network(6, 2), 0x1fff, Operator::Equal, 0)
}

fn over_v4(protocol: u32) -> Condition {
    carried_in_frame(IPV4).and(equal(network(9, 1), protocol))
}

fn over_v6(protocol: u32) -> Condition {
    let fragment = equal(network(6, 1), FRAGMENT).and(equal(network(40, 1), protocol));
    carried_in_frame(IPV6).and(equal(network(6, 1), protocol).or(fragment))
}

impl Protocol {
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "ether" | "link" => Self::Ether,
            "ip" => Self::Ip,
            "ip6" => Self::Ip6,
            "arp" => Self::Arp,
            "rarp" => Self::ReverseArp,
            "tcp" => Self::Either(TCP),
            "udp" => Self::Either(UDP),
            "sctp" => Self::Either(SCTP),
            "esp" => Self::Either(50),
            "ah" => Self::Either(51),
            "pim" => Self::Either(103),
            "icmp" => Self::Over4(1),
            "igmp" => Self::Over4(2),
            "vrrp" => Self::Over4(112),
            "icmp6" => Self::Over6(ICMPV6),
            _ => return None,
        })
    }

    pub fn condition(self) -> Parsed<Condition> {
        Ok(match self {
            Self::Ether => return left_out("'ether' alone"),
            Self::Ip => carried_in_frame(IPV4),
            Self::Ip6 => carried_in_frame(IPV6),
            Self::Arp => carried_in_frame(ARP),
            Self::ReverseArp => carried_in_frame(REVERSE_ARP),
            Self::Either(protocol) => over_v4(protocol).or(over_v6(protocol)),
            Self::Over4(protocol) => over_v4(protocol),
            Self::Over6(protocol) => over_v6(protocol),
        })
    }
}

impl Direction {
    fn of(self, one: impl Fn(bool) -> Condition) -> Condition {
        let (source, destination) = (one(true), one(false));
        match self {
            Self::Source => source,
            Self::Destination => destination,
            Self::Either => source.or(destination),
            Self::Both => source.and(destination),
        }
    }
}

impl Qualifiers {
    /// Stations with this Ethernet address.
    pub fn station(self, address: [u8; 6]) -> Parsed<Condition> {
        if self.protocol != Some(Protocol::Ether) || self.kind != Kind::Host {
            return left_out("an Ethernet address there");
        }
        let [a, b, c, d, e, f] = address;
        Ok(self.direction.of(|source| {
            let start = if source { 6 } else { 0 };
            let last = equal(Field::At(start + 2, 4), u32::from_be_bytes([c, d, e, f]));
            last.and(equal(Field::At(start, 2), u16::from_be_bytes([a, b]).into()))
        }))
    }

    /// Hosts with IPv4 addresses.
    pub fn hosts(self, address: u32, mask: u32) -> Parsed<Condition> {
        let on = |kind: u16, source: u32, destination: u32| {
            self.direction.of(|is_source| {
                let place = if is_source { source } else { destination };
                let same = compare(network(place, 4), mask, Operator::Equal, address);
                carried_in_frame(kind).and(same)
            })
        };
        let (v4, arp, reverse) = (on(IPV4, 12, 16), on(ARP, 14, 24), on(REVERSE_ARP, 14, 24));
        Ok(match self.protocol {
            None => v4.or(arp).or(reverse),
            Some(Protocol::Ip) => v4,
            Some(Protocol::Arp) => arp,
            Some(Protocol::ReverseArp) => reverse,
            Some(_) => return left_out("an IPv4 address there"),
        })
    }

    /// Hosts with IPv6 addresses that begin with so many bits of this one.
    pub fn hosts_v6(self, address: Ipv6Addr, bits: u32, given: bool) -> Parsed<Condition> {
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let address = address.to_bits();
        let allowed = matches!(self.protocol, None | Some(Protocol::Ip6));
        if !allowed || address & !mask != 0 || given && bits != 128 && self.kind != Kind::Net {
            return left_out("an IPv6 address there");
        }
        Ok(self.direction.of(|source| {
            let start = if source { 8 } else { 24 };
            let mut condition = carried_in_frame(IPV6);
            for word in 0..4 {
                let part = |bits: u128| (bits >> (96 - 32 * word)) as u32;
                let field = network(start + 4 * word, 4);
                let same = compare(field, part(mask), Operator::Equal, part(address));
                condition = condition.and(same);
            }
            condition
        }))
    }

    /// Ports of TCP, UDP and SCTP from the first to the last.
    pub fn ports(self, first: u32, last: u32) -> Parsed<Condition> {
        let protocols: &[u32] = match self.protocol {
            None => &[SCTP, TCP, UDP],
            Some(Protocol::Either(TCP)) => &[TCP],
            Some(Protocol::Either(UDP)) => &[UDP],
            Some(Protocol::Either(SCTP)) => &[SCTP],
            Some(_) => return left_out("a port there"),
        };
        let atom = |field: Field| {
            if self.kind == Kind::Port {
                return equal(field, first);
            }
            let above = compare(field, u32::MAX, Operator::AtLeast, first);
            above.and(compare(field, u32::MAX, Operator::Above, last).not())
        };
        let place = |source: bool| if source { 0 } else { 2 };
        let each = |one: &dyn Fn(u32) -> Condition| {
            let mut all = protocols.iter().map(|protocol| one(*protocol));
            let first = all.next().unwrap_or(Condition::Always);
            all.fold(first, Condition::or)
        };
        let v6 = each(&|protocol| {
            let ports = self.direction.of(|source| atom(network(40 + place(source), 2)));
            equal(network(6, 1), protocol).and(ports)
        });
        let v4 = each(&|protocol| {
            let ports = self.direction.of(|source| atom(Field::Behind(place(source), 2)));
            equal(network(9, 1), protocol).and(no_later_fragment()).and(ports)
        });
        Ok(carried_in_frame(IPV6).and(v6).or(carried_in_frame(IPV4).and(v4)))
    }
}

/// Frames that carry this type, or packets that carry this protocol.
pub fn carries(protocol: Option<Protocol>, number: u32) -> Parsed<Condition> {
    // AppleTalk is carried in two ways.
    let special = matches!(number, 0x809b | 0x80f3);
    match protocol {
        Some(Protocol::Ether) if (1501..=65535).contains(&number) && !special => {
            Ok(carried_in_frame(number as u16))
        }
        None if number <= 255 => Ok(over_v4(number).or(over_v6(number))),
        Some(Protocol::Ip) if number <= 255 => Ok(over_v4(number)),
        Some(Protocol::Ip6) if number <= 255 => Ok(over_v6(number)),
        _ => left_out(format!("'proto {number}' there")),
    }
}

pub fn broadcast(protocol: Option<Protocol>) -> Parsed<Condition> {
    let stations = Qualifiers {
        protocol: Some(Protocol::Ether),
        direction: Direction::Destination,
        kind: Kind::Host,
    };
    match protocol {
        None | Some(Protocol::Ether) => stations.station([0xff; 6]),
        // That of a network is not known.
        _ => left_out("'broadcast' there"),
    }
}

pub fn multicast(protocol: Option<Protocol>) -> Parsed<Condition> {
    match protocol {
        None | Some(Protocol::Ether) => Ok(compare(Field::At(0, 1), 1, Operator::Equal, 0).not()),
        Some(Protocol::Ip) => Ok(carried_in_frame(IPV4).and(compare(
            network(16, 1),
            u32::MAX,
            Operator::AtLeast,
            224,
        ))),
        Some(Protocol::Ip6) => Ok(carried_in_frame(IPV6).and(equal(network(24, 1), 255))),
        Some(_) => left_out("'multicast' there"),
    }
}

pub fn at_most(bytes: u32) -> Condition {
    compare(Field::Length, u32::MAX, Operator::Above, bytes).not()
}

pub fn at_least(bytes: u32) -> Condition {
    compare(Field::Length, u32::MAX, Operator::AtLeast, bytes)
}
