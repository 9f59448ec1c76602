//! Receives that were in the kernel while the peer left TCP and came back to it: what they brought
//! begins in front of the peer's switch and ends behind its return.
#![allow(unsafe_code)]

use super::mapped::fix_bells;
use super::*;
use alloc::vec::Vec;
use shm::ring::Ring;

/// What a kernel receive has brought from behind the peer's switch and return.
pub(super) enum Overtakes {
    /// Nothing.
    No,
    /// Payload, in its place but for so many doorbells in front of its last part, which begins
    /// behind so many bytes.
    Whole { doorbells: usize, behind: usize },
    /// The same, but what is unread in the ring belongs in front of that last part.
    Early { doorbells: usize, behind: usize },
    /// Payload, and nobody knows its place.
    Torn,
}

impl Conn {
    /// Whether a receive that ended at `r` and took `taken` bytes has run past the peer's switch at
    /// `n` and past its return to TCP, both while it was in the kernel. If it has, and can be left
    /// as it is, receives stay on TCP.
    pub(super) fn overtakes(&self, rx: &mut Rx, n: u64, r: u64, taken: u64) -> Overtakes {
        let my = self.my();
        let word = my.prod.load(Acquire);
        if word & REVERTED == 0 || r <= n || self.receives_on_ring() {
            return Overtakes::No;
        }
        // Payload from behind the return begins after the last doorbell.
        let last = n + u64::from(fix_bells(my));
        if r <= last {
            return Overtakes::No;
        }
        let first = n.max(r - taken);
        let doorbells = last.saturating_sub(first) as usize;
        let behind = (first - (r - taken)) as usize;
        // What is in the ring belongs in front of it, unless we took the ring back: then it is what
        // came.
        let written = word & shm::cursor::CURSOR_MASK;
        if written != rx.cons.wire() && !self.phase().has(p::TAKEN) {
            // Some of what the peer took back to TCP has been read there already if this is a
            // later receive than the one that was in the kernel during the switch.
            let whole = r - taken <= last
                && self.refresh_rx(rx).is_ok_and(|unread| unread > 0)
                && rx.prod.wire() == written;
            return if whole { Overtakes::Early { doorbells, behind } } else { Overtakes::Torn };
        }
        self.turn_receives(Receives::back);
        Overtakes::Whole { doorbells, behind }
    }

    /// The `early` bytes of `into` behind the first `at` were sent behind all that is in the ring:
    /// as many of the ring's first bytes take their places, and they the ends of the ring. No
    /// cursor moves, so to the peer nothing has happened. A reset here would hit every connection
    /// that goes back to TCP, for a program that is spawned perhaps, while its reader is kept off
    /// the processor in the middle of a receive. False if there is no memory for it.
    #[cold]
    pub(super) fn put_in_order(&self, rx: &Rx, mut into: Pieces, at: usize, early: usize) -> bool {
        let w = self.window();
        let base = (w.my.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: our DMB has HEADER_LEN + size bytes. The peer has said that it writes no more; if it
        // does, what it spoils is its own stream.
        let ring = unsafe { Ring::new(base, w.my_size.load(Relaxed)) };
        let unread = (rx.prod.pos - rx.cons.pos) as u32;
        let spans = ring.spans(&rx.cons, unread);
        let mut queue = Vec::new();
        // An allocation that fails otherwise ends the program.
        if queue.try_reserve_exact(unread as usize).is_err() {
            return false;
        }
        queue.resize(unread as usize, 0u8);
        let mut to = queue.as_mut_slice();
        for (from, len) in spans {
            let (part, rest) = to.split_at_mut(len as usize);
            // SAFETY: a part of the ring, and as many bytes of the queue.
            unsafe { shm::copy(from, part.as_mut_ptr(), part.len()) };
            to = rest;
        }
        into.skip(at);
        into.exchange(&mut queue, early);
        let mut from = queue.as_slice();
        for (to, len) in spans {
            let (part, rest) = from.split_at(len as usize);
            // SAFETY: as above, the other way round.
            unsafe { shm::copy(part.as_ptr(), to, part.len()) };
            from = rest;
        }
        true
    }
}
