//! Looks at the connections of a program while it runs: how many go through shared memory, and why the others do not.

use std::collections::BTreeMap;

use serde::Serialize;

/// The fullest look of all rounds.
#[derive(Clone, Default, Serialize)]
pub struct Seen {
    pub smcd: usize,
    pub tcp: usize,
    /// In words, with how many connections each.
    pub reasons: BTreeMap<String, usize>,
}

impl Seen {
    /// `group`: the process group of the client, whose connections are counted.
    pub fn look(&mut self, _group: u32) {}

    pub fn total(&self) -> usize {
        self.smcd + self.tcp
    }
}
