//! What is counted over all programs, and kept when they end.
//!
//! The tables of living programs are read at each look. Their files are held open, so that behind
//! the end of the last program that had them, even by SIGKILL, everything that it counted is read
//! once more and added to what its name has. Bytes by pair are summed up from look to look.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connections::{
    Connection, Held, HeldStreams, Mode, Program, Snapshot, StreamTotals, Totals, snapshot,
};
use serde::Serialize;

use crate::ss::{Summary, mode_name};
use crate::top::look::{Moved, program};

/// Files of tables held open at a time; of further programs the last look counts.
const MOST_FILES: usize = 512;
/// Pairs kept; what is beyond them is one pair.
const MOST_PAIRS: usize = 1000;
/// Programs and users kept, those that have ended too.
const MOST_OWNERS: usize = 2000;
/// Of the JSON object.
const VERSION: u32 = 1;
/// Who is not a program that can be seen here.
const ELSEWHERE: &str = "elsewhere";
const OTHERS: &str = "(others)";

/// All figures at one look.
#[derive(Clone, Default, Serialize)]
pub struct View {
    pub version: u32,
    /// Between this look and the one before: rates are of that time.
    pub seconds: f64,
    /// What the look took.
    pub took: f64,
    pub summary: Summary,
    /// Processes that could not be looked into.
    pub hidden: usize,
    pub pairs: Vec<Pair>,
    #[serde(skip)]
    pub programs: BTreeMap<Owner, Totals>,
    #[serde(skip)]
    pub streams: BTreeMap<Owner, StreamTotals>,
    /// By program, mode and reason: ends of connections.
    #[serde(skip)]
    pub ends: BTreeMap<(Owner, &'static str, &'static str), u64>,
    #[serde(skip)]
    pub listeners: BTreeMap<Owner, u64>,
}

/// Programs name themselves, so that a name alone says little where there are several users.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner {
    pub program: String,
    pub uid: String,
}

/// From the program that sends to the one that receives.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Pair {
    pub from: String,
    pub to: String,
    /// Bytes.
    pub memory: u64,
    pub tcp: u64,
    /// Per second.
    pub memory_rate: f64,
    pub tcp_rate: f64,
    /// Ends of connections at the sender, now.
    pub connections: usize,
    pub smcd: usize,
    /// Names of reasons of those that are TCP, and how many there are.
    pub reasons: BTreeMap<&'static str, usize>,
}

#[derive(Default)]
pub struct Collector {
    at: Option<Instant>,
    /// By the identity of the table.
    families: HashMap<String, Family>,
    /// Of programs that have ended.
    ended: BTreeMap<Owner, Totals>,
    /// The same of rsockets.
    streams: HashMap<String, StreamFamily>,
    streams_ended: BTreeMap<Owner, StreamTotals>,
    /// What each connection had moved, by inode.
    moved: HashMap<u64, Moved>,
    pairs: BTreeMap<(String, String), Pair>,
    view: Arc<View>,
}

struct Family {
    owner: Owner,
    totals: Totals,
    held: Option<(Held, usize)>,
    /// Looks that did not find it.
    missed: u32,
}

/// Programs that share a file of rsockets.
struct StreamFamily {
    owner: Owner,
    totals: StreamTotals,
    held: Option<HeldStreams>,
    missed: u32,
}

/// A family that is missed so often has ended: one look may miss a process in the middle of a
/// change.
const ENDED: u32 = 3;

impl Owner {
    fn new(programs: &[Program], uid: u32) -> Owner {
        Owner { program: program(programs).unwrap_or("?").into(), uid: uid.to_string() }
    }
}

impl Collector {
    /// Looks, unless the last look is younger than this.
    pub fn look_unless(&mut self, young: Duration) {
        if self.at.is_some_and(|at| at.elapsed() < young) {
            return;
        }
        let begun = Instant::now();
        let snapshot = snapshot(|_| true);
        let took = begun.elapsed().as_secs_f64();
        let seconds = self.at.map_or(0.0, |at| (begun - at).as_secs_f64());
        self.at = Some(begun);
        self.take(snapshot, seconds);
        let view = Arc::make_mut(&mut self.view);
        (view.version, view.seconds, view.took) = (VERSION, seconds, took);
    }

    pub fn view(&self) -> Arc<View> {
        self.view.clone()
    }

    fn take(&mut self, snapshot: Snapshot, seconds: f64) {
        self.count_tables(&snapshot);
        self.count_streams(&snapshot);
        self.count_pairs(&snapshot.connections, seconds);
        let mut view = View {
            summary: Summary::of(&snapshot.connections),
            hidden: snapshot.hidden,
            pairs: self.pairs.values().cloned().collect(),
            programs: self.ended.clone(),
            streams: self.streams_ended.clone(),
            ..View::default()
        };
        for family in self.families.values() {
            view.programs.entry(family.owner.clone()).or_default().add(&family.totals);
        }
        for family in self.streams.values() {
            view.streams.entry(family.owner.clone()).or_default().add(&family.totals);
        }
        for connection in &snapshot.connections {
            let owner = Owner::new(&connection.programs, connection.uid);
            match reason(&connection.mode) {
                None => *view.listeners.entry(owner).or_default() += 1,
                Some(reason) => {
                    let key = (owner, mode_name(&connection.mode), reason);
                    *view.ends.entry(key).or_default() += 1;
                }
            }
        }
        self.view = Arc::new(view);
    }

    fn count_tables(&mut self, snapshot: &Snapshot) {
        let mut before = mem::take(&mut self.families);
        let mut files = before.values().filter_map(|f| Some(f.held.as_ref()?.1)).sum::<usize>();
        for table in snapshot.tables.iter().filter(|table| !table.identity.is_empty()) {
            let known = before.remove(&table.identity);
            let mut totals = table.totals.clone();
            let (owner, mut held) = match known {
                Some(family) => {
                    totals.at_least(&family.totals);
                    (family.owner, family.held)
                }
                None => (self.owner(&table.programs, table.uid), None),
            };
            let has = held.as_ref().map_or(0, |(_, files)| *files);
            let wants = table.files();
            if has != wants && files - has + wants <= MOST_FILES {
                held = Some((table.hold(), wants));
                files = files - has + wants;
            }
            let family = Family { owner, totals, held, missed: 0 };
            self.families.insert(table.identity.clone(), family);
        }
        for (identity, mut family) in before {
            if let Some(mut last) = family.held.as_ref().and_then(|(held, _)| held.totals()) {
                last.at_least(&family.totals);
                family.totals = last;
            }
            family.missed += 1;
            if family.missed < ENDED {
                self.families.insert(identity, family);
            } else {
                self.ended.entry(family.owner).or_default().add(&family.totals);
            }
        }
    }

    fn count_streams(&mut self, snapshot: &Snapshot) {
        let mut before = mem::take(&mut self.streams);
        for streams in &snapshot.streams {
            let mut totals = streams.totals.clone();
            let room = self.streams.len() < MOST_FILES;
            let family = match before.remove(&streams.identity) {
                Some(known) => {
                    totals.at_least(&known.totals);
                    StreamFamily { totals, missed: 0, ..known }
                }
                None => StreamFamily {
                    owner: self.owner(&streams.programs, streams.uid),
                    totals,
                    held: streams.hold().filter(|_| room),
                    missed: 0,
                },
            };
            self.streams.insert(streams.identity.clone(), family);
        }
        for (identity, mut family) in before {
            if let Some(mut last) = family.held.as_ref().and_then(HeldStreams::totals) {
                last.at_least(&family.totals);
                family.totals = last;
            }
            family.missed += 1;
            if family.missed < ENDED {
                self.streams.insert(identity, family);
            } else {
                self.streams_ended.entry(family.owner).or_default().add(&family.totals);
            }
        }
    }

    /// Whose a table is. Programs can give themselves any number of names: beyond so many owners all new
    /// ones are one.
    fn owner(&self, programs: &[Program], uid: u32) -> Owner {
        let owner = Owner::new(programs, uid);
        let is_known = self.ended.contains_key(&owner)
            || self.streams_ended.contains_key(&owner)
            || self.families.values().any(|family| family.owner == owner)
            || self.streams.values().any(|family| family.owner == owner);
        let known = self.ended.len() + self.families.len();
        let known = known + self.streams_ended.len() + self.streams.len();
        match is_known || known < MOST_OWNERS {
            true => owner,
            false => Owner { program: OTHERS.into(), uid: OTHERS.into() },
        }
    }

    /// What an end has sent is counted there, and what it has received at the other end, or here if
    /// that cannot be seen.
    fn count_pairs(&mut self, connections: &[Connection], seconds: f64) {
        for pair in self.pairs.values_mut() {
            (pair.memory_rate, pair.tcp_rate) = (0.0, 0.0);
            (pair.connections, pair.smcd) = (0, 0);
            pair.reasons.clear();
        }
        let visible: HashSet<_> = connections.iter().map(|end| (end.local, end.peer)).collect();
        let before = mem::take(&mut self.moved);
        for end in connections {
            let Some(reason) = reason(&end.mode) else { continue };
            let name = program(&end.programs).unwrap_or("?").to_string();
            let other = program(&end.peer_programs).unwrap_or(ELSEWHERE).to_string();
            let now = Moved::of(end);
            let new = now.since(before.get(&end.inode).unwrap_or(&Moved::default()));
            self.moved.insert(end.inode, now);
            let out = self.pair(&name, &other);
            out.count(new.memory_tx, new.tcp_tx, seconds);
            out.connections += 1;
            if reason.is_empty() {
                out.smcd += 1;
            } else {
                *out.reasons.entry(reason).or_default() += 1;
            }
            if !visible.contains(&(end.peer, end.local)) {
                self.pair(&other, &name).count(new.memory_rx, new.tcp_rx, seconds);
            }
        }
    }

    fn pair(&mut self, from: &str, to: &str) -> &mut Pair {
        let mut key = (from.to_string(), to.to_string());
        if !self.pairs.contains_key(&key) && self.pairs.len() >= MOST_PAIRS {
            key = (OTHERS.into(), OTHERS.into());
        }
        let fresh = || Pair { from: key.0.clone(), to: key.1.clone(), ..Pair::default() };
        self.pairs.entry(key.clone()).or_insert_with(fresh)
    }
}

impl Pair {
    fn count(&mut self, memory: u64, tcp: u64, seconds: f64) {
        self.memory = self.memory.saturating_add(memory);
        self.tcp = self.tcp.saturating_add(tcp);
        if seconds > 0.0 {
            self.memory_rate += memory as f64 / seconds;
            self.tcp_rate += tcp as f64 / seconds;
        }
    }
}

/// Of a connection, the name of the reason why it is TCP, empty if it is not; None of a listener.
fn reason(mode: &Mode) -> Option<&'static str> {
    match mode {
        Mode::Listener => None,
        Mode::Tcp { reason_name, .. } => Some(reason_name),
        Mode::Smcd | Mode::Reset { .. } | Mode::Rsocket | Mode::KernelSmc { .. } => Some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::fixtures::{connection, tcp};
    use connections::{Carried, Program};

    /// An end between two programs at these ports that the kernel has carried so much of.
    fn end(names: [&str; 2], ports: [u16; 2], carried: [u64; 2]) -> Connection {
        let named = |name: &str| {
            let program = Program { pid: 1, name: name.into() };
            if name.is_empty() { Vec::new() } else { vec![program] }
        };
        let mut end = connection("ACTIVE", tcp());
        (end.programs, end.peer_programs) = (named(names[0]), named(names[1]));
        [end.local, end.peer] = ports.map(|port| Some(([127, 0, 0, 1], port).into()));
        end.inode = u64::from(ports[0]);
        end.tcp = Some(Carried { rx: carried[0], tx: carried[1] });
        end
    }

    fn look(collector: &mut Collector, connections: Vec<Connection>) -> Arc<View> {
        let (tables, streams) = (Vec::new(), Vec::new());
        collector.take(Snapshot { connections, tables, streams, hidden: 0 }, 2.0);
        collector.view()
    }

    fn bytes(view: &View, from: &str, to: &str) -> Option<u64> {
        view.pairs.iter().find(|pair| (&*pair.from, &*pair.to) == (from, to)).map(|pair| pair.tcp)
    }

    #[test]
    fn bytes_by_pair_are_counted_once_and_never_fall() {
        let mut collector = Collector::default();
        let both = |there, back| {
            vec![
                end(["redis", "client"], [6379, 4000], [there, back]),
                end(["client", "redis"], [4000, 6379], [back, there]),
                end(["redis", ""], [6379, 5000], [7, 70]),
            ]
        };
        let view = look(&mut collector, both(100, 1000));
        assert_eq!(bytes(&view, "client", "redis"), Some(100));
        assert_eq!(bytes(&view, "redis", "client"), Some(1000));
        assert_eq!(bytes(&view, "elsewhere", "redis"), Some(7));
        let view = look(&mut collector, both(300, 1000));
        assert_eq!(bytes(&view, "client", "redis"), Some(300));
        let pair = view.pairs.iter().find(|pair| pair.from == "client").unwrap();
        assert_eq!((pair.tcp_rate, pair.connections, pair.smcd), (100.0, 1, 0));
        assert_eq!(pair.reasons, BTreeMap::from([("PEER_NO_SMC", 1)]));
        let view = look(&mut collector, Vec::new());
        assert_eq!(bytes(&view, "client", "redis"), Some(300));
        assert!(view.pairs.iter().all(|pair| pair.connections == 0 && pair.tcp_rate == 0.0));
        // Another connection under an old number of the kernel's.
        let view = look(&mut collector, both(50, 0));
        assert_eq!(bytes(&view, "client", "redis"), Some(350));
    }

    #[test]
    fn pairs_beyond_the_limit_are_one() {
        let mut collector = Collector::default();
        for number in 0..MOST_PAIRS + 10 {
            collector.pair(&number.to_string(), "x").count(1, 0, 0.0);
        }
        assert_eq!(collector.pairs.len(), MOST_PAIRS + 1);
        assert_eq!(collector.pair(OTHERS, OTHERS).memory, 10);
    }
}
