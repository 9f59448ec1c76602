//! Two translations in a row: ours, and behind it the one of nftables, whose connection tracking
//! judges every packet that ours has changed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

use super::icmp::echo;
use super::*;

/// 10.0.0.0/24 - router and Nat (203.0.113.7) - nftables (198.51.100.1) - 198.51.100.9.
const NETWORK: &str = "
links = [
    'near.tx -> left.south', 'left.south -> near.rx', 'left.north -> router.left', 'router.left -> left.north',
    'router.right -> nat.inside', 'nat.inside -> router.right',
    'nat.outside -> right.north', 'right.north -> nat.outside', 'right.south -> far.rx', 'far.tx -> right.south',
]
[apps]
near = { kind = 'Tap', interface = 'tap0' }
far = { kind = 'Tap', interface = 'tap1' }
left = { kind = 'Neighbour', mac = '02:00:00:00:00:10', addresses = ['10.0.0.1'] }
[apps.nat]
kind = 'Nat'
address = '203.0.113.7'
forwards = [
    { protocol = 'tcp', port = 80, to = '10.0.0.5', to_port = 8000 },
    { protocol = 'udp', port = 53, to = '10.0.0.5', to_port = 5300 },
]
[apps.right]
kind = 'Neighbour'
mac = '02:00:00:00:00:20'
addresses = ['203.0.113.7']
routes = [{ prefix = '0.0.0.0/0', via = '203.0.113.1' }]
[apps.router]
kind = 'Forwarder'
ports = { left = '02:00:00:00:00:10', right = '02:00:00:00:00:20' }
routes = [{ prefix = '10.0.0.0/24', port = 'left' }, { prefix = '0.0.0.0/0', port = 'right' }]
";

const RULES: &str = "
table ip translation {
    chain before { type nat hook prerouting priority dstnat;
        iifname v0 tcp dport 8080 dnat to 203.0.113.7:80
        iifname v0 udp dport 8053 dnat to 203.0.113.7:53
    }
    chain behind { type nat hook postrouting priority srcnat; oifname v0 masquerade; }
}
table ip watch {
    counter wrong { }
    counter strange { }
    counter seen { }
    chain transit { type filter hook forward priority filter;
        ct state invalid counter name wrong drop
        iifname tap1 ip saddr != 203.0.113.7 counter name strange
        iifname tap1 counter name seen
    }
}
";

const LENGTH: usize = 200_000;

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 % 251) as u8).collect()
}

/// nftables takes these rules; false, said on the real standard error, where it cannot.
fn rules(router: &Host) -> bool {
    let taken = router.run(|| {
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
        nft.stdin.take().map(|mut input| input.write_all(RULES.as_bytes())).transpose()?;
        std::io::Result::Ok(nft.wait()?.success())
    });
    match taken {
        Ok(true) => return true,
        Ok(false) => eprint_skipped("this kernel has no translation by nftables"),
        Err(error) => eprint_skipped(&format!("nft: {error}")),
    }
    false
}

fn eprint_skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: nftables_behind_nat: {why}");
}

/// Packets that a counter of the rules has seen.
fn seen(router: &Host, name: &'static str) -> u64 {
    let text = router.run(move || {
        let said = Command::new("nft").args(["list", "counter", "ip", "watch", name]).output();
        String::from_utf8_lossy(&said.expect("nft runs").stdout).into_owned()
    });
    let number = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// All that comes is sent back, until the other side has ended.
fn echoes(mut stream: TcpStream) {
    let mut data: Vec<u8> = Vec::new();
    let mut part = [0; 5000];
    while data.len() < LENGTH {
        let got = stream.read(&mut part).expect("the other side sends");
        assert!(got > 0, "it ends after {} bytes", data.len());
        stream.write_all(&part[..got]).expect("the other side reads");
        data.extend(&part[..got]);
    }
    assert!(data == pattern(), "what comes is what was sent");
}

/// Sends, and reads what comes back.
fn talks(address: &str) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let mut writer = stream.try_clone().expect("a second handle");
    let writes = thread::spawn(move || writer.write_all(&pattern()).expect("the other side reads"));
    let mut data = vec![0; LENGTH];
    stream.read_exact(&mut data).expect("what comes back");
    writes.join().expect("all was written");
    assert!(data == pattern(), "what comes back is what was sent");
}

/// What the socket is told after it has sent so many bytes.
fn told(engine: &mut Engine, socket: &UdpSocket, length: usize) -> Option<i32> {
    socket.send(&vec![7; length]).expect("it is sent");
    let error = until(engine, "an error", || match socket.recv(&mut [0; 2000]) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        other => Some(other.expect_err("nobody answers")),
    });
    error.raw_os_error()
}

#[test]
fn nftables_behind_nat() {
    if !namespace("nftables_behind_nat") {
        return;
    }
    let mut engine = engine(NETWORK);
    for line in [
        "link set lo up",
        "address add 10.0.0.5/24 dev tap0",
        "address add 10.0.0.6/24 dev tap0",
        "route add default via 10.0.0.1",
    ] {
        ip(line);
    }
    let (router, outside) = (Host::new(), Host::new());
    router.take("tap1");
    ip("link add v0 type veth peer name v1");
    router.take("v0");
    outside.take("v1");
    router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a setting"));
    router.ip(&[
        "link set tap1 up",
        "address add 203.0.113.1/24 dev tap1",
        "link set v0 mtu 1300 up",
        "address add 198.51.100.1/24 dev v0",
    ]);
    outside.ip(&[
        "link set lo up",
        "link set v1 mtu 1300 up",
        "address add 198.51.100.9/24 dev v1",
    ]);
    if !rules(&router) {
        return;
    }

    // Streams, from inside and from outside.
    let listener = outside.run(|| TcpListener::bind("198.51.100.9:80").expect("a listener"));
    let server = outside.begin(move || {
        let (stream, peer) = listener.accept().expect("a client");
        echoes(stream);
        peer.ip().to_string()
    });
    let client = thread::spawn(|| talks("198.51.100.9:80"));
    until(&mut engine, "a stream from inside", || client.is_finished().then_some(()));
    client.join().expect("the client inside");
    assert_eq!(until(&mut engine, "its server", || server.ended()), "198.51.100.1");
    let listener = TcpListener::bind("10.0.0.5:8000").expect("a listener");
    let server = thread::spawn(move || {
        let (stream, peer) = listener.accept().expect("a client");
        echoes(stream);
        peer.ip().to_string()
    });
    let client = outside.begin(|| talks("198.51.100.1:8080"));
    until(&mut engine, "a stream from outside", || client.ended());
    until(&mut engine, "its server", || server.is_finished().then_some(()));
    assert_eq!(server.join().expect("the server inside"), "198.51.100.9");

    // Two hosts inside with the same port, which only one of them can have outside.
    let far = outside.run(|| socket("198.51.100.9"));
    let at = far.local_addr().expect("its address");
    let hosts = ["10.0.0.5:5000", "10.0.0.6:5000"].map(|address| {
        let socket = UdpSocket::bind(address).expect("a socket");
        socket.set_nonblocking(true).expect("set_nonblocking");
        socket.connect(at).expect("connect");
        socket
    });
    let mut buffer = [0; 2000];
    let mut peers = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        host.send(&[number as u8; 500]).expect("it is sent");
        let (length, peer) = until(&mut engine, "a datagram", || far.recv_from(&mut buffer).ok());
        assert_eq!(buffer[..length], [number as u8; 500]);
        peers.push(peer);
    }
    assert_ne!(peers[0], peers[1]);
    for (number, peer) in peers.iter().enumerate().rev() {
        far.send_to(&[number as u8; 700], peer).expect("it is sent");
        let length = until(&mut engine, "its answer", || hosts[number].recv(&mut buffer).ok());
        assert_eq!(buffer[..length], [number as u8; 700]);
    }
    let server = UdpSocket::bind("10.0.0.5:5300").expect("a socket");
    server.set_nonblocking(true).expect("set_nonblocking");
    far.send_to(b"question", "198.51.100.1:8053").expect("it is sent");
    let (length, peer) = until(&mut engine, "a question", || server.recv_from(&mut buffer).ok());
    assert_eq!((&buffer[..length], peer), (&b"question"[..], at));

    // Errors of the router and of the host, translated twice; and echoes.
    let near = socket("10.0.0.5");
    near.connect("198.51.100.9:99").expect("connect");
    assert_eq!(told(&mut engine, &near, 100), Some(libc::ECONNREFUSED), "port unreachable");
    set(&near, libc::IPPROTO_IP, libc::IP_TTL, 2);
    assert_eq!(told(&mut engine, &near, 100), Some(libc::EHOSTUNREACH), "time exceeded");
    set(&near, libc::IPPROTO_IP, libc::IP_TTL, 64);
    set(&near, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
    assert_eq!(told(&mut engine, &near, 1400), Some(libc::EMSGSIZE), "too big");
    assert_eq!(get(&near, libc::IPPROTO_IP, libc::IP_MTU), 1300, "path MTU");
    for length in [0, 1, 56, 1200] {
        echo(&mut engine, "198.51.100.9", length);
    }

    assert!(seen(&router, "seen") > 100);
    assert_eq!((seen(&router, "wrong"), seen(&router, "strange")), (0, 0));
    for bad in ["unmapped", "not_translated", "fragments", "malformed", "no_port"] {
        assert_eq!(counter(&engine, "nat", "Nat", bad), 0, "{bad}");
    }
}
