//! The usual send and the usual receive: one buffer, a ring that is mapped here, and nothing under
//! way that asks for more than a copy. Whatever is not usual is left to `send.rs` and `recv.rs`,
//! with nothing done.
#![allow(unsafe_code)]

use shm::cursor::CURSOR_MASK;
use shm::ring::Ring;

use super::mapped::{Mapped, Sleeper};
use super::window::Window;
use super::*;
use crate::sys;

/// Bytes by which a frame here counts as deeper than it is. Those of the long ways lie some 500 bytes
/// deeper: a thread that jumped out of a section here would be taken, there, for a signal handler
/// that has interrupted it, and be refused the lock for ever. More than half of them, and a handler
/// could be taken for such a thread.
const NEARER: u32 = 256;
/// More bytes than this are published in parts, so that the reader's copy overlaps ours: not here.
const MOST: usize = 32 << 10;

impl Conn {
    /// Receives at most `len` bytes that the peer has sent into our ring; None if there are none,
    /// or if this receive is no usual one.
    ///
    /// # Safety
    /// The application vouches for `len` bytes at `to`.
    // Neither this nor `send_at_once` may be inlined: their frames would lie elsewhere in each hook.
    #[inline(never)]
    pub unsafe fn recv_at_once(&self, fd: i32, to: *mut u8, len: usize) -> Option<usize> {
        let w = self.window();
        if !is_near(w) || sys::faulty(to) || table::may_have_changed() {
            return None;
        }
        let mut held = self.rx.state.try_lock_near(NEARER)?;
        let rx = &mut *held;
        let ph = self.phase();
        // Again under the lock: the place may be another connection's by now, whose buffer is not
        // mapped.
        if !is_near(w) || !ph.receives_freely() || !ph.is_committed() || rx.tcp_left != 0 {
            return None;
        }
        let size = w.my_size.load(Relaxed);
        let my = header(&w.my);
        let mut unread = (rx.prod.pos - rx.cons.pos) as u32;
        if (unread as usize) < len {
            // SYNC: prod. Acquire; pairs with the exchange in `Conn::publish`.
            let word = my.prod.load(Acquire);
            // What comes over TCP behind the last of the ring belongs to the same receive.
            if word & !CURSOR_MASK != 0 {
                return None;
            }
            unread += rx.prod.follow(word, size, size.saturating_sub(unread)).ok()?;
        }
        let n = unread.min(len.min(u32::MAX as usize) as u32);
        if n == 0 {
            return None;
        }
        let base = (w.my.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: our DMB has HEADER_LEN + size bytes.
        let ring = unsafe { Ring::new(base, size) };
        // SAFETY: `n` bytes are unread, and the application's buffer has `len`.
        unsafe { ring.read(&rx.cons, to, n) };
        rx.cons.advance(n, size);
        self.rx.word.store(rx.cons.wire(), Relaxed);
        self.confirm(fd, rx, w);
        self.rx.counts.call(n as usize);
        Some(n as usize)
    }

    /// Sends the `len` bytes at `from`; None if there is no room for all of them, or if this send is
    /// no usual one.
    ///
    /// # Safety
    /// The application vouches for `len` bytes at `from`.
    #[inline(never)]
    pub unsafe fn send_at_once(&self, fd: i32, from: *const u8, len: usize) -> Option<usize> {
        let w = self.window();
        let (cpu, ticks) = sys::cpu_and_ticks();
        if !is_near(w)
            || self.identity.path.load(Relaxed) == path::COPY
            || self.is_to_look(ticks)
            || !(1..=MOST).contains(&len)
            || sys::faulty(from)
            || table::may_have_changed()
        {
            return None;
        }
        let mut held = self.tx.state.try_lock_near(NEARER)?;
        let tx = &mut *held;
        // Again under the lock: the place may be another connection's by now, whose buffer is not
        // mapped.
        let is_mine = is_near(w) && self.identity.path.load(Relaxed) != path::COPY;
        if !is_mine || !self.phase().sends_freely() || tx.left || tx.held {
            return None;
        }
        let reach = Mapped { my: header(&w.my), peer: header(&w.peer) };
        let size = w.peer_size.load(Relaxed);
        let room = self.tx_room_in(w);
        let mut unread = (tx.prod.pos - tx.cons.pos) as u32;
        if (room.saturating_sub(unread) as usize) < len {
            // SYNC: cons. Acquire: the peer has finished reading what it frees; pairs with
            // `Mapped::confirm`.
            let word = reach.my.cons.load(Acquire);
            unread -= tx.cons.follow(word, size, unread).ok()?;
            if (room.saturating_sub(unread) as usize) < len {
                return None;
            }
        }
        if reach.my.cons.load(Relaxed) & (CLOSED | ABORT) != 0
            || reach.peer.prod.load(Relaxed) & REVOKED != 0
        {
            return None;
        }
        let base = (w.peer.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: the peer's DMB has HEADER_LEN + size bytes, checked when it was attached.
        let ring = unsafe { Ring::new(base, size) };
        // SAFETY: so many bytes are free, and the application's buffer has them.
        unsafe { ring.write(&tx.prod, from, len as u32) };
        let before = tx.prod.pos;
        tx.prod.advance(len as u32, size);
        if self.publish(reach, tx, cpu) {
            // SAFETY: our own control page, type-stable.
            let page = unsafe { w.my_waits.load(Relaxed).as_ref() };
            let sleeper = reach.sleeper(&self.tx.rung, page, || w.peer_bits());
            if sleeper != Sleeper::Nobody {
                self.wake(fd, tx, sleeper, false);
            }
        } else {
            // The owner took the ring back behind the look at REVOKED. These bytes were taken from
            // the application, so they go out over TCP, first of all.
            self.leave_ring(tx, before);
        }
        if room - unread - (len as u32) < room / 2 {
            self.stir_if_announced();
        }
        self.tx.counts.call(len);
        Some(len)
    }
}

/// Whether the peer's buffer is mapped here, without a checksum for what goes through it.
#[inline(always)]
fn is_near(w: &Window) -> bool {
    w.far.load(Relaxed) == 0 && w.tail.load(Relaxed) == 0
}
