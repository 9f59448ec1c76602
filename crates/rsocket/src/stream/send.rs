//! The sending half, under `slock`.
#![allow(unsafe_code)]

use super::{CONTROL, Guarded, SNDLOWAT, Stream, lock, state};
use crate::provider::{Endpoint, Lane, PostError, Remote};
use crate::wire::{Message, Sge};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use shm::{Errno, FastLock};
use std::time::Duration;

/// The first write of a send is small, so that the receiver starts early; each next one is twice as
/// large.
const FIRST: usize = 2048;
const LARGEST: usize = 65536;
/// The same for a provider that copies at once: the receiver copies one piece out while the next is
/// copied in.
const LARGEST_COPY: usize = 32768;
/// Buffers of the application that one write gathers.
const GATHER: usize = 8;
/// How long to wait before another attempt when the peer is slow to give back receives.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Sender {
    pub(super) lock: FastLock<true>,
    inner: Guarded<Inner>,
    /// The owner of `lock` sleeps, or is about to. Changes under the lock of the completion queue.
    pub(super) waiting: AtomicBool,
    /// Sequence number of the next message that needs a credit.
    sent: AtomicU32,
    /// Free bytes of the peer's present receive buffer.
    left: AtomicU32,
    pub(super) sge_head: AtomicU32,
    posted: AtomicU32,
    posted_bytes: AtomicU64,
}

struct Inner {
    addr: u64,
    key: u32,
    /// Offset in the send buffer.
    at: u32,
}

/// What is to be sent: buffers of the application, and how far we are.
pub(super) struct Source<'a> {
    bufs: &'a [(*const u8, usize)],
    offset: usize,
    pub left: usize,
}

impl<'a> Source<'a> {
    pub fn new(bufs: &'a [(*const u8, usize)]) -> Self {
        Self { bufs, offset: 0, left: bufs.iter().map(|b| b.1).sum() }
    }

    /// Up to `n` of the next bytes, in at most [`GATHER`] pieces; the number of pieces and bytes.
    #[inline]
    fn gather(&mut self, n: usize, out: &mut [(*const u8, usize); GATHER]) -> (usize, usize) {
        let (mut pieces, mut total) = (0, 0);
        while total < n && pieces < GATHER {
            let (ptr, len) = self.bufs[0];
            let take = (len - self.offset).min(n - total);
            out[pieces] = (ptr.wrapping_add(self.offset), take);
            pieces += usize::from(take != 0);
            total += take;
            self.offset += take;
            if self.offset == len {
                self.bufs = &self.bufs[1..];
                self.offset = 0;
            }
        }
        self.left -= total;
        (pieces, total)
    }
}

impl Sender {
    pub fn new(first: Sge) -> Self {
        Self {
            lock: FastLock::new(),
            inner: Guarded(Inner { addr: first.addr, key: first.key, at: 0 }.into()),
            waiting: AtomicBool::new(false),
            sent: AtomicU32::new(0),
            left: AtomicU32::new(first.length),
            sge_head: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            posted_bytes: AtomicU64::new(0),
        }
    }
}

impl<E: Endpoint> Stream<E> {
    /// Sends the bytes of all `bufs`, or as many as can be without `block`.
    ///
    /// # Safety
    /// Each buffer is readable.
    pub unsafe fn send(&self, bufs: &[(*const u8, usize)], block: bool) -> Result<usize, Errno> {
        let _held = lock(&self.send.lock)?;
        // SAFETY: by the contract, under `slock`.
        if let Some(n) = unsafe { self.send_now(bufs) } {
            return Ok(n);
        }
        // SAFETY: as above.
        unsafe { self.send_slowly(bufs, block) }
    }

    /// A small message from one buffer, if nothing stands in its way; otherwise nothing was done.
    ///
    /// # Safety
    /// As for [`Self::send`]. Under `slock`.
    #[inline]
    unsafe fn send_now(&self, bufs: &[(*const u8, usize)]) -> Option<usize> {
        let &[(ptr, len)] = bufs else { return None };
        let left = self.send.left.load(Ordering::Relaxed);
        let fits = len != 0 && len <= FIRST.min(left as usize) && self.endpoint.synchronous();
        if !fits || !self.has_credit() || self.has_new_iomaps() || !self.is(state::WRITABLE) {
            return None;
        }
        // SAFETY: under `slock`.
        let inner = unsafe { self.send.inner.get() };
        let word = Message::Data(len as u32).encode();
        let to = Remote { addr: inner.addr, key: inner.key };
        // SAFETY: readable by the contract; `slock` makes this the only poster of the lane.
        unsafe { self.endpoint.post_write(Lane::Stream, &[(ptr, len)], to, Some(word), word) }
            .ok()?;
        // A peer may name any address; what is not its own is refused where it is written.
        inner.addr = inner.addr.wrapping_add(len as u64);
        self.send.left.store(left - len as u32, Ordering::Relaxed);
        self.spend_credit();
        self.row.tx.count(len);
        Some(len)
    }

    /// # Safety
    /// As for [`Self::send`]. Under `slock`.
    #[inline(never)]
    unsafe fn send_slowly(&self, bufs: &[(*const u8, usize)], block: bool) -> Result<usize, Errno> {
        let mut source = Source::new(bufs);
        let total = source.left;
        let result = self.send_iomaps(block).and_then(|()| {
            self.endpoint.hold_events();
            self.send_all(&mut source, block)
        });
        self.endpoint.release_events();
        match (total - source.left, result) {
            (0, Err(e)) => Err(e),
            (n, _) => {
                self.row.tx.count(n);
                Ok(n)
            }
        }
    }

    fn send_all(&self, source: &mut Source<'_>, block: bool) -> Result<(), Errno> {
        let largest = if self.endpoint.synchronous() { LARGEST_COPY } else { LARGEST };
        let mut size = FIRST;
        while source.left != 0 {
            self.await_send(block)?;
            let n = size.min(source.left).min(self.send.left.load(Ordering::Relaxed) as usize);
            size = (size * 2).min(largest);
            self.send_data(source, n, block)?;
        }
        Ok(())
    }

    /// Waits until a write can be posted, and makes the next receive buffer of the peer the present
    /// one.
    pub(super) fn await_send(&self, block: bool) -> Result<(), Errno> {
        loop {
            if !self.is(state::WRITABLE) {
                return Err(Errno::CONNRESET);
            }
            if self.can_send() {
                break;
            }
            let done = self.complete(block, || {
                let ready = self.can_send() || !self.is(state::WRITABLE);
                self.send.waiting.store(!ready, Ordering::Relaxed);
                ready
            });
            self.send.waiting.store(false, Ordering::Relaxed);
            done?;
        }
        if self.send.left.load(Ordering::Relaxed) == 0
            && let Some(sge) = self.take_sge()
        {
            // SAFETY: under `slock`.
            let inner = unsafe { self.send.inner.get() };
            (inner.addr, inner.key) = (sge.addr, sge.key);
            self.send.left.store(sge.length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a write could be posted now: credit, room at the peer, and room in the queue.
    #[inline]
    pub(super) fn can_send(&self) -> bool {
        let (send, cq) = (&self.send, &self.cq);
        let room = send.left.load(Ordering::Relaxed) != 0
            || send.sge_head.load(Ordering::Relaxed) != cq.sge_tail.load(Ordering::Acquire);
        self.has_credit() && room && self.has_send_space()
    }

    #[inline]
    fn has_credit(&self) -> bool {
        // SYNC: credits.
        self.send.sent.load(Ordering::Relaxed) as u16
            != self.cq.credits.load(Ordering::Acquire) as u16
    }

    #[inline]
    pub(super) fn has_send_space(&self) -> bool {
        self.endpoint.synchronous()
            || (self.in_flight() < u32::from(self.config.sq) - CONTROL
                && self.sbuf_free() >= SNDLOWAT)
    }

    pub(super) fn in_flight(&self) -> u32 {
        // SYNC: done.
        self.send.posted.load(Ordering::Relaxed).wrapping_sub(self.cq.done.load(Ordering::Acquire))
    }

    fn sbuf_free(&self) -> u32 {
        let used = self.send.posted_bytes.load(Ordering::Relaxed)
            - self.cq.done_bytes.load(Ordering::Relaxed);
        self.config.sbuf - used as u32
    }

    fn send_data(&self, source: &mut Source<'_>, n: usize, block: bool) -> Result<(), Errno> {
        // SAFETY: under `slock`.
        let inner = unsafe { self.send.inner.get() };
        let to = Remote { addr: inner.addr, key: inner.key };
        let n = self.write(
            source,
            n,
            to,
            |n| (Some(Message::Data(n).encode()), Message::Data(n).encode()),
            block,
        )?;
        inner.addr = inner.addr.wrapping_add(n.into());
        // Written under `slock` only: no locked instruction, of which each costs as much as the
        // copy.
        self.send.left.store(self.send.left.load(Ordering::Relaxed) - n, Ordering::Relaxed);
        self.spend_credit();
        Ok(())
    }

    /// Counts a message that used up a credit.
    #[inline]
    pub(super) fn spend_credit(&self) {
        self.send
            .sent
            .store(self.send.sent.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Messages sent so far, modulo 2^32.
    #[inline]
    pub(super) fn messages_sent(&self) -> u32 {
        self.send.sent.load(Ordering::Relaxed)
    }

    /// Posts one write of at most `n` bytes; `tell` gives its immediate data and id. Returns its
    /// length.
    pub(super) fn write(
        &self,
        source: &mut Source<'_>,
        n: usize,
        to: Remote,
        tell: impl Fn(u32) -> (Option<u32>, u32),
        block: bool,
    ) -> Result<u32, Errno> {
        let before = Source { ..*source };
        let mut pieces = [(core::ptr::null(), 0); GATHER];
        let (count, total) = if n <= self.endpoint.inline_limit() {
            source.gather(n, &mut pieces)
        } else {
            self.stage(source, n, &mut pieces)
        };
        let (imm, id) = tell(total as u32);
        // SAFETY: the application's buffers by the contract of `send`, or our send buffer, which
        // stays as it is until `done_bytes` says so; `slock` makes this the only poster of the
        // lane.
        let post =
            || unsafe { self.endpoint.post_write(Lane::Stream, &pieces[..count], to, imm, id) };
        match self.post(post, block) {
            Ok(()) => {}
            Err(e) => {
                *source = before;
                return Err(e);
            }
        }
        if !self.endpoint.synchronous() {
            // SAFETY: under `slock`.
            let inner = unsafe { self.send.inner.get() };
            inner.at = (inner.at + total as u32) % self.config.sbuf;
            self.send.posted_bytes.fetch_add(total as u64, Ordering::Relaxed);
            self.send.posted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(total as u32)
    }

    #[inline]
    fn post(
        &self,
        mut post: impl FnMut() -> Result<(), PostError>,
        block: bool,
    ) -> Result<(), Errno> {
        loop {
            match post() {
                Ok(()) => return Ok(()),
                Err(PostError::Full) if !block => return Err(Errno::AGAIN),
                Err(PostError::Full) => {
                    self.complete(false, || true)?;
                    if !self.is(state::WRITABLE) {
                        return Err(Errno::CONNRESET);
                    }
                    self.endpoint.release_events();
                    // The peer's queue has no doorbell of its own: credits keep it from being full.
                    std::thread::sleep(PAUSE);
                    self.endpoint.probe();
                }
                Err(PostError::Access) => return Err(Errno::FAULT),
                Err(PostError::Gone) => {
                    self.fail(Errno::CONNRESET);
                    return Err(Errno::CONNRESET);
                }
            }
        }
    }

    /// Copies up to `n` bytes into the send buffer, where they lie still until they are sent.
    fn stage(
        &self,
        source: &mut Source<'_>,
        n: usize,
        out: &mut [(*const u8, usize); GATHER],
    ) -> (usize, usize) {
        let mut pieces = *out;
        let (count, total) = source.gather(n.min(self.sbuf_free() as usize), &mut pieces);
        // SAFETY: under `slock`.
        let at = unsafe { self.send.inner.get() }.at as usize;
        let size = self.config.sbuf as usize;
        let mut to = at;
        for (ptr, len) in &pieces[..count] {
            let first = (*len).min(size - to);
            // SAFETY: readable by the contract of `send`; the target is the free part of the send
            // buffer.
            unsafe { shm::copy(*ptr, self.sbuf.wrapping_add(to), first) };
            // SAFETY: as above, for what goes to its beginning.
            unsafe { shm::copy(ptr.wrapping_add(first), self.sbuf, len - first) };
            to = (to + len) % size;
        }
        let first = total.min(size - at);
        out[0] = (self.sbuf.wrapping_add(at).cast_const(), first);
        out[1] = (self.sbuf.cast_const(), total - first);
        (if first < total { 2 } else { 1 }, total)
    }
}
