//! Application bytes into the peer's ring.
#![allow(unsafe_code)]

use super::carry::Source;
use super::*;
use crate::stats::Counts;
use crate::sys;
use shm::doorbell::must_ring;
use shm::ring::Ring;

/// What became of a send.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many bytes are in the ring; none only if the source had none.
    Bytes(usize),
    /// No room.
    Full,
    /// The caller is a signal handler that interrupted a call on this very direction, and can wait neither for that nor for room.
    Held,
    /// Do a plain send: this direction is the kernel's, or there is nothing to send and the kernel knows of errors.
    Kernel,
    /// Failed with this errno.
    Err(i32),
}

/// Bytes published at a time: small enough that the reader's copy overlaps ours, large enough to hide the price of
/// the exchange.
const PUBLISH: u32 = 32 << 10;
/// Staging of the copying path, SMC's sndbuf.
const STAGE: usize = 16 << 10;

/// Flags of a doorbell, which with `more` the kernel may hold back.
pub(super) fn bell_flags(more: bool) -> i32 {
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 }
}

/// Whether what the peer has not read would fit one segment of TCP's: a cork holds no more than that back.
fn is_small(tx: &Tx) -> bool {
    tx.prod.pos - tx.cons.pos < 64 << 10
}

/// A position in an application's iovec array.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    iov: &'a [libc::iovec],
    at: usize,
    pub(super) more: bool,
}

impl<'a> Pieces<'a> {
    /// All of `iov`.
    pub fn new(iov: &'a [libc::iovec]) -> Self {
        Self { iov, at: 0, more: false }
    }

    /// With `more`, these bytes are sent with MSG_MORE: the application is about to send what belongs to them.
    pub fn before_more(self, more: bool) -> Self {
        Self { more, ..self }
    }

    /// Bytes from here to the end.
    pub fn left(&self) -> usize {
        self.iov.iter().map(|v| v.iov_len).sum::<usize>() - self.at
    }

    /// Moves `n` bytes on.
    pub fn skip(&mut self, mut n: usize) {
        while n > 0 {
            let Some((_, k)) = self.next(n) else { return };
            n -= k;
        }
    }

    /// The rest as an iovec array in `out`; the number of elements used.
    pub fn rest(mut self, out: &mut [libc::iovec]) -> usize {
        let mut n = 0;
        while n < out.len()
            && let Some((p, len)) = self.next(usize::MAX)
        {
            out[n] = libc::iovec { iov_base: p.cast(), iov_len: len };
            n += 1;
        }
        n
    }

    /// Of the first `len` bytes, takes out `n` behind the first `at`; the rest moves up.
    pub(super) fn cut(self, at: usize, n: usize, len: usize) {
        let (mut to, mut from) = (self, self);
        to.skip(at);
        from.skip(at + n);
        let mut left = len.saturating_sub(at + n);
        while left > 0 {
            let Some((source, k)) = from.next(left) else { return };
            let mut done = 0;
            while done < k {
                let Some((place, part)) = to.next(k - done) else { return };
                // SAFETY: the application's buffers, which the kernel has just filled. What has not been moved yet lies behind.
                unsafe { core::ptr::copy(source.add(done), place, part) };
                done += part;
            }
            left -= k;
        }
    }

    /// The next contiguous part, at most `max` bytes.
    #[inline]
    pub fn next(&mut self, max: usize) -> Option<(*mut u8, usize)> {
        while let Some(v) = self.iov.first() {
            if self.at < v.iov_len {
                let n = (v.iov_len - self.at).min(max);
                let p = v.iov_base.cast::<u8>().wrapping_add(self.at);
                self.at += n;
                return Some((p, n));
            }
            self.iov = &self.iov[1..];
            self.at = 0;
        }
        None
    }
}

impl Conn {
    /// Sends from an application's buffers and moves `from` behind what was taken. Never waits.
    #[inline]
    pub fn send(&self, fd: i32, from: &mut Pieces) -> Sent {
        let mut pieces = *from;
        let want = pieces.left();
        let sent = self.send_near(fd, want, pieces.more, |dst, len| {
            let mut n = 0;
            while n < len {
                let Some((src, k)) = pieces.next(len - n) else { break };
                if sys::faulty(src) {
                    return if n > 0 { Ok(n) } else { Err(libc::EFAULT) };
                }
                // SAFETY: the application vouches for its iovecs as it does towards the kernel; `dst` has `len` bytes.
                unsafe { shm::copy(src, dst.add(n), k) };
                n += k;
            }
            Ok(n)
        });
        let Some(sent) = sent else { return self.send_over(fd, want, Source::Pieces(from)) };
        if let Sent::Bytes(n) = sent {
            from.skip(n);
        }
        sent
    }

    /// Runs `f` while no send of another thread is under way; None for a signal handler that interrupted one.
    pub fn while_not_sending<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _held = self.lock_tx().ok()?;
        Some(f())
    }

    /// Sends up to `want` bytes that `fill(destination, length)` puts straight into the ring. `fill` may give fewer
    /// (then sending ends there) or an errno, which is reported if nothing was sent before it.
    pub fn send_from(&self, fd: i32, want: usize, mut fill: impl FnMut(*mut u8, usize) -> Result<usize, i32>) -> Sent {
        match self.send_near(fd, want, false, &mut fill) {
            Some(sent) => sent,
            None => self.send_over(fd, want, Source::Fill(&mut fill)),
        }
    }

    /// `send_from` into a mapped buffer; None if it is not mapped.
    #[inline]
    fn send_near(
        &self,
        fd: i32,
        want: usize,
        more: bool,
        mut fill: impl FnMut(*mut u8, usize) -> Result<usize, i32>,
    ) -> Option<Sent> {
        let Ok(mut held) = self.lock_tx() else { return Some(Sent::Held) };
        let (cpu, ticks) = sys::cpu_and_ticks();
        if self.sends_on_ring() {
            self.look_now_and_then(fd, ticks);
        }
        let ph = self.phase();
        if !ph.sends_freely() {
            return Some(self.send_none(fd, ph, want));
        }
        let tx = &mut *held;
        if tx.left {
            tx.left = false;
            self.note_published(fd, tx);
        }
        if want == 0 {
            // Nothing, or an error that the kernel knows of.
            return Some(Sent::Kernel);
        }
        let w = self.window();
        if w.far.load(Relaxed) != 0 {
            return None;
        }
        let size = w.peer_size.load(Relaxed);
        let room = self.tx_room();
        let mut free = room.saturating_sub((tx.prod.pos - tx.cons.pos) as u32);
        if (free as usize) < want {
            if self.has_no_device() {
                return Some(Sent::Err(libc::ECONNRESET));
            }
            free = match self.refresh_tx(tx) {
                Ok(used) => room.saturating_sub(used),
                Err(_) => return Some(Sent::Err(self.broken(fd))),
            };
        }
        if self.my().cons.load(Relaxed) & (CLOSED | ABORT) != 0 {
            return Some(self.send_to_gone(fd, want));
        }
        if self.peer().prod.load(Relaxed) & REVOKED != 0 {
            let at = tx.prod.pos;
            self.leave_ring(tx, at);
            return Some(Sent::Kernel);
        }
        let mut done = 0usize;
        let mut failed = None;
        while done < want && free > 0 {
            let chunk = (want - done).min(free.min(PUBLISH) as usize) as u32;
            let n = match self.place(tx, chunk, &mut fill) {
                Ok(n) => n,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            if n > 0 {
                let before = tx.prod.pos;
                tx.prod.advance(n, size);
                done += n as usize;
                if !self.publish(fd, tx, cpu, more) {
                    // The owner took the ring back between the two. What is placed was taken from the application, or
                    // from a file whose position has moved: it goes out over TCP, first of all.
                    self.leave_ring(tx, before);
                    break;
                }
                free -= n;
            }
            if n < chunk {
                break;
            }
        }
        if done > 0 {
            self.tx.counts.call(done);
            return Some(Sent::Bytes(done));
        }
        if self.sends_go_back() {
            return Some(Sent::Kernel);
        }
        Some(match failed {
            Some(e) => Sent::Err(e),
            None if free > 0 => Sent::Bytes(0),
            None => {
                self.tx.counts.full.store(self.tx.counts.full.load(Relaxed) + 1, Relaxed);
                // Who waits for room waits for a peer that may be asleep.
                self.let_go(fd, tx);
                Sent::Full
            }
        })
    }

    /// Who was in the section before left it by a jump, or was killed: perhaps in front of a publication, behind it, or in
    /// front of the doorbell for it. With the ring full there would be no other, and one that was not noted would make the next
    /// one pass for an attempt after the owner took the ring back.
    #[cold]
    fn note_published(&self, fd: i32, tx: &mut Tx) {
        if self.is_far() {
            return;
        }
        self.ring_what_was_counted(fd);
        self.ring(fd, &self.tx.counts);
        let (placed, published) = (tx.prod.wire(), self.peer().prod.load(Acquire));
        if published == placed {
            tx.word = placed;
            self.tx.word.store(placed, Relaxed);
        } else if published == tx.word {
            self.publish(fd, tx, sys::cpu(), false);
        }
    }

    /// A doorbell that was counted and not sent would make the peer take the next one for old, and sleep on.
    fn ring_what_was_counted(&self, fd: i32) {
        const MOST: u32 = 8;
        let shortage = || {
            let sent = crate::inet::TcpInfo::of(fd)?.sent() - (self.peer().switch.load(Relaxed) >> 1);
            let rung = self.peer().rung.load(SeqCst);
            Some((rung, (rung & !RUNG_REVOKED).wrapping_sub(sent as u32) & !RUNG_REVOKED))
        };
        let Some(first @ (_, 1..=MOST)) = shortage() else { return };
        // Another thread may be between the two.
        sys::nap();
        if shortage() == Some(first) {
            let bytes = [0u8; MOST as usize];
            // SAFETY: readable bytes.
            unsafe { sys::send(fd, bytes.as_ptr(), first.1 as usize, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        }
    }

    /// What becomes of a send that may not go to the ring. The tx lock is held.
    #[cold]
    fn send_none(&self, fd: i32, ph: Phase, want: usize) -> Sent {
        if !ph.sends_on_ring() || ph.has(p::SHUT_WR | p::DEAD) {
            return self.send_past(fd, ph, want);
        }
        if ph.has(p::BROKEN) {
            return Sent::Err(libc::ECONNRESET);
        }
        // Whoever took them back to TCP left the section by a jump, or was killed.
        self.end_ring();
        Sent::Kernel
    }

    /// What becomes of a send of `want` bytes that no ring takes. The kernel knows, except of a peer that was killed: it does
    /// not know what that one has left unread in the ring, and may have been reset for the doorbells that it left unread.
    #[cold]
    fn send_past(&self, fd: i32, ph: Phase, want: usize) -> Sent {
        let ends = self.my().cons.load(Acquire) & ENDS;
        let killed = ph.sends_on_ring()
            && ph.has(p::DEAD)
            && !ph.has(p::SHUT_WR)
            && ends & (CLOSED | ABORT) == 0
            && !ph.has(p::SENT_TO_GONE);
        if !killed {
            return Sent::Kernel;
        }
        let closed = crate::inet::TcpInfo::of(fd).is_some_and(|info| info.is_closed());
        let unread = self.unread_there();
        if !closed && !unread {
            return Sent::Kernel;
        }
        // Taken from the kernel: whoever sends again gets EPIPE, and its signal. One that has been fetched was told, unless a
        // receive took it for the end that it is without these doorbells.
        let mut error = 0i32;
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        let told = closed && error == 0 && !ph.has(p::ENDED) || unread && self.set(p::ENDED).has(p::ENDED);
        if told && !unread {
            return Sent::Kernel;
        }
        sys::shutdown(fd, libc::SHUT_WR);
        if unread {
            // Behind an end of its half TCP's word for a reset is EPIPE, and so it is once the reset was told.
            return if told || ends & DONE != 0 { Sent::Kernel } else { Sent::Err(libc::ECONNRESET) };
        }
        // TCP would have taken them, and been reset.
        self.set(p::SENT_TO_GONE);
        Sent::Bytes(want)
    }

    /// The peer's socket is gone: the kernel knows best which errno and signal that deserves.
    #[cold]
    fn send_to_gone(&self, fd: i32, want: usize) -> Sent {
        if self.peer_aborted() {
            self.set(p::ENDED);
            return Sent::Err(libc::ECONNRESET);
        }
        if self.is_reset_by_doorbell() && crate::inet::TcpInfo::of(fd).is_some_and(|info| info.is_closed()) {
            // It closed in order, and only a doorbell came too late: TCP would have taken this, and been reset for it.
            sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut 0i32);
            sys::shutdown(fd, libc::SHUT_WR);
            self.set(p::SENT_TO_GONE);
            return Sent::Bytes(want);
        }
        Sent::Kernel
    }

    /// `send_from` over a device without shared memory.
    #[cold]
    fn send_over(&self, fd: i32, want: usize, source: Source) -> Sent {
        if self.is_recalled() {
            self.flush_takeback(fd);
        }
        let sent = self.send_over_locked(fd, want, source);
        if self.is_recalled() {
            self.flush_takeback(fd);
        }
        sent
    }

    fn send_over_locked(&self, fd: i32, want: usize, source: Source) -> Sent {
        // Left in the middle by a handler that jumps, the peer's image, the device's queue and our cursors would tell different
        // stories.
        let _held = sys::SignalsHeld::new();
        let Ok(mut held) = self.lock_tx() else { return Sent::Held };
        if self.sends_on_ring() {
            self.look_now_and_then(fd, sys::ticks());
        }
        let ph = self.phase();
        if !ph.sends_freely() {
            return self.send_none(fd, ph, want);
        }
        if want == 0 {
            return Sent::Kernel;
        }
        if self.has_no_device() {
            return Sent::Err(libc::ECONNRESET);
        }
        let tx = &mut *held;
        let Ok(used) = self.refresh_tx(tx) else { return Sent::Err(self.broken(fd)) };
        if self.my().cons.load(Relaxed) & (CLOSED | ABORT) != 0 {
            return self.send_to_gone(fd, want);
        }
        self.send_far(fd, tx, self.tx_room().saturating_sub(used), want, source)
    }

    /// Puts up to `chunk` bytes at the producer cursor, unpublished.
    #[inline]
    fn place(
        &self,
        tx: &mut Tx,
        chunk: u32,
        fill: &mut impl FnMut(*mut u8, usize) -> Result<usize, i32>,
    ) -> Result<u32, i32> {
        let w = self.window();
        let size = w.peer_size.load(Relaxed);
        let base = (w.peer.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: the peer's DMB has HEADER_LEN + size bytes, checked when it was attached.
        let ring = unsafe { Ring::new(base, size) };
        let mut n = 0u32;
        // A fork child has left its parent's device, but the buffer is mapped there too.
        if self.path.load(Relaxed) != path::COPY || self.pid.load(Relaxed) != sys::getpid() {
            for (dst, len) in ring.spans(&tx.prod, chunk) {
                if len == 0 {
                    break;
                }
                match fill(dst, len as usize) {
                    Ok(k) => {
                        n += k as u32;
                        if k < len as usize {
                            break;
                        }
                    }
                    Err(e) if n == 0 => return Err(e),
                    Err(_) => break,
                }
            }
            return Ok(n);
        }
        self.place_staged(tx, chunk, fill)
    }

    /// As `place`, by the device's `move_data` out of a buffer on the stack. Not inlined, as `recv_rest`: threads with small stacks
    /// have no room for that buffer.
    #[inline(never)]
    fn place_staged(
        &self,
        tx: &mut Tx,
        chunk: u32,
        fill: &mut impl FnMut(*mut u8, usize) -> Result<usize, i32>,
    ) -> Result<u32, i32> {
        let w = self.window();
        let size = w.peer_size.load(Relaxed);
        let base = (w.peer.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: the peer's DMB has HEADER_LEN + size bytes, checked when it was attached.
        let ring = unsafe { Ring::new(base, size) };
        let mut n = 0u32;
        let mut stage = [core::mem::MaybeUninit::<u8>::uninit(); STAGE];
        let mut at = tx.prod;
        while n < chunk {
            let part = ((chunk - n) as usize).min(STAGE);
            let got = match fill(stage.as_mut_ptr().cast(), part) {
                Ok(got) => got,
                Err(e) if n == 0 => return Err(e),
                Err(_) => break,
            };
            let mut moved = 0u32;
            for (dst, len) in ring.spans(&at, got as u32) {
                if len > 0 {
                    let offset = HEADER_LEN + (dst as usize - base as usize) as u32;
                    self.move_data(offset, stage.as_ptr().cast::<u8>().wrapping_add(moved as usize), len)?;
                    moved += len;
                }
            }
            at.advance(got as u32, size);
            n += got as u32;
            if got < part {
                break;
            }
        }
        Ok(n)
    }

    fn move_data(&self, offset: u32, data: *const u8, len: u32) -> Result<(), i32> {
        use dibs::Device;
        crate::kind::LOOPBACK
            .move_data(self.peer_token.load(Relaxed), offset, data, len, false)
            .map_err(|_| libc::ECONNRESET)
    }

    /// Publishes `tx.prod`; false when the owner of the ring has taken it back. With `more` a peer that sleeps is not woken yet.
    #[inline]
    fn publish(&self, fd: i32, tx: &mut Tx, cpu: u32, more: bool) -> bool {
        let peer = self.peer();
        let cpu = self.with_bounds(cpu);
        if cpu != tx.cpu {
            tx.cpu = cpu;
            peer.cpu.store(cpu, Relaxed);
        }
        let word = tx.prod.wire();
        // SYNC: prod. Release of the bytes placed before; pairs with the acquire in `refresh_rx`. SeqCst, and an
        // exchange, because it is also the fence of the doorbell's Dekker pair and must lose against REVOKED.
        if peer.prod.compare_exchange(tx.word, word, SeqCst, Relaxed).is_err() {
            return false;
        }
        tx.word = word;
        self.tx.word.store(word, Relaxed);
        let my = self.my();
        let asleep = must_ring(&my.rx_arm, &self.tx.rung) || self.covered_sleeps(my);
        self.wake(fd, tx, asleep, more);
        true
    }

    /// Rings for what was published, if the peer has asked for a doorbell (`asleep`). One for which the application has more,
    /// by MSG_MORE or under a cork, may wait for it.
    #[inline(always)]
    pub(super) fn wake(&self, fd: i32, tx: &mut Tx, asleep: bool, more: bool) {
        if asleep {
            tx.held = self.ring_or_hold(fd, &self.tx.counts, (more || self.is_corked()) && is_small(tx));
        } else if tx.held && !(more || self.is_corked()) {
            self.let_go(fd, tx);
        }
    }

    /// Wakes a peer for which a doorbell was held back.
    #[cold]
    pub(super) fn let_go(&self, fd: i32, tx: &mut Tx) {
        if core::mem::take(&mut tx.held) {
            // It is set already: setting it again sends what waits.
            sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
        }
    }

    /// The application says that what it has sent is to go now: it has pulled the cork, or set TCP_NODELAY.
    pub fn push(&self, fd: i32) {
        // A send that is under way in another thread, or below this signal handler, sees that there is no cork any more.
        if let Some(mut held) = self.tx.state.try_lock() {
            self.let_go(fd, &mut held);
        }
    }

    /// Whether the wait that covers the peer's side of this connection sleeps and has not been rung yet.
    #[inline]
    pub(super) fn covered_sleeps(&self, my: &DmbHeader) -> bool {
        // SYNC: cover. SeqCst after the SeqCst publication, as the load of the wait word below.
        let cover = my.cover.load(SeqCst) as usize;
        if cover == 0 || cover >= crate::table::WAITS {
            return false;
        }
        let page = self.window().my_waits.load(Relaxed);
        if page.is_null() {
            return false;
        }
        // SAFETY: our own control page, type-stable.
        let page = unsafe { &*page };
        // SYNC: cover. SeqCst after the SeqCst publication; pairs with the fence in `Waits::sleep`.
        let armed = page.armed[cover].load(SeqCst);
        armed & 1 == 1 && page.rung[cover].load(Relaxed) != armed && page.rung[cover].swap(armed, Relaxed) != armed
    }

    /// Puts one doorbell byte on the TCP stream.
    pub(super) fn ring(&self, fd: i32, counts: &Counts) {
        self.ring_or_hold(fd, counts, false);
    }

    /// Puts one doorbell byte on the TCP stream. With `more` the kernel holds the byte back as it would hold payload: until
    /// `let_go`, the next byte, or 200 ms have passed. True if it does hold it.
    #[cold]
    #[inline(never)]
    pub(super) fn ring_or_hold(&self, fd: i32, counts: &Counts, more: bool) -> bool {
        // A byte for a socket that is being closed would turn its FIN into RST.
        let ph = self.phase();
        if !ph.sends_on_ring() || ph.has(p::SHUT_WR) || self.my().cons.load(Relaxed) & (CLOSED | ABORT) != 0 {
            return false;
        }
        if self.is_far() {
            return self.ring_far(fd, counts, more);
        }
        let rung = &self.peer().rung;
        let mut n = rung.load(Relaxed);
        loop {
            if n & RUNG_REVOKED != 0 {
                return false;
            }
            let next = (n + 1) & !RUNG_REVOKED;
            // SYNC: rung. Counted before it is sent, so that a count read before a condition covers every byte that
            // announces it.
            match rung.compare_exchange(n, next, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => n = now,
            }
        }
        if !more {
            self.stamp_ring();
        }
        counts.doorbells.fetch_add(1, Relaxed);
        let byte = 0u8;
        // SAFETY: one readable byte. A full send buffer means that unread bytes wake the peer anyway.
        let r = unsafe { sys::send(fd, &byte, 1, bell_flags(more)) };
        if r < 0 {
            rung.fetch_sub(1, Relaxed);
        }
        more
    }

    /// Learns how far the peer has read; bytes that it has not read.
    #[inline]
    pub(super) fn refresh_tx(&self, tx: &mut Tx) -> Result<u32, shm::cursor::Violation> {
        // SYNC: cons. Acquire: the peer has finished reading what it frees; pairs with `Conn::confirm`.
        let word = self.my().cons.load(Acquire);
        let size = self.window().peer_size.load(Relaxed);
        let used = (tx.prod.pos - tx.cons.pos) as u32;
        Ok(used - tx.cons.follow(word, size, used)?)
    }
}
