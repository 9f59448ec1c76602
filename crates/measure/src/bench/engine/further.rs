//! Apps that do more with a packet: fragments, flows, connections and tunnels; and what they are for,
//! at the lengths where it shows.

use std::path::Path;

use ::engine::Config;
use ::engine::pcap::Writer;
use anyhow::{Context, Result, anyhow};
use etherparse::PacketBuilder;
use toml::{Table, Value};

use super::Run;
use super::instances::{Hop, MANY, between, datagram, hop, through};
use super::memory::rate;

const OUTER: &str = "outer = { local = '203.0.113.1', remote = '203.0.113.2', \
     mac = '02:00:00:00:00:01', next_hop = '02:00:00:00:00:02' }\n";
const OUTER_V6: &str = "outer = { local = 'fd00::1', remote = 'fd00::2', \
     mac = '02:00:00:00:00:01', next_hop = '02:00:00:00:00:02' }\n";
const COLLECTOR: &str = "collector = { local = '203.0.113.1', remote = '203.0.113.2', \
     mac = '02:00:00:00:00:01', next_hop = '02:00:00:00:00:02' }\n";

const fn tunnel(name: &'static str, kind: &'static str, args: &'static str) -> Hop {
    Hop { name, more: OUTER, ..between(kind, args, "inner", "outer") }
}

/// They let datagrams of 60 bytes pass; a kind each, or a way of one.
pub static FURTHER_HOPS: [Hop; MANY] = [
    hop("Fragmenter", "mtu = 1500"),
    hop("Reassembler", ""),
    hop("Rss", ""),
    between("Acl", "default = 'allow'", "inside", "outside"),
    Hop { name: "Acl, 16 rules", ..between("Acl", RULES, "inside", "outside") },
    between("Nat", "address = '203.0.113.1'", "inside", "outside"),
    tunnel("Gre", "Gre", "key = 1"),
    tunnel("Gre, checksum", "Gre", "key = 1\nchecksum = true\nsequence = true"),
    tunnel("Gre, IP", "Gre", "mode = 'ip'"),
    tunnel("Vxlan", "Vxlan", "vni = 1"),
    Hop { more: OUTER_V6, ..tunnel("Vxlan over IPv6", "Vxlan", "vni = 1") },
    tunnel("L2tpv3", "L2tpv3", "session = 7\npeer_session = 9\npeer_cookie = 'fedcba98'"),
    tunnel("L2tpv3 over UDP", "L2tpv3", "session = 7\npeer_session = 9\ncarrier = 'udp'"),
    ESP_128,
    ESP_256,
    Hop { more: COLLECTOR, ..hop("Ipfix", "") },
];

const ESP_128: Hop = tunnel(
    "Esp, AES-128",
    "Esp",
    "send = { spi = 256, key = '000102030405060708090a0b0c0d0e0f00010203' }
receive = { spi = 257, key = '0f0102030405060708090a0b0c0d0e0f00010203' }
esn = true",
);
const ESP_256: Hop = tunnel(
    "Esp, AES-256",
    "Esp",
    "send = { spi = 256, key = '000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00010203' }
receive = { spi = 257, key = '0f0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00010203' }
esn = true",
);

/// The first packet of a connection meets them all; those after it find the connection.
const RULES: &str = "rules = [
    { action = 'deny', from = 'outside', source = '10.0.0.0/8' },
    { action = 'deny', from = 'outside', source = '172.16.0.0/12' },
    { action = 'deny', from = 'outside', source = '192.168.0.0/16' },
    { action = 'deny', from = 'outside', source = '100.64.0.0/10' },
    { action = 'deny', from = 'outside', source = '127.0.0.0/8' },
    { action = 'deny', from = 'outside', source = '169.254.0.0/16' },
    { action = 'deny', from = 'inside', protocol = 'tcp', ports = [25, 25] },
    { action = 'deny', from = 'inside', protocol = 'tcp', ports = [135, 139] },
    { action = 'deny', from = 'inside', protocol = 'tcp', ports = [445, 445] },
    { action = 'deny', from = 'inside', protocol = 'udp', ports = [135, 139] },
    { action = 'deny', from = 'inside', protocol = 'udp', ports = [1900, 1900] },
    { action = 'allow', from = 'outside', protocol = 'tcp', ports = [80, 80] },
    { action = 'allow', from = 'outside', protocol = 'tcp', ports = [443, 443] },
    { action = 'allow', from = 'outside', protocol = 'icmp' },
    { action = 'deny', from = 'outside' },
    { action = 'allow', from = 'inside' },
]";

/// What is repeated.
#[derive(Clone, Copy, PartialEq)]
enum Frames {
    /// A datagram of 1442 bytes.
    Long,
    /// The same in three pieces.
    Pieces,
    /// A datagram of 60 bytes without the address of a station.
    Short,
}

const FRAMES: [Frames; 3] = [Frames::Long, Frames::Pieces, Frames::Short];
/// Longest IP packet of the pieces.
const MTU: usize = 576;

impl Frames {
    /// The row of the same frames with an app that looks at nothing.
    fn limit(self) -> &'static str {
        match self {
            Frames::Long => "1442 B through a Join",
            Frames::Pieces => "three pieces of 1442 B through a Join",
            Frames::Short => "60 B of a recording through a Join",
        }
    }

    fn write(self, path: &Path) -> Result<()> {
        let mut frame = if self == Frames::Short { datagram()? } else { long()? };
        match self {
            Frames::Long => write(path, &[frame]),
            Frames::Pieces => write(path, &pieces(&frame)),
            Frames::Short => {
                frame[..6].fill(0);
                write(path, &[frame])
            }
        }
    }
}

/// A network that is fed with frames.
struct Work {
    name: &'static str,
    frames: Frames,
    build: fn(&mut Config, &Path) -> Result<()>,
}

static WORK: [Work; 6] = [
    Work {
        name: "Fragmenter: 1442 B into three pieces",
        frames: Frames::Long,
        build: |config, capture| through(config, capture, 0, &hop("Fragmenter", "mtu = 576")),
    },
    Work {
        name: "Reassembler: three pieces into 1442 B",
        frames: Frames::Pieces,
        build: |config, capture| through(config, capture, 0, &hop("Reassembler", "")),
    },
    Work {
        name: "Gre, checksum: 1442 B",
        frames: Frames::Long,
        build: |config, capture| {
            through(config, capture, 0, &tunnel("Gre", "Gre", "checksum = true"))
        },
    },
    Work {
        name: "Esp, AES-128: 1442 B",
        frames: Frames::Long,
        build: |config, capture| through(config, capture, 0, &ESP_128),
    },
    Work {
        name: "Esp, AES-256: 1442 B",
        frames: Frames::Long,
        build: |config, capture| through(config, capture, 0, &ESP_256),
    },
    Work {
        name: "Neighbour -> Neighbour, next hops by address, 60 B",
        frames: Frames::Short,
        build: neighbours,
    },
];

/// The names of rows, each with that of its limit.
pub fn rows() -> impl Iterator<Item = [&'static str; 2]> {
    WORK.iter().map(|work| [work.name, work.frames.limit()])
}

/// Millions of frames per second that the source repeats.
pub fn runs() -> Vec<Run> {
    let row = |name, frames: Frames, build: fn(&mut Config, &Path) -> Result<()>| {
        Run::new(name, move |seconds| {
            let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
            let capture = folder.path().join("frames.pcap");
            frames.write(&capture)?;
            let mut config = Config::new();
            build(&mut config, &capture)?;
            rate(&config, |link| link.from.app.starts_with("src"), seconds)
        })
    };
    let limits = FRAMES.map(|frames| {
        row(frames.limit(), frames, |config, capture| through(config, capture, 0, &hop("Join", "")))
    });
    limits
        .into_iter()
        .chain(WORK.iter().map(|work| row(work.name, work.frames, work.build)))
        .collect()
}

/// Two stations on one link: the first asks, the second answers.
fn neighbours(config: &mut Config, capture: &Path) -> Result<()> {
    let args = |text: &str| toml::from_str::<Table>(text);
    let file = Value::String(capture.display().to_string());
    let near = "mac = '02:00:00:00:00:01'
addresses = ['192.0.2.1']
routes = [{ prefix = '0.0.0.0/0', via = '192.0.2.9' }]";
    let far = "mac = '02:00:00:00:00:02'
addresses = ['192.0.2.9']";
    config
        .app("reader", "PcapReader", Table::from_iter([("file".to_string(), file)]))?
        .app("src", "Repeater", ())?
        .app("near", "Neighbour", args(near)?)?
        .app("far", "Neighbour", args(far)?)?
        .app("sink", "Sink", ())?;
    for link in [
        "reader.output -> src.input",
        "src.output -> near.north",
        "near.south -> far.south",
        "far.south -> near.south",
        "far.north -> sink.input",
    ] {
        config.link(link)?;
    }
    Ok(())
}

fn long() -> Result<Vec<u8>> {
    let headers = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 1], 64)
        .udp(9, 7);
    let mut frame = Vec::new();
    headers.write(&mut frame, &[7; 1400]).context("a frame")?;
    set_fragment(&mut frame, 0);
    Ok(frame)
}

/// The pieces of a frame, as [`MTU`] has them.
fn pieces(frame: &[u8]) -> Vec<Vec<u8>> {
    const HEADERS: usize = 34;
    let (data, length) = (&frame[HEADERS..], (MTU - 20) / 8 * 8);
    let piece = |(number, part): (usize, &[u8])| {
        let more = (number + 1) * length < data.len();
        let mut piece = [&frame[..HEADERS], part].concat();
        let total = (20 + part.len()) as u16;
        piece[16..18].copy_from_slice(&total.to_be_bytes());
        set_fragment(&mut piece, (u16::from(more) << 13) | (number * length / 8) as u16);
        piece
    };
    data.chunks(length).enumerate().map(piece).collect()
}

/// Sets flags and offset of an IPv4 packet, and its checksum.
fn set_fragment(frame: &mut [u8], word: u16) {
    frame[20..22].copy_from_slice(&word.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_ne_bytes());
}

/// Repeated so that a batch is full of them.
fn write(path: &Path, frames: &[Vec<u8>]) -> Result<()> {
    const TIMES: usize = 64;
    let failed = |(error, _)| anyhow!("cannot write {}: {error}", path.display());
    let longest = frames.iter().map(Vec::len).max().unwrap_or(0);
    let mut writer = Writer::create(path, longest).map_err(|error| failed((error, 0)))?;
    (0..TIMES)
        .flat_map(|_| frames)
        .try_for_each(|frame| writer.write(0, frame))
        .and_then(|()| writer.flush())
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::engine::{Engine, Options};

    /// Frames that the source has repeated, and that arrived behind the app.
    fn passed(work: &Work) -> (u64, u64) {
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("frames.pcap");
        work.frames.write(&capture).unwrap();
        let mut config = Config::new();
        (work.build)(&mut config, &capture).unwrap();
        let mut engine = Engine::new(Options::default());
        engine.configure(&config).unwrap();
        (0..300).for_each(|_| engine.breathe());
        let sum = |wanted: &dyn Fn(&::engine::config::LinkSpec) -> bool| {
            engine.links().filter(|(link, _)| wanted(link)).map(|(_, stats)| stats.rxpackets).sum()
        };
        let sent = sum(&|link| link.from.app.starts_with("src"));
        (sent, sum(&|link| link.to.app.starts_with("sink")))
    }

    #[test]
    fn frames_are_what_the_rows_say() {
        for work in &WORK {
            let (sent, arrived) = passed(work);
            assert!(sent > 1000, "{}", work.name);
            match work.name {
                name if name.starts_with("Fragmenter") => assert_eq!(arrived, 3 * sent),
                // The last packet may lack pieces, and the source begins anew once before it has read the
                // whole recording, in the middle of a packet: two pieces come twice.
                name if name.starts_with("Reassembler") => assert_eq!(arrived, (sent - 2) / 3),
                // Of those before the first answer only some can wait.
                name if name.starts_with("Neighbour") => assert!(arrived > sent - 1000),
                _ => assert_eq!(arrived, sent),
            }
        }
    }

    #[test]
    fn all_networks_run() {
        for run in runs() {
            let rates = (run.measure)(0.01).unwrap();
            assert!(rates.iter().all(|(_, rate)| *rate > 0.0), "{}", run.name);
        }
    }
}
