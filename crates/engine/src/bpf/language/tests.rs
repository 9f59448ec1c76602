//! Expressions compiled here beside the same compiled by libpcap, on frames that they are about.

use super::compile;
use crate::bpf::Program;
use crate::bpf::compile::by_libpcap;

/// Numbers for a test that is the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // Marsaglia's xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }
}

const HOSTS: [[u8; 4]; 4] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 1, 2, 3], [192, 0, 2, 1]];
const HOSTS6: [&str; 3] = ["2001:db8::1", "2001:db8:0:1::2", "fe80::1"];
const STATIONS: [[u8; 6]; 3] =
    [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]];
const PORTS: [u16; 6] = [22, 53, 80, 443, 1024, 40000];
const CARRIED: [u8; 9] = [6, 17, 132, 1, 58, 2, 50, 103, 44];

fn primitive(dice: &mut Dice) -> String {
    let direction = dice.pick(&["", "", "src ", "dst ", "src or dst ", "dst and src "]);
    let port = |dice: &mut Dice| dice.pick(&PORTS);
    match dice.roll(16) {
        0 | 1 => {
            let protocol = dice.pick(&["", "", "tcp ", "udp ", "sctp "]);
            format!("{protocol}{direction}port {}", port(dice))
        }
        2 => {
            let protocol = dice.pick(&["", "tcp ", "udp "]);
            format!("{protocol}{direction}portrange {}-{}", port(dice), port(dice))
        }
        3 | 4 => {
            let [a, b, c, d] = dice.pick(&HOSTS);
            let protocol = dice.pick(&["", "ip ", "arp ", "rarp "]);
            format!("{protocol}{direction}host {a}.{b}.{c}.{d}")
        }
        5 => {
            let net = dice.pick(&[
                "10",
                "10.0",
                "10.1.2",
                "10.0.0.0/8",
                "10.0.0.0/31",
                "192.0.2.0/24",
                "0.0.0.0/0",
                "10.1.0.0 mask 255.255.0.0",
                "10.0.0.1",
            ]);
            format!("{}{direction}net {net}", dice.pick(&["", "ip ", "arp "]))
        }
        6 => format!("{}{direction}host {}", dice.pick(&["", "ip6 "]), dice.pick(&HOSTS6)),
        7 => {
            let net = dice.pick(&[
                "2001:db8::/32",
                "2001:db8::/33",
                "fe80::/10",
                "::/0",
                "2001:db8::1/128",
            ]);
            format!("{}{direction}net {net}", dice.pick(&["", "ip6 "]))
        }
        8 => {
            let [a, b, c, d, e, f] = dice.pick(&STATIONS);
            let host = dice.pick(&["host ", ""]);
            let host = if direction.is_empty() { "host " } else { host };
            format!("ether {direction}{host}{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
        }
        9 => dice
            .pick(&[
                "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "esp",
                "ah", "pim", "vrrp",
            ])
            .to_string(),
        10 => format!("{}proto {}", dice.pick(&["", "ip ", "ip6 "]), dice.pick(&CARRIED)),
        11 => format!("ether proto {}", dice.pick(&["0x800", "0x806", "34525", "0x88cc"])),
        12 => dice
            .pick(&["broadcast", "ether broadcast", "multicast", "ip multicast", "ip6 multicast"])
            .to_string(),
        13 => format!("{} {}", dice.pick(&["less", "greater"]), dice.roll(90)),
        14 => {
            let field = dice.pick(&[
                "len",
                "ip[8]",
                "ip[6:2] & 0x1fff",
                "tcp[tcpflags] & (tcp-syn|tcp-ack)",
                "tcp[0:2]",
                "udp[4:2]",
                "ether[0] & 1",
                "ether[12:2]",
                "icmp[icmptype]",
                "icmp6[0]",
                "arp[6:2]",
                "ip6[6]",
                "sctp[2:2]",
                "(ip[0] & 0xf)",
                "igmp[0]",
                "ether[40:4]",
                "tcp[13] & 0x3f & 7",
            ]);
            let operator = dice.pick(&["=", "==", "!=", ">", "<", ">=", "<="]);
            format!(
                "{field} {operator} {}",
                dice.pick(&["0", "2", "5", "8", "53", "0x800", "64", "1 << 1"])
            )
        }
        _ => {
            let [one, other] = [port(dice), port(dice)];
            dice.pick(&[
                format!("{direction}port {one} or {other}").as_str(),
                format!("tcp {direction}port ({one} or {other})").as_str(),
                format!("{direction}host 10.0.0.1 or not 10.1.2.3").as_str(),
                format!("{direction}port {one} and not {other} or tcp").as_str(),
            ])
            .to_string()
        }
    }
}

fn expression(dice: &mut Dice, depth: usize) -> String {
    if depth == 0 || dice.roll(3) == 0 {
        return primitive(dice);
    }
    let left = expression(dice, depth - 1);
    match dice.roll(6) {
        0 => format!("not ({left})"),
        1 => format!("! {}", primitive(dice)),
        2 => format!("({left}) and ({})", expression(dice, depth - 1)),
        3 => format!("({left}) || ({})", expression(dice, depth - 1)),
        4 => format!("{left} or {}", expression(dice, depth - 1)),
        _ => format!("{left} and {}", expression(dice, depth - 1)),
    }
}

fn frame(dice: &mut Dice) -> Vec<u8> {
    let mut frame = [dice.pick(&STATIONS), dice.pick(&STATIONS)].concat();
    let kind = dice.pick(&[0x0800u16, 0x0800, 0x0800, 0x86dd, 0x86dd, 0x0806, 0x8035, 0x88cc]);
    frame.extend(kind.to_be_bytes());
    let mut noise: Vec<u8> = (0..100).map(|_| dice.roll(256) as u8).collect();
    let transport = |dice: &mut Dice, bytes: &mut [u8]| {
        bytes[..2].copy_from_slice(&dice.pick(&PORTS).to_be_bytes());
        bytes[2..4].copy_from_slice(&dice.pick(&PORTS).to_be_bytes());
        bytes[13] = dice.roll(64) as u8;
    };
    match kind {
        0x0800 => {
            let words = 5 + dice.pick(&[0, 0, 0, 1, 3]);
            noise[0] = 0x40 | words as u8;
            let fragment = dice.pick(&[0u16, 0, 0, 0x4000, 0x2000, 0x2010, 1]);
            noise[6..8].copy_from_slice(&fragment.to_be_bytes());
            noise[8] = dice.pick(&[1, 64, 255]);
            noise[9] = dice.pick(&CARRIED);
            noise[12..16].copy_from_slice(&dice.pick(&HOSTS));
            noise[16..20].copy_from_slice(&dice.pick(&[HOSTS[0], HOSTS[2], [224, 0, 0, 1]]));
            transport(dice, &mut noise[4 * words..]);
        }
        0x86dd => {
            noise[0] = 0x60;
            noise[6] = dice.pick(&CARRIED);
            for place in [8, 24] {
                let host: std::net::Ipv6Addr = dice.pick(&HOSTS6).parse().unwrap();
                noise[place..place + 16].copy_from_slice(&host.octets());
            }
            noise[24] = dice.pick(&[noise[24], noise[24], 0xff]);
            noise[40] = dice.pick(&CARRIED);
            let upper = if noise[6] == 44 { 48 } else { 40 };
            transport(dice, &mut noise[upper..]);
        }
        0x0806 | 0x8035 => {
            noise[14..18].copy_from_slice(&dice.pick(&HOSTS));
            noise[24..28].copy_from_slice(&dice.pick(&HOSTS));
        }
        _ => {}
    }
    frame.extend(noise);
    frame
}

/// Many alternatives, as in a list of hosts and ports.
fn alternatives(dice: &mut Dice) -> String {
    let all: Vec<String> = (0..3 + dice.roll(9)).map(|_| primitive(dice)).collect();
    all.join(" or ")
}

/// Whole frames, and frames that end anywhere. libpcap's optimizer may leave out a field that does not matter,
/// and that of version 1.10.3 gets `ip6 net 2001:db8::/33 and ip6 src net 2001:db8::/33` wrong: it
/// is left out.
#[test]
fn expressions_mean_what_they_mean_to_libpcap() {
    if by_libpcap("ip", true).unwrap().is_none() {
        println!("skipped: expressions_mean_what_they_mean_to_libpcap: libpcap is not installed");
        return;
    }
    let mut dice = Dice(0x5eed_cafe_f00d_0001);
    let (mut compiled, mut counts) = (0, [0; 2]);
    for round in 0..6000 {
        let expression = match round % 5 {
            4 => alternatives(&mut dice),
            depth => expression(&mut dice, depth),
        };
        let Ok(ours) = compile(&expression) else { continue };
        let ours = Program::new(ours).unwrap_or_else(|error| panic!("{expression}: {error}"));
        let theirs =
            by_libpcap(&expression, false).unwrap_or_else(|error| panic!("{error}")).unwrap();
        compiled += 1;
        for _ in 0..60 {
            let whole = frame(&mut dice);
            for frame in [&whole[..], &whole[..dice.roll(100)]] {
                let expected = theirs.run(frame) != 0;
                assert_eq!(ours.run(frame) != 0, expected, "{expression}\n{frame:02x?}\n{ours:#?}");
                counts[usize::from(expected)] += 1;
            }
        }
    }
    assert!(compiled > 5000 && counts.iter().all(|count| *count > 50_000), "{compiled} {counts:?}");
}

#[test]
fn what_people_write_is_compiled_here() {
    for expression in [
        "",
        "tcp port 80",
        "udp and dst port 7",
        "not port 22 and host 10.0.0.1",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 192.168.0.0/16",
        "port 80 or 443 or (8080 or 8443)",
        "ether host 02:00:00:00:00:01 && !arp",
        "icmp[icmptype] = icmp-echo or icmp[icmptype] = icmp-echoreply",
        "ip6 net 2001:db8::/32 and tcp portrange 1024-65535",
        "ip[6:2] & 0x1fff = 0",
    ] {
        let program = compile(expression).unwrap_or_else(|why| panic!("{expression}: {why:?}"));
        assert!(Program::new(program).is_ok(), "{expression}");
    }
}

#[test]
fn what_is_left_out_is_named() {
    for (expression, why) in [
        ("vlan 5", "'vlan'"),
        ("port http", "'http' there"),
        ("host example.org", "'example.org' there"),
        ("host 10.1", "'10.1' there"),
        ("net 10.0.0.1/8", "'10.0.0.1' there"),
        ("port 65536", "'65536' there"),
        ("tcp host 10.0.0.1", "an IPv4 address there"),
        ("icmp port 80", "a port there"),
        ("ip proto \\tcp", "'\\'"),
        ("tcp port", "its end"),
        ("(tcp", "a missing ')'"),
        ("tcp)", "')'"),
        ("ip broadcast", "'broadcast' there"),
        ("ip and arp", "what no packet fulfils"),
        ("ip[0:3] = 1", "'['"),
    ] {
        let problem = compile(expression).expect_err(expression);
        assert!(problem.0.contains(why), "{expression}: {problem:?}");
    }
    let long = vec!["tcp port 80 and ip[8] = 3"; 5000].join(" or ");
    assert!(compile(&long).is_err());
    assert!(compile(&"(".repeat(100_000)).is_err());
    assert!(compile(&"not ".repeat(100_000)).is_err());
}

/// Of similar conditions only what differs is left.
#[test]
fn what_is_known_is_not_asked_again() {
    let length = |ports: usize| {
        let terms: Vec<String> = (1..=ports).map(|port| format!("tcp dst port {port}")).collect();
        compile(&terms.join(" or ")).unwrap().len()
    };
    // One comparison for IPv4 and one for IPv6.
    assert_eq!(length(18) - length(17), 2, "{} {}", length(18), length(17));
    // Where a jump is too far for its byte another one stands behind it.
    assert!(length(140) - length(40) <= 100 * 6, "{} {}", length(140), length(40));
}

/// Alternatives of the same field stand together, and load it once.
#[test]
fn a_field_is_loaded_once_for_all_alternatives() {
    let loads = |terms: usize| {
        let terms: Vec<String> =
            (1..=terms).map(|n| format!("host 10.0.0.{n} or udp port {}", 1000 + n)).collect();
        let program = compile(&format!("ip and ({})", terms.join(" or "))).unwrap();
        program.iter().filter(|instruction| instruction.code & 7 == 0).count()
    };
    assert_eq!(loads(20), loads(3));
}

/// Where many ways lead into the same alternatives, they are not sorted for each.
#[test]
fn alternatives_of_many_ways_stay_short() {
    let block = |n: usize| {
        let last: Vec<String> =
            (0..8).map(|k| format!("ether[3] = {}", (8 * n + k) % 256)).collect();
        format!("(ether[0] = {n} and ether[1] = {n}) or ether[2] = {n} or {}", last.join(" or "))
    };
    let all: Vec<String> = (1..=26).map(block).collect();
    let length = compile(&all.join(" or ")).unwrap().len();
    assert!(length < 2000, "{length}");
}
