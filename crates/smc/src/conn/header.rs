//! The words of a DMB's header and of a control page, as two processes share them.
//!
//! Every word of a `DmbHeader` is written by the peer and read by the owner of the DMB, so each of
//! its cache lines travels one way. The owner writes four things there: the first `rx_arm`, in the
//! peer's stead; `CLAIMED` and the two REVOKED bits, by which it takes its ring back (`revert.rs`); and 0 over
//! the time of a ring in `kind` that it has counted (`wakeups.rs`).

use shm::sync::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Start of every DMB: the SMC-D CDC words and, in its reserved tail and behind it, Shortwire's
/// doorbell words.
#[repr(C, align(64))]
#[derive(Default)]
pub struct DmbHeader {
    /// Low byte 0xFE, the CDC type: the peer has attached. Upper 56 bits: over ism and verbs the
    /// address of its image of this header; over loopback the time of its last ring.
    pub kind: AtomicU64,
    /// The peer's producer cursor in this DMB, with `REVERTED`, `REVOKED` and `CLAIMED`.
    pub prod: AtomicU64,
    /// The peer's consumer cursor in the DMB that we write, with its state flags.
    pub cons: AtomicU64,
    /// `N << 1 | 1` once the peer's sends have left TCP after N bytes.
    pub switch: AtomicU64,
    /// Changes when the peer wants a doorbell for data that we publish.
    pub rx_arm: AtomicU32,
    /// Changes when the peer wants a doorbell for space that we free.
    pub tx_arm: AtomicU32,
    /// Number of the peer's wait that covers this connection (0: none), and above it the row in which
    /// it wants to be told of news (`announce`).
    pub cover: AtomicU32,
    /// Processor on which the peer last sent or made room, plus one; above it how much it lets be
    /// under way (`bounds`).
    pub cpu: AtomicU32,
    /// Doorbell bytes the peer has put on the TCP stream; bit 31 set by the owner: no more of them.
    pub rung: AtomicU32,
    /// Over ism: process of the peer that can be written to besides the first; bit 31: the peer
    /// wants its ring back.
    pub kin: AtomicU32,
    /// `P << 1 | 1`: the peer wants the bytes from P on sent again over TCP.
    pub takeback: AtomicU64,
}

/// Bytes of a DMB that are not ring.
pub const HEADER_LEN: u32 = 64;
#[cfg(not(loom))]
const _: () = assert!(size_of::<DmbHeader>() == HEADER_LEN as usize);

impl DmbHeader {
    /// Bytes of the DMB that the peer has written to, if it is honest.
    pub fn used(&self) -> u32 {
        match self.prod.load(Relaxed) & shm::cursor::CURSOR_MASK {
            word if word as u16 == 0 => HEADER_LEN.saturating_add((word >> 16) as u32),
            _ => u32::MAX,
        }
    }
}

/// In `prod`: the writer has returned to TCP, nothing follows in this ring.
pub const REVERTED: u64 = 1 << 48;
/// In `prod`: the owner of the ring takes no more; the writer's next publication fails.
pub const REVOKED: u64 = 1 << 49;
/// In `prod`: the owner of the ring wants what it has not read sent again over TCP, from where
/// `takeback` says; never set behind `REVERTED`.
pub const CLAIMED: u64 = 1 << 50;
/// In `rung`: no further doorbell may be sent.
pub const RUNG_REVOKED: u32 = 1 << 31;
/// CDC state flag in `cons`: the peer is done writing.
pub const DONE: u64 = 0x80 << 56;
/// CDC state flag in `cons`: the peer has closed the connection.
pub const CLOSED: u64 = 0x40 << 56;
/// CDC state flag in `cons`: the peer has aborted the connection.
pub const ABORT: u64 = 0x20 << 56;
/// Beside them, and after everything else: this end has given up its object and writes here no
/// more.
pub const LEFT: u64 = 0x10 << 56;
/// Beside `ABORT`: the device went away, and the kernel's connection may stand a while longer.
pub const GONE: u64 = 0x08 << 56;
/// Any of the three ends the peer's stream.
pub const ENDS: u64 = DONE | CLOSED | ABORT;

/// Wait words a family can hand out (index 0 means none).
#[cfg(not(loom))]
pub const WAITS: usize = 256;
#[cfg(loom)]
pub const WAITS: usize = 2;

/// A control page: words of waits, each of which one of two processes writes and the other one
/// looks at.
#[repr(C)]
pub struct Waits {
    /// Odd: the wait with this number sleeps. Changes with every sleep.
    pub armed: [AtomicU32; WAITS],
    /// What the process that rings last rang for; private to it by custom (lying harms only the
    /// liar).
    pub rung: [AtomicU32; WAITS],
    /// `n << 1`: the wait asks for a bell with the number n; `n << 1 | 1`: it listens to that bell.
    pub bell: [AtomicU32; WAITS],
    /// Number of the bell that the process that rings has given to this wait, 0: none. The only
    /// words here that it writes for the other one.
    pub given: [AtomicU32; WAITS],
}

impl Waits {
    /// A wait is about to sleep: whoever publishes on a connection it covers rings once. The caller
    /// looks again at all of them before it sleeps.
    pub fn sleep(&self, wait: u32) {
        let w = &self.armed[wait as usize];
        // SYNC: bell. Release: who sees this sleep sees whether the wait listens.
        w.store((w.load(Relaxed) | 1).wrapping_add(2), Release);
        // SYNC: cover. Pairs with the SeqCst publication and load in `Conn::publish`.
        fence(SeqCst);
    }

    /// The wait is awake and looks at everything it covers before it sleeps again.
    pub fn wake(&self, wait: u32) {
        let w = &self.armed[wait as usize];
        w.store(w.load(Relaxed) & !1, Relaxed);
    }

    /// A wait asks for the bell of this number, and listens to none until it has it.
    pub fn ask_for_bell(&self, wait: u32, number: u32) {
        self.bell[wait as usize].store(number << 1, Relaxed);
    }

    /// The bell that a wait has asked for last, whether it listens to it or not.
    pub fn bell_asked_for(&self, wait: u32) -> u32 {
        self.bell[wait as usize].load(Relaxed) >> 1
    }

    /// A wait listens to its bell. It is rung by it from its next sleep on.
    pub fn listen(&self, wait: u32, number: u32) {
        self.bell[wait as usize].store(number << 1 | 1, Relaxed);
    }

    /// It listens no more. What is published while it sleeps wakes it by TCP.
    pub fn stop_listening(&self, wait: u32, number: u32) {
        self.bell[wait as usize].store(number << 1, Relaxed);
    }

    /// Whether a wait was given the bell that it has asked for.
    pub fn has_bell(&self, wait: u32, number: u32) -> bool {
        // SYNC: given. Behind the message that brings the bell.
        self.given[wait as usize].load(Acquire) == number
    }
}
