//! The receiving half of a connection: what is its own, in the table of the family.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use dibs::ism::integrity::Sum;
use shm::cursor::Cursor;

use super::inflight::Inflight;
use super::locked::{Locked, Repair};
use crate::stats::Counts;

/// No position in a stream.
pub const UNKNOWN: u64 = u64::MAX;

/// How far our receives have come; guarded by the lock of its `Receiver`.
#[repr(C)]
#[derive(Debug, PartialEq)]
pub struct Rx {
    /// How far we have read in our ring.
    pub cons: Cursor,
    /// How far the peer is known to have written.
    pub prod: Cursor,
    /// Position up to which the peer was told, by any store.
    pub published: u64,
    /// Position up to which the peer was told with a full fence behind it.
    pub fenced: u64,
    /// Payload bytes still to come over TCP before the ring begins.
    pub tcp_left: u64,
    /// From the exposure to the switch: stream bytes read from the socket, `UNKNOWN` if nobody
    /// could tell.
    pub tcp_read: u64,
    /// Doorbell bytes taken from the TCP stream.
    pub drained: u32,
    /// Usable bytes of our ring, for `ss`; the data path goes by `Window`.
    pub size: u32,
    /// Peer's last end flags.
    pub ends: u64,
    /// The `cpu` word last told to the peer.
    pub cpu: u32,
    /// Checksum of the stream up to `prod`, where one was agreed on.
    pub sum: Sum,
}

impl Default for Rx {
    fn default() -> Self {
        Self {
            cons: Cursor::ZERO,
            prod: Cursor::ZERO,
            published: 0,
            fenced: 0,
            tcp_left: 0,
            tcp_read: UNKNOWN,
            drained: 0,
            size: 0,
            ends: 0,
            cpu: 0,
            sum: Sum::default(),
        }
    }
}

impl Repair for Rx {
    fn repair(&mut self, size: u32) {
        self.cons = Cursor::at(self.cons.pos, size);
        self.prod = Cursor::at(self.prod.pos, size);
    }
}

/// See the module documentation.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Receiver {
    /// Threads inside a kernel receive.
    pub(crate) kernel: Inflight,
    /// Wire word of `Rx::cons`, for readiness checks without the lock.
    pub(super) word: AtomicU64,
    /// The value of the peer's `tx_arm` for which it was last rung.
    pub(super) rung: AtomicU32,
    pub(super) state: Locked<Rx>,
    /// Received through shared memory.
    pub counts: Counts,
}

impl Receiver {
    /// How far we have read, by a look that may be torn.
    pub(super) fn cons(&self) -> Cursor {
        // SAFETY: a living object.
        let cons = unsafe { &raw const (*self.state.words()).cons };
        // SAFETY: plain words of it.
        unsafe { cons.read_volatile() }
    }

    /// Payload still to come over TCP, by a look that may be old: that only sends the caller down
    /// the slower path.
    pub(super) fn tcp_left(&self) -> u64 {
        // SAFETY: a living object.
        let tcp_left = unsafe { &raw const (*self.state.words()).tcp_left };
        // SAFETY: plain words of it.
        unsafe { tcp_left.read_volatile() }
    }

    /// Doorbells taken from the stream, by a look that may be old.
    pub(super) fn drained(&self) -> u32 {
        // SAFETY: a living object.
        let drained = unsafe { &raw const (*self.state.words()).drained };
        // SAFETY: plain words of it.
        unsafe { drained.read_volatile() }
    }

    /// A copy for `ss`, perhaps a torn one.
    pub fn snapshot(&self) -> Rx {
        // SAFETY: plain words of a living object.
        unsafe { self.state.words().read_volatile() }
    }

    /// For a connection that takes the slot.
    pub(super) fn reset(&self) {
        self.kernel.reset();
        self.word.store(0, Relaxed);
        self.rung.store(0, Relaxed);
        self.state.reset();
        self.counts.reset();
    }
}
