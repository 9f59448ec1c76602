//! One app beside others: what a packet costs where the app is alone, and where sixteen are in one
//! engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::engine::batch::BATCH;
use ::engine::pcap::Writer;
use ::engine::{Config, Link, Packet};
use anyhow::{Context, Result, anyhow};
use etherparse::PacketBuilder;
use toml::{Table, Value};

use super::further::FURTHER_HOPS;
use super::memory::{HOP, Rounds, chain, in_turns, rounds_of};
use super::{Rates, Run};
use crate::processors::pinned;

/// Instances of an app beside each other, and kinds.
pub const MANY: usize = 16;

/// An app that lets the recorded frames pass, and works on them as it does on any.
pub struct Hop {
    /// What it is called in rows: its kind, and what it does where a kind is there more than once.
    pub name: &'static str,
    pub kind: &'static str,
    pub args: &'static str,
    /// Arguments that several have.
    pub more: &'static str,
    pub input: &'static str,
    pub output: &'static str,
}

pub const fn hop(kind: &'static str, args: &'static str) -> Hop {
    between(kind, args, "input", "output")
}

pub const fn between(
    kind: &'static str,
    args: &'static str,
    input: &'static str,
    output: &'static str,
) -> Hop {
    Hop { name: kind, kind, args, more: "", input, output }
}

static HOPS: [Hop; MANY] = [
    hop("Join", ""),
    hop("Sample", "every = 1"),
    hop("Split", ""),
    hop("Tee", ""),
    hop("RateLimiter", "rate = 1e15"),
    hop("DelayedStart", "delay = 0.0"),
    hop("Truncate", "length = 60"),
    hop("PcapFilter", "filter = 'udp and dst port 7'"),
    between("Bridge", "", "left", "right"),
    hop("Tagger", "tag = 5"),
    hop(UNTAGGER, "tag = 5"),
    between("VlanMux", "", "trunk", "native"),
    between("Neighbour", "mac = '02:00:00:00:00:02'\naddresses = ['192.0.2.9']", "south", "north"),
    between(
        "Forwarder",
        "ports = { left = '02:00:00:00:00:02', right = '02:00:00:00:00:03' }\n\
         routes = [{ prefix = '198.51.100.0/24', port = 'right', mac = '02:00:00:00:00:04' }]",
        "left",
        "right",
    ),
    hop("Checksum", "mode = 'verify'"),
    hop("Crash", "packets = 9223372036854775807"),
];

/// It takes frames with a tag.
const UNTAGGER: &str = "Untagger";

pub const ONE: &str = "one instance alone";
pub const SAME: &str = "16 instances of one kind";
pub const KINDS: &str = "16 instances of 16 kinds";
pub const FURTHER: &str = "16 instances that do more";

/// What the networks send copies of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Originals {
    /// One packet, as `Source` does.
    Template,
    /// A batch of packets, as `Repeater` does with a recording.
    Recording,
    /// As the former, beside those that do more: measured again, in their turns.
    Further,
}

/// What memory alone costs, by the number of networks.
pub fn memory_of(count: usize, originals: Originals) -> String {
    match originals {
        Originals::Template => format!("memory of {count} without apps"),
        Originals::Recording => format!("memory of {count} with recordings, without apps"),
        Originals::Further => format!("memory of {count} beside those that do more, without apps"),
    }
}

/// The rows of the kinds, each alone.
pub fn alone() -> impl Iterator<Item = String> {
    HOPS.iter().map(|hop| format!("{} alone", hop.name))
}

/// Those of the hops that do more.
pub fn further_alone() -> impl Iterator<Item = String> {
    FURTHER_HOPS.iter().map(|hop| format!("{} alone", hop.name))
}

/// One run for one kind and two for the kinds, in each of which all that is compared takes turns.
pub fn runs() -> Result<Vec<Run>> {
    let recording = Arc::new(Recording::new()?);
    let same = |seconds: f64| {
        let chains = |count: usize| {
            network(|config| (0..count).try_for_each(|number| chain(config, 60, number, &[HOP])))
        };
        let networks = vec![(ONE.to_string(), chains(1)?), (SAME.to_string(), chains(MANY)?)];
        measure(networks, Originals::Template, seconds)
    };
    let kinds = |all: &'static str, hops: &'static [Hop; MANY], originals| {
        let recording = recording.clone();
        Run::several(all, move |seconds| {
            let through = |config: &mut Config, number: usize| {
                recording.through(config, number, &hops[number])
            };
            let mut networks = hops
                .iter()
                .enumerate()
                .map(|(number, hop)| {
                    let name = format!("{} alone", hop.name);
                    Ok((name, network(|config| through(config, number))?))
                })
                .collect::<Result<Vec<_>>>()?;
            let together =
                network(|config| (0..MANY).try_for_each(|number| through(config, number)))?;
            networks.push((all.to_string(), together));
            measure(networks, originals, seconds)
        })
    };
    Ok(vec![
        Run::several(SAME, same),
        kinds(KINDS, &HOPS, Originals::Recording),
        kinds(FURTHER, &FURTHER_HOPS, Originals::Further),
    ])
}

fn network(fill: impl FnOnce(&mut Config) -> Result<()>) -> Result<Config> {
    let mut config = Config::new();
    fill(&mut config)?;
    Ok(config)
}

/// The networks and what their memory alone costs, in turns.
fn measure(networks: Vec<(String, Config)>, originals: Originals, seconds: f64) -> Result<Rates> {
    pinned(move || {
        let mut names = Vec::new();
        let mut rounds = Vec::new();
        for (name, config) in networks {
            names.push(name);
            rounds.push(rounds_of(&config, |link| link.from.app.starts_with("src"))?);
        }
        for count in [1, MANY] {
            names.push(memory_of(count, originals));
            rounds.push(bare_links(count, originals));
        }
        Ok(names.into_iter().zip(in_turns(rounds, seconds)).collect())
    })?
}

/// A datagram of 60 bytes, which every kind has something to do with.
pub fn datagram() -> Result<Vec<u8>> {
    let headers = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 1], 64)
        .udp(9, 7);
    let mut frame = Vec::new();
    headers.write(&mut frame, &[0; 18]).context("a frame")?;
    Ok(frame)
}

/// Captures of one datagram, without and with a tag.
struct Recording {
    folder: tempfile::TempDir,
}

impl Recording {
    fn new() -> Result<Recording> {
        let this =
            Recording { folder: tempfile::tempdir().context("cannot make a temporary directory")? };
        let mut frame = datagram()?;
        write(&this.path(false), &frame, BATCH)?;
        frame.splice(12..12, [0x81, 0, 0, 5]);
        write(&this.path(true), &frame, BATCH)?;
        Ok(this)
    }

    fn path(&self, tagged: bool) -> PathBuf {
        self.folder.path().join(if tagged { "tagged.pcap" } else { "plain.pcap" })
    }

    /// A repeated recording, a hop and a sink.
    fn through(&self, config: &mut Config, number: usize, hop: &Hop) -> Result<()> {
        through(config, &self.path(hop.kind == UNTAGGER), number, hop)
    }
}

/// A capture that is repeated, a hop and a sink.
pub fn through(config: &mut Config, capture: &Path, number: usize, hop: &Hop) -> Result<()> {
    let Hop { kind, args, more, input, output, .. } = hop;
    let [reader, source, hop, sink] =
        ["reader", "src", "hop", "sink"].map(|name| format!("{name}{number}"));
    let file = Value::String(capture.display().to_string());
    config.app(&reader, "PcapReader", Table::from_iter([("file".to_string(), file)]))?;
    config
        .app(&source, "Repeater", ())?
        .app(&hop, kind, toml::from_str::<Table>(&format!("{more}{args}"))?)?
        .app(&sink, "Sink", ())?;
    config
        .link(&format!("{reader}.output -> {source}.input"))?
        .link(&format!("{source}.output -> {hop}.{input}"))?
        .link(&format!("{hop}.{output} -> {sink}.input"))?;
    Ok(())
}

/// A capture of `count` times the same frame.
pub fn write(path: &Path, frame: &[u8], count: usize) -> Result<()> {
    let failed = |(error, _)| anyhow!("cannot write {}: {error}", path.display());
    let mut writer = Writer::create(path, frame.len()).map_err(|error| failed((error, 0)))?;
    (0..count)
        .try_for_each(|_| writer.write(0, frame))
        .and_then(|()| writer.flush())
        .map_err(failed)
}

/// What the same packets cost in links alone: made, moved on and freed in the order of a breath,
/// without apps and engine. The difference between many and one is what the memory of many costs.
/// Each network has rings of its own and, as its source does, packets of its own that it copies;
/// the slots of the copies go round, since a network frees what it made before the next one begins.
fn bare_links(count: usize, originals: Originals) -> Rounds {
    let kept = if originals == Originals::Template { 1 } else { BATCH };
    let network = || {
        let packets: Vec<Packet> = (0..kept).filter_map(|_| Packet::from_slice(&[0; 60])).collect();
        (Link::new(), Link::new(), packets)
    };
    let networks: Vec<(Link, Link, Vec<Packet>)> = (0..count).map(|_| network()).collect();
    // One network after the other, as an engine does it.
    let breath = move || {
        for (first, second, packets) in &networks {
            match originals {
                Originals::Template => first.transmit_copies(&packets[0], BATCH),
                _ => first.transmit_copies_of(packets),
            };
            first.forward(second, usize::MAX);
            second.discard();
        }
    };
    Box::new(move |rounds| {
        (0..rounds).for_each(|_| breath());
        (rounds * count * BATCH) as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::engine::{Engine, Options};

    /// The filter among the kinds needs a library that is opened at run time.
    fn without_libpcap(name: &str) -> bool {
        let filter = Table::from_iter([("filter".to_string(), Value::String("udp".into()))]);
        let mut config = Config::new();
        config.app("filter", "PcapFilter", filter).unwrap();
        let missing = match Engine::new(Options::default()).configure(&config) {
            Err(error) => error.to_string().contains("not installed"),
            Ok(_) => false,
        };
        if missing {
            println!("skipped: {name}: libpcap is not installed");
        }
        missing
    }

    #[test]
    fn every_kind_lets_the_frames_pass() {
        if without_libpcap("every_kind_lets_the_frames_pass") {
            return;
        }
        let recording = Recording::new().unwrap();
        let all: Vec<&Hop> = HOPS.iter().chain(&FURTHER_HOPS).collect();
        let mut config = Config::new();
        for (number, hop) in all.iter().enumerate() {
            recording.through(&mut config, number, hop).unwrap();
        }
        let mut engine = Engine::new(Options::default());
        engine.configure(&config).unwrap();
        (0..20).for_each(|_| engine.breathe());
        for (number, hop) in all.iter().enumerate() {
            let arrived =
                engine.links().find(|(link, _)| link.to.app == format!("sink{number}")).unwrap().1;
            let sent =
                engine.links().find(|(link, _)| link.from.app == format!("src{number}")).unwrap().1;
            assert!(
                arrived.rxpackets > 0 && arrived.rxpackets == sent.rxpackets,
                "{}: {arrived:?}",
                hop.name
            );
        }
        let names: std::collections::HashSet<_> = all.iter().map(|hop| hop.name).collect();
        assert_eq!(names.len(), 2 * MANY);
    }

    #[test]
    fn all_networks_run() {
        if without_libpcap("all_networks_run") {
            return;
        }
        for run in runs().unwrap() {
            assert!(
                (run.measure)(0.01).unwrap().iter().all(|(_, rate)| *rate > 0.0),
                "{}",
                run.name
            );
        }
    }
}
