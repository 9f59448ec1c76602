//! Connections that are known, for apps that let pass what belongs to one.
//!
//! A connection has two ends. Which of them is which does not matter, as long as a packet from either
//! tells: [`Acl`](super::acl::Acl) has one on each side, [`PcapFilter`](super::pcap::PcapFilter) goes by
//! their addresses.

use crate::apps::transport::{ACK, FIN, Flow, RST, SYN};
use crate::flow_table::{FlowTable, Key};
use checksum::{TCP, UDP};

/// How long a connection is known without packets, by its age: begun, ending or ICMP; answered
/// datagrams; established TCP (RFC 5382, REQ-5).
const AGES: usize = 3;
const LIVES: [u64; AGES] = [30_000_000_000, 120_000_000_000, 7_440_000_000_000];

/// What is known of one. An end is 0 or 1.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    from: usize,
    answered: bool,
    ended: [bool; 2],
}

/// A table of them, which takes its memory once.
pub(super) struct Connections {
    table: FlowTable<State, AGES>,
}

/// What a connection is known by: the same for packets from both ends. `from` is the end that sent this one.
pub(super) fn key(flow: &Flow, from: usize) -> Key {
    let (one, other) = match from {
        0 => (&flow.source, &flow.destination),
        _ => (&flow.destination, &flow.source),
    };
    let mut key = [0; 40];
    key[..16].copy_from_slice(one);
    key[16..32].copy_from_slice(other);
    key[32..34].copy_from_slice(&flow.ports[from & 1].to_be_bytes());
    key[34..36].copy_from_slice(&flow.ports[1 - (from & 1)].to_be_bytes());
    key[36] = flow.protocol;
    key[37] = u8::from(flow.v6);
    key
}

impl Connections {
    /// For `capacity` connections, 1 to 2^30.
    pub(super) fn new(capacity: usize) -> Self {
        Self { table: FlowTable::new(capacity) }
    }

    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        self.table.find(key)
    }

    /// One begins that is not known. Where there is no room the oldest one goes that is not established;
    /// false if there is none.
    pub(super) fn begin(&mut self, key: Key, from: usize, now: u64) -> bool {
        if self.table.is_full() {
            let Some((oldest, _)) = self.table.oldest(0) else { return false };
            self.table.remove(oldest);
        }
        self.table.insert(key, State { from, ..State::default() }, 0, now).is_some()
    }

    /// A packet of a known one, which was [found](Self::find) at this place.
    pub(super) fn go_on(&mut self, at: u32, packet: &Flow, from: usize, now: u64) {
        let state = self.table.value_mut(at);
        let answers = state.from != from;
        let age = match packet.protocol {
            TCP => {
                if packet.flags & RST != 0 {
                    state.ended = [true; 2];
                } else if packet.flags & (SYN | ACK) == SYN && state.ended == [true; 2] {
                    // The same ports again, for another connection.
                    *state = State { from, ..State::default() };
                } else if packet.flags & FIN != 0 {
                    state.ended[from & 1] = true;
                }
                state.answered |= answers && packet.flags & (SYN | ACK) == (SYN | ACK);
                if state.answered && state.ended != [true; 2] { 2 } else { 0 }
            }
            UDP => {
                state.answered |= answers;
                usize::from(state.answered)
            }
            _ => 0,
        };
        self.table.touch(at, age, now);
    }

    /// Forgets those that are too old.
    pub(super) fn expire(&mut self, now: u64) {
        for (age, life) in LIVES.iter().enumerate() {
            while let Some((at, time)) = self.table.oldest(age)
                && now.saturating_sub(time) >= *life
            {
                self.table.remove(at);
            }
        }
    }
}
