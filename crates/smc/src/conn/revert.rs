//! Back to TCP, for what a ring cannot carry: a descriptor given away, an exec, urgent data, stdio.
//!
//! Our sends go back by themselves: `REVERTED` in the producer word says that nothing follows in
//! the ring. Our receives go back by taking the ring from the peer: `REVOKED` makes its next
//! publication fail, and `RUNG_REVOKED` fixes the number of doorbells in the TCP stream, so that
//! exactly those are skipped. Bytes that nobody has read are sent again by the peer, over TCP,
//! because whoever reads the socket next may not know of rings.
#![allow(unsafe_code)]

use super::image::Image;
use super::mapped::{Mapped, Sleeper, fix_bells};
use super::reach::{Any, Reach, each};
use super::*;
use crate::sys;
use crate::sys::SignalsHeld;
use shm::must_ring;
use shm::ring::Ring;

/// How long a doorbell that was counted may take to arrive: the sender has only a system call
/// between the two.
pub(super) const IN_FLIGHT_MS: u64 = 1000;
/// How long an end waits for a peer that reads nothing.
const UNREAD_MS: u64 = 3000;

/// How far bytes that go over TCP instead of the ring have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing is left of them.
    All,
    /// The socket is full.
    Full,
    /// This is a signal handler that has interrupted their sending: as long as it runs they get no
    /// further.
    Held,
}

impl Conn {
    /// Our sends return to TCP; bytes in the ring from `unpublished` on go there first. The tx lock
    /// is held.
    #[cold]
    pub(super) fn leave_ring(&self, tx: &mut Tx, unpublished: u64) {
        if self.begins_to_leave(tx, unpublished) {
            self.end_ring();
        }
    }

    /// Our sends are on their way back to TCP, and no other thread rings any more; false if they
    /// have been before. The tx lock is held.
    fn begins_to_leave(&self, tx: &mut Tx, unpublished: u64) -> bool {
        let was = self.turn_sends(|at| match at {
            Sends::Ring => Sends::Leaving,
            at => at.gone_back(),
        });
        if matches!(was, Sends::Leaving | Sends::Back | Sends::Kept) {
            return false;
        }
        tx.resend = unpublished;
        if unpublished < tx.prod.pos {
            self.set(p::RESEND);
        }
        self.tx.await_bells();
        true
    }

    /// From where on the peer wants its ring sent again (`takeback::from`); 0 as long as it does not.
    fn takeback(&self) -> u64 {
        each!(self.reach(), reach => Reach::takeback(reach, self))
    }

    /// Tells the peer that nothing follows in its ring; then sends are on TCP. The tx lock is held.
    #[cold]
    pub(super) fn end_ring(&self) {
        each!(self.reach(), reach => reach.end_ring(self));
    }

    /// Sends over TCP what is in the ring but will not be read there: what the peer gave back when
    /// it took its ring, and what had been placed when it did. New bytes may follow when nothing of
    /// that is left. As long as something is, each wait on the connection has to come back here
    /// when the socket has room (`needs_us`): the peer may be waiting for those bytes.
    pub fn flush_takeback(&self, fd: i32) -> Flushed {
        let ph = self.phase();
        let recalled = self.is_recalled();
        let is_asked = || ph.is_exposed() && (self.takeback() & 1 != 0 || recalled);
        if !ph.has(p::RESEND) && !is_asked() {
            return Flushed::All;
        }
        // A signal handler that sends meanwhile could only leave its bytes to the next send, and the
        // program may be about to wait for the answer to them.
        let _quiet = SignalsHeld::new();
        let Ok(mut held) = self.lock_tx() else { return Flushed::Held };
        if self.resend(fd, &mut held) { Flushed::All } else { Flushed::Full }
    }

    /// `flush_takeback` under the tx lock.
    #[cold]
    pub(super) fn resend(&self, fd: i32, tx: &mut Tx) -> bool {
        let done = self.send_again(fd, tx);
        if done {
            // Also where it cannot be sent: new bytes must meet the kernel's answer, not wait for ever.
            self.clear(p::RESEND);
        }
        done
    }

    fn send_again(&self, fd: i32, tx: &mut Tx) -> bool {
        let at = tx.prod.pos;
        let word = self.takeback();
        if word & 1 != 0 && !each!(self.reach(), reach => reach.fetch(self, tx, word)) {
            self.broken(fd);
            return true;
        }
        if word & 1 != 0 && !self.phase().has(p::TAKEN_BACK) {
            // Before sends are on TCP, where other threads need no lock: theirs come behind.
            self.set(p::RESEND);
        }
        self.leave_ring(tx, at);
        let word = self.takeback();
        if word & 1 != 0 && !self.set(p::TAKEN_BACK).has(p::TAKEN_BACK) {
            let from = word >> 1;
            // The peer gives back what it has not read: never from before what it said it has, nor
            // from the future.
            if from < tx.cons.pos || from > tx.resend {
                self.broken(fd);
                return true;
            }
            tx.resend = from;
        }
        let size = self.window().peer_size.load(Relaxed);
        let base = each!(self.reach(), reach => reach.resend(self));
        if tx.resend < tx.prod.pos && base.is_null() {
            // Another process of the family has fetched them.
            self.broken(fd);
            return true;
        }
        // SAFETY: the peer's DMB has HEADER_LEN + size bytes, and so has the stash without the
        // header.
        let ring = unsafe { Ring::new(base.cast_mut(), size) };
        while tx.resend < tx.prod.pos {
            // A reset is the program's to hear, once: a send would fetch it from the kernel.
            const RESET: i16 = libc::POLLERR | libc::POLLHUP;
            if sys::poll_now(fd, 0) & RESET == RESET {
                return true;
            }
            let mut at = tx.cons;
            at.advance(tx.resend.saturating_sub(at.pos).min(u64::from(size)) as u32, size);
            let [(src, len), _] =
                ring.spans(&at, (tx.prod.pos - tx.resend).min(u64::from(size)) as u32);
            // SAFETY: a part of the ring.
            let r = unsafe {
                sys::send(fd, src, len as usize, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
            if r <= 0 {
                return r != -(libc::EAGAIN as isize);
            }
            tx.resend += r as u64;
        }
        true
    }

    /// `flush_takeback` in front of what is sent or ended past us, behind which nothing can be sent.
    /// False when something is left: the stream must not pass for a whole one.
    pub(super) fn flush_before_end(&self, fd: i32) -> bool {
        flush_all(&[(self, fd)])
    }

    /// What must precede an end of the process that closes nothing: the kernel would end in good
    /// order also a stream of which something is missing.
    pub fn end_of_process(of: &[(&Conn, i32)]) {
        if flush_all(of) {
            return;
        }
        for &(conn, fd) in of {
            if conn.flush_takeback(fd) != Flushed::All {
                conn.tear(fd);
            }
        }
    }

    /// Lets the socket take all that is left at once, if the process may.
    fn widen(&self, fd: i32) {
        let left = self.tx.prod().pos.saturating_sub(self.tx.resend()).min(1 << 30) as i32;
        let mut now = [0i32];
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut now);
        // The kernel doubles what it is told, for what it needs beside the bytes.
        let more = now[0] / 2 + left;
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &[more]);
    }

    /// Gives the connection back to TCP in both directions. With `foreign`, code that knows nothing
    /// of us will read the descriptor next: what lies unread in our ring is then sent again by the
    /// peer. False when the TCP stream could not be put in order for such code; the connection is
    /// then broken.
    pub fn go_back_or_break(&self, fd: i32, reason: u32, foreign: bool) -> bool {
        let clean = self.go_back(fd, reason, foreign);
        if !clean {
            self.break_for(fd, Reason(reason), false);
        }
        clean
    }

    /// The program that this process becomes would read what nobody can put in order.
    pub fn reset_by_exec(&self, fd: i32) {
        self.break_for(fd, crate::reason::INHERITED, false);
    }

    /// `go_back_or_break` without the break: while it is not clean, only our own receives find the
    /// end of the ring.
    pub fn go_back(&self, fd: i32, reason: u32, foreign: bool) -> bool {
        let before = self.set(p::FROZEN);
        if !self.is_exposed() {
            self.identity.reason.store(reason, Relaxed);
            if !before.has(p::FROZEN) {
                self.tell(crate::reason::Reason(reason));
            }
            return true;
        }
        if foreign && self.revokes() {
            // The doorbell of a recall needs it; over ism and verbs `wake_for_recall` sees to that.
            // Ours alone can do without one: a peer that sleeps takes the ring back with its next
            // call. Told by a doorbell between payload and payload, it might receive all three at
            // once.
            self.switch_tx(fd, |_| true);
        }
        self.follow(fd);
        // Our memory may be gone before the peer's next call, or out of its reach.
        let given = [crate::reason::INHERITED, crate::reason::PASSED_FD, crate::reason::RIGHTS];
        let given = given.iter().any(|r| r.code() == reason);
        // Registered memory ends with the process that registered it, and of two after a fork that
        // may be the first.
        let vanishing = given
            || self.image().is_some_and(Image::is_linked)
                && reason == crate::reason::SHARED_FD.code();
        // Over ism a peer that has taken its ring back gives us what is to be sent again only before
        // we leave by ourselves.
        self.flush_takeback(fd);
        let mut clean = each!(self.reach(), reach => reach.recall(self, fd, foreign, vanishing));
        // A program that goes on elsewhere has told the peer with the recall.
        self.leave_tx(fd, !foreign);
        if foreign {
            // It sends behind what is there, and knows of nothing that is missing.
            clean &= self.flush_before_end(fd);
        } else {
            self.flush_takeback(fd);
        }
        self.identity.reason.store(reason, Relaxed);
        if !before.has(p::FROZEN) {
            self.tell(crate::reason::Reason(reason));
        }
        if clean && foreign {
            self.restore_options(fd);
        }
        clean
    }

    /// Takes both directions back to TCP as far as that goes now, without a reset and without a
    /// wait for the peer; our hooks go on serving the connection. To be called again until
    /// `needs_device` says no.
    #[cold]
    pub fn drain(&self, fd: i32, reason: u32) {
        if self.sends_on_ring() {
            let Ok(mut held) = self.lock_tx() else { return };
            self.leave_waking(fd, &mut held, true);
        }
        if self.phase().has(p::RECALLED) {
            self.try_back_to_tcp(fd);
        } else {
            self.go_back(fd, reason, false);
        }
    }

    /// Our sends return to TCP, and a peer that sleeps for room is rung, because it is not told of that
    /// any more; with `all` also one that sleeps for data, so that it looks, and returns as well. A
    /// peer that does not sleep is spared the doorbell: killed before it has read that, it would
    /// seem to have reset the connection. The tx lock is held.
    fn leave_waking(&self, fd: i32, tx: &mut Tx, all: bool) {
        let for_data = || match all {
            true => each!(self.reach(), reach => Reach::sleeper(reach, self)),
            false => Sleeper::Nobody,
        };
        let sleeper = || match for_data() {
            Sleeper::Nobody if must_ring(&self.my().tx_arm, &self.rx.rung) => Sleeper::OnTcp,
            sleeper => sleeper,
        };
        let at = tx.prod.pos;
        match self.reach() {
            Any::Mapped(reach) => {
                if self.begins_to_leave(tx, at) {
                    // Told first, as everything that a peer waits for: it cannot fall asleep
                    // unseen. Rung before sends are on TCP, where other threads need no lock: their
                    // bytes and this doorbell would change places.
                    if reach.close_ring() {
                        self.set(p::RESEND);
                    }
                    self.announce();
                    self.wake_for_return(fd, sleeper());
                    self.turn_sends(Sends::left);
                }
            }
            Any::Image(_) => {
                // At a distance nothing is rung behind the return. A peer that falls asleep between
                // the two lines looks again when its wait does, which is soon while it drains too.
                self.wake(fd, tx, sleeper(), false);
                self.leave_ring(tx, at);
            }
        }
    }

    /// Rings for the return of our sends to TCP, which has been told: the last doorbell in front of
    /// what follows there. The tx lock is held.
    fn wake_for_return(&self, fd: i32, sleeper: Sleeper) {
        let goes =
            self.phase().has(p::SHUT_WR) || self.my().cons.load(Relaxed) & (CLOSED | ABORT) != 0;
        if sleeper == Sleeper::Nobody || goes {
            return;
        }
        if let Sleeper::InWait(wait) = sleeper
            && self.ring_bell(wait)
        {
            self.tx.counts.doorbells.fetch_add(1, Relaxed);
            return;
        }
        each!(self.reach(), reach => Reach::ring(reach, self, fd, &self.tx.counts, false));
    }

    /// Our sends return to TCP; receives stay where they are. With `wakes` a peer that sleeps for room
    /// is told.
    pub fn leave_tx(&self, fd: i32, wakes: bool) {
        let Ok(mut held) = self.lock_tx() else { return };
        if self.sends_on_ring() {
            let tx = &mut *held;
            let at = tx.prod.pos;
            if wakes { self.leave_waking(fd, tx, false) } else { self.leave_ring(tx, at) }
        }
        let was = self.turn_sends(Sends::gone_back);
        if matches!(was, Sends::Ready | Sends::Switching) {
            each!(self.reach(), reach => reach.refuse(self));
        }
    }

    /// Lets our receives follow a peer that has left TCP. A thread inside a kernel receive is
    /// waited for: the peer's first doorbell brings it out.
    fn follow(&self, fd: i32) {
        let deadline = sys::now_ns() + IN_FLIGHT_MS * 1_000_000;
        while !self.settle_rx(fd)
            && self.switch_due()
            && self.my().rung.load(SeqCst) != 0
            && sys::now_ns() < deadline
        {
            sys::nap();
        }
    }

    /// Takes our ring back from the peer, which writes to it here; true when the TCP stream is, or
    /// will be, in order.
    pub(super) fn recall_by_store(&self, reach: Mapped, fd: i32, foreign: bool) -> bool {
        let Ok(mut held) = self.lock_rx() else { return false };
        let rx = &mut *held;
        let my = self.my();
        let before = reach.revoke();
        self.set(p::RECALLED);
        if self.receives_are_back() {
            return true;
        }
        if !self.receives_on_ring() {
            // The peer has not switched, or has done nothing since. Its first publication fails and
            // it stays on TCP.
            if fix_bells(my) == 0 && before & shm::cursor::CURSOR_MASK == 0 {
                self.turn_receives(Receives::back);
                return true;
            }
            // A thread of ours sits inside a receive that began on TCP: it cuts the stream when it
            // comes out.
            return !foreign;
        }
        let Ok(unread) = self.refresh_rx(rx) else { return false };
        if rx.tcp_left > 0 {
            // Payload before the ring is still to be read: our own reads go on to the ring behind
            // it. Others can read on only if no doorbell lies between.
            if !foreign {
                return true;
            }
            if fix_bells(my) != 0 {
                return false;
            }
        }
        if unread > 0 && foreign {
            // A peer that has gone back to TCP already may have sent more there: its bytes would
            // change places. Nor can one be told that is gone, or that takes our doorbells for
            // payload; behind its FIN nothing can be sent.
            if before & REVERTED != 0 || rx.ends & ENDS != 0 || !self.sends_on_ring() {
                return false;
            }
            if !reach.claim(rx.cons.pos) {
                return false;
            }
            rx.cons = rx.prod;
            self.rx.word.store(rx.cons.wire(), Relaxed);
            self.announce();
            self.ring(fd, &self.tx.counts);
        } else if unread > 0 {
            return true;
        }
        let deadline = sys::now_ns() + if foreign { IN_FLIGHT_MS * 1_000_000 } else { 0 };
        while !self.skip_doorbells(fd, rx) {
            if sys::now_ns() > deadline {
                return !foreign;
            }
            sys::poll_for(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], 1_000_000);
        }
        true
    }

    /// Skips the doorbells between the ring's last byte and the payload that follows on TCP; true
    /// when all are gone.
    pub(super) fn skip_doorbells(&self, fd: i32, rx: &mut Rx) -> bool {
        let last = fix_bells(self.my());
        let mut junk = [0u8; 64];
        loop {
            let due = last.wrapping_sub(rx.drained) & !RUNG_REVOKED;
            if due == 0 || due > FLOOD {
                self.turn_receives(Receives::back);
                return true;
            }
            // SAFETY: the buffer is ours.
            let r = unsafe {
                sys::recv(fd, junk.as_mut_ptr(), junk.len().min(due as usize), libc::MSG_DONTWAIT)
            };
            if r <= 0 {
                // An end of the connection ends the wait for doorbells too.
                if r != -(libc::EAGAIN as isize) {
                    self.turn_receives(Receives::back);
                    return true;
                }
                return false;
            }
            rx.drained = rx.drained.wrapping_add(r as u32) & !RUNG_REVOKED;
        }
    }

    /// The ring is read to its end and the peer is back on TCP. The rx lock is held.
    pub(super) fn back_to_tcp(&self, fd: i32, rx: &mut Rx) -> Got {
        if self.skip_doorbells(fd, rx) { Got::Kernel } else { Got::Empty }
    }

    /// Whether the ring has just been read to its end, and the stream goes on over TCP.
    #[inline]
    pub fn turns_to_tcp(&self, fd: i32) -> bool {
        let ph = self.phase();
        ph.receives_on_ring()
            && self.my().prod.load(Acquire) & (REVERTED | REVOKED) != 0
            && self.follows_to_tcp(fd)
    }

    #[cold]
    #[inline(never)]
    fn follows_to_tcp(&self, fd: i32) -> bool {
        const SIOCATMARK: u64 = 0x8905;
        self.try_back_to_tcp(fd);
        // In front of an urgent byte a receive ends.
        !self.receives_on_ring() && sys::ioctl_int(fd, SIOCATMARK) == Ok(0)
    }

    /// Follows the peer back to TCP if the ring is read to its end.
    pub fn try_back_to_tcp(&self, fd: i32) {
        if let Some(mut held) = self.rx.state.try_lock() {
            let rx = &mut *held;
            if self.receives_on_ring()
                && rx.tcp_left == 0
                && self.refresh_rx(rx) == Ok(0)
                && (self.my().prod.load(Acquire) & REVERTED != 0 || self.has_revoked(self.phase()))
            {
                self.skip_doorbells(fd, rx);
            }
        }
    }
}

/// Sends what is left of all these; false when something still is. Where the kernel would go on by
/// itself this waits, as long as any peer reads.
fn flush_all(of: &[(&Conn, i32)]) -> bool {
    let (mut last, mut since) = (None, 0);
    loop {
        let (mut full, mut sent) = (false, 0u64);
        for &(conn, fd) in of {
            match conn.flush_takeback(fd) {
                Flushed::All => {}
                Flushed::Held => return false,
                Flushed::Full => {
                    full = true;
                    if last.is_none() {
                        conn.widen(fd);
                    }
                }
            }
            sent = sent.wrapping_add(conn.tx.resend());
        }
        if !full {
            return true;
        }
        let now = sys::now_ns();
        if last.replace(sent) != Some(sent) {
            since = now;
        } else if now - since > UNREAD_MS * 1_000_000 {
            return false;
        }
        sys::nap();
    }
}
