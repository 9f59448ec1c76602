//! The sending half of a connection: what is its own, in the table of the family.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use dibs::ism::integrity::Sum;
use shm::cursor::Cursor;

use super::inflight::Inflight;
use super::locked::{Locked, Repair};
use super::patience::Patience;
use super::ringing::Ringing;
use crate::stats::Counts;
use crate::sys;

/// How far our sends have come; guarded by the lock of its `Sender`.
#[repr(C)]
#[derive(Debug, Default, PartialEq)]
pub struct Tx {
    /// How far we have written in the peer's ring.
    pub prod: Cursor,
    /// How far the peer is known to have read.
    pub cons: Cursor,
    /// The producer word last published.
    pub word: u64,
    /// Usable bytes of the peer's ring, for `ss`; the data path goes by `Window`.
    pub size: u32,
    /// The `cpu` word last told to the peer.
    pub cpu: u32,
    /// Bytes of the ring to send again over TCP after a recall: from here up to `prod`.
    pub resend: u64,
    /// Position at which the ring's memory was last given back.
    pub rested: u64,
    /// A send ended in the middle.
    pub left: bool,
    /// The kernel holds a doorbell back, see `ring_or_hold`.
    pub held: bool,
    /// For which sleep of the wait that covers the connection, if it is one.
    pub held_for: u32,
    /// Checksum of the stream up to `prod`, where one was agreed on.
    pub sum: Sum,
    /// Records of the stream written that carry a checksum.
    pub records: u64,
}

/// The next send publishes what the one that was left has placed and not published.
impl Repair for Tx {
    fn repair(&mut self, size: u32) {
        self.prod = Cursor::at(self.prod.pos, size);
        self.cons = Cursor::at(self.cons.pos, size);
        self.left = true;
    }
}

/// See the module documentation.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Sender {
    /// Threads inside a kernel send.
    pub(super) kernel: Inflight,
    /// Wire word of `Tx::prod`, for readiness checks without the lock.
    pub(super) word: AtomicU64,
    /// The value of the peer's `rx_arm` for which it was last rung.
    pub(super) rung: AtomicU32,
    /// Threads that put a doorbell on the TCP stream, or are about to.
    pub(super) ringing: Ringing,
    pub(super) state: Locked<Tx>,
    /// Sent through shared memory.
    pub counts: Counts,
    pub(super) patience: Patience,
}

impl Sender {
    /// How far we have written, by a look that may be torn.
    pub(super) fn prod(&self) -> Cursor {
        // SAFETY: a living object.
        let prod = unsafe { &raw const (*self.state.words()).prod };
        // SAFETY: plain words of it.
        unsafe { prod.read_volatile() }
    }

    /// From where on bytes go over TCP again, by a look that may be old.
    pub(super) fn resend(&self) -> u64 {
        // SAFETY: a living object.
        let resend = unsafe { &raw const (*self.state.words()).resend };
        // SAFETY: plain words of it.
        unsafe { resend.read_volatile() }
    }

    /// Waits for doorbells that other threads are about to send, when no further one can begin. A
    /// receiver rings for space without the lock of sends: its doorbell, counted before and sent
    /// behind what goes over TCP next, would change places with that, and the peer would take it for
    /// payload. A thread may be put off for long between the two on a busy machine.
    #[cold]
    pub(super) fn await_bells(&self) {
        const LONGEST_NS: u64 = 2_000_000_000;
        let began = sys::now_ns();
        self.ringing.await_all(|| {
            sys::nap();
            sys::now_ns() - began <= LONGEST_NS
        });
    }

    /// A copy for `ss`, perhaps a torn one.
    pub fn snapshot(&self) -> Tx {
        // SAFETY: plain words of a living object.
        unsafe { self.state.words().read_volatile() }
    }

    /// For a connection that takes the slot.
    pub(super) fn reset(&self) {
        self.kernel.reset();
        self.word.store(0, Relaxed);
        self.rung.store(0, Relaxed);
        self.ringing.reset();
        self.state.reset();
        self.counts.reset();
        self.patience.reset();
    }
}
