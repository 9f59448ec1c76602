//! What an engine shows to other processes, see [`crate::counters`].

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use crate::clock::monotonic;
use crate::config::LinkSpec;
use crate::counters::{LatencyFile, MOST, Record, RunDir};
use crate::engine::{Crossing, Engine, Node, Options};
use crate::link::LinkStats;
use crate::pool;

pub(super) const ENGINE: &[&str] = &[
    "breaths",
    "configs",
    "frees",
    "freebytes",
    "freebits",
    "live",
    "sleep_us",
    "crossed",
    "ns",
    "started_ns",
];
/// A link within a thread. Of one between threads each side shows its half.
pub(super) const LINK: &[&str] = &["txpackets", "txbytes", "txdrop", "rxpackets", "rxbytes"];
const SENDING: usize = 3;
/// Of every app, before its own.
pub(super) const APP: &[&str] = &["ns", "running"];

/// Records of links, and of apps, at most. Each is a file, which is made at the start and written a
/// thousand times a second: with twenty thousand of them an engine does nothing else.
const RECORDS: usize = 1024;

/// The records of an engine. Without a run directory there are none.
#[derive(Default)]
pub struct Publisher {
    dir: Option<Arc<RunDir>>,
    thread: usize,
    started: u64,
    engine: Option<(Record, LatencyFile)>,
    links: BTreeMap<LinkSpec, (Side, Record)>,
    apps: BTreeMap<String, (&'static str, Record)>,
    /// The first failure, to be told once.
    warning: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Both,
    Sending,
    Receiving,
}

impl Publisher {
    pub fn new(options: &Options) -> Self {
        Self {
            dir: options.run_dir.clone(),
            thread: options.thread,
            started: monotonic(),
            ..Self::default()
        }
    }

    fn engine(&mut self) -> Option<&(Record, LatencyFile)> {
        let dir = self.dir.as_ref()?;
        if self.engine.is_none() && self.warning.is_none() {
            let make = || {
                let folder = dir.object("engine", &self.thread.to_string())?;
                Ok((
                    Record::create(&folder.join("counters"), "", ENGINE)?,
                    LatencyFile::create(&folder.join("latency"))?,
                ))
            };
            match make() {
                Ok(records) => self.engine = Some(records),
                Err(error) => self.warn(&error),
            }
        }
        self.engine.as_ref()
    }

    fn warn(&mut self, error: &io::Error) {
        self.warning.get_or_insert_with(|| format!("some counters are not published: {error}"));
    }

    /// Makes the records of new objects and removes those of objects that are gone. The others stay
    /// as they are.
    fn follow(&mut self, links: &BTreeMap<LinkSpec, Side>, apps: &[&Node]) {
        let Some(dir) = self.dir.clone() else { return };
        self.links.retain(|name, (side, _)| links.get(name) == Some(side));
        let kinds: HashMap<&str, &str> =
            apps.iter().map(|node| (node.name.as_str(), node.info.name)).collect();
        self.apps.retain(|name, (kind, _)| kinds.get(name.as_str()) == Some(kind));
        for (spec, &side) in links {
            if self.links.contains_key(spec) || self.links.len() >= RECORDS {
                continue;
            }
            let (file, names) = match side {
                Side::Both => ("counters", LINK),
                Side::Sending => ("tx", &LINK[..SENDING]),
                Side::Receiving => ("rx", &LINK[SENDING..]),
            };
            match dir
                .object("links", &spec.to_string())
                .and_then(|folder| Record::create(&folder.join(file), "", names))
            {
                Ok(record) => drop(self.links.insert(spec.clone(), (side, record))),
                Err(error) => self.warn(&error),
            }
        }
        for node in apps {
            if self.apps.contains_key(&node.name) || self.apps.len() >= RECORDS {
                continue;
            }
            let names: Vec<&str> = APP.iter().chain(node.info.counters).copied().collect();
            let made = dir.object("apps", &node.name);
            match made
                .and_then(|folder| Record::create(&folder.join("counters"), node.info.name, &names))
            {
                Ok(record) => drop(self.apps.insert(node.name.clone(), (node.info.name, record))),
                Err(error) => self.warn(&error),
            }
        }
        if links.len().max(apps.len()) > RECORDS {
            self.warning.get_or_insert_with(|| {
                format!("counters of {RECORDS} apps and links are published, the others are not")
            });
        }
    }
}

impl Engine {
    /// After a new configuration.
    pub(super) fn publish_objects(&mut self) {
        let side = |spec: &LinkSpec| match self.crossings.get(spec) {
            None => Side::Both,
            Some(Crossing::Out(_)) => Side::Sending,
            Some(Crossing::In(_)) => Side::Receiving,
        };
        let links = self.links.keys().map(|spec| (spec.clone(), side(spec))).collect();
        self.publisher.follow(&links, &self.nodes.iter().collect::<Vec<_>>());
        self.publish();
        if let Some(dir) = &self.publisher.dir
            && let Ok(folder) = dir.object("engine", &self.publisher.thread.to_string())
        {
            self.watch.listen(&folder);
        }
        if let Some(warning) =
            self.publisher.warning.as_mut().map(std::mem::take).filter(|text| !text.is_empty())
        {
            self.notices.push(warning);
        }
    }

    /// Shows the present numbers.
    pub fn publish(&mut self) {
        if self.publisher.dir.is_none() {
            return;
        }
        let values = self.engine_values();
        if let Some((record, latency)) = self.publisher.engine() {
            record.write(&values);
            latency.write(self.latency.counts());
        }
        for (spec, (side, record)) in &self.publisher.links {
            if let Some(link) = self.links.get(spec) {
                record.write(&link_values(&link.stats(), *side));
            }
        }
        for (name, (_, record)) in &self.publisher.apps {
            if let Some(node) = self.node(name) {
                record.write(&node.values(self.clock.nanos(node.cycles)));
            }
        }
    }

    fn engine_values(&self) -> [u64; MOST] {
        let pool = pool::stats();
        // On the wire each packet has 24 bytes more: preamble, check sequence, gap.
        let bits = (pool.freebytes + 24 * pool.frees) * 8;
        let live = pool.live as u64;
        let (rest, now) = (self.pacer.rest(), monotonic());
        values(&[
            self.breaths,
            self.configs,
            pool.frees,
            pool.freebytes,
            bits,
            live,
            rest,
            self.crossed,
            now,
            self.publisher.started,
        ])
    }
}

impl Node {
    fn values(&self, nanos: u64) -> [u64; MOST] {
        let mut values = values(&[nanos, u64::from(self.app.is_some())]);
        let own = self.info.counters.len().min(MOST - APP.len());
        if let Some(app) = &self.app {
            app.counters(&mut values[APP.len()..APP.len() + own]);
        }
        values
    }
}

pub(super) fn link_values(stats: &LinkStats, side: Side) -> [u64; MOST] {
    let all = [stats.txpackets, stats.txbytes, stats.txdrop, stats.rxpackets, stats.rxbytes];
    match side {
        Side::Both => values(&all),
        Side::Sending => values(&all[..SENDING]),
        Side::Receiving => values(&all[SENDING..]),
    }
}

pub(super) fn values(first: &[u64]) -> [u64; MOST] {
    let mut values = [0; MOST];
    values[..first.len()].copy_from_slice(first);
    values
}
