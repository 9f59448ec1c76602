//! What a program and all that it starts have counted, also behind their ends.
//!
//! Those that exit leave their counters in a file that is made for them alone (`smc::kept`); the
//! tables of all that are seen are held open, for those that are killed.

use std::collections::{BTreeMap, HashMap, HashSet};

use connections::kept::Kept;
use connections::{Carried, Held, Mode, Totals, snapshot};

#[derive(Default)]
pub struct Watch {
    tables: HashMap<String, (Held, usize)>,
    /// What the kernel has carried of each connection, by inode.
    carried: HashMap<u64, Carried>,
    /// All connections that were seen, by inode.
    ends: HashSet<u64>,
    /// Reasons why connections are TCP that nobody has counted yet, by inode.
    reasons: HashMap<u64, u32>,
}

/// All of it together.
#[derive(Default)]
pub struct Seen {
    pub totals: Totals,
    /// Codes of reasons, and how many connections stayed TCP for each.
    pub reasons: BTreeMap<u32, u64>,
    /// Bytes that the kernel has carried, as far as they were seen.
    pub tcp: u64,
}

impl Seen {
    /// Not even a connection that stayed TCP.
    pub fn is_nothing(&self) -> bool {
        self.totals.client + self.totals.server == 0 && self.reasons.is_empty() && self.tcp == 0
    }
}

impl Watch {
    /// Looks at these processes.
    pub fn look(&mut self, wanted: impl Fn(u32) -> bool) {
        let snapshot = snapshot(wanted);
        for table in snapshot.tables.iter().filter(|table| !table.identity.is_empty()) {
            let files = table.files();
            if self.tables.get(&table.identity).is_none_or(|(_, held)| *held != files) {
                self.tables.insert(table.identity.clone(), (table.hold(), files));
            }
        }
        for end in &snapshot.connections {
            if matches!(end.mode, Mode::Listener) {
                continue;
            }
            self.ends.insert(end.inode);
            if let Some(carried) = end.tcp {
                self.carried.insert(end.inode, carried);
            }
            match end.mode {
                Mode::Tcp { reason, .. } => _ = self.reasons.insert(end.inode, reason),
                _ => _ = self.reasons.remove(&end.inode),
            }
        }
    }

    /// Behind the end, with what was kept of those that have exited.
    pub fn sum(&self, kept: &[Kept]) -> Seen {
        let mut seen = Seen::default();
        kept.iter().for_each(|kept| seen.totals.add(&kept.totals));
        for (held, _) in self.tables.values() {
            if let Some((mut totals, given)) = held.counted() {
                totals.since(&given);
                seen.totals.add(&totals);
            }
        }
        seen.reasons = seen.totals.reasons.iter().copied().collect();
        // Those of a program that was killed nobody has counted. One that was TCP when it was seen
        // last may have left it later: no more than are unaccounted for.
        let counted = seen.totals.client + seen.totals.server + seen.reasons.values().sum::<u64>();
        let uncounted = self.ends.len().saturating_sub(counted as usize);
        for reason in self.reasons.values().take(uncounted) {
            *seen.reasons.entry(*reason).or_default() += 1;
        }
        seen.tcp = self.carried.values().map(|carried| carried.rx + carried.tx).sum();
        seen
    }
}
