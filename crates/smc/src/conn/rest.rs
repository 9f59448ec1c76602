//! Memory of connections at rest: what their rings have grown to is given back after a second or
//! two without a send.
//!
//! The sender gives back the *peer's* ring: while it holds its lock nothing is being written there,
//! and when the peer has read everything there is nothing to read either. It happens before a
//! thread goes to sleep; there is no thread for it.
#![allow(unsafe_code)]

use core::sync::atomic::AtomicBool;

use super::*;
use crate::sys::SignalsHeld;
use crate::{sys, table};

/// How long a connection must have sent nothing, at least; twice that at most.
const REST_NS: u64 = 1_000_000_000;

/// Connections may have sent something since the last sweep. Only a hint, as is `NEXT`: a sweep too
/// many or too few is harmless.
static STIRRED: AtomicBool = AtomicBool::new(false);
/// When the next sweep is due.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A connection was used.
#[inline]
pub fn stir() {
    if !STIRRED.load(Relaxed) {
        STIRRED.store(true, Relaxed);
    }
}

/// To be called before a sleep. How many nanoseconds it may last until somebody should call again;
/// None: for ever.
#[inline]
pub fn before_sleep() -> Option<u64> {
    if STIRRED.load(Relaxed) { due() } else { None }
}

#[cold]
fn due() -> Option<u64> {
    let (now, next) = (sys::coarse_ns(), NEXT.load(Relaxed));
    if next != 0 && now < next {
        return Some(next - now);
    }
    if NEXT.compare_exchange(next, now + REST_NS, Relaxed, Relaxed).is_ok() && next != 0 {
        STIRRED.store(false, Relaxed);
        if !sweep() {
            return STIRRED.load(Relaxed).then_some(REST_NS);
        }
        stir();
    }
    Some(REST_NS)
}

/// Gives back the rings of connections that have not sent since the last sweep; whether some have.
fn sweep() -> bool {
    if !table::exists() {
        return false;
    }
    let Some(t) = table::get() else { return false };
    // What a handler sends on a connection that is held here would be kept until the program's next
    // call on that, and the program may be about to wait for the answer.
    let _quiet = SignalsHeld::new();
    let mut moved = false;
    for (_, c) in t.here() {
        let w = window::of(c);
        if w.peer.load(Relaxed).is_null() || c.identity.gen_.load(Relaxed).is_multiple_of(2) {
            continue;
        }
        let at = c.tx.word.load(Relaxed);
        if w.swept.swap(at, Relaxed) != at {
            moved = true;
        } else {
            c.give_back(w);
        }
    }
    moved
}

/// So much of the buffer stays: the header, and what short messages need.
const PAGE: u32 = 4096;

impl Conn {
    /// Gives back the peer's ring if it is ours to write, and empty.
    fn give_back(&self, w: &Window) {
        let Some(mut held) = self.tx.state.try_lock() else { return };
        let ph = self.phase();
        if ph.sends() != Sends::Ring || ph.has(p::CLOSED | p::DEAD | p::BROKEN) {
            return;
        }
        if self.image().is_some() {
            // The ring is the peer's own memory.
            return;
        }
        let tx = &mut *held;
        let size = w.peer_size.load(Relaxed);
        let fresh = tx.prod.pos - tx.rested;
        let in_first_page =
            fresh <= u64::from(tx.prod.count()) && tx.prod.count() <= PAGE - HEADER_LEN;
        if in_first_page || self.refresh_tx(tx) != Ok(0) {
            return;
        }
        tx.rested = tx.prod.pos;
        let first = w.peer.load(Relaxed).cast::<u8>().wrapping_add(PAGE as usize);
        let len = (size + HEADER_LEN - PAGE) as usize;
        // SAFETY: a part of the peer's DMB, mapped here, which holds no byte that anybody will read:
        // the ring is empty, and nobody writes to it without the tx lock.
        unsafe { sys::give_back_pages(first, len) };
    }
}
