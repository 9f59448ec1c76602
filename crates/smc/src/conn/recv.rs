//! Bytes out of our ring to the application.
#![allow(unsafe_code)]

use super::Pieces;
use super::reach::{Reach, each};
use super::*;
use crate::sys;
use alloc::vec;
use shm::doorbell::must_ring;
use shm::ring::Ring;

/// What became of a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes, at least one unless none were asked for.
    Bytes(usize),
    /// Nothing there yet.
    Empty,
    /// Orderly end.
    Eof,
    /// This direction is the kernel's: do a plain receive.
    Kernel,
    /// The caller is a signal handler that interrupted a call on this very direction, and cannot
    /// wait for that.
    Held,
    /// Failed.
    Err(RecvError),
}

/// Why a receive has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// The connection has been reset, by the peer or because nobody could go on with it.
    Reset,
    /// The kernel's word for the end of the connection.
    Kernel(i32),
    /// What the bytes go to refused them, with this errno: the application's memory, a pipe.
    Sink(i32),
}

impl RecvError {
    /// The errno that a program sees.
    pub fn errno(self) -> i32 {
        match self {
            Self::Reset => libc::ECONNRESET,
            Self::Kernel(errno) | Self::Sink(errno) => errno,
        }
    }
}

/// What a receive finds on a connection that was reset.
const RESET: Got = Got::Err(RecvError::Reset);

impl Conn {
    /// Receives into an application's buffers and moves `into` behind what was filled. Never waits.
    /// Of the flags, MSG_PEEK and MSG_TRUNC (discard) count.
    #[inline]
    pub fn recv(&self, fd: i32, into: &mut Pieces, flags: i32) -> Got {
        let mut pieces = *into;
        let want = pieces.left();
        let discard = flags & libc::MSG_TRUNC != 0;
        let got = self.recv_into(fd, want, flags & libc::MSG_PEEK != 0, |src, len| {
            let mut n = 0;
            while n < len {
                let Some((dst, k)) = pieces.next(len - n) else { break };
                if !discard {
                    if sys::faulty(dst) {
                        return if n > 0 { Ok(n) } else { Err(libc::EFAULT) };
                    }
                    // SAFETY: the application vouches for its iovecs; `src` has `len` bytes.
                    unsafe { shm::copy(src.wrapping_add(n), dst, k) };
                }
                n += k;
            }
            Ok(n)
        });
        if let Got::Bytes(n) = got {
            into.skip(n);
        }
        got
    }

    /// A blocking kernel receive, used as a wait, failed with `errno`: what that means for the
    /// stream.
    pub fn kernel_error(&self, errno: i32) -> Got {
        // Of a connection that ended here, the peer's answer to that would pass for its end.
        if self.phase().has(p::BROKEN) || self.has_no_device() {
            return self.reset_by_us();
        }
        let ends = self.my().cons.load(Acquire) & ENDS;
        // Looks that may be torn, for a decision that a race cannot make wrong: the peer is gone.
        let (sent, unread) = (self.tx.prod(), self.rx.cons().wire());
        if self.my().prod.load(Acquire) & shm::cursor::CURSOR_MASK != unread {
            self.set(p::DEAD);
            return Got::Empty;
        }
        if self.peer_aborted() {
            return self.ended(RESET);
        }
        let orderly = ends & ABORT == 0 && ends != 0;
        let consumed = self.sends_on_ring()
            && self.my().cons.load(Acquire) & shm::cursor::CURSOR_MASK == sent.wire();
        self.set(p::DEAD);
        match errno {
            _ if orderly => self.ended(Got::Eof),
            libc::ECONNRESET | libc::EPIPE if ends == 0 && consumed => self.ended(Got::Eof),
            e => self.ended(Got::Err(RecvError::Kernel(e))),
        }
    }

    /// Whether the peer has said that its end is no reset: what the kernel reports is then the work
    /// of unread doorbells.
    pub fn ended_well(&self) -> bool {
        let ends = self.my().cons.load(Acquire) & ENDS;
        ends & ABORT == 0 && ends != 0
    }

    /// Receives up to `want` bytes through `take(source, length)`, which may take fewer, or an
    /// errno.
    pub fn recv_into(
        &self,
        fd: i32,
        want: usize,
        peek: bool,
        take: impl FnMut(*const u8, usize) -> Result<usize, i32>,
    ) -> Got {
        let got = self.recv_locked(fd, want, peek, take);
        if got == Got::Kernel {
            // The caller is about to wait in the kernel, for an answer to what we must send again
            // perhaps.
            self.flush_takeback(fd);
        }
        got
    }

    fn recv_locked(
        &self,
        fd: i32,
        want: usize,
        peek: bool,
        mut take: impl FnMut(*const u8, usize) -> Result<usize, i32>,
    ) -> Got {
        let Ok(mut held) = self.lock_rx() else { return Got::Held };
        let ph = self.phase();
        if !ph.receives_freely() {
            return self.recv_none(fd, &mut held, want, peek, &mut take);
        }
        let rx = &mut *held;
        let mut took = 0;
        if rx.tcp_left > 0 {
            match self.recv_rest(fd, rx, want, peek, &mut take) {
                // It goes on behind the switch: nothing would ever come between.
                Got::Bytes(n) if n < want && rx.tcp_left == if peek { n as u64 } else { 0 } => {
                    took = n
                }
                got => return got,
            }
        }
        let want = want - took;
        let mut avail = (rx.prod.pos - rx.cons.pos) as u32;
        if (avail as usize) < want.max(1) {
            avail = match self.refresh_rx(rx) {
                Ok(avail) => avail,
                Err(_) => return self.break_here(fd),
            };
        }
        if avail == 0 {
            return if took > 0 { Got::Bytes(took) } else { self.at_end(fd, rx) };
        }
        let n = avail.min(want.min(u32::MAX as usize) as u32);
        let w = self.window();
        let size = w.my_size.load(Relaxed);
        let base = (w.my.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: our DMB has HEADER_LEN + size bytes.
        let ring = unsafe { Ring::new(base, size) };
        let mut copied = 0u32;
        for (src, len) in ring.spans(&rx.cons, n) {
            if len == 0 {
                break;
            }
            match take(src, len as usize) {
                Ok(k) => {
                    copied += k as u32;
                    if k < len as usize {
                        break;
                    }
                }
                Err(errno) if took == 0 && copied == 0 => return Got::Err(RecvError::Sink(errno)),
                Err(_) => break,
            }
        }
        if !peek {
            rx.cons.advance(copied, size);
            self.rx.word.store(rx.cons.wire(), Relaxed);
            self.confirm(fd, rx, w);
            self.rx.counts.call(copied as usize);
        }
        Got::Bytes(took + copied as usize)
    }

    /// What a receive finds that may not look into the ring.
    #[cold]
    fn recv_none(
        &self,
        fd: i32,
        rx: &mut Rx,
        want: usize,
        peek: bool,
        take: &mut impl FnMut(*const u8, usize) -> Result<usize, i32>,
    ) -> Got {
        let ph = self.phase();
        if !ph.receives_on_ring() {
            return Got::Kernel;
        }
        if ph.has(p::CLOSED) {
            // By another thread, since the caller has looked the number up: our buffer may serve
            // another connection by now.
            return Got::Err(RecvError::Kernel(libc::EBADF));
        }
        if ph.has(p::BROKEN) {
            return self.reset_by_us();
        }
        // Who takes the ring back waits for this.
        if rx.tcp_left > 0 { self.recv_rest(fd, rx, want, peek, take) } else { Got::Empty }
    }

    /// Learns how far the peer has written; unread bytes in our ring.
    #[inline]
    pub(super) fn refresh_rx(&self, rx: &mut Rx) -> Result<u32, shm::cursor::Violation> {
        let my = self.my();
        // The end flags before the producer word: an end is never seen before the last bytes are.
        // SYNC: ends. Acquire; pairs with `publish_ends`.
        rx.ends = my.cons.load(Acquire) & ENDS;
        // SYNC: prod. Acquire; pairs with the exchange in `Conn::publish`.
        let word = my.prod.load(Acquire);
        let unread = (rx.prod.pos - rx.cons.pos) as u32;
        let size = self.window().my_size.load(Relaxed);
        let before = rx.prod;
        let moved = rx.prod.follow(word, size, size.saturating_sub(unread))?;
        if moved > 0 && self.window().tail.load(Relaxed) != 0 {
            match self.intact(rx, &before, moved, word) {
                Some(true) => {}
                Some(false) => {
                    rx.prod = before;
                    self.set(p::DAMAGED);
                    return Err(shm::cursor::Violation);
                }
                // More follows, and a doorbell behind it if one was asked for.
                None => {
                    rx.prod = before;
                    return Ok(unread);
                }
            }
        }
        Ok(unread + moved)
    }

    /// Tells the peer how far we have read, when that is worth a store, a fence or a doorbell.
    #[inline(always)]
    pub(super) fn confirm(&self, fd: i32, rx: &mut Rx, w: &'static Window) {
        let unread = (rx.prod.pos - rx.cons.pos) as u32;
        let my = header(&w.my);
        let wanted = my.tx_arm.load(Relaxed) != self.rx.rung.load(Relaxed);
        // A writer sleeps only with less than a third free. Whoever empties a quarter of what may
        // be under way passes a fence, so either it sees the writer's arm or the writer sees the
        // space: unfenced stores in between are just early news.
        let room = self.rx_room_in(w);
        let step = rx.cons.pos - rx.fenced >= u64::from(room / 4);
        if !(wanted || step || unread == 0) || !self.is_committed() {
            return;
        }
        rx.published = rx.cons.pos;
        let told = each!(self.reach_in(w), reach => self.confirm_by(reach, rx, wanted || step));
        if !told {
            return;
        }
        // The writer goes by all that it has written, which may be more than we have looked at:
        // rung too early, it would only sleep again.
        let unread = self.refresh_rx(rx).unwrap_or(unread);
        if unread <= room / 3 * 2 {
            // A writer that sleeps in a covering wait has armed this connection too (`arm_space`).
            if self.sends_on_ring() && must_ring(&my.tx_arm, &self.rx.rung) {
                self.ring(fd, &self.rx.counts);
            }
        }
    }

    /// The store of `confirm`, and (`now`) what lets the peer act on it; whether that was done.
    #[inline(always)]
    fn confirm_by(&self, reach: impl Reach, rx: &mut Rx, now: bool) -> bool {
        reach.confirm(rx.cons.wire() | self.ending.said());
        if !now {
            return false;
        }
        let cpu = self.with_bounds(sys::cpu());
        // An end that only receives tells where it runs, too: its writer spins for space.
        reach.confirm_now((cpu != rx.cpu).then_some(cpu));
        rx.cpu = cpu;
        rx.fenced = rx.cons.pos;
        true
    }

    /// Payload that the peer sent over TCP before its switch. Its stage is not to lie in the frames
    /// of sections that others compare theirs with (`shm::lock`).
    #[inline(never)]
    fn recv_rest(
        &self,
        fd: i32,
        rx: &mut Rx,
        want: usize,
        peek: bool,
        take: &mut impl FnMut(*const u8, usize) -> Result<usize, i32>,
    ) -> Got {
        let most = |done: usize, left: u64| (want - done).min(left.min(1 << 30) as usize);
        // Not on the stack, of which threads may have the least that there is.
        const STAGE: usize = 8 << 10;
        // A look always begins at the front, so it must see all at once.
        let mut stage = vec![0u8; if peek { most(0, rx.tcp_left).max(STAGE) } else { STAGE }];
        let mut done = 0usize;
        while done < want && rx.tcp_left > 0 {
            let n = most(done, rx.tcp_left).min(stage.len());
            // Peek first and consume what was taken: `take` may take less than it is offered.
            // SAFETY: the stage is ours.
            let r = unsafe {
                sys::recv(fd, stage.as_mut_ptr(), n, libc::MSG_DONTWAIT | libc::MSG_PEEK)
            };
            if r <= 0 {
                match r {
                    _ if done > 0 => break,
                    0 => return Got::Eof,
                    r if -r as i32 == libc::EAGAIN => return Got::Empty,
                    r => return Got::Err(RecvError::Kernel(-r as i32)),
                }
            }
            let took = match take(stage.as_ptr(), r as usize) {
                Ok(took) => took,
                Err(errno) if done == 0 => return Got::Err(RecvError::Sink(errno)),
                Err(_) => break,
            };
            done += took;
            if peek {
                break;
            }
            // SAFETY: the stage is ours.
            let eaten = unsafe { sys::recv(fd, stage.as_mut_ptr(), took, libc::MSG_DONTWAIT) };
            rx.tcp_left -= eaten.max(0) as u64;
            if took < r as usize {
                break;
            }
        }
        Got::Bytes(done)
    }

    /// A receive found that nobody can go on with it.
    #[cold]
    fn break_here(&self, fd: i32) -> Got {
        self.broken(fd);
        RESET
    }

    /// What a receive from TCP has instead, if the connection was broken here: the kernel may say
    /// that the stream has ended.
    pub fn broken_here(&self) -> Option<Got> {
        self.phase().has(p::BROKEN).then(|| self.reset_by_us())
    }

    /// It was broken before, which is told once, whatever the receive that found out has told.
    #[cold]
    fn reset_by_us(&self) -> Got {
        match (self.set(p::ENDED).has(p::ENDED), self.has_timed_out()) {
            (true, _) => Got::Eof,
            (_, true) => Got::Err(RecvError::Kernel(libc::ETIMEDOUT)),
            _ => RESET,
        }
    }

    /// The ring is empty: is that the end?
    #[cold]
    fn at_end(&self, fd: i32, rx: &mut Rx) -> Got {
        let ph = self.phase();
        if ph.has(p::BROKEN) || self.has_no_device() {
            return self.reset_by_us();
        }
        if self.my().prod.load(Acquire) & REVERTED != 0 {
            return self.back_to_tcp(fd, rx);
        }
        if self.has_revoked(ph) {
            // We took the ring back and have read all of it: what follows comes over TCP behind the
            // last doorbell.
            return self.back_to_tcp(fd, rx);
        }
        if self.cut_off() {
            return self.break_here(fd);
        }
        if rx.ends == 0 && !ph.has(p::DEAD | p::SHUT_RD) {
            return Got::Empty;
        }
        if ph.has(p::SHUT_RD) && rx.ends == 0 {
            // Nobody waits here for an end, so nobody has been told of one.
            self.look_for_end(fd, sys::ticks());
        }
        let ph = self.phase();
        // A reset shows even to whoever wants no more data.
        if ph.has(p::ENDED) || ph.has(p::SHUT_RD) && !ph.has(p::DEAD) && rx.ends & ABORT == 0 {
            return Got::Eof;
        }
        self.drain_to_end(fd, rx)
    }

    /// Takes doorbells until the kernel says how the connection ended.
    fn drain_to_end(&self, fd: i32, rx: &mut Rx) -> Got {
        let mut junk = [0u8; 256];
        let mut taken = 0;
        loop {
            // SAFETY: the buffer is ours.
            let r = unsafe { sys::recv(fd, junk.as_mut_ptr(), junk.len(), libc::MSG_DONTWAIT) };
            if r > 0 {
                rx.drained = rx.drained.wrapping_add(r as u32);
                taken += r as u32;
                if taken > FLOOD {
                    // It would keep us here, and all other connections of this thread waiting, for
                    // as long as it likes.
                    return self.break_here(fd);
                }
                continue;
            }
            let orderly = rx.ends & ABORT == 0 && rx.ends & (DONE | CLOSED) != 0;
            let errno = -r as i32;
            if r < 0 && errno == libc::EAGAIN {
                return match rx.ends {
                    0 => Got::Empty,
                    _ if orderly => Got::Eof,
                    _ => self.ended(RESET),
                };
            }
            // A FIN or RST of a peer that never said so: it died. TCP answers with RST if it left
            // bytes of ours unread.
            let sent = self.tx.prod();
            let unread = self.sends_on_ring()
                && self.my().cons.load(Acquire) & shm::cursor::CURSOR_MASK != sent.wire();
            return match errno {
                _ if orderly => self.ended(Got::Eof),
                _ if self.peer_aborted() => self.ended(RESET),
                // An abort that the kernel does not report any more was reported to a send, or by
                // SO_ERROR.
                0 if rx.ends == 0 && unread && !self.phase().has(p::SENT_TO_GONE) => {
                    self.ended(RESET)
                }
                0 => self.ended(Got::Eof),
                // Unless our sends are on TCP, when it is payload that the peer has not read.
                libc::ECONNRESET | libc::EPIPE
                    if rx.ends == 0 && !unread && self.sends_on_ring() =>
                {
                    self.ended(Got::Eof)
                }
                e => self.ended(Got::Err(RecvError::Kernel(e))),
            };
        }
    }

    /// Whether the peer has said that it can go on no more, of which the kernel may know nothing.
    #[cold]
    pub(super) fn is_reset_by_word(&self) -> bool {
        self.phase().is_exposed() && self.my().cons.load(Acquire) & (ABORT | GONE) == ABORT | GONE
    }

    /// The same, and the program was not told yet.
    #[cold]
    pub(super) fn peer_aborted(&self) -> bool {
        self.is_reset_by_word() && !self.phase().has(p::ENDED)
    }

    fn ended(&self, got: Got) -> Got {
        self.set(p::ENDED);
        got
    }
}
