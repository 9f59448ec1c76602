//! Tunnels, with the kernel as their other end. Behind the engine's end is a mirror, which answers
//! datagrams to all addresses.

use super::mirror::Mirror;
use super::*;

/// A tunnel of this kind to the kernel at 10.9.0.2 and fd09::2.
fn network(kind: &str, args: &str, v6: bool) -> String {
    let (local, remote) = if v6 { ("fd09::1", "fd09::2") } else { ("10.9.0.1", "10.9.0.2") };
    format!(
        "links = [
    'tap.tx -> neighbour.south', 'neighbour.south -> tap.rx',
    'neighbour.north -> tunnel.outer', 'tunnel.outer -> neighbour.north',
    'tunnel.inner -> inside.south', 'inside.south -> tunnel.inner',
    'inside.north -> mirror.tx', 'mirror.rx -> inside.north',
]
[apps]
mirror = 'Mirror'
tap = {{ kind = 'Tap', interface = 'tap0', mtu = 1582 }}
neighbour = {{ kind = 'Neighbour', mac = '02:00:00:00:00:10', addresses = ['10.9.0.1', 'fd09::1'] }}
inside = {{ kind = 'Neighbour', mac = '02:00:00:00:00:20', addresses = ['10.8.0.1', 'fd08::1'] }}
[apps.tunnel]
kind = '{kind}'
{args}
[apps.tunnel.outer]
local = '{local}'
remote = '{remote}'
mac = '02:00:00:00:00:10'
next_hop = '02:00:00:00:00:01'
"
    )
}

/// Datagrams of all lengths go through the tunnel `tun` and back, over both versions of IP.
fn carries(name: &str, kind: &str, args: &str, v6: bool, commands: &[&str]) {
    if !namespace(name) {
        return;
    }
    let mut registry = Registry::standard().clone();
    registry.register::<Mirror>();
    let text = network(kind, args, v6);
    let file = Config::from_toml_checked(&text, &registry).expect("it is right");
    let mut engine = Engine::with_registry(Options::default(), registry);
    engine.configure(&file.config).expect("it starts");
    for line in [
        "link set tap0 address 02:00:00:00:00:01",
        "address add 10.9.0.2/24 dev tap0",
        "address add fd09::2/64 dev tap0 nodad",
    ] {
        ip(line);
    }
    for line in commands {
        if !Command::new("ip").args(line.split_whitespace()).status().expect("ip runs").success() {
            let _ = writeln!(
                std::io::stderr(),
                "skipped: {name}: this kernel does not know `ip {line}`"
            );
            return;
        }
    }
    for line in [
        "link set tun mtu 1400 up",
        "address add 10.8.0.2/24 dev tun",
        "address add fd08::2/64 dev tun nodad",
    ] {
        ip(line);
    }
    for (ours, theirs) in [("10.8.0.2", "10.8.0.1"), ("fd08::2", "fd08::1")] {
        let socket = socket(ours);
        socket.connect((theirs, 9)).expect("connect");
        for length in [0usize, 1, 2, 3, 100, 777, 1300] {
            let data: Vec<u8> = (0..length).map(|byte| (byte * 31 + length) as u8).collect();
            let mut buffer = [0; 4000];
            until(&mut engine, "it comes back", || {
                let _ = socket.send(&data);
                for _ in 0..20 {
                    match socket.recv(&mut buffer) {
                        Ok(got) if buffer[..got] == data => return Some(()),
                        _ => std::thread::yield_now(),
                    }
                }
                None
            });
        }
    }
    for bad in ["too_long", "malformed", "bad_checksum", "out_of_order"] {
        assert_eq!(counter(&engine, "tunnel", kind, bad), 0, "{bad}");
    }
    let (sent, received) =
        (counter(&engine, "tunnel", kind, "sent"), counter(&engine, "tunnel", kind, "received"));
    assert!(sent >= 14 && received >= 14, "sent {sent}, received {received}");
}

#[test]
fn vxlan() {
    let link = "link add tun type vxlan id 77 local 10.9.0.2 remote 10.9.0.1 dstport 4789";
    carries("vxlan", "Vxlan", "vni = 77", false, &[link]);
}

#[test]
fn vxlan_with_checksums() {
    let link = "link add tun type vxlan id 77 local 10.9.0.2 remote 10.9.0.1 dstport 4790 udpcsum";
    carries("vxlan_with_checksums", "Vxlan", "vni = 77\nport = 4790", false, &[link]);
}

#[test]
fn vxlan_over_ipv6() {
    let link = "link add tun type vxlan id 16777215 local fd09::2 remote fd09::1 dstport 4789";
    carries("vxlan_over_ipv6", "Vxlan", "vni = 16777215", true, &[link]);
}

#[test]
fn gretap() {
    let link = "link add tun type gretap local 10.9.0.2 remote 10.9.0.1 nopmtudisc";
    carries("gretap", "Gre", "", false, &[link]);
}

#[test]
fn gretap_with_key_checksum_and_sequence() {
    let link = "link add tun type gretap local 10.9.0.2 remote 10.9.0.1 key 1234 csum seq";
    let args = "key = 1234\nchecksum = true\nsequence = true";
    carries("gretap_with_key_checksum_and_sequence", "Gre", args, false, &[link]);
}

#[test]
fn gre() {
    let link = "link add tun type gre local 10.9.0.2 remote 10.9.0.1 key 5";
    let args = "key = 5\nmode = 'ip'\nfrom = '02:00:00:00:00:0a'\nto = '02:00:00:00:00:20'";
    carries("gre", "Gre", args, false, &[link]);
}

#[test]
fn gretap_over_ipv6() {
    let link = "link add tun type ip6gretap local fd09::2 remote fd09::1 encaplimit none";
    carries("gretap_over_ipv6", "Gre", "", true, &[link]);
}

const SESSION: &str =
    "session = 7\npeer_session = 9\ncookie = '0011223344556677'\npeer_cookie = 'fedcba98'";

#[test]
fn l2tpv3() {
    let tunnel =
        "l2tp add tunnel tunnel_id 1 peer_tunnel_id 1 encap ip local 10.9.0.2 remote 10.9.0.1";
    let session = "l2tp add session name tun tunnel_id 1 session_id 9 peer_session_id 7 \
                   cookie fedcba98 peer_cookie 0011223344556677 l2spec_type none";
    carries("l2tpv3", "L2tpv3", SESSION, false, &[tunnel, session]);
}

#[test]
fn l2tpv3_over_ipv6() {
    let tunnel =
        "l2tp add tunnel tunnel_id 1 peer_tunnel_id 1 encap ip local fd09::2 remote fd09::1";
    let session = "l2tp add session name tun tunnel_id 1 session_id 9 peer_session_id 7 \
                   cookie fedcba98 peer_cookie 0011223344556677 l2spec_type none";
    carries("l2tpv3_over_ipv6", "L2tpv3", SESSION, true, &[tunnel, session]);
}

#[test]
fn l2tpv3_over_udp_with_a_sublayer() {
    let tunnel = "l2tp add tunnel tunnel_id 1 peer_tunnel_id 1 encap udp local 10.9.0.2 \
                  remote 10.9.0.1 udp_sport 1702 udp_dport 1703";
    let session = "l2tp add session name tun tunnel_id 1 session_id 9 peer_session_id 7";
    let args = "session = 7\npeer_session = 9\nsublayer = true\ncarrier = 'udp'\n\
                port = 1703\npeer_port = 1702";
    carries("l2tpv3_over_udp_with_a_sublayer", "L2tpv3", args, false, &[tunnel, session]);
}
