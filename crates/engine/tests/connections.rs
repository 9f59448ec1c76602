//! Access list and address translation: packets of connections that are real ones, with checksums
//! that another implementation made.

use std::collections::HashMap;

use etherparse::{PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;

mod rig;

use rig::Rig;

const PORTS: [&str; 2] = ["inside", "outside"];

fn rig(kind: &str, args: &str) -> Rig {
    Rig::new(kind, toml::from_str::<toml::Table>(args).unwrap(), &PORTS, &PORTS)
}

type Address = ([u8; 4], u16);

fn headers(from: [u8; 4], to: [u8; 4]) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ipv4(from, to, 64)
}

fn udp(from: Address, to: Address) -> Vec<u8> {
    let mut frame = Vec::new();
    headers(from.0, to.0).udp(from.1, to.1).write(&mut frame, b"some data").unwrap();
    frame
}

fn tcp(from: Address, to: Address, flags: &str) -> Vec<u8> {
    let mut builder = headers(from.0, to.0).tcp(from.1, to.1, 1000, 2000);
    for flag in flags.chars() {
        builder = match flag {
            'S' => builder.syn(),
            'A' => builder.ack(7),
            'F' => builder.fin(),
            'R' => builder.rst(),
            other => panic!("{other}"),
        };
    }
    let mut frame = Vec::new();
    builder.write(&mut frame, b"some data").unwrap();
    frame
}

fn echo(from: [u8; 4], to: [u8; 4], id: u16, reply: bool) -> Vec<u8> {
    let mut frame = Vec::new();
    let headers = headers(from, to);
    let headers =
        if reply { headers.icmpv4_echo_reply(id, 1) } else { headers.icmpv4_echo_request(id, 1) };
    headers.write(&mut frame, b"some data").unwrap();
    frame
}

/// An error from `router` about a packet that went the other way.
fn error(router: [u8; 4], about: &[u8]) -> Vec<u8> {
    let to: [u8; 4] = about[26..30].try_into().unwrap();
    let unreachable = etherparse::icmpv4::DestUnreachableHeader::Host;
    let mut frame = Vec::new();
    headers(router, to)
        .icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(unreachable))
        .write(&mut frame, &about[14..about.len().min(14 + 28)])
        .unwrap();
    frame
}

const IN: Address = ([10, 0, 0, 5], 5000);
const OUT: Address = ([192, 0, 2, 9], 80);

/// One packet; whether it came out on the other side.
fn passes(rig: &mut Rig, from: &str, frame: &[u8]) -> bool {
    let to = if from == "inside" { "outside" } else { "inside" };
    let out = rig.send(from, frame).take(to);
    assert!(out.is_empty() || out == [frame], "it is changed");
    assert_eq!(rig.count(&[from]), [0], "it comes back");
    !out.is_empty()
}

const OUTWARDS: &str = "rules = [{ action = 'allow', from = 'inside' }]";

#[test]
fn answers_pass_and_nothing_else() {
    let mut acl = rig("Acl", OUTWARDS);
    assert!(!passes(&mut acl, "outside", &udp(OUT, IN)));
    assert!(passes(&mut acl, "inside", &udp(IN, OUT)));
    assert!(passes(&mut acl, "outside", &udp(OUT, IN)));
    for wrong in [(OUT.0, 81), ([192, 0, 2, 8], 80)] {
        assert!(!passes(&mut acl, "outside", &udp(wrong, IN)));
    }
    assert!(!passes(&mut acl, "outside", &udp(OUT, (IN.0, 5001))));
    assert!(!passes(&mut acl, "outside", &tcp(OUT, IN, "S")));
    // Echoes.
    assert!(!passes(&mut acl, "outside", &echo(OUT.0, IN.0, 7, true)));
    assert!(passes(&mut acl, "inside", &echo(IN.0, OUT.0, 7, false)));
    assert!(passes(&mut acl, "outside", &echo(OUT.0, IN.0, 7, true)));
    assert!(!passes(&mut acl, "outside", &echo(OUT.0, IN.0, 8, true)));
    // What is about a known connection, from anybody on its way.
    assert!(passes(&mut acl, "outside", &error([203, 0, 113, 1], &udp(IN, OUT))));
    assert!(!passes(&mut acl, "outside", &error([203, 0, 113, 1], &udp(IN, (OUT.0, 81)))));
    assert!(!passes(&mut acl, "inside", &error([203, 0, 113, 1], &udp(IN, OUT))));
    // Neighbours must find each other.
    assert!(passes(&mut acl, "outside", &[0xff; 42]));
    assert_eq!(acl.counter("Acl", "related"), 1);
    assert_eq!(acl.counter("Acl", "connections"), 2);
}

#[test]
fn tcp_begins_with_its_first_packet() {
    let mut acl = rig("Acl", OUTWARDS);
    for flags in ["A", "SA", "F", "R", "", "SF", "SR"] {
        assert!(!passes(&mut acl, "inside", &tcp(IN, OUT, flags)), "{flags}");
    }
    assert!(!passes(&mut acl, "outside", &tcp(OUT, IN, "S")));
    for (from, frame) in [
        ("inside", tcp(IN, OUT, "S")),
        ("outside", tcp(OUT, IN, "SA")),
        ("inside", tcp(IN, OUT, "A")),
        ("outside", tcp(OUT, IN, "FA")),
        ("inside", tcp(IN, OUT, "FA")),
        ("outside", tcp(OUT, IN, "A")),
    ] {
        assert!(passes(&mut acl, from, &frame));
    }
    assert_eq!(acl.counter("Acl", "invalid"), 7);
}

#[test]
fn a_full_table_keeps_what_is_established() {
    let mut acl = rig("Acl", &format!("{OUTWARDS}\nconnections = 4"));
    for (from, frame) in [("inside", tcp(IN, OUT, "S")), ("outside", tcp(OUT, IN, "SA"))] {
        assert!(passes(&mut acl, from, &frame));
    }
    for port in 0..100 {
        assert!(passes(&mut acl, "inside", &tcp((IN.0, port), OUT, "S")));
    }
    assert_eq!(acl.counter("Acl", "connections"), 4);
    assert!(passes(&mut acl, "outside", &tcp(OUT, IN, "A")));
    assert!(!passes(&mut acl, "outside", &tcp(OUT, (IN.0, 7), "SA")), "it had to go");
    assert!(passes(&mut acl, "outside", &tcp(OUT, (IN.0, 99), "SA")));
}

/// Allowed; from inside (0), outside (1) or both (2); address and mask of source and destination; TCP (0),
/// UDP (1) or any (3); ports of the destination.
type Rule = (bool, u8, (u32, u32), (u32, u32), u8, Option<(u16, u16)>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The first rule that fits, word by word.
    #[test]
    fn rules_are_a_list(
        rules in prop::collection::vec((any::<bool>(), 0u8..3, 0u8..4, 0u8..33, 0u8..4, 0u8..33, 0u8..4, prop::option::of((0u16..4, 0u16..4))), 0..6),
        default in any::<bool>(),
        packets in prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..4, 0u8..4, 0u16..4), 1..20),
    ) {
        let address = |bits: u8| u32::from_be_bytes([bits << 6, 0, 0, bits >> 1]);
        let action = |allow: bool| if allow { "allow" } else { "deny" };
        let mut text = format!("connections = 4\ndefault = '{}'\n", action(default));
        let mut tests = Vec::new();
        for (allow, from, source, source_length, destination, destination_length, protocol, ports) in rules {
            let ports = ports.map(|(a, b)| (a.min(b), a.max(b))).filter(|_| protocol < 2);
            let prefix = |bits: u8, length: u8| {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                (address(bits) & mask, mask)
            };
            let (source, destination) = (prefix(source, source_length), prefix(destination, destination_length));
            let written = |(bits, mask): (u32, u32)| format!("{}/{}", std::net::Ipv4Addr::from_bits(bits), mask.leading_ones());
            text += &format!("[[rules]]\naction = '{}'\nsource = '{}'\ndestination = '{}'\n", action(allow), written(source), written(destination));
            if from < 2 {
                text += &format!("from = '{}'\n", PORTS[usize::from(from)]);
            }
            if protocol < 3 {
                text += &format!("protocol = '{}'\n", ["tcp", "udp", "icmp"][usize::from(protocol)]);
            }
            if let Some((first, last)) = ports {
                text += &format!("ports = [{first}, {last}]\n");
            }
            tests.push((allow, from, source, destination, protocol, ports));
        }
        for (inside, is_tcp, source, destination, port) in packets {
            // A list without memory of the packets before.
            let mut acl = rig("Acl", &text);
            let ends = ((address(source).to_be_bytes(), 9), (address(destination).to_be_bytes(), port));
            let frame = if is_tcp { tcp(ends.0, ends.1, "S") } else { udp(ends.0, ends.1) };
            let fits = |(_, from, s, d, protocol, ports): &&Rule| {
                (*from == 2 || (*from == 0) == inside)
                    && address(source) & s.1 == s.0
                    && address(destination) & d.1 == d.0
                    && (*protocol == 3 || *protocol == u8::from(!is_tcp))
                    && ports.is_none_or(|(first, last)| (first..=last).contains(&port))
            };
            let expected = tests.iter().find(fits).map_or(default, |rule| rule.0);
            prop_assert_eq!(passes(&mut acl, PORTS[usize::from(!inside)], &frame), expected, "{}", text);
        }
    }
}

const US: [u8; 4] = [203, 0, 113, 7];
const NAT: &str = "address = '203.0.113.7'\n";

/// Addresses and ports of a frame whose checksums are right.
fn read(frame: &[u8]) -> (Address, Address) {
    checksum::packet::verify(&frame[14..]).expect("right checksums");
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let Some(etherparse::NetHeaders::Ipv4(ip, _)) = packet.net else { panic!("IPv4") };
    let (source, destination) = match packet.transport.unwrap() {
        TransportHeader::Udp(udp) => (udp.source_port, udp.destination_port),
        TransportHeader::Tcp(tcp) => (tcp.source_port, tcp.destination_port),
        TransportHeader::Icmpv4(icmp) => match icmp.icmp_type {
            etherparse::Icmpv4Type::EchoRequest(echo) => (echo.id, 0),
            etherparse::Icmpv4Type::EchoReply(echo) => (0, echo.id),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    ((ip.source, source), (ip.destination, destination))
}

fn through(rig: &mut Rig, from: &str, frame: &[u8]) -> Option<Vec<u8>> {
    let to = if from == "inside" { "outside" } else { "inside" };
    let mut out = rig.send(from, frame).take(to);
    assert!(out.len() <= 1);
    out.pop()
}

proptest! {
    /// A table of pairs is what a translation is.
    #[test]
    fn translation_is_a_bijection(steps in prop::collection::vec((0u8..3, 0u8..3, 0u16..4, 0u16..2, any::<bool>()), 1..80)) {
        let mut nat = rig("Nat", &format!("{NAT}ports = [2000, 2011]\nmappings = 100"));
        let mut known: HashMap<(u8, Address), u16> = HashMap::new();
        for (kind, host, port, there, outwards) in steps {
            let host: Address = ([10, 0, 0, host], 1998 + port * 3);
            let there: Address = ([192, 0, 2, 1], 80 + there);
            let make = |from: Address, to: Address| match kind {
                0 => tcp(from, to, "S"),
                1 => udp(from, to),
                _ if outwards => echo(from.0, to.0, from.1, false),
                _ => echo(from.0, to.0, to.1, true),
            };
            if outwards {
                let out = through(&mut nat, "inside", &make(host, there)).expect("a port is free");
                let (source, destination) = read(&out);
                prop_assert_eq!(source.0, US);
                prop_assert_eq!(destination.0, there.0);
                prop_assert!(kind == 2 || destination.1 == there.1);
                prop_assert!((2000..=2011).contains(&source.1));
                let before = known.insert((kind, host), source.1);
                prop_assert!(before.is_none_or(|before| before == source.1), "the same port again");
                if before.is_none() {
                    let others = known.iter().filter(|((other, _), outer)| *other == kind && **outer == source.1);
                    prop_assert_eq!(others.count(), 1, "nobody else has it");
                }
            } else if let Some(outer) = known.get(&(kind, host)) {
                let back = through(&mut nat, "outside", &make(there, (US, *outer))).expect("it is known");
                let (source, destination) = read(&back);
                prop_assert_eq!(destination, host);
                prop_assert_eq!(source.0, there.0);
            }
        }
    }
}

#[test]
fn strangers_ports_and_protocols_are_not_translated() {
    let mut nat = rig("Nat", NAT);
    assert_eq!(through(&mut nat, "outside", &udp(OUT, (US, 5000))), None);
    assert_eq!(through(&mut nat, "outside", &udp(OUT, IN)), None);
    let mut other = udp(IN, OUT);
    other[23] = 47;
    assert_eq!(through(&mut nat, "inside", &other), None);
    let mut fragment = udp(IN, OUT);
    fragment[20] = 0x20;
    assert_eq!(through(&mut nat, "inside", &fragment), None);
    assert_eq!(through(&mut nat, "inside", &udp(IN, OUT)[..40]), None);
    assert_eq!(through(&mut nat, "inside", &[0xff; 42]), Some(vec![0xff; 42]));
    let counted = ["unmapped", "not_translated", "fragments", "malformed", "passed"];
    assert_eq!(counted.map(|name| nat.counter("Nat", name)), [2, 1, 1, 1, 1]);
}

#[test]
fn a_host_keeps_its_port_if_it_can() {
    let mut nat = rig("Nat", &format!("{NAT}ports = [5000, 5001]"));
    let mut port = |host: u8| {
        let frame = udp(([10, 0, 0, host], 5000), OUT);
        through(&mut nat, "inside", &frame).map(|frame| read(&frame).0.1)
    };
    assert_eq!([1, 2, 1].map(&mut port), [Some(5000), Some(5001), Some(5000)]);
    assert_eq!(port(3), Some(5001), "that of the one that was of no use for longest");
    assert_eq!(port(1), Some(5000));
    assert_eq!(port(2), Some(5001));
    // A port of a forward stays its own.
    let forward = "forwards = [{ protocol = 'udp', port = 5000, to = '10.0.0.9', to_port = 9 }]";
    let mut nat = rig("Nat", &format!("{NAT}ports = [5000, 5000]\n{forward}"));
    assert_eq!(through(&mut nat, "inside", &udp(IN, OUT)), None);
    assert_eq!(nat.counter("Nat", "no_port"), 1);
    // UDP without a checksum stays so.
    let mut none = udp(IN, OUT);
    none[40..42].fill(0);
    let mut nat = rig("Nat", NAT);
    assert_eq!(through(&mut nat, "inside", &none).unwrap()[40..42], [0, 0]);
}

#[test]
fn errors_find_their_way() {
    let mut nat = rig("Nat", &format!("{NAT}ports = [2000, 2000]"));
    let out = through(&mut nat, "inside", &udp(IN, OUT)).unwrap();
    let back = through(&mut nat, "outside", &error([198, 51, 100, 1], &out)).unwrap();
    // The host sees what it would see without translation.
    let mut expected = error([198, 51, 100, 1], &udp(IN, OUT));
    checksum::packet::verify(&back[14..]).expect("right checksums");
    assert_eq!(checksum::checksum(&back[42..62]), 0, "that of the quoted header");
    assert_eq!(back, expected);
    // And the other way: the host's own error about a packet to it.
    let inwards = through(&mut nat, "outside", &udp(OUT, (US, 2000))).unwrap();
    let out = through(&mut nat, "inside", &error(IN.0, &inwards)).unwrap();
    expected = error(US, &udp(OUT, (US, 2000)));
    assert_eq!(out, expected);
    assert_eq!(through(&mut nat, "outside", &error(OUT.0, &udp((US, 1), OUT))), None);
}

/// An error whose quote lies behind what is the packet by its length, in the padding of its frame.
fn error_with_its_quote_behind(router: [u8; 4], about: &[u8]) -> Vec<u8> {
    let mut frame = error(router, about);
    frame[16..18].copy_from_slice(&28u16.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]).to_ne_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame
}

#[test]
fn padding_is_no_quote() {
    let mut nat = rig("Nat", NAT);
    let out = through(&mut nat, "inside", &udp(IN, OUT)).unwrap();
    let to = read(&out).0;
    assert_eq!(
        through(&mut nat, "inside", &error_with_its_quote_behind(OUT.0, &udp(OUT, IN))),
        None
    );
    assert_eq!(
        through(&mut nat, "outside", &error_with_its_quote_behind(OUT.0, &udp(to, OUT))),
        None
    );
    assert_eq!(nat.counter("Nat", "malformed"), 2);
    let mut acl = rig("Acl", OUTWARDS);
    assert!(passes(&mut acl, "inside", &udp(IN, OUT)));
    let behind = error_with_its_quote_behind([203, 0, 113, 1], &udp(IN, OUT));
    assert!(!passes(&mut acl, "outside", &behind));
    assert_eq!(acl.counter("Acl", "malformed"), 1);
}

#[test]
fn ports_are_forwarded_and_hosts_reach_each_other() {
    let args = format!(
        "{NAT}forwards = [{{ protocol = 'tcp', port = 80, to = '10.0.0.5', to_port = 8080 }}]"
    );
    let mut nat = rig("Nat", &args);
    let stranger = ([198, 51, 100, 1], 999);
    let frame = through(&mut nat, "outside", &tcp(stranger, (US, 80), "S")).unwrap();
    assert_eq!(read(&frame), (stranger, (IN.0, 8080)));
    let frame = through(&mut nat, "inside", &tcp((IN.0, 8080), stranger, "SA")).unwrap();
    assert_eq!(read(&frame), ((US, 80), stranger));
    assert_eq!(through(&mut nat, "outside", &udp(stranger, (US, 80))), None);
    // Another host inside, by the address outside.
    let other = ([10, 0, 0, 6], 7000);
    let frame = nat.send("inside", &tcp(other, (US, 80), "S")).one("inside");
    assert_eq!(read(&frame), ((US, 7000), (IN.0, 8080)));
    assert_eq!(nat.counter("Nat", "hairpin"), 1);
    // What is wrong with that reaches who sent it, and is about what it sent.
    let frame = nat.send("inside", &error(IN.0, &frame)).one("inside");
    assert_eq!(frame, error(US, &tcp(other, (US, 80), "S")));
    assert_eq!(nat.counter("Nat", "hairpin"), 2);
}

proptest! {
    #[test]
    fn hostile_packets_are_counted(changes in prop::collection::vec((0usize..120, any::<u8>()), 0..6), length in 0usize..120, kind in 0u8..4, outside in any::<bool>()) {
        let base = match kind {
            0 => tcp(IN, OUT, "S"),
            1 => udp(OUT, (US, 9)),
            2 => echo(IN.0, OUT.0, 9, false),
            _ => error(OUT.0, &tcp((US, 9), OUT, "S")),
        };
        let mut frame = base;
        for (at, value) in changes {
            let at = at % frame.len();
            frame[at] ^= value;
        }
        frame.truncate(length);
        let port = PORTS[usize::from(outside)];
        for (kind, args, size) in [("Nat", NAT, "mappings = 4"), ("Acl", OUTWARDS, "connections = 4")] {
            let mut rig = rig(kind, &format!("{args}\n{size}"));
            rig.send(port, &frame);
            let all = engine::Registry::standard().get(kind).unwrap().counters;
            let counted: u64 = all[..9].iter().map(|name| rig.counter(kind, name)).sum();
            prop_assert_eq!(counted, 1);
        }
    }
}
