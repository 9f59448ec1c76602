//! The reader's side: `top`, `ps`, metrics.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::Acquire, fence};

use crate::counters::record::{LABEL, Latency, Layout, MAGIC, MOST, NAME, VALUES};
use crate::counters::tree::alive;
use crate::histogram::{BUCKETS, Histogram};

/// A process with an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number, in the PID namespace that it runs in.
    pub pid: u32,
    /// Its folder in the run directory.
    pub path: PathBuf,
    /// False for what a killed process left; the next engine to start removes it.
    pub alive: bool,
}

/// All processes under a run directory, by PID.
pub fn processes(root: &Path) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.split('.').next()?.parse().ok()) else {
            continue;
        };
        let path = entry.path();
        found.push(Process { pid, alive: alive(&path), path });
    }
    found.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    Ok(found)
}

/// The counters of one object at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// The kind of an app, otherwise empty.
    pub label: String,
    /// Counters by name.
    pub values: BTreeMap<String, u64>,
}

impl Object {
    /// A counter; 0 if there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }
}

/// An engine's own numbers.
#[derive(Clone, Default)]
pub struct EngineView {
    /// Its counters: breaths, packets freed, time.
    pub counters: Object,
    /// Durations of breaths in nanoseconds.
    pub latency: Histogram,
}

/// Everything that a process publishes.
#[derive(Clone, Default)]
pub struct Tree {
    /// By number of the thread.
    pub engines: BTreeMap<usize, EngineView>,
    /// By the link, as [`LinkSpec`](crate::config::LinkSpec) writes it.
    pub links: BTreeMap<String, Object>,
    /// By name of the app.
    pub apps: BTreeMap<String, Object>,
}

impl Process {
    /// Reads all counters. Objects that come or go meanwhile may be missing; each one by itself is
    /// consistent.
    pub fn read(&self) -> io::Result<Tree> {
        let mut tree = Tree::default();
        for (name, path) in folders(&self.path.join("engine")) {
            let (Ok(thread), Some(counters)) = (name.parse(), object(&path.join("counters")))
            else {
                continue;
            };
            let latency = latency(&path.join("latency")).unwrap_or_default();
            tree.engines.insert(thread, EngineView { counters, latency });
        }
        for (name, path) in folders(&self.path.join("links")) {
            // Each side of a link between threads publishes its half.
            let mut parts =
                ["counters", "tx", "rx"].into_iter().filter_map(|file| object(&path.join(file)));
            let Some(mut link) = parts.next() else { continue };
            parts.for_each(|part| link.values.extend(part.values));
            tree.links.insert(name, link);
        }
        let apps = folders(&self.path.join("apps")).into_iter();
        tree.apps =
            apps.filter_map(|(name, path)| Some((name, object(&path.join("counters"))?))).collect();
        fs::metadata(&self.path)?;
        Ok(tree)
    }
}

fn folders(path: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect()
}

/// The record is read by system calls, not mapped: a file that another user shortens must not end
/// the reader.
fn object(path: &Path) -> Option<Object> {
    let file = File::open(path).ok()?;
    let version = || {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, VALUES as u64).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let mut bytes = [0; size_of::<Layout>()];
    let mut before = version()?;
    for _ in 0..100 {
        // SYNC: snapshot. As in `shm::Snapshot::read`: even and unchanged means that the words between
        // belong together. The version is read by itself on both sides of them, for one call copies
        // in any order.
        fence(Acquire);
        file.read_exact_at(&mut bytes, 0).ok()?;
        fence(Acquire);
        let after = version()?;
        if before.is_multiple_of(2) && before == after {
            return parse(&bytes);
        }
        before = after;
    }
    None
}

fn parse(bytes: &[u8; size_of::<Layout>()]) -> Option<Object> {
    if word(bytes, 0) != MAGIC {
        return None;
    }
    let count = (word(bytes, 8) as usize).min(MOST);
    let label = text(&bytes[16..16 + LABEL]);
    let names = bytes[16 + LABEL..].chunks(NAME).map(text);
    let values = (0..count).map(|i| word(bytes, VALUES + 8 + i * 8));
    Some(Object { label, values: names.zip(values).collect() })
}

fn latency(path: &Path) -> Option<Histogram> {
    let mut bytes = [0; size_of::<Latency>()];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    let mut counts = [0; BUCKETS];
    for (i, count) in counts.iter_mut().enumerate() {
        *count = word(&bytes, i * 8);
    }
    Some(Histogram::from_counts(counts))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
