//! Next hops by address: the kernel is asked for its MAC addresses and asks for ours, on two links
//! with a router between them, and is told of neighbours that do not answer.

use std::net::UdpSocket;

use super::*;

const NETWORK: &str = "
links = [
    'near.tx -> left.south', 'left.south -> near.rx', 'left.north -> router.left', 'router.left -> left.north',
    'far.tx -> right.south', 'right.south -> far.rx', 'right.north -> router.right', 'router.right -> right.north',
]
[apps]
near = { kind = 'Tap', interface = 'tap0' }
far = { kind = 'Tap', interface = 'tap1' }
left = { kind = 'Neighbour', mac = '02:00:00:00:00:10', addresses = ['10.0.0.1', 'fd01::1'] }
[apps.right]
kind = 'Neighbour'
mac = '02:00:00:00:00:20'
addresses = ['192.0.2.1', '203.0.113.1', 'fd02::1']
routes = [
    { prefix = '203.0.113.0/24' }, { prefix = 'fd02::/64' },
    { prefix = '0.0.0.0/0', via = '203.0.113.9' }, { prefix = '::/0', via = 'fd02::9' },
]
[apps.router]
kind = 'Forwarder'
ports = { left = '02:00:00:00:00:10', right = '02:00:00:00:00:20' }
routes = [
    { prefix = '10.0.0.0/24', port = 'left' }, { prefix = 'fd01::/64', port = 'left' },
    { prefix = '0.0.0.0/0', port = 'right' }, { prefix = '::/0', port = 'right' },
]
";

/// A datagram and its answer, each sent once: what waits for a neighbour is not lost.
fn ask(engine: &mut Engine, near: &UdpSocket, far: &UdpSocket, data: &[u8]) {
    let mut buffer = [0; 2000];
    near.send(data).expect("it is sent");
    let (length, peer) = until(engine, "a datagram", || far.recv_from(&mut buffer).ok());
    assert_eq!(&buffer[..length], data);
    far.send_to(data, peer).expect("it is sent");
    let length = until(engine, "its answer", || near.recv(&mut buffer).ok());
    assert_eq!(&buffer[..length], data);
}

/// Hosts of the other side, on the link and behind a router that is on it, and whom we are to them.
const HOSTS: [(&str, [&str; 2]); 2] =
    [("10.0.0.5", ["203.0.113.9", "198.51.100.1"]), ("fd01::5", ["fd02::9", "fd03::1"])];

/// How long a neighbour that is known is surely not asked: five seconds behind what was sent to it, it is
/// asked whether it is still there.
const QUIET: Duration = Duration::from_secs(4);

#[test]
fn next_hops_are_found_by_address() {
    for _ in 0..10 {
        if !namespace("next_hops_are_found_by_address") || are_found_in_time() {
            return;
        }
    }
    panic!("this machine never had {QUIET:?} for all of it");
}

/// False where all of it took too long to tell who had to be asked.
fn are_found_in_time() -> bool {
    let mut engine = engine(NETWORK);
    for line in [
        "address add 10.0.0.5/24 dev tap0",
        "address add fd01::5/64 dev tap0 nodad",
        "route add default via 10.0.0.1",
        "-6 route add default via fd01::1",
    ] {
        ip(line);
    }
    let other = Host::new();
    other.take("tap1");
    other.run(|| {
        // Whoever gets another MAC address says so.
        for name in ["ipv4/conf/tap1/arp_notify", "ipv6/conf/tap1/ndisc_notify"] {
            std::fs::write(format!("/proc/sys/net/{name}"), "1").expect("a setting");
        }
    });
    other.ip(&[
        "link set lo up",
        "link set tap1 address 02:00:00:00:00:09",
        "link set tap1 up",
        "address add 203.0.113.9/24 dev tap1",
        "address add 198.51.100.1/32 dev lo",
        "address add fd02::9/64 dev tap1 nodad",
        "address add fd03::1/128 dev lo nodad",
        "route add default via 203.0.113.1",
        "-6 route add default via fd02::1",
    ]);
    let pairs: Vec<(UdpSocket, UdpSocket)> = HOSTS
        .into_iter()
        .flat_map(|(ours, hosts)| hosts.map(|host| (ours, host)))
        .map(|(ours, host)| {
            let far = other.run(move || socket(host));
            let near = socket(ours);
            near.connect(far.local_addr().expect("its address")).expect("connect");
            (near, far)
        })
        .collect();
    let asked =
        |engine: &Engine| ["left", "right"].map(|app| counter(engine, app, "Neighbour", "asked"));
    let begun = Instant::now();
    for round in 0..3 {
        for (near, far) in &pairs {
            ask(&mut engine, near, far, &vec![round; 1000 * usize::from(round % 2)]);
        }
    }
    // Hosts on the left had asked for us and so were known; on the right two were asked for, once
    // unless this machine was busy for a second.
    let before = asked(&engine);
    if begun.elapsed() > QUIET {
        return false;
    }
    assert!(before[0] == 0 && (2..=6).contains(&before[1]), "{before:?}");
    let known = other.run(|| {
        let said = Command::new("ip").args(["neigh", "show", "dev", "tap1"]).output();
        String::from_utf8_lossy(&said.expect("ip runs").stdout).into_owned()
    });
    assert!(known.contains("203.0.113.1 lladdr 02:00:00:00:00:20"), "{known}");
    assert!(known.contains("fd02::1 lladdr 02:00:00:00:00:20"), "{known}");
    // The kernel announces its new address, which is believed at once.
    other.ip(&["link set tap1 address 02:00:00:00:00:0a"]);
    for (near, far) in &pairs {
        ask(&mut engine, near, far, b"moved");
    }
    let after = asked(&engine);
    if begun.elapsed() > QUIET {
        return false;
    }
    assert_eq!(after, before, "nobody had to be asked");
    true
}

#[test]
fn who_does_not_answer_is_unreachable() {
    if !namespace("who_does_not_answer_is_unreachable") {
        return;
    }
    let mut engine = engine(NETWORK);
    for line in [
        "address add 10.0.0.5/24 dev tap0",
        "address add fd01::5/64 dev tap0 nodad",
        "route add default via 10.0.0.1",
        "-6 route add default via fd01::1",
    ] {
        ip(line);
    }
    for (ours, nobody) in [("10.0.0.5", "203.0.113.77"), ("fd01::5", "fd02::77")] {
        let socket = socket(ours);
        socket.connect((nobody, 7)).expect("connect");
        socket.send(b"is anybody there?").expect("it is sent");
        let error = until(&mut engine, "an error", || match socket.recv(&mut [0; 100]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            other => Some(other.expect_err("nobody is there")),
        });
        assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH), "{error}");
    }
    assert_eq!(counter(&engine, "right", "Neighbour", "asked"), 6, "three questions each");
    assert_eq!(counter(&engine, "right", "Neighbour", "unreachable"), 2);
    assert_eq!(counter(&engine, "right", "Neighbour", "neighbours"), 0);
}
