//! The receiving half, under `rlock`.
#![allow(unsafe_code)]

use super::{Guarded, Stream, lock, state};
use crate::provider::Endpoint;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use shm::{Errno, FastLock};

/// A receive that gave less than this was of a small message.
const SMALL: usize = 1024;
/// Most pauses of the processor before the queue is looked at again, in a stream of small messages.
const BREATH: u32 = 64;
/// Messages that one look at the queue should find: those of two cache lines.
const ENOUGH: u32 = 16;

/// How a receive behaves: the flags of `recv`(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvOptions {
    /// Waits for the first byte; else EAGAIN.
    pub block: bool,
    /// Leaves the bytes where they are.
    pub peek: bool,
    /// Waits until all buffers are full, or the stream ends.
    pub wait_all: bool,
}

#[derive(Default)]
pub struct Receiver {
    pub(super) lock: FastLock<true>,
    /// The stream is being taken apart: a call that began before, and has the lock only now, would
    /// read memory that was given back.
    pub(super) closed: AtomicBool,
    inner: Guarded<Inner>,
    /// Messages read to their end, since the start.
    pub(super) head: AtomicU32,
    /// Bytes read, since the start.
    pub(super) consumed: AtomicU64,
}

#[derive(Default, Clone, Copy)]
struct Inner {
    /// Unread bytes of the message at `head`, if it was begun.
    left: u32,
    /// Where the next byte lies in the receive buffer, and how many come behind it in this half.
    at: u32,
    half_left: u32,
    next_half: u32,
    /// Messages of ours at the last receive that gave bytes; and whether those were few.
    answered: u32,
    small: bool,
    /// Pauses before the next look.
    breath: u32,
}

/// Where bytes go: buffers of the application, and how far they are filled.
struct Target<'a> {
    bufs: &'a [(*mut u8, usize)],
    offset: usize,
    left: usize,
}

impl Target<'_> {
    /// Copies `n` bytes, `n <= left`, from `from`.
    ///
    /// # Safety
    /// `from` is readable for `n` bytes, the buffers are writable.
    #[inline]
    unsafe fn fill(&mut self, mut from: *const u8, mut n: usize) {
        self.left -= n;
        while n != 0 {
            let (ptr, len) = self.bufs[0];
            let now = (len - self.offset).min(n);
            // SAFETY: by the contract; bytes of the peer have no invalid value.
            unsafe { shm::copy(from, ptr.wrapping_add(self.offset), now) };
            from = from.wrapping_add(now);
            n -= now;
            self.offset += now;
            if self.offset == len {
                self.bufs = &self.bufs[1..];
                self.offset = 0;
            }
        }
    }
}

impl<E: Endpoint> Stream<E> {
    #[inline]
    pub(super) fn has_data(&self) -> bool {
        // SYNC: rmsg.
        self.recv.head.load(Ordering::Relaxed) != self.cq.rmsg_tail.load(Ordering::Acquire)
    }

    /// Receives into `bufs`; 0 is the end of the stream.
    ///
    /// # Safety
    /// Each buffer is writable.
    pub unsafe fn recv(
        &self,
        bufs: &[(*mut u8, usize)],
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        let _held = lock(&self.recv.lock)?;
        if self.recv.closed.load(Ordering::Relaxed) {
            return Err(Errno::BADF);
        }
        // SAFETY: by the contract, under `rlock`.
        if let Some(n) = unsafe { self.recv_now(bufs, options) } {
            return Ok(n);
        }
        // SAFETY: as above.
        unsafe { self.recv_slowly(bufs, options) }
    }

    /// One buffer, if a message that has arrived fills it; otherwise nothing was done.
    ///
    /// # Safety
    /// As for [`Self::recv`]. Under `rlock`.
    #[inline]
    unsafe fn recv_now(&self, bufs: &[(*mut u8, usize)], options: RecvOptions) -> Option<usize> {
        let &[(ptr, len)] = bufs else { return None };
        let head = self.recv.head.load(Ordering::Relaxed);
        // SYNC: rmsg. The length, and the bytes that it tells of.
        if len == 0 || options.peek || head == self.cq.rmsg_tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: under `rlock`.
        let inner = unsafe { self.recv.inner.get() };
        let left = match inner.left {
            // SAFETY: written before `rmsg_tail` moved over it, and not again before `head` does.
            0 => unsafe { self.rmsg_slot(head).read() },
            left => left,
        };
        if len > left as usize {
            return None;
        }
        self.enter_half(inner);
        let from = self.memory.wrapping_add(self.config.rbuf_at() + inner.at as usize);
        // SAFETY: what is left of a message, which lies within a half of the receive buffer;
        // writable by the contract.
        unsafe { shm::copy(from, ptr, len) };
        inner.left = left - len as u32;
        inner.at += len as u32;
        inner.half_left -= len as u32;
        let head = head.wrapping_add(u32::from(inner.left == 0));
        self.taken(inner, head, len);
        Some(len)
    }

    /// # Safety
    /// As for [`Self::recv`]. Under `rlock`.
    #[inline(never)]
    unsafe fn recv_slowly(
        &self,
        bufs: &[(*mut u8, usize)],
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        let total = bufs.iter().map(|b| b.1).sum();
        let mut target = Target { bufs, offset: 0, left: total };
        let mut result = Ok(());
        let mut looked = false;
        while target.left != 0 {
            if !self.has_data() {
                self.breathe();
                looked = true;
                result =
                    self.complete(options.block, || self.has_data() || !self.is(state::READABLE));
                if result.is_err() || !self.has_data() {
                    break;
                }
            }
            // SAFETY: by the contract.
            unsafe { self.take(&mut target, options.peek) };
            if options.peek || !options.wait_all && (looked || !self.finds_more()) {
                break;
            }
        }
        match (total - target.left, result) {
            (0, Err(e)) => Err(e),
            (0, Ok(())) if total != 0 && self.is(state::ERROR) => Err(Errno::CONNRESET),
            (n, _) => Ok(n),
        }
    }

    /// Whether more has come than was known when the call began: programs take a receive that gives
    /// less than they have room for as one that has emptied the stream.
    fn finds_more(&self) -> bool {
        let _ = self.progress.with(|| self.process());
        self.has_data()
    }

    /// Lets small messages that come fast and without a question of ours gather for a moment. Each
    /// look at the queue takes its cache line from the sender, which then waits for it: who looks
    /// for every single message halves the rate. Longer as long as looks find many, and soon not at
    /// all when they do not.
    #[inline]
    fn breathe(&self) {
        // SAFETY: under `rlock`.
        let inner = unsafe { self.recv.inner.get() };
        if !inner.small || inner.answered != self.messages_sent() {
            return;
        }
        inner.breath = match self.cq.found.load(Ordering::Relaxed) {
            ENOUGH.. => (inner.breath * 2 + 1).min(BREATH),
            4.. => inner.breath,
            2.. => inner.breath.max(1),
            _ => inner.breath / 2,
        };
        (0..inner.breath).for_each(|_| core::hint::spin_loop());
    }

    /// Copies out what has arrived.
    ///
    /// # Safety
    /// The buffers of `target` are writable.
    unsafe fn take(&self, target: &mut Target<'_>, peek: bool) {
        // SAFETY: under `rlock`.
        let kept = unsafe { self.recv.inner.get() };
        let mut inner = *kept;
        // SYNC: rmsg. The lengths, and the bytes that they tell of.
        let tail = self.cq.rmsg_tail.load(Ordering::Acquire);
        let mut head = self.recv.head.load(Ordering::Relaxed);
        let mut n = 0;
        while n < target.left && head != tail {
            if inner.left == 0 {
                // SAFETY: written before `rmsg_tail` moved over it, and not again before `head`
                // does.
                inner.left = unsafe { self.rmsg_slot(head).read() };
            }
            let now = (target.left - n).min(inner.left as usize);
            n += now;
            inner.left -= now as u32;
            head = head.wrapping_add(u32::from(inner.left == 0));
        }
        let buffer = self.memory.wrapping_add(self.config.rbuf_at());
        let mut copied = 0;
        while copied < n {
            self.enter_half(&mut inner);
            let now = (n - copied).min(inner.half_left as usize);
            // SAFETY: within what was granted of a half; no more was taken in.
            unsafe { target.fill(buffer.wrapping_add(inner.at as usize), now) };
            inner.at += now as u32;
            inner.half_left -= now as u32;
            copied += now;
        }
        if peek {
            return;
        }
        *kept = inner;
        self.taken(kept, head, n);
    }

    /// `n` bytes were copied out, and the messages before `head`.
    #[inline]
    fn taken(&self, inner: &mut Inner, head: u32, n: usize) {
        inner.small = n < SMALL;
        inner.answered = self.messages_sent();
        let consumed = self.recv.consumed.load(Ordering::Relaxed);
        // SYNC: consumed. After the copy: from here on the peer may be allowed to write there
        // again.
        self.recv.consumed.store(consumed + n as u64, Ordering::Release);
        self.row.rx.count(n);
        // SYNC: rmsg.
        self.recv.head.store(head, Ordering::Release);
        if self.grant_due() {
            // Reentered by a signal handler: the next look at the queue gives them.
            let _ = self.progress.with(|| self.grant());
        }
    }

    /// The next byte has come: if a half was read to its end, it lies in the other.
    #[inline]
    fn enter_half(&self, inner: &mut Inner) {
        if inner.half_left == 0 {
            // SYNC: rmsg. It was granted before the peer wrote there.
            inner.half_left = self.cq.lengths[inner.next_half as usize].load(Ordering::Relaxed);
            inner.at = inner.next_half * self.config.half();
            inner.next_half ^= 1;
        }
    }

    /// Bytes that can be read without waiting, so far as they were looked at.
    pub fn available(&self) -> usize {
        let _ = self.progress.with(|| self.process());
        let Ok(_held) = lock(&self.recv.lock) else { return 0 };
        if self.recv.closed.load(Ordering::Relaxed) {
            return 0;
        }
        // SAFETY: under `rlock`.
        let left = unsafe { self.recv.inner.get() }.left;
        let tail = self.cq.rmsg_tail.load(Ordering::Acquire);
        let head = self.recv.head.load(Ordering::Relaxed);
        if head == tail {
            return 0;
        }
        let after = if left == 0 { head } else { head.wrapping_add(1) };
        let waiting = (0..tail.wrapping_sub(after)).map(|i| {
            // SAFETY: written before `rmsg_tail` moved over it, and not again before `head` does.
            unsafe { self.rmsg_slot(after.wrapping_add(i)).read() as usize }
        });
        left as usize + waiting.sum::<usize>()
    }
}
