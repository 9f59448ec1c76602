//! Apps between two interfaces: a filter, VLAN tags on and off, a bridge, a router and a check of
//! checksums. What arrives at the far end is what went in, as routers change it, in order.

use system_tests::{case, millis, need_library, secs, stream};

use super::{cables, engine};
use crate::wire::{End, Namespace, need_af_xdp};

const APPS: [(&str, &str, &str); 6] = [
    ("filter", "PcapFilter", "filter = 'udp and dst port 7'"),
    ("tag", "Tagger", "tag = 7, priority = 3"),
    ("untag", "Untagger", "tag = 7"),
    ("bridge", "Bridge", "age = 300"),
    (
        "router",
        "Forwarder",
        "ports = { left = '02:00:00:00:00:10', right = '02:00:00:00:00:20' }, \
         routes = [{ prefix = '198.51.100.0/24', port = 'right', mac = '02:00:00:00:00:30' }]",
    ),
    ("check", "Checksum", "mode = 'verify'"),
];
const LINKS: [&str; 7] = [
    "in.tx -> filter.input",
    "filter.output -> tag.input",
    "tag.output -> untag.input",
    "untag.output -> bridge.left",
    "bridge.right -> router.left",
    "router.right -> check.input",
    "check.output -> out.rx",
];

/// The Internet checksum as RFC 1071 words it.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 =
        words.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// A datagram in a frame with these Ethernet addresses and this time to live.
fn datagram(addresses: [u8; 12], ttl: u8, port: u8, data: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| (bytes as u16).to_be_bytes();
    let mut udp = [&[0, 9, 0, port][..], &length(8 + data.len()), &[0, 0], data].concat();
    let mut ip = [
        &[0x45, 0][..],
        &length(20 + udp.len()),
        &[0, 0, 0, 0, ttl, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1],
    ]
    .concat();
    let sum = checksum(&[&ip[12..], &[0, 17], &length(udp.len()), &udp]);
    udp[6..8].copy_from_slice(&sum);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum);
    let mut frame = [&addresses[..], &[8, 0], &ip, &udp].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

const TO_ROUTER: [u8; 12] = [2, 0, 0, 0, 0, 0x10, 2, 0, 0, 0, 0, 1];
const FROM_ROUTER: [u8; 12] = [2, 0, 0, 0, 0, 0x30, 2, 0, 0, 0, 0, 0x20];

fn through(name: &str, kind: &str, from: &str, to: &str) {
    case(name, |case| {
        need_library("libpcap.so")?;
        if kind == "XDP" {
            need_af_xdp()?;
        }
        let namespace = if kind == "Tap" { Namespace::new()? } else { cables()? };
        let [one, other] = if kind == "Tap" { [from, to] } else { ["a1", "b1"] };
        let [input, output] = [one, other].map(|interface| format!("interface = \"{interface}\""));
        let mut apps = APPS.to_vec();
        apps.extend([("in", kind, input.as_str()), ("out", kind, &output)]);
        let mut engine = engine::start(case, &namespace, &engine::configuration(&apps, &LINKS))?;
        if kind == "Tap" {
            super::await_interfaces(&namespace, &[from, to], &mut engine);
        }
        let (from, to) = (End::of(&namespace, from), End::of(&namespace, to));
        from.reach_with(
            &to,
            || engine.stderr(),
            |number| {
                let data = number.to_ne_bytes();
                [datagram(TO_ROUTER, 9, 7, &data), datagram(FROM_ROUTER, 8, 7, &data)]
            },
        );
        for number in 0..300usize {
            let data = stream::bytes(number as u64, number * 37 % 1400 + 1);
            from.send(&datagram(TO_ROUTER, 64, 7, &data));
            // The filter, the router and the check each stop something.
            from.send(&datagram(TO_ROUTER, 64, 8, &data));
            from.send(&datagram(TO_ROUTER, 1, 7, &data));
            let mut damaged = datagram(TO_ROUTER, 64, 7, &data);
            damaged[42] ^= 1;
            from.send(&damaged);
            let wanted = datagram(FROM_ROUTER, 63, 7, &data);
            let arrived = to
                .receive(secs(20))
                .unwrap_or_else(|| panic!("datagram {number}: {}", engine.stderr()));
            assert_eq!(arrived, wanted, "datagram {number}");
        }
        assert_eq!(to.receive(millis(300)), None, "more than was asked for");
        engine::stop(engine);
        Ok(())
    });
}

#[test]
fn apps_between_xdp_ports() {
    through("middle-xdp", "XDP", "a0", "b0");
}

#[test]
fn apps_between_raw_sockets() {
    through("middle-raw", "RawSocket", "a0", "b0");
}

#[test]
fn apps_between_taps() {
    through("middle-tap", "Tap", "tap0", "tap1");
}
