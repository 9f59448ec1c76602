//! Half-close, close, and what the peer is told of them.
#![allow(unsafe_code)]

use super::reach::{Reach, each};
use super::*;
use crate::sys;

impl Conn {
    /// Publishes end flags behind everything sent so far, and sets `marks`. The caller makes the
    /// kernel's FIN follow.
    fn publish_ends(&self, flags: u64, marks: u32) {
        // The tx lock orders the flags behind a send that is under way in another thread, and all
        // later ones behind the marks: in between they would be told as sent, and lost behind the
        // end.
        let _tx = self.lock_tx();
        self.set(marks);
        let _rx = self.lock_rx();
        self.ending.said.fetch_or(flags, Relaxed);
        if !self.is_committed() {
            return;
        }
        if self.phase().has(p::RECALLED) {
            // Both directions are TCP's again, ends too, and whoever has the descriptor may go on
            // with it.
            return;
        }
        // The lock is held, or our own thread holds it further up the stack (signal handler).
        let cons = self.rx.cons();
        each!(self.reach(), reach => reach.end(cons.wire() | self.ending.said()));
        self.announce();
    }

    /// Tells the peer that the device went away, whatever locks are held. A confirmation that is
    /// under way may hide it, from a peer that then sees the kernel's end alone.
    pub(crate) fn tell_gone(&self, fd: i32) {
        if self.is_committed() && !self.phase().has(p::RECALLED) {
            self.ending.said.fetch_or(ABORT | GONE, Relaxed);
            each!(self.reach(), reach => reach.flag(ABORT | GONE));
            self.announce();
            self.ring(fd, &self.tx.counts);
        }
    }

    /// What must precede the kernel's shutdown(fd, how).
    pub fn shutdown(&self, fd: i32, how: i32) {
        if how == libc::SHUT_RD {
            self.flush_takeback(fd);
        } else if !self.flush_before_end(fd) {
            // It went back to TCP for the reason that it has, and the peer reads nothing.
            self.break_for(fd, self.reason(), false);
        }
        if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
            // Under the lock no switch of another thread is under way, and none begins behind the
            // mark: one that went on would leave the peer with a FIN that nobody has announced, as if
            // this process had been killed.
            let held = self.lock_tx();
            if !self.sends_on_ring() {
                self.set(p::SHUT_WR);
            }
            drop(held);
            if self.sends_on_ring() {
                self.publish_ends(DONE, p::SHUT_WR);
            }
            self.set(p::SHUT_WR);
        }
        if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
            self.set(p::SHUT_RD);
        }
        let ph = self.phase();
        if ph.has(p::SHUT_WR) && ph.has(p::SHUT_RD) && ph.switched() {
            // Nobody will read what the peer sends from here on: TCP answers that by a reset, once
            // it is sent there.
            self.publish_ends(DONE | CLOSED, 0);
        }
    }

    /// Whether the reset that the kernel has had is only its answer to doorbells that lay unread
    /// when the peer ended. In TCP this end would be half open still.
    pub fn is_reset_by_doorbell(&self) -> bool {
        let ph = self.phase();
        let ends = if ph.is_exposed() { self.my().cons.load(Acquire) & ENDS } else { ABORT };
        ph.sends_on_ring()
            && !ph.has(p::BROKEN | p::SENT_TO_GONE)
            && ends & ABORT == 0
            && (ends & CLOSED != 0 || !self.unread_there())
    }

    /// SO_ERROR as the kernel has just told it, and the program may hear it: without that reset it
    /// is none.
    pub fn error_heard(&self, error: i32) -> i32 {
        if self.phase().has(p::BROKEN) || self.is_reset_by_word() {
            return match (self.set(p::ENDED).has(p::ENDED), self.has_timed_out()) {
                (true, _) => 0,
                (_, true) => libc::ETIMEDOUT,
                _ => libc::ECONNRESET,
            };
        }
        let reset = error == libc::ECONNRESET || error == libc::EPIPE;
        let ph = self.phase();
        // Behind both shutdowns what the peer still sends is answered by a reset, in TCP as well.
        let over = ph.has(p::SHUT_RD) && ph.has(p::SHUT_WR);
        if !reset || over || !self.is_reset_by_doorbell() {
            return error;
        }
        // The kernel will not tell of it again: who receives is at the end, who sends gets TCP's
        // answers to a closed peer.
        if self.my().cons.load(Acquire) & ENDS == 0 {
            self.set(p::DEAD | p::ENDED);
        }
        0
    }

    /// Ends a connection to whose upgrade nothing was ever done, and that only its caller has:
    /// there is nobody to tell, and nothing to give back. False if there may be.
    pub fn end_untouched(&self) -> bool {
        self.phase().is_untouched() && self.upgrade.end_unbegun()
    }

    /// Somebody else has it by now: takes that back.
    pub fn goes_on(&self) {
        self.upgrade.begin_again();
    }

    /// The kernel has closed the last descriptor without us. Whoever looks at the peer's buffer under
    /// the tx lock leaves it alone from then on: it may come to be another connection's.
    pub fn was_closed(&self) {
        // A lock that a killed process has left would be waited for in vain.
        let _held = self.tx.state.try_lock();
        self.set(p::CLOSED);
    }

    /// What must precede the kernel's close of the last descriptor.
    pub fn close(&self, fd: i32) {
        let ph = self.set(p::CLOSED);
        if !ph.is_exposed() && !ph.is_committed() {
            return;
        }
        let mut linger = [0i32; 2];
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger);
        let hard = linger == [1, 0];
        let torn = !hard && !self.flush_before_end(fd);
        // A close that throws away unread data is an RST in TCP.
        let unread = if self.settle_rx(fd) {
            self.rx.tcp_left() > 0 || self.ring_unread()
        } else {
            sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) > 0
        };
        // One that was given away goes on elsewhere.
        let given = self.phase().has(p::RECALLED) && !self.reason().stays();
        if !given && (hard || unread) || torn {
            self.tear(fd);
            return;
        }
        self.publish_ends(DONE | CLOSED, 0);
        if self.receives_on_ring() {
            // Unread doorbells would make the kernel send RST instead of FIN. The flags above stop
            // further ones. A peer that sends faster than we throw away has broken the protocol,
            // and gets that reset.
            let mut junk = [0u8; 256];
            let (to, len) = (junk.as_mut_ptr(), junk.len());
            let mut left = FLOOD / len as u32;
            // SAFETY: the buffer is ours.
            let throw = || unsafe { sys::recv(fd, to, len, libc::MSG_DONTWAIT) };
            while left > 0 && throw() == len as isize {
                left -= 1;
            }
        }
    }

    /// The kernel is about to reset it, by connect with AF_UNSPEC. A peer that is not told takes that
    /// reset for the kernel's answer to unread doorbells, and goes on sending.
    pub fn dissolves(&self) {
        if self.is_committed() {
            self.publish_ends(ABORT, 0);
        }
    }

    /// Makes the kernel's close a reset.
    pub(super) fn tear(&self, fd: i32) {
        self.publish_ends(ABORT, 0);
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1i32, 0]);
    }

    fn ring_unread(&self) -> bool {
        self.my().prod.load(Acquire) & shm::cursor::CURSOR_MASK != self.rx.word.load(Relaxed)
            && !self.phase().has(p::ENDED)
    }

    /// Whether the peer will never write to our DMB again. Its end flags do not say that: after
    /// shutdown(SHUT_RDWR) it still confirms what it reads, and closes later.
    pub fn dmb_is_quiet(&self) -> bool {
        !self.is_exposed() || self.peer_has_left()
    }

    /// Whether the peer, which has attached our DMB, has given it up.
    pub(crate) fn peer_has_left(&self) -> bool {
        // SYNC: left.
        self.my().cons.load(Acquire) & LEFT != 0
    }

    /// Whether the connection ended without a word of the peer, as one does whose process was
    /// killed. Not so if our own kernel reset it, as it does when something arrives after
    /// shutdown(SHUT_RDWR), or we have lost patience with it: the peer would go on with the link
    /// group, and its next connection would not be upgraded.
    pub fn peer_died(&self) -> bool {
        let ph = self.phase();
        ph.is_exposed()
            && ph.has(p::DEAD | p::ENDED)
            && !(ph.has(p::SHUT_RD) && ph.has(p::SHUT_WR))
            && !self.has_timed_out()
            && self.my().cons.load(Acquire) & (ENDS | LEFT) == 0
            && self.my().prod.load(Acquire) & REVERTED == 0
    }

    /// The token of our DMB, if it was named to the peer in a handshake that has not come to its
    /// end, and the peer has not attached it; otherwise 0.
    pub(crate) fn doubtful_token(&self) -> u64 {
        let ph = self.phase();
        if ph.is_exposed() && !ph.is_committed() && !self.peer_attached() {
            self.tokens()[0]
        } else {
            0
        }
    }

    /// The last that is ever written to the peer's DMB on behalf of this connection.
    pub(crate) fn leave(&self) {
        // SYNC: left. Release, behind all other stores; pairs with the acquires in `peer_has_left`
        // and `group::take_dmb`. A peer that attaches only now has not been told of the end.
        let untold = if !self.is_committed() { self.ending.said() } else { 0 };
        each!(self.reach(), reach => reach.flag(LEFT | untold));
    }

    /// Our DMB's header, for whoever keeps the DMB until it is quiet.
    pub fn my_header(&self) -> *const DmbHeader {
        self.window().my.load(Relaxed)
    }
}
