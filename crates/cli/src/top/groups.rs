//! Rows of `top`: connections, or what they come to by program and by pair of programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::look::{Change, Moved, Step, peer, program};
use super::{By, Sort};
use crate::ss::{Summary, mode};

/// Rates are per second.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The program, of a connection with its process id.
    pub program: String,
    /// Who is at the other end; empty in a row of a program.
    pub peer: String,
    /// Of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Of a connection: mode and reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Ends of connections, of a pair connections.
    pub connections: usize,
    pub smcd: usize,
    pub tcp: usize,
    /// The reason of most of those that are TCP.
    pub reason: Option<&'static str>,
    pub memory_rx: f64,
    pub memory_tx: f64,
    pub tcp_rx: f64,
    pub tcp_tx: f64,
    pub messages: f64,
    pub doorbells: f64,
    pub doorbells_per_message: Option<f64>,
    /// Times that a doorbell woke this end, for each message received.
    pub woken_per_message: Option<f64>,
    pub waits: &'static str,
}

/// Both sides of a group, each end on its own.
#[derive(Default)]
struct Group<'a> {
    here: Vec<&'a Step>,
    there: Vec<&'a Step>,
}

pub fn rows(change: &Change, by: By, sort: Sort) -> Vec<Row> {
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    for (number, step) in change.steps.iter().enumerate() {
        let name = program(&step.connection.programs).unwrap_or("?").to_string();
        let other = peer(&step.connection);
        // Of a program that talks to itself each connection has two ends here, too.
        let end = &step.connection;
        let turned = (&name, end.local) > (&other, end.peer) && by == By::Pair;
        match by {
            By::Connection => groups.entry((format!("{number:09}"), String::new())),
            By::Program => groups.entry((name.clone(), String::new())),
            By::Pair if !turned => groups.entry((name.clone(), other.clone())),
            By::Pair => groups.entry((other.clone(), name.clone())),
        }
        .and_modify(|group| group.put(step, turned))
        .or_insert_with(|| {
            let mut group = Group::default();
            group.put(step, turned);
            group
        });
    }
    let mut rows: Vec<Row> = groups
        .iter()
        .map(|((name, other), group)| match by {
            By::Connection => connection(group.here[0], change.seconds),
            By::Program => row(name.clone(), String::new(), &group.here, &[], change.seconds),
            By::Pair => row(name.clone(), other.clone(), &group.here, &group.there, change.seconds),
        })
        .collect();
    // Rows that move alike stay in the order of their names.
    rows.sort_by(|a, b| {
        let key = |row: &Row| match sort {
            Sort::Bytes => row.bytes(),
            Sort::Messages => row.messages,
            Sort::Doorbells => row.doorbells_per_message.unwrap_or(-1.0),
            Sort::Name => 0.0,
        };
        key(b).total_cmp(&key(a)).then_with(|| (&a.program, &a.peer).cmp(&(&b.program, &b.peer)))
    });
    rows
}

impl<'a> Group<'a> {
    fn put(&mut self, step: &'a Step, there: bool) {
        if there { self.there.push(step) } else { self.here.push(step) }
    }
}

impl Row {
    pub fn bytes(&self) -> f64 {
        self.memory_rx + self.memory_tx + self.tcp_rx + self.tcp_tx
    }

    /// None when nothing moved.
    pub fn through_memory(&self) -> Option<f64> {
        let all = self.bytes();
        (all > 0.0).then(|| (self.memory_rx + self.memory_tx) / all)
    }
}

fn connection(step: &Step, seconds: f64) -> Row {
    let end = &step.connection;
    let text = |address: Option<std::net::SocketAddr>| address.map(|a| a.to_string());
    let named = |programs: &[connections::Program]| {
        programs.first().map(|program| format!("{}/{}", program.pid, program.name))
    };
    let name = named(&end.programs).unwrap_or_else(|| "?".into());
    let other = named(&end.peer_programs).or_else(|| text(end.peer)).unwrap_or_else(|| "?".into());
    Row {
        local: text(end.local),
        remote: text(end.peer),
        mode: Some(mode(&end.mode)),
        ..row(name, other, &[step], &[], seconds)
    }
}

fn row(name: String, other: String, here: &[&Step], there: &[&Step], seconds: f64) -> Row {
    let sum = |steps: &[&Step]| {
        steps.iter().fold(Moved::default(), |mut sum, step| {
            sum.add(&step.moved);
            sum
        })
    };
    let (own, others) = (sum(here), sum(there));
    // Where both ends can be seen each connection is there twice: the one with more ends counts.
    let (ends, bytes) =
        if here.len() >= there.len() { (here, own) } else { (there, others.reversed()) };
    let counted = Summary::of(ends.iter().map(|step| &step.connection));
    let mut all = own;
    all.add(&others);
    let rate = |count: u64| count as f64 / seconds;
    let per = |count: u64, of: u64| (of > 0).then(|| count as f64 / of as f64);
    let woken = per(all.woken, all.rx_calls);
    // Each message of a pair is sent at one end and received at the other.
    let messages = if there.is_empty() { all.rx_calls + all.tx_calls } else { all.tx_calls };
    Row {
        program: name,
        peer: other,
        local: None,
        remote: None,
        mode: None,
        connections: counted.ends,
        smcd: counted.smcd,
        tcp: counted.tcp,
        reason: counted.reasons.iter().max_by_key(|(_, count)| **count).map(|(name, _)| *name),
        memory_rx: rate(bytes.memory_rx),
        memory_tx: rate(bytes.memory_tx),
        tcp_rx: rate(bytes.tcp_rx),
        tcp_tx: rate(bytes.tcp_tx),
        messages: rate(messages),
        doorbells: rate(all.doorbells),
        doorbells_per_message: per(all.doorbells, all.tx_calls),
        woken_per_message: woken,
        waits: match woken {
            _ if counted.smcd + counted.rsocket == 0 => "-",
            None => "idle",
            Some(share) if share < 0.05 => "spins",
            Some(share) if share < 0.5 => "mixed",
            Some(_) => "sleeps",
        },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use connections::Mode;

    use super::super::look::tests::{moved, step};
    use super::*;
    use crate::ss::fixtures::tcp;

    /// Two connections between a client and redis, one of which is TCP, and redis to elsewhere.
    pub(crate) fn change() -> Change {
        let mut at_redis = moved([2000, 400], [20, 20]);
        (at_redis.rx_calls, at_redis.tx_calls) = (100, 100);
        (at_redis.doorbells, at_redis.woken) = (50, 2);
        let mut at_client = moved([400, 2000], [20, 20]);
        (at_client.rx_calls, at_client.tx_calls, at_client.woken) = (100, 100, 50);
        let mut steps = vec![
            step(["redis", "client"], Mode::Smcd, at_redis),
            step(["client", "redis"], Mode::Smcd, at_client),
            step(["redis", "client"], tcp(), moved([0, 0], [600, 60])),
            step(["client", "redis"], tcp(), moved([0, 0], [60, 600])),
            step(["redis", ""], tcp(), moved([0, 0], [10, 10])),
        ];
        steps[4].connection.peer_programs.clear();
        let summary = Summary::of(steps.iter().map(|step| &step.connection));
        Change { seconds: 2.0, steps, summary }
    }

    #[test]
    fn a_pair_counts_each_connection_once() {
        let rows = rows(&change(), By::Pair, Sort::Bytes);
        let names: Vec<_> =
            rows.iter().map(|row| (row.program.as_str(), row.peer.as_str())).collect();
        assert_eq!(
            names,
            [("client", "redis"), ("2001:db8:1234:5678:9abc:def0:1234:5678", "redis")]
        );
        let pair = &rows[0];
        assert_eq!((pair.connections, pair.smcd, pair.tcp), (2, 1, 1));
        assert_eq!((pair.memory_tx, pair.memory_rx, pair.tcp_tx), (1000.0, 200.0, 310.0));
        assert_eq!((pair.messages, pair.doorbells_per_message), (100.0, Some(0.25)));
        assert_eq!(pair.reason, Some("PEER_NO_SMC"));
        // Seen from the end that is visible, turned around.
        assert_eq!((rows[1].connections, rows[1].tcp_rx), (1, 5.0));
    }

    #[test]
    fn a_program_has_all_its_ends() {
        let rows = rows(&change(), By::Program, Sort::Name);
        assert_eq!(rows[0].program, "client");
        let redis = &rows[1];
        assert_eq!((redis.connections, redis.smcd, redis.tcp), (3, 1, 2));
        assert_eq!((redis.memory_rx, redis.messages), (1000.0, 100.0));
        assert_eq!((redis.waits, rows[0].waits), ("spins", "sleeps"));
        assert!(redis.through_memory().is_some_and(|share| (0.7..0.8).contains(&share)));
    }

    #[test]
    fn connections_are_sorted_as_asked() {
        let change = change();
        let first = |sort| rows(&change, By::Connection, sort)[0].clone();
        assert_eq!(first(Sort::Bytes).mode.as_deref(), Some("SMCD"));
        assert_eq!(first(Sort::Doorbells).program, "12/redis");
        assert_eq!(first(Sort::Name).program, "12/client");
        let last = rows(&change, By::Connection, Sort::Messages).pop().unwrap();
        assert_eq!((last.mode.as_deref(), last.waits), (Some("TCP PEER_NO_SMC"), "-"));
    }
}
