//! Bridge, VLANs, neighbours, forwarder and filters: frames in, frames out.

use std::collections::BTreeMap;

use engine::apps::basic::{SampleArgs, SynthArgs, TruncateArgs};
use engine::apps::checksum::{ChecksumArgs, Mode};
use engine::apps::forwarder::{ForwarderArgs, Route};
use engine::apps::headers::Mac;
use engine::apps::neighbour::{NeighbourArgs, NextHop};
use engine::apps::pcap::PcapFilterArgs;
use engine::apps::vlan::TagArgs;
use engine::engine::ConfigureError;
use engine::{Config, Engine, Options};

mod rig;

use rig::Rig;

fn frame(to: u8, from: u8, rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, to][..], &[2, 0, 0, 0, 0, from], rest].concat()
}

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

/// RFC 1071 word by word, in network order.
fn naive(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4(ttl: u8, to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let mut header = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, ttl, 17, 0, 0, 192, 0, 2, 1];
    header[2..4].copy_from_slice(&length.to_be_bytes());
    header.extend(to);
    let sum = naive(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[8, 0][..], &header, payload].concat()
}

#[test]
fn tags_go_on_and_off() {
    let tag = |tag, priority| TagArgs { tag, priority, tpid: 0x8100 };
    let plain = frame(1, 2, &[8, 0, 1, 2, 3, 4]);
    let mut tagger = Rig::new("Tagger", tag(7, 5), &["input"], &["output"]);
    let tagged = tagger.send("input", &plain).one("output");
    assert_eq!(tagged, frame(1, 2, &[0x81, 0, 0xa0, 7, 8, 0, 1, 2, 3, 4]));
    let mut untagger = Rig::new("Untagger", tag(7, 0), &["input"], &["output"]);
    assert_eq!(untagger.send("input", &tagged).one("output"), plain);
    let other = frame(1, 2, &[0x81, 0, 0, 8, 8, 0, 1, 2]);
    assert_eq!(
        untagger
            .send("input", &other)
            .send("input", &plain)
            .send("input", &tagged[..14])
            .count(&["output"]),
        [0]
    );
    assert_eq!(tagger.send("input", &[1; 13]).count(&["output"]), [0]);
}

#[test]
fn a_trunk_is_taken_apart() {
    let ports = ["trunk", "native", "vlan7", "vlan8"];
    let mut mux = Rig::new("VlanMux", (), &ports, &ports);
    let (plain, tagged) = (frame(1, 2, &[8, 0, 9]), frame(1, 2, &[0x81, 0, 0, 7, 8, 0, 9]));
    assert_eq!(mux.send("vlan7", &plain).one("trunk"), tagged);
    assert_eq!(mux.send("trunk", &tagged).one("vlan7"), plain);
    assert_eq!(mux.send("trunk", &plain).one("native"), plain);
    assert_eq!(mux.send("native", &plain).take("trunk"), [plain]);
    let unknown = frame(1, 2, &[0x81, 0, 0, 9, 8, 0, 9]);
    assert_eq!(mux.send("trunk", &unknown).count(&ports), [0, 0, 0, 0]);
}

#[test]
fn the_bridge_learns() {
    let ports = ["a", "b", "c"];
    let mut bridge = Rig::new("Bridge", (), &ports, &ports);
    // Nobody knows 2 yet.
    assert_eq!(bridge.send("a", &frame(2, 1, b"flood")).count(&ports), [0, 1, 1]);
    assert_eq!(bridge.send("b", &frame(1, 2, b"known")).count(&ports), [1, 0, 0]);
    assert_eq!(bridge.send("a", &frame(2, 1, b"known")).count(&ports), [0, 1, 0]);
    // Its station is on the side that the frame came from.
    assert_eq!(bridge.send("b", &frame(2, 3, b"same side")).count(&ports), [0, 0, 0]);
    assert_eq!(
        bridge.send("c", &[&[0xff; 6][..], &[2, 0, 0, 0, 0, 2], b"all"].concat()).count(&ports),
        [1, 1, 0]
    );
    // 2 has moved to c.
    assert_eq!(bridge.send("a", &frame(2, 1, b"moved")).count(&ports), [0, 0, 1]);
    assert_eq!(bridge.send("a", b"short").count(&ports), [0, 0, 0]);
}

fn neighbour(addresses: &[&str], routes: &[(&str, &str)]) -> NeighbourArgs {
    let route = |(prefix, via): &(&str, &str)| NextHop {
        prefix: prefix.parse().unwrap(),
        via: via.parse().ok(),
    };
    NeighbourArgs {
        mac: mac(9),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        routes: routes.iter().map(route).collect(),
        neighbours: 4,
    }
}

#[test]
fn arp_is_answered() {
    let ports = ["south", "north"];
    let mut neighbour = Rig::new("Neighbour", neighbour(&["10.0.0.9"], &[]), &ports, &ports);
    let ask = |target: u8| {
        let arp = [
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1][..],
            &mac(1).0,
            &[10, 0, 0, 1],
            &[0; 6],
            &[10, 0, 0, target],
        ]
        .concat();
        [&[0xff; 6][..], &mac(1).0, &arp].concat()
    };
    let answer = neighbour.send("south", &ask(9)).one("south");
    let arp =
        [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..], &mac(9).0, &[10, 0, 0, 9], &mac(1).0, &[10, 0, 0, 1]]
            .concat();
    assert_eq!(answer, frame(1, 9, &arp));
    assert_eq!(neighbour.send("south", &ask(8)).count(&ports), [0, 1]);
    assert_eq!(neighbour.send("south", &ask(9)[..40]).count(&ports), [0, 1]);
    assert_eq!(neighbour.send("north", &ask(9)).count(&ports), [1, 0]);
}

#[test]
fn solicitations_are_answered() {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let (us, them, group) = (address("fd00::9"), address("fd00::1"), address("ff02::1:ff00:9"));
    let ports = ["south", "north"];
    let mut neighbour = Rig::new("Neighbour", neighbour(&["fd00::9"], &[]), &ports, &ports);
    let sum = |source: &[u8], destination: &[u8], message: &[u8]| {
        naive(
            &[source, destination, &[0, 0, 0, message.len() as u8, 0, 0, 0, 58], message].concat(),
        )
    };
    let ask = |source: [u8; 16], hops: u8| {
        let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &us, &[1, 1], &mac(1).0].concat();
        let check = sum(&source, &group, &message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let header = [&[0x60, 0, 0, 0, 0, 32, 58, hops][..], &source, &group].concat();
        frame(0x55, 1, &[&[0x86, 0xdd][..], &header, &message].concat())
    };
    let answer = neighbour.send("south", &ask(them, 255)).one("south");
    let message =
        [&[136, 0, answer[56], answer[57], 0x60, 0, 0, 0][..], &us, &[2, 1], &mac(9).0].concat();
    let header = [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &us, &them].concat();
    assert_eq!(answer, frame(1, 9, &[&[0x86, 0xdd][..], &header, &message].concat()));
    assert_eq!(sum(&us, &them, &message), 0);
    // From a router far away, or damaged: none of our business.
    assert_eq!(neighbour.send("south", &ask(them, 254)).count(&ports), [0, 1]);
    let mut broken = ask(them, 255);
    broken[60] ^= 1;
    assert_eq!(neighbour.send("south", &broken).count(&ports), [0, 1]);
    // Duplicate address detection is answered to all nodes.
    let answer = neighbour.send("south", &ask([0; 16], 255)).one("south");
    assert_eq!(
        (&answer[..6], &answer[38..54]),
        (&[0x33, 0x33, 0, 0, 0, 1][..], &address("ff02::1")[..])
    );
    assert_eq!(sum(&us, &address("ff02::1"), &answer[54..]), 0);
}

/// A UDP packet, without a station that it goes to.
fn datagram(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    let headers = etherparse::PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4(from, to, 64);
    headers.udp(1, 2).write(&mut frame, b"data").unwrap();
    frame
}

fn arp(operation: u8, from: (u8, [u8; 4]), to: (u8, [u8; 4])) -> Vec<u8> {
    let known = |last: u8| if last == 0 { [0; 6] } else { mac(last).0 };
    let message =
        [&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation][..], &known(from.0), &from.1, &known(to.0), &to.1];
    let mut frame = [&[0xff; 6][..], &known(from.0), &message.concat()].concat();
    if to.0 != 0 {
        frame[..6].copy_from_slice(&mac(to.0).0);
    }
    frame.resize(60, 0);
    frame
}

#[test]
fn frames_wait_for_their_next_hop() {
    let (us, host, router) = ([10, 0, 0, 9], [10, 0, 0, 1], [10, 0, 0, 2]);
    let args =
        neighbour(&["192.0.2.1", "10.0.0.9"], &[("10.0.0.0/24", ""), ("192.0.2.0/24", "10.0.0.2")]);
    let ports = ["south", "north"];
    let mut neighbour = Rig::new("Neighbour", args, &ports, &ports);
    let (near, far) = (datagram(us, host), datagram(us, [192, 0, 2, 77]));
    // One question for all that wait; who is behind a router is not asked for.
    assert_eq!(neighbour.send("north", &near).one("south"), arp(1, (9, us), (0, host)));
    assert_eq!(neighbour.send("north", &near).count(&ports), [0, 0]);
    assert_eq!(neighbour.send("north", &far).one("south"), arp(1, (9, us), (0, router)));
    let sent = |frame: &[u8], to: u8| [&mac(to).0[..], &mac(9).0, &frame[12..]].concat();
    // The answer ends here, and what waited goes.
    neighbour.send("south", &arp(2, (1, host), (9, us)));
    assert_eq!(neighbour.take("south"), [sent(&near, 1), sent(&near, 1)]);
    assert_eq!(neighbour.count(&["north"]), [0]);
    assert_eq!(neighbour.send("north", &near).one("south"), sent(&near, 1));
    // A question is as good as an answer.
    neighbour.send("south", &arp(1, (2, router), (0, us)));
    assert_eq!(neighbour.take("south"), [sent(&far, 2), arp(2, (9, us), (2, router))]);
    // Somebody takes the address over and says so; the announcement passes.
    neighbour.send("south", &arp(1, (3, host), (0, host)));
    assert_eq!(neighbour.count(&ports), [0, 1]);
    assert_eq!(neighbour.send("north", &near).one("south"), sent(&near, 3));
    // What nobody asked for changes nothing.
    neighbour.send("south", &arp(2, (4, [10, 0, 0, 4]), (9, us)));
    assert_eq!(neighbour.count(&ports), [0, 1]);
    // No station, no route, no IP, and no frame without a destination.
    assert_eq!(neighbour.send("north", &datagram(us, [203, 0, 113, 1])).count(&ports), [0, 0]);
    assert_eq!(neighbour.send("north", &[0; 60]).count(&ports), [0, 0]);
    assert_eq!(neighbour.counter("Neighbour", "no_route"), 2);
    assert_eq!(neighbour.send("north", &sent(&near, 5)).one("south"), sent(&near, 5));
    let group = neighbour.send("north", &datagram(us, [224, 0, 0, 251])).one("south");
    assert_eq!(group[..6], [1, 0, 0x5e, 0, 0, 251]);
    assert_eq!(neighbour.counter("Neighbour", "asked"), 2);
    assert_eq!(neighbour.counter("Neighbour", "resolved"), 6);
}

#[test]
fn few_frames_wait_and_the_first_go() {
    let args = neighbour(&["10.0.0.9"], &[]);
    let ports = ["south", "north"];
    let mut neighbour = Rig::new("Neighbour", args, &ports, &ports);
    let us = [10, 0, 0, 9];
    for number in 0..20 {
        let mut frame = datagram(us, [10, 0, 0, 1]);
        frame[42] = number;
        neighbour.send("north", &frame);
    }
    assert_eq!(neighbour.count(&["south"]), [1]);
    neighbour.send("south", &arp(2, (1, [10, 0, 0, 1]), (9, us)));
    let numbers: Vec<u8> = neighbour.take("south").iter().map(|frame| frame[42]).collect();
    assert_eq!(numbers, (4..20).collect::<Vec<_>>());
    assert_eq!(neighbour.counter("Neighbour", "dropped"), 4);
    // Half of four neighbours may be those that do not answer.
    for host in 2..6 {
        neighbour.send("north", &datagram(us, [10, 0, 0, host]));
    }
    assert_eq!(neighbour.count(&["south"]), [2]);
    assert_eq!(neighbour.counter("Neighbour", "dropped"), 6);
}

fn router() -> Rig {
    let route = |prefix: &str, port: &str, last| Route {
        prefix: prefix.parse().unwrap(),
        port: port.into(),
        mac: mac(last),
    };
    let args = ForwarderArgs {
        ports: BTreeMap::from([("a".into(), mac(0xa).into()), ("b".into(), mac(0xb).into())]),
        icmp_rate: 1000.0,
        routes: vec![
            route("10.0.0.0/8", "b", 1),
            route("10.1.0.0/16", "a", 2),
            route("fd00::/8", "b", 3),
            route("fd01::/16", "a", 4),
        ],
    };
    Rig::new("Forwarder", args, &["a", "b"], &["a", "b"])
}

#[test]
fn ipv4_is_forwarded() {
    let mut router = router();
    let sent = frame(0xa, 0x77, &ipv4(64, [10, 2, 0, 1], b"payload"));
    assert_eq!(
        router.send("a", &sent).take("b"),
        [frame(1, 0xb, &ipv4(63, [10, 2, 0, 1], b"payload"))]
    );
    let sent = frame(0xb, 0x77, &ipv4(2, [10, 1, 9, 9], b""));
    assert_eq!(router.send("b", &sent).take("a"), [frame(2, 0xa, &ipv4(1, [10, 1, 9, 9], b""))]);
    // The checksum follows for every hop limit.
    for ttl in 2..=255 {
        let sent = frame(0xa, 0x77, &ipv4(ttl, [10, 2, ttl, ttl], b"x"));
        assert_eq!(
            router.send("a", &sent).take("b"),
            [frame(1, 0xb, &ipv4(ttl - 1, [10, 2, ttl, ttl], b"x"))]
        );
    }
}

#[test]
fn ipv6_is_forwarded() {
    let mut router = router();
    let packet = |hops: u8, to: &str| {
        let to = to.parse::<std::net::Ipv6Addr>().unwrap().octets();
        [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 3, 59, hops][..], &[0xfd; 16], &to, b"abc"].concat()
    };
    let sent = frame(0xa, 0x77, &packet(64, "fd02::1"));
    assert_eq!(router.send("a", &sent).take("b"), [frame(3, 0xb, &packet(63, "fd02::1"))]);
    let sent = frame(0xa, 0x77, &packet(64, "fd01::1"));
    assert_eq!(router.send("a", &sent).take("a"), [frame(4, 0xa, &packet(63, "fd01::1"))]);
    let sent = frame(0xa, 0x77, &packet(1, "fd01::1"));
    assert_eq!(router.send("a", &sent).count(&["a", "b"]), [0, 0]);
}

#[test]
fn what_is_not_forwarded_is_counted() {
    let mut router = router();
    let good = ipv4(64, [10, 2, 0, 1], b"payload");
    let broken = |at: usize, to: u8| {
        let mut packet = good.clone();
        packet[at] = to;
        packet
    };
    let frames = [
        frame(0xa, 1, &ipv4(64, [11, 0, 0, 1], b"")),
        frame(0xa, 1, &ipv4(1, [10, 2, 0, 1], b"")),
        frame(0xa, 1, &broken(14, 9)),
        frame(0xa, 1, &broken(2, 0x42)),
        frame(0xa, 1, &good[..20]),
        frame(0xb, 1, &good),
        frame(0xa, 1, &[8, 6, 0, 0]),
        frame(0xa, 1, &ipv4(64, [127, 0, 0, 1], b"")),
    ];
    for frame in &frames {
        router.send("a", frame);
    }
    assert_eq!(router.count(&["a", "b"]), [0, 0]);
    let mut values = [0; 14];
    let (_, app) = router.0.apps().find(|(name, _)| *name == "x").unwrap();
    app.counters(&mut values);
    assert_eq!(values, [0, 1, 1, 1, 2, 1, 1, 0, 0, 0, 0, 0, 0, 1]);
}

/// Frames with right checksums, by another implementation.
fn right_frames() -> Vec<Vec<u8>> {
    use etherparse::PacketBuilder as Builder;
    let mut frames = Vec::new();
    for payload in [&b""[..], b"x", b"some payload", &[0xff; 333]] {
        let mut build = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = Vec::new();
            write(&mut frame);
            frames.push(frame);
        };
        let ethernet = || Builder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let v4 = || ethernet().ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64);
        let v6 = || ethernet().ipv6([0xfd; 16], [0xfe; 16], 64);
        build(&|frame| v4().udp(1, 2).write(frame, payload).unwrap());
        build(&|frame| v6().udp(1, 2).write(frame, payload).unwrap());
        build(&|frame| v4().tcp(1, 2, 3, 4).write(frame, payload).unwrap());
        build(&|frame| v6().tcp(1, 2, 3, 4).write(frame, payload).unwrap());
        build(&|frame| v4().icmpv4_echo_request(1, 2).write(frame, payload).unwrap());
        build(&|frame| v6().icmpv6_echo_request(1, 2).write(frame, payload).unwrap());
        let tagged = || ethernet().single_vlan(etherparse::VlanId::try_new(7).unwrap());
        build(&|frame| {
            tagged()
                .ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64)
                .udp(1, 2)
                .write(frame, payload)
                .unwrap()
        });
    }
    frames
}

#[test]
fn checksums_are_filled_in_and_checked() {
    let mode = |mode| ChecksumArgs { mode };
    let mut fill = Rig::new("Checksum", mode(Mode::Fill), &["input"], &["output"]);
    let mut verify = Rig::new("Checksum", mode(Mode::Verify), &["input"], &["output"]);
    for right in right_frames() {
        assert_eq!(verify.send("input", &right).one("output"), right);
        assert_eq!(fill.send("input", &right).one("output"), right);
        // Every bit behind the Ethernet header and its tag counts, but for addresses of no protocol
        // below.
        let start = if right[12] == 0x81 { 18 } else { 14 };
        let ip = if right[start] >> 4 == 4 { start } else { start + 8 };
        let mut wrong = right.clone();
        let last = wrong.len() - 1;
        for at in [ip + 9, ip + 13, last] {
            wrong[at] ^= 0x10;
            if at == ip + 9 && right[start] >> 4 == 6 {
                wrong[at] ^= 0x10;
                continue;
            }
            assert_eq!(
                verify.send("input", &wrong).count(&["output"]),
                [0],
                "byte {at} of {right:?}"
            );
            wrong[at] ^= 0x10;
        }
        assert_eq!(wrong, right);
    }
    // No checksum at all is fine for UDP over IPv4 only.
    let mut none = right_frames().swap_remove(0);
    none[40..42].fill(0);
    assert_eq!(verify.send("input", &none).count(&["output"]), [1]);
    let mut none = right_frames().swap_remove(1);
    none[60..62].fill(0);
    assert_eq!(verify.send("input", &none).count(&["output"]), [0]);
    assert_eq!(verify.send("input", b"anything else").count(&["output"]), [1]);
}

#[test]
fn filters_are_those_of_tcpdump() {
    let dns = [&[0x30, 0x39, 0, 53, 0, 9, 0, 0][..], b"x"].concat();
    let (udp, tcp) = (frame(1, 2, &ipv4(64, [10, 2, 0, 1], &dns)), {
        let mut packet = ipv4(64, [10, 2, 0, 1], &dns);
        packet[11] = 6;
        frame(1, 2, &packet)
    });
    let args = |filter: &str| PcapFilterArgs { filter: filter.into(), state_table: None };
    let mut config = Config::new();
    config.app("x", "PcapFilter", args("udp prot 53")).unwrap();
    let Err(ConfigureError::Refused(problems)) = Engine::new(Options::default()).configure(&config)
    else {
        panic!("it was taken")
    };
    let problems = problems.to_string();
    if problems.contains("not installed") {
        println!("skipped: filters_are_those_of_tcpdump: libpcap is not installed");
        return;
    }
    assert!(
        problems.starts_with("app 'x' (PcapFilter): key 'filter': 'udp prot 53': "),
        "{problems}"
    );
    for (filter, expected) in [
        ("udp port 53", [1, 0]),
        ("tcp", [0, 1]),
        ("not tcp and dst net 10.0.0.0/8", [1, 0]),
        ("ip[8] = 64", [1, 1]),
        ("ether src 02:00:00:00:00:02", [1, 1]),
        ("ip6 or arp", [0, 0]),
        ("len > 100", [0, 0]),
        ("", [1, 1]),
    ] {
        let mut rig = Rig::new("PcapFilter", args(filter), &["input"], &["output"]);
        let got = [&udp, &tcp].map(|frame| rig.send("input", frame).take("output").len());
        assert_eq!(got, expected, "{filter}");
    }
}

#[test]
fn sorting_apps() {
    let mut split = Rig::new("Split", (), &["input"], &["a", "b", "c"]);
    for _ in 0..4 {
        split.send("input", b"x");
    }
    assert_eq!(split.count(&["a", "b", "c"]), [2, 1, 1]);
    let mut sample = Rig::new("Sample", SampleArgs { every: 3 }, &["input"], &["output"]);
    for number in 1..=7 {
        sample.send("input", &[number]);
    }
    assert_eq!(sample.take("output"), [[3], [6]]);
    let mut truncate = Rig::new("Truncate", TruncateArgs { length: 4 }, &["input"], &["output"]);
    truncate.send("input", b"longer").send("input", b"ab");
    assert_eq!(truncate.take("output"), [b"long", b"ab\0\0"]);
    let mut repeater = Rig::new("Repeater", (), &["input"], &["output"]);
    repeater.send("input", b"1").send("input", b"2");
    repeater.0.breathe();
    let repeated = repeater.take("output");
    assert!(repeated.len() > 128 && repeated.iter().rev().take(100).any(|packet| packet == b"2"));
}

#[test]
fn synth_makes_what_it_is_told() {
    let args = SynthArgs {
        sizes: vec![60, 100],
        packets: Some(3),
        random_payload: true,
        ..SynthArgs::default()
    };
    let mut synth = Rig::new("Synth", args, &[], &["output"]);
    synth.0.breathe();
    synth.0.breathe();
    assert!(
        synth.0.finished() || !synth.0.link("x.output -> out_output.input").unwrap().is_empty()
    );
    let frames = synth.take("output");
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [60, 100, 60]);
    assert_eq!(frames[0][..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    assert_eq!(frames[0], frames[2]);
    assert!(frames[1][14..].iter().any(|byte| *byte != 0));
}
