//! Two looks at all connections, and what happened between them.

use std::collections::HashMap;
use std::time::Instant;

use connections::{Connection, Mode, Program, snapshot};

use crate::ss::{Filter, Summary};

/// All connections at one moment.
pub struct Look {
    at: Instant,
    ends: Vec<Connection>,
    /// Of all that the filter wants, listeners too.
    summary: Summary,
}

/// What an end of a connection has moved, in all or between two looks.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Moved {
    /// Payload bytes through memory; of an rsocket over RDMA, those too.
    pub memory_rx: u64,
    pub memory_tx: u64,
    /// Bytes that the kernel has carried.
    pub tcp_rx: u64,
    pub tcp_tx: u64,
    /// Calls that moved bytes through memory.
    pub rx_calls: u64,
    pub tx_calls: u64,
    /// Sent by this end.
    pub doorbells: u64,
    /// Times that a doorbell of the peer woke this end.
    pub woken: u64,
}

/// One end of a connection, and what it has moved meanwhile.
#[derive(Clone)]
pub struct Step {
    pub connection: Connection,
    pub moved: Moved,
}

pub struct Change {
    pub seconds: f64,
    pub steps: Vec<Step>,
    pub summary: Summary,
}

impl Look {
    pub fn take(filter: &Filter) -> Look {
        Look::of(snapshot(|_| true).connections, filter)
    }

    /// What has just been seen.
    pub fn of(mut ends: Vec<Connection>, filter: &Filter) -> Look {
        let at = Instant::now();
        ends.retain(|connection| filter.wants(connection));
        let summary = Summary::of(&ends);
        ends.retain(|end| !matches!(end.mode, Mode::Listener) && end.state != "INIT");
        Look { at, ends, summary }
    }

    /// What happened since an earlier look. Of a connection that is new nobody knows when its bytes
    /// went.
    pub fn since(&self, earlier: &Look) -> Change {
        let before: HashMap<u64, Moved> =
            earlier.ends.iter().map(|end| (end.inode, Moved::of(end))).collect();
        let steps = self.ends.iter().map(|end| {
            let now = Moved::of(end);
            let moved = now.since(before.get(&end.inode).unwrap_or(&now));
            Step { connection: end.clone(), moved }
        });
        Change {
            seconds: self.at.duration_since(earlier.at).as_secs_f64().max(1e-3),
            steps: steps.collect(),
            summary: self.summary.clone(),
        }
    }
}

impl Moved {
    pub fn of(end: &Connection) -> Moved {
        let tcp = end.tcp.unwrap_or_default();
        let mut moved = Moved { tcp_rx: tcp.rx, tcp_tx: tcp.tx, ..Moved::default() };
        if let Some(detail) = &end.detail {
            moved.memory_rx = detail.rx_bytes;
            moved.memory_tx = detail.tx_bytes;
            moved.rx_calls = detail.rx_calls;
            moved.tx_calls = detail.tx_calls;
            moved.doorbells = detail.doorbells;
            moved.woken = detail.wakeups.all;
        }
        if let Some(stream) = &end.stream {
            moved.memory_rx = stream.rx_bytes;
            moved.memory_tx = stream.tx_bytes;
            moved.rx_calls = stream.rx_calls;
            moved.tx_calls = stream.tx_calls;
            moved.doorbells = stream.doorbells;
            moved.woken = stream.slept;
        }
        moved
    }

    /// Counters that fell belong to something new under an old number.
    pub fn since(mut self, earlier: &Moved) -> Moved {
        for (mine, theirs) in self.all().into_iter().zip(earlier.values()) {
            *mine = mine.saturating_sub(theirs);
        }
        self
    }

    pub fn add(&mut self, other: &Moved) {
        for (mine, theirs) in self.all().into_iter().zip(other.values()) {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// Each direction seen from the other end.
    pub fn reversed(mut self) -> Moved {
        std::mem::swap(&mut self.memory_rx, &mut self.memory_tx);
        std::mem::swap(&mut self.tcp_rx, &mut self.tcp_tx);
        self
    }

    fn values(&self) -> [u64; 8] {
        let mut copy = *self;
        copy.all().map(|value| *value)
    }

    fn all(&mut self) -> [&mut u64; 8] {
        [
            &mut self.memory_rx,
            &mut self.memory_tx,
            &mut self.tcp_rx,
            &mut self.tcp_tx,
            &mut self.rx_calls,
            &mut self.tx_calls,
            &mut self.doorbells,
            &mut self.woken,
        ]
    }
}

/// The name of the first of the programs that hold an end.
pub fn program(programs: &[Program]) -> Option<&str> {
    programs.first().map(|program| program.name.as_str())
}

/// Who is at the other end: a program, or the address where it is somewhere else.
pub fn peer(connection: &Connection) -> String {
    match (program(&connection.peer_programs), connection.peer) {
        (Some(name), _) => name.into(),
        (None, Some(address)) => address.ip().to_string(),
        (None, None) => "?".into(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::ss::fixtures::{connection, tcp};

    /// An end of a connection between two programs that has moved so much.
    pub fn step(programs: [&str; 2], mode: Mode, moved: Moved) -> Step {
        let named = |name: &str, pid| vec![Program { pid, name: name.into() }];
        let mut connection = connection("ACTIVE", mode);
        connection.programs = named(programs[0], 12);
        connection.peer_programs = named(programs[1], 77);
        Step { connection, moved }
    }

    pub fn moved(memory: [u64; 2], tcp: [u64; 2]) -> Moved {
        Moved {
            memory_rx: memory[0],
            memory_tx: memory[1],
            tcp_rx: tcp[0],
            tcp_tx: tcp[1],
            ..Moved::default()
        }
    }

    fn look(at: Instant, rx: u64) -> Look {
        let mut one = connection("ACTIVE", tcp());
        one.tcp = Some(connections::Carried { rx, tx: 0 });
        let ends = vec![one];
        Look { at, summary: Summary::of(&ends), ends }
    }

    #[test]
    fn what_happened_is_the_difference() {
        let begin = Instant::now();
        let (first, second) =
            (look(begin, 100), look(begin + std::time::Duration::from_secs(2), 700));
        let change = second.since(&first);
        assert_eq!((change.seconds, change.steps[0].moved), (2.0, moved([0, 0], [600, 0])));
        assert_eq!(first.since(&second).steps[0].moved, Moved::default(), "nothing runs backwards");
        let empty = Look { ends: Vec::new(), ..look(begin, 0) };
        assert_eq!(second.since(&empty).steps[0].moved, Moved::default(), "new ones have no rate");
    }

    #[test]
    fn an_rsocket_moves_what_it_says() {
        let mut one = connection("ACTIVE", Mode::Rsocket);
        one.stream =
            Some(connections::Stream { rx_bytes: 7, tx_calls: 3, slept: 2, ..Default::default() });
        let moved = Moved::of(&one);
        assert_eq!((moved.memory_rx, moved.tx_calls, moved.woken), (7, 3, 2));
    }

    #[test]
    fn the_other_end_has_a_name_or_an_address() {
        assert_eq!(peer(&step(["a", "b"], Mode::Smcd, Moved::default()).connection), "b");
        assert_eq!(peer(&connection("ACTIVE", tcp())), "2001:db8:1234:5678:9abc:def0:1234:5678");
        let there = moved([1, 2], [3, 4]).reversed();
        assert_eq!((there.memory_rx, there.tcp_tx), (2, 3));
    }
}
