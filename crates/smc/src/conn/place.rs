//! Application bytes into a ring that is mapped here, and all else that is done with a mapped
//! buffer.
#![allow(unsafe_code)]

use super::mapped::{Mapped, Sleeper};
use super::pieces::Source;
use super::reach::Reach;
use super::send::{Load, Put, SendError, Sent, send_bell};
use super::*;
use crate::stats::Counts;
use crate::sys;
use shm::ring::Ring;

/// Bytes published at a time: small enough that the reader's copy overlaps ours, large enough to
/// hide the price of the exchange.
const PUBLISH: u32 = 32 << 10;
/// Staging of the copying path, SMC's sndbuf.
const STAGE: usize = 16 << 10;

impl Reach for Mapped<'_> {
    const REVOKES: bool = true;
    const ASKS: bool = false;

    fn introduce(self, cpu: u32) {
        self.peer.cpu.store(cpu, Relaxed);
        // SYNC: kind. Behind the attachment; pairs with `peer_attached`.
        self.peer.kind.store(0xfe, Release);
    }

    fn open(self, cons: u64) {
        Mapped::confirm(self, cons);
    }

    fn switch(self, n: u64) -> bool {
        self.leave_tcp(n);
        true
    }

    /// What is published into a ring that was taken back fails, which is answer enough.
    fn refuse(self, _of: &Conn) {}

    /// Before other threads of ours send over TCP: the peer would take that for doorbells.
    fn end_ring(self, of: &Conn) {
        if self.close_ring() {
            // Nor may they send there in front of what the peer has claimed.
            of.set(p::RESEND);
        }
        of.announce();
        of.turn_sends(Sends::left);
    }

    #[inline(always)]
    fn confirm(self, cons: u64) {
        Mapped::confirm(self, cons);
    }

    #[inline(always)]
    fn confirm_now(self, cpu: Option<u32>) {
        Mapped::confirm_now(self, cpu);
    }

    fn arm_data(self) -> bool {
        Mapped::arm_data(self);
        true
    }

    fn arm_space(self) {
        Mapped::arm_space(self);
    }

    fn cover(self, wait: u32) {
        Mapped::cover(self, wait);
    }

    fn bound(self, cpu: u32) {
        self.peer.cpu.store(cpu, SeqCst);
    }

    fn end(self, cons: u64) {
        Mapped::end(self, cons);
    }

    fn flag(self, flags: u64) {
        Mapped::flag(self, flags);
    }

    fn ring(self, of: &Conn, fd: i32, counts: &Counts, more: bool) -> bool {
        if !self.count_bell() {
            return false;
        }
        if !more {
            of.stamp_ring();
        }
        counts.doorbells.fetch_add(1, Relaxed);
        if !send_bell(fd, more) {
            self.uncount_bell();
        }
        more
    }

    /// The last sender jumped out or was killed under the lock. If it published but did not note it
    /// in `tx.word`, note it now, or our next compare-exchange fails and looks like REVOKED. Ring
    /// once in any case: its doorbell may be missing, and a full ring brings no other.
    #[cold]
    fn resume(self, of: &Conn, fd: i32, tx: &mut Tx) {
        of.ring_what_was_counted(fd);
        of.ring(fd, &of.tx.counts);
        let (placed, published) = (tx.prod.wire(), self.peer.prod.load(Acquire));
        if published == placed {
            tx.word = placed;
            of.tx.word.store(placed, Relaxed);
        } else if published == tx.word && of.publish(self, tx, sys::cpu()) {
            of.wake(fd, tx, Reach::sleeper(self, of), false);
        }
    }

    #[inline(always)]
    fn makes_way(self, of: &Conn, tx: &mut Tx) -> bool {
        let revoked = self.peer.prod.load(Relaxed) & REVOKED != 0;
        if revoked {
            let at = tx.prod.pos;
            of.leave_ring(tx, at);
        }
        revoked
    }

    fn has_made_way(self, of: &Conn) -> bool {
        of.sends_go_back()
    }

    #[inline(always)]
    fn put(
        self,
        of: &Conn,
        tx: &mut Tx,
        chunk: u32,
        load: &Load,
        source: &mut impl Source,
    ) -> Result<Put, SendError> {
        let chunk = chunk.min(PUBLISH);
        let bytes = of.place(tx, chunk, source)?;
        if bytes == 0 {
            return Ok(Put::nothing());
        }
        let before = tx.prod.pos;
        tx.prod.advance(bytes, of.window().peer_size.load(Relaxed));
        let published = of.publish(self, tx, load.cpu);
        if !published {
            // The owner took the ring back between the two. What is placed was taken from the
            // application, or from a file whose position has moved: it goes out over TCP, first of
            // all.
            of.leave_ring(tx, before);
        }
        Ok(Put { bytes, published, goes_on: published && bytes == chunk })
    }

    #[inline(always)]
    fn sleeper(self, of: &Conn) -> Sleeper {
        let w = of.window();
        // SAFETY: our own control page, type-stable.
        let page = unsafe { w.my_waits.load(Relaxed).as_ref() };
        Mapped::sleeper(self, &of.tx.rung, page, || w.peer_bits())
    }

    fn failed(self, _of: &Conn, _fd: i32, error: SendError) -> Sent {
        Sent::Err(error)
    }

    fn recall(self, of: &Conn, fd: i32, foreign: bool, _vanishing: bool) -> bool {
        of.recall_by_store(self, fd, foreign)
    }

    fn takeback(self, _of: &Conn) -> u64 {
        self.claimed().unwrap_or(0)
    }

    fn fetch(self, _of: &Conn, _tx: &Tx, _word: u64) -> bool {
        true
    }

    fn resend(self, of: &Conn) -> *const u8 {
        of.window().peer.load(Relaxed).cast::<u8>().wrapping_add(HEADER_LEN as usize)
    }
}

impl Conn {
    /// Publishes `tx.prod`; false when the owner of the ring has taken it back.
    #[inline(always)]
    pub(super) fn publish(&self, reach: Mapped, tx: &mut Tx, cpu: u32) -> bool {
        let cpu = self.with_bounds(cpu);
        if cpu != tx.cpu {
            tx.cpu = cpu;
            reach.peer.cpu.store(cpu, Relaxed);
        }
        let word = tx.prod.wire();
        if !reach.publish(tx.word, word) {
            return false;
        }
        tx.word = word;
        self.tx.word.store(word, Relaxed);
        true
    }

    /// A doorbell that was counted and not sent would make the peer take the next one for old, and
    /// sleep on.
    fn ring_what_was_counted(&self, fd: i32) {
        const MOST: u32 = 8;
        let shortage = || {
            let sent =
                crate::inet::TcpInfo::of(fd)?.sent() - (self.peer().switch.load(Relaxed) >> 1);
            let rung = self.peer().rung.load(SeqCst);
            Some((rung, (rung & !RUNG_REVOKED).wrapping_sub(sent as u32) & !RUNG_REVOKED))
        };
        let Some(first @ (_, 1..=MOST)) = shortage() else { return };
        // Another thread may be between the two.
        sys::nap();
        if shortage() == Some(first) {
            let bytes = [0u8; MOST as usize];
            // SAFETY: readable bytes.
            unsafe {
                sys::send(
                    fd,
                    bytes.as_ptr(),
                    first.1 as usize,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
        }
    }

    /// Puts up to `chunk` bytes at the producer cursor, unpublished.
    #[inline(always)]
    fn place(&self, tx: &mut Tx, chunk: u32, source: &mut impl Source) -> Result<u32, SendError> {
        let w = self.window();
        let size = w.peer_size.load(Relaxed);
        let base = (w.peer.load(Relaxed) as *mut u8).wrapping_add(HEADER_LEN as usize);
        // SAFETY: the peer's DMB has HEADER_LEN + size bytes, checked when it was attached.
        let ring = unsafe { Ring::new(base, size) };
        let mut n = 0u32;
        // A fork child has left its parent's device, but the buffer is mapped there too.
        if self.identity.path.load(Relaxed) != path::COPY
            || self.identity.pid.load(Relaxed) != sys::getpid()
        {
            for (dst, len) in ring.spans(&tx.prod, chunk) {
                if len == 0 {
                    break;
                }
                match source.fill(dst, len as usize) {
                    Ok(k) => {
                        n += k as u32;
                        if k < len as usize {
                            break;
                        }
                    }
                    Err(errno) if n == 0 => return Err(SendError::Source(errno)),
                    Err(_) => break,
                }
            }
            return Ok(n);
        }
        self.place_staged(tx, chunk, source)
    }

    /// As `place`, by the device's `move_data` out of a buffer on the stack. Not inlined, as
    /// `recv_rest`: threads with small stacks have no room for that buffer.
    #[inline(never)]
    fn place_staged(
        &self,
        tx: &mut Tx,
        chunk: u32,
        source: &mut impl Source,
    ) -> Result<u32, SendError> {
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
            let got = match source.fill(stage.as_mut_ptr().cast(), part) {
                Ok(got) => got,
                Err(errno) if n == 0 => return Err(SendError::Source(errno)),
                Err(_) => break,
            };
            let mut moved = 0u32;
            for (dst, len) in ring.spans(&at, got as u32) {
                if len > 0 {
                    let offset = HEADER_LEN + (dst as usize - base as usize) as u32;
                    self.move_data(
                        offset,
                        stage.as_ptr().cast::<u8>().wrapping_add(moved as usize),
                        len,
                    )?;
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

    fn move_data(&self, offset: u32, data: *const u8, len: u32) -> Result<(), SendError> {
        use dibs::Device;
        crate::kind::LOOPBACK
            .move_data(self.tokens()[1], offset, data, len, false)
            .map_err(|_| SendError::Reset)
    }
}
