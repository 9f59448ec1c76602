//! Tunnels between two instances and against frames of other makers.

use etherparse::PacketBuilder;
use proptest::prelude::*;

mod rig;

use rig::Rig;

const PORTS: [&str; 2] = ["inner", "outer"];

/// Two ends, `a` the one at 10.9.0.1 or fd09::1.
fn ends(kind: &str, v6: bool, a: &str, b: &str) -> [Rig; 2] {
    let ip = if v6 { ["fd09::1", "fd09::2"] } else { ["10.9.0.1", "10.9.0.2"] };
    let mac = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
    [(0, a), (1, b)].map(|(us, args)| {
        let text = format!(
            "{args}\n[outer]\nlocal = '{}'\nremote = '{}'\nmac = '{}'\nnext_hop = '{}'\n",
            ip[us],
            ip[1 - us],
            mac[us],
            mac[1 - us]
        );
        Rig::new(kind, toml::from_str::<toml::Table>(&text).unwrap(), &PORTS, &PORTS)
    })
}

const IP_MODE: &str = "mode = 'ip'\nfrom = '02:00:00:00:00:0a'\nto = '02:00:00:00:00:0b'";
const L2TP: [&str; 2] = [
    "session = 7\npeer_session = 9\ncookie = '0011223344556677'\npeer_cookie = 'fedcba98'",
    "session = 9\npeer_session = 7\ncookie = 'fedcba98'\npeer_cookie = '0011223344556677'",
];

/// All that there is, with arguments of both ends.
fn all() -> Vec<(&'static str, String, String)> {
    let both = |kind, args: &str| (kind, args.to_string(), args.to_string());
    let udp =
        |args: &str, ports: &str| format!("{args}\nsublayer = true\ncarrier = 'udp'\n{ports}");
    vec![
        both("Gre", ""),
        both("Gre", "key = 0"),
        both("Gre", "checksum = true\nkey = 4294967295\nsequence = true"),
        both("Gre", IP_MODE),
        both("Vxlan", "vni = 77"),
        ("L2tpv3", L2TP[0].into(), L2TP[1].into()),
        (
            "L2tpv3",
            udp(L2TP[0], "port = 5\npeer_port = 6"),
            udp(L2TP[1], "port = 6\npeer_port = 5"),
        ),
    ]
}

fn frame(payload: &[u8], v6: bool) -> Vec<u8> {
    let mut frame = Vec::new();
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]);
    if v6 {
        ethernet.ipv6([0xfd; 16], [0xfe; 16], 9).udp(1, 2).write(&mut frame, payload).unwrap();
    } else {
        ethernet
            .ipv4([10, 8, 0, 1], [10, 8, 0, 2], 9)
            .udp(1, 2)
            .write(&mut frame, payload)
            .unwrap();
    }
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn what_goes_in_comes_out(lengths in prop::collection::vec(0usize..1800, 1..6), outer_v6 in any::<bool>(), inner_v6 in any::<bool>()) {
        for (kind, a, b) in all() {
            let [mut a, mut b] = ends(kind, outer_v6, &a, &b);
            for length in &lengths {
                let sent = frame(&vec![*length as u8; *length], inner_v6);
                let outer = a.send("inner", &sent).one("outer");
                // Right in the eyes of others: lengths, checksums.
                let packet = etherparse::PacketHeaders::from_ethernet_slice(&outer).unwrap();
                prop_assert!(packet.net.is_some());
                checksum::packet::verify(&outer[14..]).unwrap();
                prop_assert_eq!(b.send("outer", &outer).one("inner"), sent);
                // Padding behind a short packet is none of it.
                let outer = a.send("inner", &frame(b"", inner_v6)).one("outer");
                let padded = [&outer[..], &[0xee; 9]].concat();
                prop_assert_eq!(b.send("outer", &padded).one("inner"), frame(b"", inner_v6));
            }
        }
    }

    #[test]
    fn hostile_packets_are_counted(v6 in any::<bool>(), changes in prop::collection::vec((0usize..110, any::<u8>()), 0..4), length in 0usize..120) {
        for (kind, a, b) in all() {
            let [mut a, mut b] = ends(kind, v6, &a, &b);
            let mut outer = a.send("inner", &frame(b"0123456789", false)).one("outer");
            for (at, value) in &changes {
                let at = at % outer.len();
                outer[at] ^= value;
            }
            outer.truncate(length);
            let out = b.send("outer", &outer).take("inner").len() as u64;
            let counted = |name| b.counter(kind, name);
            prop_assert_eq!(counted("received"), out);
            let refused = ["not_ours", "malformed", "bad_checksum", "out_of_order"].map(counted);
            prop_assert_eq!(refused.iter().sum::<u64>() + out, 1);
        }
    }
}

#[test]
fn strangers_are_not_let_in() {
    let refuses = |kind: &str, one: &str, other: &str, counter: &str| {
        let [mut a, _] = ends(kind, false, one, one);
        let [_, mut b] = ends(kind, false, other, other);
        let outer = a.send("inner", &frame(b"x", false)).one("outer");
        assert_eq!(b.send("outer", &outer).count(&["inner"]), [0], "{one}: {other}");
        assert_eq!(b.counter(kind, counter), 1, "{one}: {other}");
    };
    refuses("Gre", "key = 1", "key = 2", "not_ours");
    refuses("Gre", "", "key = 0", "not_ours");
    refuses("Gre", "key = 0", "", "not_ours");
    refuses("Gre", IP_MODE, "", "not_ours");
    refuses("Gre", "", "sequence = true", "malformed");
    refuses("Vxlan", "vni = 1", "vni = 2", "not_ours");
    refuses("Vxlan", "vni = 1", "vni = 1\nport = 1", "not_ours");
    refuses("L2tpv3", "session = 1\npeer_session = 1", "session = 2\npeer_session = 1", "not_ours");
    let cookie = |cookie: &str| format!("session = 1\npeer_session = 1\ncookie = '{cookie}'");
    let peer = |cookie: &str| format!("session = 1\npeer_session = 1\npeer_cookie = '{cookie}'");
    refuses("L2tpv3", &peer("00112233"), &cookie("00112234"), "not_ours");
    refuses("L2tpv3", &peer(""), &cookie("00112233"), "not_ours");
    // From another address, and to another station.
    let [mut a, mut b] = ends("Vxlan", false, "vni = 1", "vni = 1");
    let outer = a.send("inner", &frame(b"x", false)).one("outer");
    for at in [0, 12, 23, 26, 30] {
        let mut wrong = outer.clone();
        wrong[at] ^= 4;
        assert_eq!(b.send("outer", &wrong).count(&["inner"]), [0], "byte {at}");
    }
    assert_eq!(b.counter("Vxlan", "not_ours"), 5);
}

#[test]
fn late_packets_are_dropped_where_numbers_count() {
    let [mut a, mut b] = ends("Gre", false, "sequence = true", "sequence = true");
    let outer: Vec<_> = (0..3).map(|n| a.send("inner", &frame(&[n], false)).one("outer")).collect();
    for (number, passes) in [(0, 1), (2, 1), (1, 0), (2, 0)] {
        assert_eq!(b.send("outer", &outer[number]).take("inner").len(), passes, "{number}");
    }
    assert_eq!(b.counter("Gre", "out_of_order"), 2);
}

#[test]
fn what_is_too_long_is_counted() {
    for (kind, a, b) in all() {
        let [mut a, _] = ends(kind, true, &a, &b);
        assert_eq!(a.send("inner", &vec![0x45; 1984]).count(&["outer"]), [0], "{kind}");
        let counted = a.counter(kind, "too_long") + a.counter(kind, "not_ours");
        assert_eq!(counted, 1, "{kind}");
    }
}

#[test]
fn flows_have_ports_of_their_own() {
    let [mut a, _] = ends("Vxlan", false, "vni = 1", "vni = 1");
    let mut ports = std::collections::HashSet::new();
    for port in 0..100u8 {
        let mut inner = frame(b"x", false);
        inner[35] = port;
        let outer = a.send("inner", &inner).one("outer");
        let again = a.send("inner", &inner).one("outer");
        assert_eq!(outer[34..36], again[34..36]);
        assert!(outer[34] >= 0xc0, "a dynamic port");
        ports.insert([outer[34], outer[35]]);
    }
    assert!(ports.len() > 80, "{} ports for 100 flows", ports.len());
}

const ESP: [&str; 2] = [
    "[send]\nspi = 256\nkey = '000102030405060708090a0b0c0d0e0f01020304'\n[receive]\nspi = 257\nkey = '0f0e0d0c0b0a0908070605040302010001020304'",
    "[send]\nspi = 257\nkey = '0f0e0d0c0b0a0908070605040302010001020304'\n[receive]\nspi = 256\nkey = '000102030405060708090a0b0c0d0e0f01020304'",
];

/// Sets the traffic class, DSCP and congestion bits, of the IP header at this place.
fn set_class(frame: &mut [u8], at: usize, class: u8) {
    if frame[at] >> 4 == 6 {
        (frame[at], frame[at + 1]) = (0x60 | class >> 4, frame[at + 1] & 15 | class << 4);
        return;
    }
    frame[at + 1] = class;
    frame[at + 10..at + 12].fill(0);
    let sum = checksum::checksum(&frame[at..at + 20]).to_ne_bytes();
    frame[at + 10..at + 12].copy_from_slice(&sum);
}

#[test]
fn what_routers_mark_comes_through_and_their_marks_do() {
    let esp = ("Esp", ESP[0].to_string(), ESP[1].to_string());
    for (kind, a, b) in all().into_iter().chain([esp]) {
        for [outer_v6, inner_v6] in [[false; 2], [false, true], [true, false], [true; 2]] {
            let [mut a, mut b] = ends(kind, outer_v6, &a, &b);
            // Assured forwarding, without and with a sender that understands; congestion.
            for (inner, outer, expected) in [
                (0, 0x48, Some(0)),
                (2, 0x4a, Some(2)),
                (2, 0x4b, Some(3)),
                (3, 3, Some(3)),
                (1, 3, Some(3)),
                (0, 3, None),
            ] {
                let mut sent = frame(b"0123456789", inner_v6);
                set_class(&mut sent, 14, 0x30 | inner);
                let mut packet = a.send("inner", &sent).one("outer");
                set_class(&mut packet, 14, outer);
                let out = b.send("outer", &packet).take("inner");
                let Some(expected) = expected else {
                    assert_eq!(out.len(), 0, "{kind}");
                    continue;
                };
                set_class(&mut sent, 14, 0x30 | expected);
                assert_eq!(out.len(), 1, "{kind}, v6 {outer_v6} {inner_v6}: {inner} {outer}");
                // Esp has Ethernet headers of its own.
                assert_eq!(
                    out[0][12..],
                    sent[12..],
                    "{kind}, v6 {outer_v6} {inner_v6}: {inner} {outer}"
                );
            }
            assert_eq!(b.counter(kind, "congested"), 1);
        }
    }
}

#[test]
fn linux_tells_how_deep_tunnels_may_go() {
    for (kind, a, b) in all() {
        let [mut a, mut b] = ends(kind, true, &a, &b);
        let sent = frame(b"0123456789", false);
        // A packet with this header in front of what it carries.
        let mut with = |options: &[u8]| {
            let plain = a.send("inner", &sent).one("outer");
            let mut outer = [&plain[..54], options, &plain[54..]].concat();
            outer[54] = outer[20];
            outer[20] = 60;
            let total = (plain.len() - 54 + options.len()) as u16;
            outer[18..20].copy_from_slice(&total.to_be_bytes());
            outer
        };
        let limit = [0, 0, 4, 1, 4, 1, 1, 0];
        assert_eq!(b.send("outer", &with(&limit)).one("inner"), sent, "{kind}");
        let padding = [0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(b.send("outer", &with(&padding)).one("inner"), sent, "{kind}");
        // Cut off, and longer than the packet.
        let longer = [0, 255, 4, 1, 4, 1, 1, 0];
        for wrong in [&with(&limit)[..54], &with(&limit)[..55], &with(&longer)] {
            assert_eq!(b.send("outer", wrong).count(&["inner"]), [0], "{kind}");
        }
    }
}
