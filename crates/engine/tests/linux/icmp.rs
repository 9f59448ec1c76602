//! The forwarder's ICMP: the kernel understands its errors and answers, of both IP versions.

use std::net::UdpSocket;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

use super::*;

const NETWORK: &str = "
links = [
    'tap.tx -> neighbour.south', 'neighbour.south -> tap.rx',
    'neighbour.north -> router.left', 'router.left -> neighbour.north',
    'router.right -> sink.input',
]
[apps]
tap = { kind = 'Tap', interface = 'tap0' }
neighbour = { kind = 'Neighbour', mac = '02:00:00:00:00:10', addresses = ['10.9.0.1', 'fd09::1'] }
sink = 'Sink'
[apps.router]
kind = 'Forwarder'
ports.left = { mac = '02:00:00:00:00:10', addresses = ['10.9.0.1', 'fd09::1'] }
ports.right = { mac = '02:00:00:00:00:20', mtu = 1300 }
routes = [
    { prefix = '198.51.100.0/24', port = 'right', mac = '02:00:00:00:00:30' },
    { prefix = 'fd51::/16', port = 'right', mac = '02:00:00:00:00:30' },
]
";

/// What the kernel is told after `send`.
fn error(engine: &mut Engine, socket: &UdpSocket, length: usize) -> i32 {
    let data = vec![7; length];
    let _ = socket.send(&data);
    until(engine, "an error", || {
        let mut buffer = [0; 2000];
        match socket.recv(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(error) => error.raw_os_error(),
            Ok(length) => panic!("{length} bytes came back"),
        }
    })
}

fn tells(engine: &mut Engine, ours: &str, router: &str, beyond: &str, nowhere: &str) {
    let v6 = ours.contains(':');
    let (level, ttl, mtu) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_MTU)
    };
    let to = |address: &str| {
        let socket = socket(ours);
        socket.connect((address, 9)).expect("connect");
        socket
    };
    assert_eq!(error(engine, &to(router), 100), libc::ECONNREFUSED, "port unreachable");
    assert_eq!(error(engine, &to(nowhere), 100), libc::ENETUNREACH, "no route");
    let last = to(beyond);
    set(&last, level, ttl, 1);
    assert_eq!(error(engine, &last, 1000), libc::EHOSTUNREACH, "time exceeded");
    let long = to(beyond);
    let discover = if v6 { libc::IPV6_MTU_DISCOVER } else { libc::IP_MTU_DISCOVER };
    set(&long, level, discover, libc::IP_PMTUDISC_DO);
    assert_eq!(error(engine, &long, 1400), libc::EMSGSIZE, "too big");
    assert_eq!(get(&long, level, mtu), 1300, "path MTU");
}

/// An echo request to this address, and its answer.
pub fn echo(engine: &mut Engine, router: &str, length: usize) {
    let v6 = router.contains(':');
    let (family, protocol, kinds) = if v6 {
        (AddressFamily::INET6, ipproto::ICMPV6, [128, 129])
    } else {
        (AddressFamily::INET, ipproto::ICMP, [8, 0])
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let raw = rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol)).unwrap();
    rustix::net::connect(&raw, &std::net::SocketAddr::new(router.parse().unwrap(), 0)).unwrap();
    let mut message = vec![kinds[0], 0, 0, 0, 0x12, 0x34, 0, length as u8];
    message.extend((0..length).map(|byte| byte as u8));
    // The kernel computes that of ICMPv6 itself.
    let sum = checksum::checksum(&message);
    message[2..4].copy_from_slice(&sum.to_ne_bytes());
    rustix::net::send(&raw, &message, SendFlags::empty()).unwrap();
    until(engine, "an echo", || {
        let mut buffer = [0; 2000];
        let (got, _) = rustix::net::recv(&raw, &mut buffer, RecvFlags::empty()).ok()?;
        let answer = &buffer[if v6 { 0 } else { 20 }..got];
        // The kernel has verified the checksum of ICMPv6; that of ICMP is ours to verify here.
        assert!(v6 || checksum::checksum(answer) == 0);
        (answer[0] == kinds[1] && answer[4..] == message[4..]).then_some(())
    });
}

#[test]
fn the_kernel_understands_what_the_forwarder_says() {
    if !namespace("the_kernel_understands_what_the_forwarder_says") {
        return;
    }
    let mut engine = engine(NETWORK);
    for line in [
        "address add 10.9.0.2/24 dev tap0",
        "address add fd09::2/64 dev tap0 nodad",
        "route add default via 10.9.0.1",
        "-6 route add default via fd09::1",
    ] {
        ip(line);
    }
    for length in [0, 1, 56, 1400] {
        echo(&mut engine, "10.9.0.1", length);
        echo(&mut engine, "fd09::1", length);
    }
    tells(&mut engine, "10.9.0.2", "10.9.0.1", "198.51.100.1", "203.0.113.1");
    tells(&mut engine, "fd09::2", "fd09::1", "fd51::1", "fd52::1");
    assert_eq!(counter(&engine, "router", "Forwarder", "echoes"), 8);
    assert_eq!(counter(&engine, "router", "Forwarder", "errors"), 8);
}
