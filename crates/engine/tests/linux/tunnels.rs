//! Tunnels, with the kernel as their other end. Behind the engine's end is a mirror, which answers
//! datagrams to all addresses.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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

/// This thread, and the programs that it starts, are on one processor from now on: the kernel numbers a
/// packet before it queues it, and what another processor sends meanwhile, say a report of multicast
/// groups, would pass it.
fn stay_on_one_processor() {
    let allowed = sched_getaffinity(None).expect("processors");
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).expect("a processor");
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).expect("it is one of them");
}

/// Datagrams of all lengths go through the tunnel `tun` and back, over both versions of IP.
fn carries(name: &str, kind: &str, args: &str, v6: bool, commands: &[&str]) {
    if !namespace(name) {
        return;
    }
    stay_on_one_processor();
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
        // What waits for the engine's address to be found could be passed by what another processor
        // sends behind it, and a numbered packet that was passed counts as a fault.
        "neighbour replace 10.9.0.1 lladdr 02:00:00:00:00:10 dev tap0 nud permanent",
        "neighbour replace fd09::1 lladdr 02:00:00:00:00:10 dev tap0 nud permanent",
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
    let counters = Registry::standard().get(kind).expect("the kind").counters;
    for bad in counters.iter().filter(|name| !["sent", "received", "not_ours"].contains(name)) {
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
    let link = "link add tun type ip6gretap local fd09::2 remote fd09::1";
    carries("gretap_over_ipv6", "Gre", "", true, &[link]);
}

#[test]
fn gretap_over_ipv6_without_a_limit_of_encapsulation() {
    let link = "link add tun type ip6gretap local fd09::2 remote fd09::1 encaplimit none";
    carries("gretap_over_ipv6_without_a_limit_of_encapsulation", "Gre", "", true, &[link]);
}

const SESSION: &str =
    "session = 7\npeer_session = 9\ncookie = '0011223344556677'\npeer_cookie = 'fedcba98'";

#[test]
fn l2tpv3() {
    let tunnel =
        "l2tp add tunnel tunnel_id 1 peer_tunnel_id 1 encap ip local 10.9.0.2 remote 10.9.0.1";
    let session = "l2tp add session name tun tunnel_id 1 session_id 9 peer_session_id 7 \
                   cookie 0011223344556677 peer_cookie fedcba98 l2spec_type none";
    carries("l2tpv3", "L2tpv3", SESSION, false, &[tunnel, session]);
}

#[test]
fn l2tpv3_over_ipv6() {
    let tunnel =
        "l2tp add tunnel tunnel_id 1 peer_tunnel_id 1 encap ip local fd09::2 remote fd09::1";
    let session = "l2tp add session name tun tunnel_id 1 session_id 9 peer_session_id 7 \
                   cookie 0011223344556677 peer_cookie fedcba98 l2spec_type none";
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

/// An ESP tunnel, at the kernel's end an interface of its own.
fn esp(name: &str, key: &str, esn: bool, v6: bool) {
    let (kernel, engine) = if v6 { ("fd09::2", "fd09::1") } else { ("10.9.0.2", "10.9.0.1") };
    let (one, other) = (format!("{key}01020304"), format!("{key}05060708"));
    let flags = if esn { "af-unspec esn" } else { "af-unspec" };
    // Only with extended numbers does the kernel want its window in this form.
    let window = if esn { "replay-oseq 0 replay-window 128" } else { "replay-window 32" };
    let state = |from: &str, to: &str, spi: u32, key: &str| {
        format!(
            "xfrm state add src {from} dst {to} proto esp spi {spi} reqid 7 mode tunnel \
             if_id 42 {window} flag {flags} aead rfc4106(gcm(aes)) 0x{key} 128"
        )
    };
    let policy = |any: &str, direction: &str, from: &str, to: &str| {
        format!(
            "xfrm policy add src {any} dst {any} dir {direction} if_id 42 \
             tmpl src {from} dst {to} proto esp reqid 7 mode tunnel"
        )
    };
    let mut commands = vec![
        "link add tun type xfrm dev tap0 if_id 42".to_string(),
        state(kernel, engine, 4097, &one),
        state(engine, kernel, 4098, &other),
    ];
    for any in ["0.0.0.0/0", "::/0"] {
        commands.push(policy(any, "out", kernel, engine));
        commands.push(policy(any, "in", engine, kernel));
    }
    let args = format!(
        "esn = {esn}\nfrom = '02:00:00:00:00:0a'\nto = '02:00:00:00:00:20'\n\
         receive = {{ spi = 4097, key = '{one}' }}\nsend = {{ spi = 4098, key = '{other}' }}"
    );
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    carries(name, "Esp", &args, v6, &commands);
}

const KEY: &str = "000102030405060708090a0b0c0d0e0f";

#[test]
fn esp_with_aes_128() {
    esp("esp_with_aes_128", KEY, false, false);
}

#[test]
fn esp_with_aes_256_and_extended_numbers() {
    esp("esp_with_aes_256_and_extended_numbers", &KEY.repeat(2), true, false);
}

#[test]
fn esp_over_ipv6() {
    esp("esp_over_ipv6", KEY, false, true);
}
