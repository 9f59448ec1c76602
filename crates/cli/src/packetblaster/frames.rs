//! Frames to send: made up, or out of a capture.

use std::fs::File;
use std::io::BufReader;
use std::net::IpAddr;
use std::path::Path;

use ::engine::pcap::{ETHERNET, Reader, link_type_name};
use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;

/// The frame check sequence, which hardware adds.
const FCS: usize = 4;
/// On a wire each frame has these on top: preamble, check sequence, gap.
pub const ON_WIRE: usize = 24;
/// Packets that are built before the start; 2 KiB of memory each.
const MOST: usize = 1 << 18;
/// Longest frame that an AF_XDP socket of the engine sends.
pub const LONGEST: usize = 1792;
/// Seven of 64 bytes, four of 594, one of 1518, spread as in common use of the name.
const IMIX: [u16; 12] = [64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64];

/// What made-up packets look like; `loadtest` takes the same.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Packets")]
pub struct Frames {
    /// Sizes with frame check sequence, one after the other
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u16).range(64..=1796))]
    pub sizes: Vec<u16>,
    /// The Internet mix: 7 packets of 64 bytes, 4 of 594, 1 of 1518
    #[arg(long, conflicts_with = "sizes")]
    pub imix: bool,
    /// Source MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:01", value_parser = parse_mac)]
    pub src_mac: [u8; 6],
    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02", value_parser = parse_mac)]
    pub dst_mac: [u8; 6],
    /// Source address, IPv4 or IPv6
    #[arg(long, value_name = "IP", default_value = "198.18.0.1")]
    pub src: std::net::IpAddr,
    /// Destination address of the same family
    #[arg(long, value_name = "IP", default_value = "198.19.0.1")]
    pub dst: std::net::IpAddr,
    /// UDP source port of the first flow
    #[arg(long, value_name = "PORT", default_value_t = 1024)]
    pub sport: u16,
    /// UDP destination port
    #[arg(long, value_name = "PORT", default_value_t = 9)]
    pub dport: u16,
    /// Flows: source ports, then source addresses, count up
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,
}

/// Where the UDP payload of made-up frames begins.
pub fn payload_offset(frames: &Frames) -> usize {
    14 + if frames.src.is_ipv4() { 20 } else { 40 } + 8
}

/// All frames of the sizes and flows that are asked for, in the order in which they are sent.
pub fn synth(frames: &Frames) -> Result<Vec<Vec<u8>>> {
    let (src, dst) = (frames.src, frames.dst);
    ensure!(
        src.is_ipv4() == dst.is_ipv4(),
        "--src {src} and --dst {dst} are of different families"
    );
    let sizes: &[u16] = if frames.imix { &IMIX } else { &frames.sizes };
    let flows = frames.flows as usize;
    let count = sizes.len() / gcd(sizes.len(), flows) * flows;
    ensure!(
        count <= MOST,
        "{count} different packets are more than {MOST}: use fewer flows or sizes"
    );
    (0..count)
        .map(|number| frame(frames, usize::from(sizes[number % sizes.len()]) - FCS, number % flows))
        .collect()
}

fn frame(frames: &Frames, length: usize, flow: usize) -> Result<Vec<u8>> {
    let ports = 1 << 16;
    let first = usize::from(frames.sport);
    let port = ((first + flow) % ports) as u16;
    let (src, dst) = (advance(frames.src, ((first + flow) / ports) as u128), frames.dst);
    let headers = payload_offset(frames);
    ensure!(
        length >= headers,
        "packets of {} bytes are too short for these headers: use --sizes {}",
        length + FCS,
        headers + FCS
    );
    let ethernet = PacketBuilder::ethernet2(frames.src_mac, frames.dst_mac);
    let ip = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet.ipv6(src.octets(), dst.octets(), 64),
        _ => unreachable!("`synth` checked that they are of one family"),
    };
    let mut bytes = Vec::with_capacity(length);
    ip.udp(port, frames.dport)
        .write(&mut bytes, &payload(length - headers))
        .context("cannot make a packet")?;
    Ok(bytes)
}

/// A word and its complement, if there is room for both: the checksum is then right whatever the
/// word becomes, see [`stamp`].
fn payload(length: usize) -> Vec<u8> {
    let mut payload = vec![0; length];
    if length >= STAMP {
        payload[8..STAMP].fill(0xff);
    }
    payload
}

/// Bytes that a stamp takes.
pub const STAMP: usize = 16;

/// Writes a number where [`payload`] left room for it. The Internet checksum stays as it is, since
/// the sum of a word and its complement is that of zeros and ones (RFC 1071).
pub fn stamp(payload: &mut [u8], number: u64) {
    payload[..8].copy_from_slice(&number.to_be_bytes());
    payload[8..STAMP].copy_from_slice(&(!number).to_be_bytes());
}

/// The number, if it was written by [`stamp`] or is the zero of a packet without one.
pub fn stamped(payload: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_be_bytes(payload.get(at..at + 8)?.try_into().ok()?));
    let number = word(0)?;
    (word(8)? == !number).then_some(number)
}

fn advance(address: IpAddr, by: u128) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(address.to_bits().wrapping_add(by as u32).into()),
        IpAddr::V6(address) => IpAddr::V6(address.to_bits().wrapping_add(by).into()),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// All packets of a capture.
pub fn load(path: &Path) -> Result<Vec<Vec<u8>>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut reader =
        Reader::new(BufReader::new(file)).with_context(|| path.display().to_string())?;
    let mut frames = Vec::new();
    while let Some(record) = reader.next().with_context(|| path.display().to_string())? {
        let number = frames.len() + 1;
        ensure!(
            record.link_type == ETHERNET,
            "{}: packet {number} is of link type {} ({}), only Ethernet can be sent",
            path.display(),
            record.link_type,
            link_type_name(record.link_type)
        );
        ensure!(
            (14..=LONGEST).contains(&record.data.len()),
            "{}: packet {number} has {} bytes; from 14 to {LONGEST} can be sent",
            path.display(),
            record.data.len()
        );
        ensure!(
            number <= MOST,
            "{} has more than {MOST} packets: cut it with `editcap -r`",
            path.display()
        );
        frames.push(record.data.to_vec());
    }
    ensure!(!frames.is_empty(), "{} has no packets", path.display());
    Ok(frames)
}

/// `02:00:00:00:00:01`
fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() <= 2))
        .collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "give a MAC address such as 02:00:00:00:00:01".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn frames(words: &str) -> Frames {
        let command = Frames::augment_args(clap::Command::new("x"));
        let matches = command.get_matches_from(["x"].into_iter().chain(words.split_whitespace()));
        Frames::from_arg_matches(&matches).unwrap()
    }

    fn sum(bytes: &[u8]) -> u16 {
        let sum = bytes.chunks(2).fold(0u32, |sum, pair| {
            sum + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        });
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    #[test]
    fn sizes_and_flows_take_turns() {
        let all = synth(&frames("--sizes 64,128 --flows 3")).unwrap();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [60, 124, 60, 124, 60, 124]);
        let ports: Vec<u16> =
            all.iter().map(|frame| u16::from_be_bytes([frame[34], frame[35]])).collect();
        assert_eq!(ports, [1024, 1025, 1026, 1024, 1025, 1026]);
        let imix = synth(&frames("--imix")).unwrap();
        assert_eq!(
            (imix.len(), imix.iter().map(Vec::len).sum::<usize>()),
            (12, 7 * 60 + 4 * 590 + 1514)
        );
    }

    #[test]
    fn flows_go_on_with_the_next_address() {
        let all = synth(&frames("--sport 65535 --flows 2")).unwrap();
        assert_eq!(all[0][26..30], [198, 18, 0, 1]);
        assert_eq!((&all[1][26..30], &all[1][34..36]), (&[198, 18, 0, 2][..], &[0, 0][..]));
    }

    #[test]
    fn checksums_stay_right_under_a_stamp() {
        for words in ["", "--src fd00::1 --dst fd00::2 --sizes 100"] {
            let arguments = frames(words);
            let at = payload_offset(&arguments);
            let mut frame = synth(&arguments).unwrap().remove(0);
            let addresses = if arguments.src.is_ipv4() { 26 } else { 22 };
            let whole = |frame: &[u8]| {
                let length = (frame.len() - at + 8) as u16;
                u32::from(sum(&frame[addresses..])) + u32::from(length) + 17
            };
            let right = |total: u32| (total >> 16) + (total & 0xffff) == 0xffff;
            assert!(right(whole(&frame)), "{words}");
            assert_eq!(stamped(&frame[at..]), Some(0));
            stamp(&mut frame[at..], 0x0123_4567_89ab_cdef);
            assert!(right(whole(&frame)), "{words}, stamped");
            assert_eq!(stamped(&frame[at..]), Some(0x0123_4567_89ab_cdef));
            frame[at] ^= 1;
            assert_eq!(stamped(&frame[at..]), None);
        }
    }

    #[test]
    fn what_cannot_be_made_is_told() {
        for (words, part) in [
            ("--src fd00::1", "different families"),
            ("--src fd00::1 --dst fd00::2 --sizes 64", "--sizes 66"),
            ("--flows 1000000", "more than"),
        ] {
            let said = synth(&frames(words)).unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn mac_addresses() {
        assert_eq!(parse_mac("02:00:0:00:00:ff"), Ok([2, 0, 0, 0, 0, 255]));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:01",
            "02:00:00:00:00:001",
            "zz:00:00:00:00:00",
        ] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
    }
}
