//! Doorbell bytes on the TCP stream of our receives: how many may lie there, and which may be taken
//! off it.
#![allow(unsafe_code)]

use super::*;
use crate::sys;

impl Conn {
    /// Takes doorbell bytes whose conditions have been looked at: at most the number counted in
    /// `seen`.
    pub fn drain_doorbells(&self, fd: i32, seen: u32) {
        let Ok(mut held) = self.lock_rx() else { return };
        let rx = &mut *held;
        if !self.receives_on_ring() || rx.tcp_left > 0 {
            // Payload that the application has yet to read lies in front of them.
            sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1i32);
            return;
        }
        let mut due = (seen & !RUNG_REVOKED).wrapping_sub(rx.drained) & !RUNG_REVOKED;
        let mut junk = [0u8; 64];
        while due > 0 && due < FLOOD {
            // SAFETY: the buffer is ours.
            let r = unsafe {
                sys::recv(fd, junk.as_mut_ptr(), junk.len().min(due as usize), libc::MSG_DONTWAIT)
            };
            if r <= 0 {
                return;
            }
            rx.drained = (rx.drained + r as u32) & !RUNG_REVOKED;
            due -= r as u32;
        }
    }

    /// A byte on the TCP stream that no doorbell accounts for is a peer that breaks the protocol;
    /// left alone, it would make every wait return at once.
    pub fn check_stray(&self, fd: i32) {
        let Ok(held) = self.lock_rx() else { return };
        let my = self.my();
        let rx = &*held;
        let ph = self.phase();
        if !ph.receives_on_ring()
            || ph.has(p::RECALLED)
            || rx.tcp_left > 0
            || my.prod.load(Acquire) & REVERTED != 0
        {
            return;
        }
        let queued = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0).max(0) as u32;
        // Read after the queue: a doorbell is counted before it is sent.
        if queued > (my.rung.load(SeqCst) & !RUNG_REVOKED).wrapping_sub(rx.drained) & !RUNG_REVOKED
            && my.prod.load(Acquire) & REVERTED == 0
        {
            self.broken(fd);
        }
    }

    /// Doorbells counted by the peer so far; read before looking at the conditions that they
    /// announce.
    #[inline]
    pub fn doorbells_seen(&self) -> u32 {
        if !self.is_exposed() {
            return 0;
        }
        self.my().rung.load(SeqCst)
    }

    /// See `doorbells_due`, for who has the lock.
    pub(super) fn doorbells_due_by(&self, rx: &Rx) -> u32 {
        (self.doorbells_seen() & !RUNG_REVOKED).wrapping_sub(rx.drained) & !RUNG_REVOKED
    }

    /// Doorbell bytes that may lie unread on the TCP stream.
    pub fn doorbells_due(&self) -> u32 {
        (self.doorbells_seen() & !RUNG_REVOKED).wrapping_sub(self.rx.drained()) & !RUNG_REVOKED
    }
}
