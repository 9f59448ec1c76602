//! Application bytes into the peer's ring.
#![allow(unsafe_code)]

use super::broken::UNSPECIFIED;
use super::image::Image;
use super::mapped::Sleeper;
use super::pieces::{Filled, Source};
use super::reach::{Any, Reach, each};
use super::*;
use crate::stats::Counts;
use crate::sys;

/// What became of a send.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many bytes are in the ring; none only if the source had none.
    Bytes(usize),
    /// No room.
    Full,
    /// The caller is a signal handler that interrupted a call on this very direction, and can wait
    /// neither for that nor for room.
    Held,
    /// Do a plain send: this direction is the kernel's, or there is nothing to send and the kernel
    /// knows of errors.
    Kernel,
    /// Failed.
    Err(SendError),
}

/// Why a send has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The connection has been reset, by the peer or because nobody could go on with it.
    Reset,
    /// What the bytes come from refused to give them, with this errno: the application's memory, a
    /// file, a pipe.
    Source(i32),
    /// The device refused to carry them, with this errno, though the peer is within its reach.
    Device(i32),
    /// The peer has read nothing for as long as the application would wait (`patience`).
    TimedOut,
}

impl SendError {
    /// The errno that a program sees.
    pub fn errno(self) -> i32 {
        match self {
            Self::Reset => libc::ECONNRESET,
            Self::Source(errno) | Self::Device(errno) => errno,
            Self::TimedOut => libc::ETIMEDOUT,
        }
    }
}

/// What a send is about.
pub(super) struct Load {
    /// Bytes to send.
    pub want: usize,
    /// Whether the application is about to send what belongs to them.
    pub more: bool,
    /// The processor that this runs on.
    pub cpu: u32,
}

/// What has come of one piece of it.
pub(super) struct Put {
    /// Bytes that are in the ring.
    pub bytes: u32,
    /// Whether the peer can see them, and may sleep.
    pub published: bool,
    /// Whether there may be a next piece.
    pub goes_on: bool,
}

impl Put {
    /// The send ends here.
    pub fn nothing() -> Self {
        Self { bytes: 0, published: false, goes_on: false }
    }
}

/// Sends one doorbell, which with `more` the kernel may hold back; false if it cannot be sent. A
/// full send buffer means that unread bytes wake the peer anyway.
pub(super) fn send_bell(fd: i32, more: bool) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    let byte = 0u8;
    // SAFETY: one readable byte.
    unsafe { sys::send(fd, &byte, 1, flags) >= 0 }
}

/// Whether what the peer has not read would fit one segment of TCP's: a cork holds no more than
/// that back.
fn is_small(tx: &Tx) -> bool {
    tx.prod.pos - tx.cons.pos < 64 << 10
}

impl Conn {
    /// Sends from an application's buffers and moves `from` behind what was taken. Never waits.
    #[inline]
    pub fn send(&self, fd: i32, from: &mut Pieces) -> Sent {
        let (want, more) = (from.left(), from.more);
        self.send_out(fd, want, more, from)
    }

    /// Runs `f` while no send of another thread is under way; None for a signal handler that
    /// interrupted one.
    pub fn while_not_sending<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _held = self.lock_tx().ok()?;
        Some(f())
    }

    /// Sends up to `want` bytes that `fill(destination, length)` puts straight into the ring.
    /// `fill` may give fewer (then sending ends there) or an errno, which is reported if nothing
    /// was sent before it.
    pub fn send_from(
        &self,
        fd: i32,
        want: usize,
        fill: impl FnMut(*mut u8, usize) -> Result<usize, i32>,
    ) -> Sent {
        self.send_out(fd, want, false, &mut Filled(fill))
    }

    #[inline]
    fn send_out(&self, fd: i32, want: usize, more: bool, source: &mut impl Source) -> Sent {
        // Signals come when the lock is free again: a handler may want to send, too.
        let mut _quiet = None;
        let Ok(mut tx) = self.lock_tx() else { return Sent::Held };
        let (cpu, ticks) = sys::cpu_and_ticks();
        if self.sends_on_ring() {
            self.look_now_and_then(fd, ticks);
        }
        let ph = self.phase();
        if !ph.sends_freely() {
            return self.send_none(fd, ph, want);
        }
        let load = Load { want, more, cpu };
        match self.reach() {
            Any::Mapped(reach) => self.send_by(reach, fd, &mut tx, &load, source),
            Any::Image(reach) => {
                // Left in the middle by a handler that jumps, the peer's image, the device's queue
                // and our cursors would tell different stories.
                _quiet = Some(sys::SignalsHeld::new());
                self.send_afar(reach, fd, &mut tx, &load, source)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn send_afar(
        &self,
        reach: Image,
        fd: i32,
        tx: &mut Tx,
        load: &Load,
        source: &mut impl Source,
    ) -> Sent {
        let sent = self.send_by(reach, fd, tx, load, source);
        if reach.is_recalled() {
            self.resend(fd, tx);
        }
        sent
    }

    #[inline(always)]
    fn send_by<R: Reach>(
        &self,
        reach: R,
        fd: i32,
        tx: &mut Tx,
        load: &Load,
        source: &mut impl Source,
    ) -> Sent {
        if tx.left {
            tx.left = false;
            reach.resume(self, fd, tx);
        }
        if load.want == 0 {
            // Nothing, or an error that the kernel knows of.
            return Sent::Kernel;
        }
        let room = self.tx_room();
        let mut free = room.saturating_sub((tx.prod.pos - tx.cons.pos) as u32);
        if R::ASKS || (free as usize) < load.want || table::may_have_changed() {
            if self.has_no_device() {
                return Sent::Err(SendError::Reset);
            }
            free = match self.refresh_tx(tx) {
                Ok(used) => room.saturating_sub(used),
                Err(_) => {
                    self.broken(fd);
                    return Sent::Err(SendError::Reset);
                }
            };
        }
        if self.my().cons.load(Relaxed) & (CLOSED | ABORT) != 0 {
            return self.send_to_gone(fd, load.want);
        }
        if reach.makes_way(self, tx) {
            return Sent::Kernel;
        }
        let (mut done, mut failed) = (0usize, None);
        while done < load.want && free > 0 {
            let chunk = (load.want - done).min(free as usize) as u32;
            match reach.put(self, tx, chunk, load, source) {
                Ok(put) => {
                    done += put.bytes as usize;
                    free -= put.bytes;
                    if put.published {
                        self.wake(fd, tx, reach.sleeper(self), load.more);
                    }
                    if !put.goes_on {
                        break;
                    }
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        if free == 0 {
            self.is_full();
            self.stir();
        } else if free < room / 2 {
            self.stir_if_announced();
        }
        if done > 0 {
            self.tx.counts.call(done);
            return Sent::Bytes(done);
        }
        match failed {
            Some(e) => reach.failed(self, fd, e),
            None if reach.has_made_way(self) => Sent::Kernel,
            None if free > 0 => Sent::Bytes(0),
            None => {
                self.tx.counts.full.store(self.tx.counts.full.load(Relaxed) + 1, Relaxed);
                // Who waits for room waits for a peer that may be asleep.
                self.let_go(fd, tx);
                Sent::Full
            }
        }
    }

    /// What becomes of a send that may not go to the ring. The tx lock is held.
    #[cold]
    fn send_none(&self, fd: i32, ph: Phase, want: usize) -> Sent {
        if ph.has(p::CLOSED) && ph.sends_on_ring() {
            // By another thread, since the caller has looked the number up: the peer's buffer may
            // serve another connection by now.
            return Sent::Err(SendError::Device(libc::EBADF));
        }
        let shut = !ph.sends_on_ring() || ph.has(p::SHUT_WR);
        if !shut && (ph.has(p::BROKEN) || self.is_reset_by_word()) {
            return self.send_reset(fd);
        }
        if shut || ph.has(p::DEAD) {
            return self.send_past(fd, ph, want);
        }
        // Whoever took them back to TCP left the section by a jump, or was killed.
        self.end_ring();
        Sent::Kernel
    }

    /// What becomes of a send of `want` bytes that no ring takes. The kernel knows, except of a
    /// peer that was killed: it does not know what that one has left unread in the ring, and may
    /// have been reset for the doorbells that it left unread.
    #[cold]
    fn send_past(&self, fd: i32, ph: Phase, want: usize) -> Sent {
        let ends = self.my().cons.load(Acquire) & ENDS;
        let killed = ph.sends_on_ring()
            && ph.has(p::DEAD)
            && !ph.has(p::SHUT_WR)
            && ends & (CLOSED | ABORT) == 0
            && !ph.has(p::SENT_TO_GONE);
        if !killed {
            if ph.has(p::SHUT_WR) {
                self.forget_reset_by_doorbell(fd);
            }
            return Sent::Kernel;
        }
        let closed = crate::inet::TcpInfo::of(fd).is_some_and(|info| info.is_closed());
        let unread = self.unread_there();
        if !closed && !unread {
            return Sent::Kernel;
        }
        // Taken from the kernel: whoever sends again gets EPIPE, and its signal. One that has been
        // fetched was told, unless a receive took it for the end that it is without these
        // doorbells.
        let mut error = 0i32;
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        let told =
            closed && error == 0 && !ph.has(p::ENDED) || unread && self.set(p::ENDED).has(p::ENDED);
        if told && !unread {
            return Sent::Kernel;
        }
        sys::shutdown(fd, libc::SHUT_WR);
        if unread {
            // Behind an end of its half TCP's word for a reset is EPIPE, and so it is once the
            // reset was told.
            return if told || ends & DONE != 0 {
                Sent::Kernel
            } else {
                Sent::Err(SendError::Reset)
            };
        }
        // TCP would have taken them, and been reset.
        self.set(p::SENT_TO_GONE);
        Sent::Bytes(want)
    }

    /// Takes from the kernel a reset that is only its answer to doorbells which a dead peer left
    /// unread: a send behind our own shutdown would tell ECONNRESET where TCP has EPIPE.
    #[cold]
    fn forget_reset_by_doorbell(&self, fd: i32) {
        if self.is_reset_by_doorbell() && !self.phase().has(p::SHUT_RD) {
            let mut error = 0i32;
            sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
            self.error_heard(error);
        }
    }

    /// A reset is told once. A send behind that gets EPIPE, and its signal, of the kernel: which may
    /// have, or still get, an error of its own of the same reset, or, where one end has only told
    /// the other, would take bytes that nobody reads. Not so on a socket that is disconnected.
    #[cold]
    fn send_reset(&self, fd: i32) -> Sent {
        if !self.phase().has(p::ENDED) {
            let timed_out = self.has_timed_out();
            return Sent::Err(if timed_out { SendError::TimedOut } else { SendError::Reset });
        }
        sys::connect(fd, &UNSPECIFIED);
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut 0i32);
        Sent::Kernel
    }

    /// The peer's socket is gone: the kernel knows best which errno and signal that deserves.
    #[cold]
    fn send_to_gone(&self, fd: i32, want: usize) -> Sent {
        if self.is_reset_by_word() {
            return self.send_reset(fd);
        }
        if self.is_reset_by_doorbell()
            && crate::inet::TcpInfo::of(fd).is_some_and(|info| info.is_closed())
        {
            // It closed in order, and only a doorbell came too late: TCP would have taken this, and
            // been reset for it.
            sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut 0i32);
            sys::shutdown(fd, libc::SHUT_WR);
            self.set(p::SENT_TO_GONE);
            return Sent::Bytes(want);
        }
        Sent::Kernel
    }

    /// Rings for what was published, if somebody has asked for a doorbell. One for which the
    /// application has more, by MSG_MORE or under a cork, may wait for it.
    #[inline(always)]
    pub(super) fn wake(&self, fd: i32, tx: &mut Tx, sleeper: Sleeper, more: bool) {
        if sleeper != Sleeper::Nobody {
            self.wake_sleeper(fd, tx, sleeper, more);
        } else if tx.held && !(more || self.is_corked()) {
            self.let_go(fd, tx);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_sleeper(&self, fd: i32, tx: &mut Tx, sleeper: Sleeper, more: bool) {
        let hold = (more || self.is_corked()) && is_small(tx);
        // The kernel can hold back a byte on the connection, but none in a pipe.
        if let Sleeper::InWait(wait) = sleeper {
            if hold {
                // What others of its connections bring must not wait for this one's cork.
                let armed = self.leave_arm(wait);
                // The kernel may have let the byte go: then the wait has woken, and armed anew since.
                if core::mem::replace(&mut tx.held_for, armed) == armed && tx.held {
                    return;
                }
            } else if self.ring_bell(wait) {
                self.tx.counts.doorbells.fetch_add(1, Relaxed);
                return self.let_go(fd, tx);
            }
        }
        tx.held = self.ring_or_hold(fd, &self.tx.counts, hold);
    }

    /// Lets a wait that the look for a sleeper has marked as rung count as not rung; which of its
    /// sleeps that is, as `armed` numbers them. Whoever publishes on another of its connections between
    /// that look and this call leaves its news to the byte that is held back here.
    fn leave_arm(&self, wait: u32) -> u32 {
        // SAFETY: our own control page, type-stable.
        let Some(page) = (unsafe { self.window().my_waits.load(Relaxed).as_ref() }) else {
            return 0;
        };
        let at = wait as usize;
        let armed = page.armed[at].load(Relaxed);
        // The wait may have armed anew since: then it is one already.
        let _ = page.rung[at].compare_exchange(armed, armed.wrapping_sub(1), Relaxed, Relaxed);
        armed
    }

    /// Rings the bell of a wait, if it listens to one. One that it asks for is given to it for the
    /// next time.
    pub(super) fn ring_bell(&self, wait: u32) -> bool {
        let w = self.window();
        // SAFETY: our own control page, type-stable.
        let page = unsafe { w.my_waits.load(Relaxed).as_ref() };
        // SAFETY: what stands beside it, type-stable, too.
        let bells = unsafe { w.bells.load(Relaxed).as_ref() };
        let (Some(page), Some(bells)) = (page, bells) else { return false };
        self.stamp_ring();
        bells.ring(page, wait)
    }

    /// Wakes a peer for which a doorbell was held back.
    #[cold]
    pub(super) fn let_go(&self, fd: i32, tx: &mut Tx) {
        if core::mem::take(&mut tx.held) {
            // It is set already: setting it again sends what waits.
            sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
        }
    }

    /// The application says that what it has sent is to go now: it has pulled the cork, or set
    /// TCP_NODELAY.
    pub fn push(&self, fd: i32) {
        // A send that is under way in another thread, or below this signal handler, sees that there
        // is no cork any more.
        if let Some(mut held) = self.tx.state.try_lock() {
            self.let_go(fd, &mut held);
        }
    }

    /// Puts one doorbell byte on the TCP stream.
    pub(super) fn ring(&self, fd: i32, counts: &Counts) {
        self.ring_or_hold(fd, counts, false);
    }

    /// Puts one doorbell byte on the TCP stream. With `more` the kernel holds the byte back as it
    /// would hold payload: until `let_go`, the next byte, or 200 ms have passed. True if it does
    /// hold it.
    #[cold]
    #[inline(never)]
    pub(super) fn ring_or_hold(&self, fd: i32, counts: &Counts, more: bool) -> bool {
        self.tx.ringing.hold(|| {
            // A byte for a socket that is being closed would turn its FIN into RST; one for a
            // connection on its way back to TCP would come behind what others send there.
            let ph = self.phase();
            if ph.sends() != Sends::Ring
                || ph.has(p::SHUT_WR)
                || self.my().cons.load(Relaxed) & (CLOSED | ABORT) != 0
            {
                return false;
            }
            each!(self.reach(), reach => reach.ring(self, fd, counts, more))
        })
    }

    /// Learns how far the peer has read; bytes that it has not read.
    #[inline]
    pub(super) fn refresh_tx(&self, tx: &mut Tx) -> Result<u32, shm::cursor::Violation> {
        // SYNC: cons. Acquire: the peer has finished reading what it frees; pairs with
        // `Mapped::confirm`.
        let word = self.my().cons.load(Acquire);
        let size = self.window().peer_size.load(Relaxed);
        let used = (tx.prod.pos - tx.cons.pos) as u32;
        Ok(used - tx.cons.follow(word, size, used)?)
    }
}
