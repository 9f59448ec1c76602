//! Counters of a program that moves packets with one app and no engine, such as a packet blaster:
//! published as an engine's are, so that `ps` and `top` show it beside them.

use std::io;
use std::path::Path;

use super::publish::{APP, ENGINE, LINK, Side, link_values, values};
use crate::clock::monotonic;
use crate::counters::{Record, RunDir, RunDirError};
use crate::link::LinkStats;

/// Between two looks that others can have, in nanoseconds.
const PERIOD: u64 = 10_000_000;

/// What stands in the run directory as long as this lives.
pub struct Solo {
    engine: Record,
    links: Vec<Record>,
    apps: Vec<Record>,
    started: u64,
    turns: u64,
    next: u64,
    // Behind the records: their files go first.
    _dir: RunDir,
}

/// Why there is nothing to be seen from outside.
#[derive(Debug, thiserror::Error)]
pub enum SoloError {
    /// There is no folder for it.
    #[error(transparent)]
    Folder(#[from] RunDirError),
    /// A file in it could not be made.
    #[error("cannot publish counters: {0}")]
    File(#[from] io::Error),
}

impl Solo {
    /// Makes the files: for each app its name and kind, and links as
    /// [`LinkSpec`](crate::config::LinkSpec) writes them, from names of [`Self::name`].
    pub fn open(root: &Path, apps: &[(&str, &str)], links: &[&str]) -> Result<Self, SoloError> {
        let dir = RunDir::create(root)?;
        let record = |group: &str, name: &str, label: &str, names: &[&str]| {
            let folder = dir.object(group, name)?;
            Record::create(&folder.join("counters"), label, names)
        };
        let engine = record("engine", "0", "", ENGINE)?;
        let links =
            links.iter().map(|link| record("links", link, "", LINK)).collect::<Result<_, _>>()?;
        let apps = apps
            .iter()
            .map(|(name, kind)| record("apps", name, kind, APP))
            .collect::<Result<_, _>>()?;
        let started = monotonic();
        let mut solo = Self { engine, links, apps, started, turns: 0, next: 0, _dir: dir };
        solo.show(started, &[]);
        Ok(solo)
    }

    /// A name as one app's: paths and versions of interfaces have what separates names here.
    pub fn name(of: &str) -> String {
        let last = of.rsplit('/').next().unwrap_or(of);
        last.replace(['.', ' '], "_")
    }

    /// Counts a turn of the program; true if it is time to show the numbers.
    #[inline]
    pub fn is_due(&mut self, now: u64) -> bool {
        self.turns += 1;
        now >= self.next
    }

    /// Shows what passed each link, in the order of [`Self::open`].
    pub fn show(&mut self, now: u64, links: &[LinkStats]) {
        self.next = now + PERIOD;
        let (packets, bytes) = links.iter().fold((0, 0), |(packets, bytes), link| {
            (packets + link.rxpackets, bytes + link.rxbytes)
        });
        // As an engine counts: on the wire each packet has 24 bytes more.
        let bits = (bytes + 24 * packets) * 8;
        self.engine.write(&values(&[
            self.turns,
            1,
            packets,
            bytes,
            bits,
            0,
            0,
            0,
            now,
            self.started,
        ]));
        for (record, link) in self.links.iter().zip(links) {
            record.write(&link_values(link, Side::Both));
        }
        // The program is the first, and never rests; what it calls is in its time.
        for (place, record) in self.apps.iter().enumerate() {
            let spent = if place == 0 { now.saturating_sub(self.started) } else { 0 };
            record.write(&values(&[spent, 1]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::processes;

    #[test]
    fn it_is_read_as_an_engine_and_goes_with_its_program() {
        let root = tempfile::tempdir().unwrap();
        let name = Solo::name("/tmp/some.pcap");
        let link = format!("blaster.output -> {name}.input");
        let apps = [("blaster", "packetblaster"), (name.as_str(), "PcapWriter")];
        let mut solo = Solo::open(root.path(), &apps, &[&link]).unwrap();
        assert!(solo.is_due(u64::MAX));
        let stats = LinkStats { txpackets: 8, txbytes: 480, txdrop: 1, rxpackets: 7, rxbytes: 420 };
        solo.show(monotonic(), &[stats]);
        let found = processes(root.path()).unwrap();
        let tree = found[0].read().unwrap();
        assert_eq!(tree.links[&link].get("txpackets"), 8);
        assert_eq!(tree.apps["some_pcap"].label, "PcapWriter");
        assert_eq!(tree.engines[&0].counters.get("frees"), 7);
        assert!(link.parse::<crate::config::LinkSpec>().is_ok());
        drop(solo);
        assert!(processes(root.path()).unwrap().is_empty());
    }
}
