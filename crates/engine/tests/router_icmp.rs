//! What the forwarder says itself, read by another implementation of the protocols.

use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use etherparse::{icmpv4, icmpv6};

mod rig;

use rig::Rig;

const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
const PORTS: [&str; 2] = ["left", "right"];

fn router(more: &str) -> Rig {
    let args = format!(
        "ports.left = {{ mac = '02:00:00:00:00:10', addresses = ['10.9.0.1', 'fd09::1'] }}\n\
         ports.right = {{ mac = '02:00:00:00:00:20', mtu = 600 }}\n\
         routes = [\n\
           {{ prefix = '198.51.100.0/24', port = 'right', mac = '02:00:00:00:00:30' }},\n\
           {{ prefix = 'fd51::/16', port = 'right', mac = '02:00:00:00:00:30' }},\n\
         ]\n{more}"
    );
    Rig::new("Forwarder", toml::from_str::<toml::Table>(&args).unwrap(), &PORTS, &PORTS)
}

fn v4(source: [u8; 4], destination: [u8; 4], ttl: u8, length: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let headers = PacketBuilder::ethernet2(STATION, ROUTER).ipv4(source, destination, ttl);
    headers.udp(7, 9).write(&mut frame, &vec![5; length]).unwrap();
    frame
}

fn v6(source: &str, destination: &str, hops: u8, length: usize) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut frame = Vec::new();
    let headers =
        PacketBuilder::ethernet2(STATION, ROUTER).ipv6(address(source), address(destination), hops);
    headers.udp(7, 9).write(&mut frame, &vec![5; length]).unwrap();
    frame
}

/// The only answer at the left port: what it says, and how much of `sent` it quotes.
fn said(router: &mut Rig, sent: &[u8]) -> (Result<Icmpv4Type, Icmpv6Type>, usize) {
    let answer = router.send("left", sent).one("left");
    assert_eq!((&answer[..6], &answer[6..12]), (&STATION[..], &ROUTER[..]));
    checksum::packet::verify(&answer[14..]).expect("right checksums");
    let packet = SlicedPacket::from_ethernet(&answer).expect("well-formed");
    let (from, to) = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().to_string(), ip.header().destination().to_vec())
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().to_string(), ip.header().destination().to_vec())
        }
        other => panic!("{other:?}"),
    };
    let v6 = to.len() == 16;
    assert_eq!(from, if v6 { "fd09::1" } else { "10.9.0.1" });
    assert_eq!(to, if v6 { &sent[22..38] } else { &sent[26..30] });
    let (kind, quote) = match packet.transport.as_ref().unwrap() {
        TransportSlice::Icmpv4(icmp) => (Ok(icmp.icmp_type()), icmp.payload().to_vec()),
        TransportSlice::Icmpv6(icmp) => (Err(icmp.icmp_type()), icmp.payload().to_vec()),
        other => panic!("{other:?}"),
    };
    assert!(sent[14..].starts_with(&quote), "the packet is quoted as it was sent");
    (kind, quote.len())
}

const US: [u8; 4] = [192, 0, 2, 1];
const THERE: [u8; 4] = [198, 51, 100, 1];

#[test]
fn errors_say_what_happened() {
    use Icmpv4Type::{DestinationUnreachable, TimeExceeded};
    use icmpv4::{DestUnreachableHeader, TimeExceededCode};
    let mut router = router("");
    let mut long = v4(US, THERE, 9, 700);
    let network = DestinationUnreachable(DestUnreachableHeader::Network);
    assert_eq!(said(&mut router, &v4(US, [203, 0, 113, 1], 9, 20)), (Ok(network), 48));
    let port = DestinationUnreachable(DestUnreachableHeader::Port);
    // Hop limits count for what is forwarded only.
    assert_eq!(said(&mut router, &v4(US, [10, 9, 0, 1], 1, 20)), (Ok(port), 48));
    let expired = TimeExceeded(TimeExceededCode::TtlExceededInTransit);
    assert_eq!(said(&mut router, &v4(US, THERE, 1, 1000)), (Ok(expired), 548));
    let too_big =
        DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 600 });
    assert_eq!(said(&mut router, &long), (Ok(too_big), 548));
    // Without the bit that forbids it, it is cut.
    let check = u16::from_ne_bytes([long[24], long[25]]);
    let check = checksum::csum_replace2(check, [long[20], 0], [long[20] & !0x40, 0]);
    long[20] &= !0x40;
    long[24..26].copy_from_slice(&check.to_ne_bytes());
    assert_eq!(router.send("left", &long).take("right").len(), 2);
}

#[test]
fn errors_over_ipv6_say_what_happened() {
    use Icmpv6Type::{DestinationUnreachable, PacketTooBig, TimeExceeded};
    use icmpv6::{DestUnreachableCode, TimeExceededCode};
    let mut router = router("");
    let nowhere = DestinationUnreachable(DestUnreachableCode::NoRoute);
    assert_eq!(said(&mut router, &v6("fd00::1", "fd52::1", 9, 20)), (Err(nowhere), 68));
    let port = DestinationUnreachable(DestUnreachableCode::Port);
    assert_eq!(said(&mut router, &v6("fd00::1", "fd09::1", 1, 20)), (Err(port), 68));
    let expired = TimeExceeded(TimeExceededCode::HopLimitExceeded);
    assert_eq!(said(&mut router, &v6("fd00::1", "fd51::1", 1, 1500)), (Err(expired), 1232));
    let too_big = PacketTooBig { mtu: 600 };
    assert_eq!(said(&mut router, &v6("fd00::1", "fd51::1", 9, 800)), (Err(too_big), 848));
}

#[test]
fn nobody_is_told_who_must_not_be() {
    let mut router = router("");
    let quiet = |router: &mut Rig, frame: &[u8], why: &str| {
        assert_eq!(router.send("left", frame).count(&PORTS), [0, 0], "{why}");
    };
    let nowhere = [203, 0, 113, 1];
    for source in [[0; 4], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
        quiet(&mut router, &v4(source, nowhere, 9, 20), "not one host");
    }
    quiet(&mut router, &v4(US, [224, 1, 2, 3], 9, 20), "to many");
    for source in ["::", "ff02::1", "::1"] {
        quiet(&mut router, &v6(source, "fd52::1", 9, 20), "not one host");
    }
    quiet(&mut router, &v6("fd00::1", "ff0e::1", 9, 20), "to many");
    let mut group = v4(US, nowhere, 9, 20);
    group[6] |= 1;
    quiet(&mut router, &group, "a group of stations");
    // Errors about errors would go round for ever.
    let mut error = v4(US, nowhere, 9, 20);
    error[23] = 1;
    error[34] = 3;
    let sum = checksum::csum_replace2(
        u16::from_ne_bytes([error[24], error[25]]),
        [error[22], 17],
        [error[22], 1],
    );
    error[24..26].copy_from_slice(&sum.to_ne_bytes());
    quiet(&mut router, &error, "about an error");
    error[34] = 8;
    assert_eq!(router.send("left", &error).count(&PORTS), [1, 0], "about a question");
    let mut error = v6("fd00::1", "fd52::1", 9, 20);
    error[20] = 58;
    error[54] = 1;
    quiet(&mut router, &error, "about an error");
    error[54] = 128;
    assert_eq!(router.send("left", &error).count(&PORTS), [1, 0], "about a question");
    // A router whose port has no address says nothing.
    let mut at_right = v4(US, nowhere, 9, 20);
    at_right[5] = 0x20;
    assert_eq!(router.send("right", &at_right).count(&PORTS), [0, 0]);
}

/// Routes lead everywhere, and each of these would go out of `right`.
#[test]
fn what_belongs_to_its_link_stays_there() {
    let args = "ports.left = { mac = '02:00:00:00:00:10', addresses = ['10.9.0.1', 'fe80::1'] }\n\
        ports.right = '02:00:00:00:00:20'\n\
        routes = [\n\
          { prefix = '0.0.0.0/0', port = 'right', mac = '02:00:00:00:00:30' },\n\
          { prefix = '::/0', port = 'right', mac = '02:00:00:00:00:30' },\n\
        ]";
    let mut router =
        Rig::new("Forwarder", toml::from_str::<toml::Table>(args).unwrap(), &PORTS, &PORTS);
    let mut stayed = 0;
    for limit in [1, 9] {
        let near = [[0; 4], [0, 1, 2, 3], [127, 0, 0, 1], [127, 9, 9, 9], [255; 4]];
        let near = near.iter().chain(&[[169, 254, 0, 0], [169, 254, 255, 255]]);
        let v4s = near.flat_map(|near| [(*near, THERE), (US, *near)]);
        for (from, to) in
            v4s.chain([([224, 0, 0, 1], THERE), ([239, 1, 2, 3], THERE), (US, [224, 0, 0, 251])])
        {
            let sent = v4(from, to, limit, 20);
            assert_eq!(router.send("left", &sent).count(&PORTS), [0, 0], "{from:?} {to:?}");
            stayed += 1;
        }
        let near = ["::", "::1", "fe80::7", "febf:1::"];
        let v6s = near.iter().flat_map(|near| [(*near, "fd51::1"), ("fd00::1", *near)]);
        let groups =
            ["ff00::1", "ff01::1", "ff02::fb", "ff12::1", "ff32::1"].map(|to| ("fd00::1", to));
        for (from, to) in v6s.chain(groups).chain([("ff0e::1", "fd51::1")]) {
            let sent = v6(from, to, limit, 20);
            assert_eq!(router.send("left", &sent).count(&PORTS), [0, 0], "{from} {to}");
            stayed += 1;
        }
    }
    assert_eq!(router.counter("Forwarder", "not_forwardable"), stayed);
    assert_eq!(router.counter("Forwarder", "errors"), 0);
    // What lies beside them goes on, groups of more than a link as well.
    for (from, to) in [
        ([1, 0, 0, 0], [126, 255, 255, 255]),
        ([128, 0, 0, 0], [223, 255, 255, 255]),
        ([169, 253, 255, 255], [224, 0, 1, 0]),
        ([169, 255, 0, 0], [169, 0, 254, 169]),
        ([240, 0, 0, 1], [255, 255, 255, 254]),
    ] {
        let sent = v4(from, to, 9, 20);
        assert_eq!(router.send("left", &sent).count(&PORTS), [0, 1], "{from:?} {to:?}");
    }
    for (from, to) in
        [("::2", "fe7f::1"), ("fec0::1", "fd00::1"), ("fd00::1", "ff03::1"), ("1::", "ff1e::1")]
    {
        let sent = v6(from, to, 9, 20);
        assert_eq!(router.send("left", &sent).count(&PORTS), [0, 1], "{from} {to}");
    }
    // So does what is said to the router itself, which answers on the link.
    let mut echo = Vec::new();
    let link = |last| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let headers = PacketBuilder::ethernet2(STATION, ROUTER).ipv6(link(7), link(1), 1);
    headers.icmpv6_echo_request(3, 4).write(&mut echo, b"anybody?").unwrap();
    let answer = router.send("left", &echo).one("left");
    assert_eq!((&answer[22..38], &answer[38..54], answer[54]), (&link(1)[..], &link(7)[..], 129));
}

#[test]
fn errors_are_limited() {
    let mut router = router("icmp_rate = 0.001");
    for _ in 0..10 {
        router.send("left", &v4(US, [203, 0, 113, 1], 9, 20));
    }
    assert!(router.counter("Forwarder", "errors") <= 1);
    assert!(router.counter("Forwarder", "errors_limited") >= 9);
    let mut silent = self::router("icmp_rate = 0");
    assert_eq!(silent.send("left", &v4(US, [203, 0, 113, 1], 9, 20)).count(&PORTS), [0, 0]);
}

#[test]
fn ports_are_read_strictly() {
    use engine::Config;
    let refused = |ports: &str| {
        let args = format!("{ports}\nroutes = []");
        let mut config = Config::new();
        config.app("x", "Forwarder", toml::from_str::<toml::Table>(&args).unwrap()).unwrap();
        let mut engine = engine::Engine::new(engine::Options::default());
        engine.configure(&config).expect_err("it is refused").to_string()
    };
    for (ports, problem) in [
        ("ports.a = '02:00'", "is not a MAC address"),
        ("ports.a = { mac = '02:00:00:00:00:10', mtu = 20 }", "68 bytes or more"),
        ("ports.a = { mac = '02:00:00:00:00:10', addresses = ['ff02::1'] }", "of one host"),
        ("ports.a = { addresses = [] }", "mac"),
        ("ports.a = { mac = '02:00:00:00:00:10', mtus = 1 }", "mtus"),
        ("ports.a = 7", "a MAC address or { mac, addresses, mtu }"),
    ] {
        let said = refused(ports);
        assert!(said.contains(problem), "{ports}: {said}");
    }
}
