//! Taking a ring back over ism and verbs, where nobody can make the peer's next publication fail.
//!
//! Who takes its ring back for its own use asks for it (`RECALL`), reads on, and the peer answers
//! by `REVERTED` behind its last bytes and its last doorbell.
//!
//! Who takes it back for code that knows of no rings also says up to where it has read
//! (`takeback`), and from then on looks at nothing that lies behind. The peer sends no doorbell
//! once it has seen that, and what it copies without having seen it, it has not sent. So nothing
//! need be waited for but that no thread of it is between the look and the doorbell, which the lock
//! of its image tells. What is unread the peer fetches when it makes its next call, and sends
//! again.
#![allow(unsafe_code)]

use super::image::{Image, KIN, KIND_TYPE, RECALL, TAKEBACK, Words};
use super::revert::IN_FLIGHT_MS;
use super::*;
use crate::{inet::TcpInfo, sys};
use core::mem::offset_of;
use shm::ring::Ring;

impl Image<'_> {
    /// Whether the peer has asked for its ring and has not got it.
    pub(super) fn is_recalled(self) -> bool {
        let my = self.of.my();
        let asked = my.kin.load(Acquire) & RECALL != 0 || my.takeback.load(Acquire) & 1 != 0;
        asked && !self.of.sends_go_back()
    }

    /// Reads a word of the peer's image of our header.
    fn image_word<const N: usize>(self, offset: usize) -> Option<[u8; N]> {
        let image = self.of.my().kind.load(Acquire) >> KIND_TYPE.count_ones();
        let mut word = [0; N];
        // Wherever it lies: what is read is the peer's own.
        (image != 0 && self.read(true, image + offset as u64, &mut word).is_ok()).then_some(word)
    }

    /// How much of the `used` bytes in its ring the peer has read and not told us yet.
    pub(super) fn read_untold(self, tx: &Tx, used: u32) -> u32 {
        let Some(word) = self.image_word(offset_of!(Words, header.cons)) else { return 0 };
        let mut cons = tx.cons;
        cons.follow(u64::from_ne_bytes(word), self.window.peer_size.load(Relaxed), used)
            .unwrap_or(0)
    }

    /// Whether the number of doorbells in our stream stands, after the takeback was told.
    fn is_settled(self, fd: i32) -> bool {
        takeback::told();
        if !self.of.peer_attached() {
            // When it has, it finds the takeback.
            return true;
        }
        match self.image_word(offset_of!(Words, lock)) {
            Some(lock) => u32::from_ne_bytes(lock) == 0,
            // Behind its FIN there is no doorbell.
            None => TcpInfo::of(fd).is_none_or(|i| i.is_closed() || i.peer_ended()),
        }
    }

    /// Takes our ring back, as far as it goes. With `foreign` what lies unread in the ring is for
    /// the peer to send again, from our memory: where that will be gone (`vanishing`) it gets some
    /// time. Without, our own receives go on until the peer has answered.
    pub(super) fn recall_by_asking(self, fd: i32, foreign: bool, vanishing: bool) -> bool {
        {
            let Ok(mut held) = self.of.lock_rx() else { return false };
            if self.of.set(p::RECALLED).receives_are_back() {
                return true;
            }
            let rx = &mut *held;
            if !self.ask_for_ring(rx, foreign) {
                return !foreign;
            }
        }
        let clean = self.await_ring(fd, vanishing);
        if !clean && header(&self.window.peer).takeback.load(Relaxed) & 1 != 0 {
            // Neither the ring nor the stream is whole.
            self.of.broken(fd);
        }
        clean
    }

    /// Asks the peer for our ring; whether that is for others, and what they need may be had.
    fn ask_for_ring(self, rx: &mut Rx, foreign: bool) -> bool {
        let (my, image) = (self.of.my(), header(&self.window.peer));
        let returned = my.prod.load(Acquire) & REVERTED != 0;
        let whole = self
            .of
            .refresh_rx(rx)
            .is_ok_and(|unread| unread == 0 || !returned && rx.ends & ENDS == 0);
        // Between what is left on TCP and the ring no doorbell may lie.
        let apart = rx.tcp_left == 0 || my.rung.load(SeqCst) & !RUNG_REVOKED == 0;
        let asked = image.kin.fetch_or(RECALL, SeqCst) & RECALL != 0;
        if foreign && whole && apart {
            if !returned {
                // Other threads of ours read nothing behind this place, which the peer will send
                // again.
                self.of.set(p::TAKEN);
                image.takeback.store(takeback::from(rx.cons.pos), SeqCst);
                // In this order: who sees the recall sees what must be fetched first.
                self.tell(&[TAKEBACK, KIN]);
            }
            return true;
        }
        if !returned && !asked {
            self.tell(&[KIN]);
        }
        false
    }

    /// Waits until the stream behind the ring is whole for others; false when it will not be.
    fn await_ring(self, fd: i32, vanishing: bool) -> bool {
        let deadline = sys::now_ns() + IN_FLIGHT_MS * 1_000_000;
        let mut rung = false;
        loop {
            let late = sys::now_ns() > deadline;
            if self.of.my().prod.load(Acquire) & REVERTED != 0 || self.is_settled(fd) {
                self.of.settle_rx(fd);
                if self.finish_recall(fd, late || !vanishing) {
                    return true;
                }
                // Something is unread, and a peer that sleeps must wake to send it again.
                if !core::mem::replace(&mut rung, true) {
                    self.wake_for_recall(fd);
                }
            }
            if late {
                return false;
            }
            sys::nap();
        }
    }

    /// Wakes a peer that sleeps. Sends that have not left TCP do so for that one doorbell, and are
    /// back there before the lock is free: what another thread put into the ring meanwhile would
    /// belong between doorbell and payload, all of which a thread of the peer's that has been in
    /// the kernel since before the switch gets at once.
    fn wake_for_recall(self, fd: i32) {
        if self.of.sends_on_ring() {
            return self.of.ring(fd, &self.of.tx.counts);
        }
        // Whoever has it sends something, which wakes too; and the rx lock may be held, which comes
        // behind this one elsewhere.
        let Some(mut held) = self.of.tx.state.try_lock() else { return };
        if self.of.switch_locked(fd, |_| true) {
            self.of.ring(fd, &self.of.tx.counts);
            let tx = &mut *held;
            let at = tx.prod.pos;
            self.of.leave_ring(tx, at);
        }
    }

    /// The peer rings no more. False while something is missing; what it will send again is, unless
    /// that may be `later`.
    fn finish_recall(self, fd: i32, later: bool) -> bool {
        let Ok(mut held) = self.of.lock_rx() else { return false };
        if self.of.receives_are_back() {
            // A thread that looked for something to read has found the peer's return, and has
            // skipped the doorbells: waited for here once more, they would seem never to come.
            return true;
        }
        let rx = &mut *held;
        let my = self.of.my();
        let rung = my.rung.load(SeqCst) & !RUNG_REVOKED;
        let Ok(unread) = self.of.refresh_rx(rx) else { return false };
        let again = header(&self.window.peer).takeback.load(Relaxed) & 1 != 0
            && (later || my.prod.load(Acquire) & REVERTED != 0);
        if unread > 0 && !again || rx.tcp_left > 0 && rung != 0 {
            return false;
        }
        if !self.of.receives_on_ring() {
            // It has not switched, or has done nothing since.
            if rung == 0 {
                self.of.phase.turn_receives(Receives::back);
            }
            return rung == 0;
        }
        rx.cons = rx.prod;
        self.of.rx.word.store(rx.cons.wire(), Relaxed);
        if unread > 0 {
            // It may sleep.
            self.wake_for_recall(fd);
        }
        self.of.skip_doorbells(fd, rx)
    }

    /// The bytes of the peer's ring from position `from` on, for `resend`, laid out as there; false
    /// when they cannot be had. The tx lock is held.
    #[cold]
    pub(super) fn copy_back(self, tx: &Tx, from: u64) -> bool {
        let w = self.window;
        let size = w.peer_size.load(Relaxed);
        if from < tx.cons.pos || from > tx.prod.pos || tx.prod.pos - from > u64::from(size) {
            return false;
        }
        if from == tx.prod.pos {
            return true;
        }
        let stash = sys::reserve(size as usize, true).cast::<u8>();
        if stash.is_null() {
            return false;
        }
        w.stash_len.store(size, Relaxed);
        w.stash.store(stash, Relaxed);
        // SAFETY: `size` bytes of our own.
        let ring = unsafe { Ring::new(stash, size) };
        let mut at = tx.cons;
        at.advance((from - tx.cons.pos) as u32, size);
        let base = w.far.load(Relaxed) + u64::from(HEADER_LEN);
        ring.spans(&at, (tx.prod.pos - from) as u32).into_iter().all(|(to, len)| {
            let offset = to as u64 - stash as u64;
            // SAFETY: within the stash, which nobody else looks at yet.
            let to = unsafe { core::slice::from_raw_parts_mut(to, len as usize) };
            len == 0 || self.read(false, base + offset, to).is_ok()
        })
    }
}
