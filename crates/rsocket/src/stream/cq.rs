//! The completion queue: the only place that hears the peer. Under the lock of [`crate::progress`].
#![allow(unsafe_code)]

use super::{CONTROL, Config, Guarded, SGL, Stream, state};
use crate::provider::{Completion, Endpoint, Lane, PostError, Remote};
use crate::wire::{Message, Sge};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::time::{ClockId, clock_gettime};
use shm::Errno;
use std::time::{Duration, Instant};

/// Completions per look.
const BATCH: usize = 32;
/// Messages of one look: more than both queues can have. A peer that writes on while it is heard
/// would else keep a call from its end, for as long as it likes.
const MOST: usize = 1 << 17;
/// Looks in vain until the kernel is asked whether the peer still lives.
const PROBE: u32 = 4096;
/// Entries of the target SGL that wait to be filled; an honest peer has granted two halves at most.
const PENDING: u32 = 4;
/// Grants of whole halves behind a look that came late.
pub(super) const GENEROUS: u32 = 8;
/// A look that found at least so many bytes asks the clock, which costs a hundredth of their copy.
const TIMED: u64 = 32 << 10;

pub struct Queue {
    inner: Guarded<Inner>,
    /// Sequence number up to which we may send.
    pub(super) credits: AtomicU32,
    /// Receive buffers granted to us, not yet begun: written here, taken by the sender.
    pub(super) sges: [Guarded<Sge>; PENDING as usize],
    pub(super) sge_tail: AtomicU32,
    /// Data messages received, written here, taken by the receiver.
    pub(super) rmsg_tail: AtomicU32,
    /// Completed writes of the stream lane, and their bytes.
    pub(super) done: AtomicU32,
    pub(super) done_bytes: AtomicU64,
    /// Messages that the last look at the queue has found.
    pub(super) found: AtomicU32,
    /// Looks in vain since the last that found something.
    pub(super) idle: AtomicU32,
    /// Bytes granted to the peer since the start, and those before the half that was granted last:
    /// once they are read, the next may be granted.
    granted: AtomicU64,
    next_at: AtomicU64,
    /// What was granted of each half.
    pub(super) lengths: [AtomicU32; 2],
    /// Iomap messages received: each has used up a credit, and is over when it has come.
    iomaps: AtomicU32,
    /// Count of messages that are over at which the next credits are due.
    due: AtomicU32,
}

struct Inner {
    /// Bytes received since the start, what is left of the half that they go to, and which half
    /// comes then.
    received: u64,
    half_left: u32,
    next_half: u32,
    /// Halves granted so far; how many of the next are granted whole.
    grants: u32,
    generous: u32,
    /// When a look has found much the last time.
    looked: Option<Instant>,
    /// When one came late the last time, and how long its thread had run by then.
    late: Option<(Instant, Duration)>,
    /// Entry of our target SGL that the peer updates next.
    fill: u32,
    /// Entry of the peer's target SGL that we update next.
    remote: u32,
    /// Control messages posted and not yet complete.
    control: u32,
    /// Entries posted so far from the buffers behind the send buffer: which of them is next.
    entries: u32,
    /// What a look finds. Here, because making such a table costs more than a look in vain.
    batch: [Completion; BATCH],
}

impl Queue {
    pub fn new(config: &Config, credits: u16) -> Self {
        // The first half, and the first entry, went with the connection data.
        let inner = Inner {
            received: 0,
            half_left: config.usual_half,
            next_half: 1,
            grants: 1,
            generous: 0,
            looked: None,
            late: None,
            fill: 1,
            remote: 1,
            control: 0,
            entries: 0,
            batch: [Completion::Recv(0); BATCH],
        };
        Self {
            inner: Guarded(inner.into()),
            credits: AtomicU32::new(credits.into()),
            sges: Default::default(),
            sge_tail: AtomicU32::new(0),
            rmsg_tail: AtomicU32::new(0),
            done: AtomicU32::new(0),
            done_bytes: AtomicU64::new(0),
            found: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            granted: AtomicU64::new(config.usual_half.into()),
            next_at: AtomicU64::new(0),
            lengths: [AtomicU32::new(config.usual_half), AtomicU32::new(0)],
            iomaps: AtomicU32::new(0),
            due: AtomicU32::new((config.rq / 2).into()),
        }
    }
}

impl<E: Endpoint> Stream<E> {
    /// Gives credits that are due and takes in what has completed.
    pub(super) fn process(&self) {
        self.grant();
        // Read before the queue: what the peer posted before its end is found below.
        let gone = self.endpoint.is_gone();
        // SAFETY: the caller holds the lock of the completion queue; so in every function here.
        let inner = unsafe { self.cq.inner.get() };
        let (mut found, mut heard) = (0, 0);
        let before = inner.received;
        let iomaps = self.cq.iomaps.load(Ordering::Relaxed);
        let mut idle = self.cq.idle.load(Ordering::Relaxed);
        loop {
            let n = self.endpoint.poll_cq(&mut inner.batch);
            if n == 0 {
                break;
            }
            idle = 0;
            heard += n;
            let mut receives = 0;
            for i in 0..n {
                match inner.batch[i] {
                    Completion::Recv(word) => {
                        receives += 1;
                        if self.received(inner, Message::decode(word)).is_err() {
                            self.fail(Errno::CONNRESET);
                            self.endpoint.disconnect();
                        }
                    }
                    Completion::Sent { id, ok } => self.sent(inner, id, ok),
                }
            }
            if receives != 0 {
                self.endpoint.post_recv(receives);
                found += receives;
            }
            if n < BATCH || heard >= MOST {
                break;
            }
        }
        self.cq.found.store(found, Ordering::Relaxed);
        let received = inner.received - before;
        if self.cq.iomaps.load(Ordering::Relaxed) != iomaps {
            // Nobody reads them, and who sleeps behind this look would leave the peer without credits.
            self.grant();
        }
        // SAFETY: as above; `grant` has taken it since, and the reference from before is not used again.
        let inner = unsafe { self.cq.inner.get() };
        let much = TIMED.min(self.config.usual_half.into());
        if received >= much && self.config.usual_half < self.config.half() {
            self.note_lateness(inner);
        }
        idle = idle.wrapping_add(1);
        self.cq.idle.store(idle, Ordering::Relaxed);
        if idle.is_multiple_of(PROBE) {
            self.endpoint.probe();
        }
        if gone && self.is(state::CONNECTED) {
            if self.endpoint.has_left() { self.end() } else { self.fail(Errno::CONNRESET) }
        }
    }

    /// Behind a look that found much. A receiver that was at work all the time is only slow: more
    /// room would take its data out of the caches, and make it slower.
    fn note_lateness(&self, inner: &mut Inner) {
        let now = Instant::now();
        let last = inner.looked.replace(now);
        let is_full = inner.received == self.cq.granted.load(Ordering::Relaxed);
        if !is_full || last.is_none_or(|last| now - last < self.config.away) {
            return;
        }
        let ran = clock_gettime(ClockId::ThreadCPUTime);
        let ran = Duration::try_from(ran).unwrap_or_default();
        if let Some((then, had_run)) = inner.late.replace((now, ran))
            && (now - then).saturating_sub(ran.saturating_sub(had_run)) >= self.config.away
        {
            inner.generous = GENEROUS;
        }
    }

    /// Err for what no honest peer says.
    fn received(&self, inner: &mut Inner, message: Message) -> Result<(), ()> {
        match message {
            Message::Data(n) => self.received_data(inner, n),
            Message::Credits(upto) => {
                // SYNC: credits. After the new target SGE, if one came with it.
                self.received_sge(inner)?;
                self.cq.credits.store(upto.into(), Ordering::Release);
                Ok(())
            }
            // The entry is read when it is needed.
            Message::Iomap(_) => {
                let iomaps = self.cq.iomaps.load(Ordering::Relaxed);
                self.cq.iomaps.store(iomaps.wrapping_add(1), Ordering::Relaxed);
                Ok(())
            }
            Message::KeepAlive => Ok(()),
            Message::Disconnect => {
                self.end();
                Ok(())
            }
            Message::Shutdown => {
                let before = self.state.fetch_and(!state::READABLE, Ordering::AcqRel);
                if before & state::WRITABLE == 0 {
                    self.end();
                }
                Ok(())
            }
            Message::Unknown(_) => Err(()),
        }
    }

    fn received_data(&self, inner: &mut Inner, n: u32) -> Result<(), ()> {
        let granted = self.cq.granted.load(Ordering::Relaxed);
        let tail = self.cq.rmsg_tail.load(Ordering::Relaxed);
        // SYNC: rmsg. The slot is free once the receiver has read it.
        let waiting = tail.wrapping_sub(self.recv.head.load(Ordering::Acquire));
        if n == 0 || inner.received + u64::from(n) > granted || waiting >= self.config.rq.into() {
            return Err(());
        }
        if inner.half_left == 0 {
            inner.half_left = self.cq.lengths[inner.next_half as usize].load(Ordering::Relaxed);
            inner.next_half ^= 1;
        }
        if n > inner.half_left {
            return Err(());
        }
        inner.received += u64::from(n);
        inner.half_left -= n;
        // SAFETY: the slot is within the ring, and free, since fewer than `rq` wait.
        unsafe { self.rmsg_slot(tail).write(n) };
        // SYNC: rmsg. The length first.
        self.cq.rmsg_tail.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(super) fn rmsg_slot(&self, count: u32) -> *mut u32 {
        self.rmsg.wrapping_add((count & (self.config.rmsgs() - 1)) as usize)
    }

    /// Takes over an entry of our target SGL, if the peer has filled the next one.
    fn received_sge(&self, inner: &mut Inner) -> Result<(), ()> {
        let entry = self.memory.wrapping_add(inner.fill as usize * Sge::LEN);
        // SAFETY: an entry of the target SGL in our memory. Copied once and checked at use; a peer
        // that writes meanwhile spoils its own receive buffer.
        let sge = Sge::decode(&unsafe { entry.cast::<[u8; Sge::LEN]>().read_volatile() });
        if sge.length == 0 {
            return Ok(());
        }
        let tail = self.cq.sge_tail.load(Ordering::Relaxed);
        // SYNC: sge. The slot is free once the sender has taken it.
        if tail.wrapping_sub(self.send.sge_head.load(Ordering::Acquire)) >= PENDING {
            return Err(());
        }
        // SAFETY: as above. Zero marks it as taken; the peer fills it again only after two more
        // halves.
        unsafe { entry.cast::<[u8; Sge::LEN]>().write_volatile([0; Sge::LEN]) };
        // SAFETY: free, see above, and written by nobody else.
        *unsafe { self.cq.sges[(tail % PENDING) as usize].get() } = sge;
        // SYNC: sge. The entry first.
        self.cq.sge_tail.store(tail.wrapping_add(1), Ordering::Release);
        inner.fill = (inner.fill + 1) % SGL;
        Ok(())
    }

    /// Called by the sender, for the next buffer granted to it.
    pub(super) fn take_sge(&self) -> Option<Sge> {
        let head = self.send.sge_head.load(Ordering::Relaxed);
        // SYNC: sge.
        if head == self.cq.sge_tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: filled, and not written again before `sge_head` moves on.
        let sge = *unsafe { self.cq.sges[(head % PENDING) as usize].get() };
        // SYNC: sge.
        self.send.sge_head.store(head.wrapping_add(1), Ordering::Release);
        Some(sge)
    }

    fn sent(&self, inner: &mut Inner, id: u32, ok: bool) {
        match Message::decode(id) {
            Message::Credits(_) => inner.control -= 1,
            Message::Disconnect | Message::Shutdown | Message::KeepAlive => inner.control -= 1,
            Message::Iomap(_) => self.sent_bytes(crate::wire::Iomap::LEN as u64),
            Message::Data(n) => self.sent_bytes(n.into()),
            Message::Unknown(word) => self.sent_bytes((word & Message::MAX_DATA).into()),
        }
        if !ok {
            self.fail(Errno::IO);
        }
    }

    fn sent_bytes(&self, n: u64) {
        self.cq.done_bytes.fetch_add(n, Ordering::Relaxed);
        // SYNC: done. The space of the send buffer may be used again.
        self.cq.done.fetch_add(1, Ordering::Release);
    }

    /// Messages of the peer's that have used up a credit and are over: those read, and iomaps.
    #[inline]
    fn over(&self, read: u32) -> u32 {
        read.wrapping_add(self.cq.iomaps.load(Ordering::Relaxed))
    }

    /// Whether credits are due: half of the receives were used, or a half of the buffer is free.
    #[inline]
    pub(super) fn grant_due(&self) -> bool {
        let over = self.over(self.recv.head.load(Ordering::Relaxed));
        self.recv.consumed.load(Ordering::Relaxed) >= self.cq.next_at.load(Ordering::Relaxed)
            || over.wrapping_sub(self.cq.due.load(Ordering::Relaxed)) as i32 >= 0
    }

    /// Gives the peer what is due. If that cannot be posted now, the next look at the queue does
    /// it.
    pub(super) fn grant(&self) {
        // SAFETY: under the lock of the completion queue.
        let inner = unsafe { self.cq.inner.get() };
        while self.is(state::CONNECTED) && self.grant_due() && self.control_free(inner) {
            // SYNC: consumed. The receiver has copied what it lets go of.
            let consumed = self.recv.consumed.load(Ordering::Acquire);
            let over = self.over(self.recv.head.load(Ordering::Acquire));
            let granted = self.cq.granted.load(Ordering::Relaxed);
            let message = Message::Credits((over as u16).wrapping_add(self.config.rq)).encode();
            let gives_half = consumed >= self.cq.next_at.load(Ordering::Relaxed);
            let length =
                if inner.generous == 0 { self.config.usual_half } else { self.config.half() };
            let posted = if gives_half {
                let memory = self.endpoint.memory();
                let half = inner.grants % 2;
                let offset = self.config.rbuf_at() as u64 + u64::from(half * self.config.half());
                let sge = Sge { addr: memory.addr + offset, key: memory.key, length };
                // In front of the grant: all that lies in the half was read with the old one.
                self.cq.lengths[half as usize].store(length, Ordering::Relaxed);
                self.post_sge(inner, &sge.encode(self.peer.swap), message)
            } else {
                self.post_control(inner, Lane::Control, message)
            };
            if posted.is_err() {
                return;
            }
            self.cq.due.store(over.wrapping_add((self.config.rq / 2).into()), Ordering::Relaxed);
            if gives_half {
                self.cq.next_at.store(granted, Ordering::Relaxed);
                self.cq.granted.store(granted + u64::from(length), Ordering::Relaxed);
                inner.grants = inner.grants.wrapping_add(1);
                inner.generous = inner.generous.saturating_sub(1);
                inner.remote = (inner.remote + 1) % self.peer.sgl.length;
            }
        }
    }

    fn control_free(&self, inner: &Inner) -> bool {
        self.endpoint.synchronous() || inner.control < CONTROL
    }

    fn post_sge(
        &self,
        inner: &mut Inner,
        bytes: &[u8; Sge::LEN],
        message: u32,
    ) -> Result<(), PostError> {
        let mut from = bytes.as_ptr();
        let staged = self.endpoint.inline_limit() < Sge::LEN;
        if staged {
            let slot = inner.entries as usize % CONTROL as usize * Sge::LEN;
            let buffer = self.sbuf.wrapping_add(self.config.sbuf as usize + slot);
            // SAFETY: one of the slots behind the send buffer; free, as fewer than all are in use.
            unsafe { core::ptr::copy_nonoverlapping(from, buffer, Sge::LEN) };
            from = buffer;
        }
        let at = u64::from(inner.remote) * Sge::LEN as u64;
        let to = Remote { addr: self.peer.sgl.addr.wrapping_add(at), key: self.peer.sgl.key };
        // SAFETY: the bytes lie still; the control lane is used under the lock of the completion
        // queue only.
        unsafe {
            self.endpoint.post_write(
                Lane::Control,
                &[(from, Sge::LEN)],
                to,
                Some(message),
                message,
            )?
        };
        // Only now: moved on by a post that found the queue full, the next would be a slot whose
        // bytes are on their way.
        inner.entries = inner.entries.wrapping_add(staged.into());
        inner.control += u32::from(!self.endpoint.synchronous());
        Ok(())
    }

    fn post_control(&self, inner: &mut Inner, lane: Lane, message: u32) -> Result<(), PostError> {
        let to = Remote { addr: self.peer.sgl.addr, key: self.peer.sgl.key };
        // SAFETY: no bytes. Of the stream lane the caller of `post_message` has made itself the
        // only user.
        unsafe { self.endpoint.post_write(lane, &[], to, Some(message), message)? };
        inner.control += u32::from(!self.endpoint.synchronous());
        Ok(())
    }

    /// Posts a message without data behind the data already sent.
    ///
    /// # Safety
    /// Under the lock of the completion queue; and either under `slock`, or while its owner sleeps.
    pub(super) unsafe fn post_message(&self, message: Message) -> Result<(), PostError> {
        // SAFETY: by the contract.
        let inner = unsafe { self.cq.inner.get() };
        if !self.control_free(inner) {
            return Err(PostError::Full);
        }
        self.post_control(inner, Lane::Stream, message.encode())
    }

    /// Whether nothing of ours is on its way any more. Under the lock of the completion queue.
    pub(super) fn all_sent(&self) -> bool {
        // SAFETY: by the contract.
        let inner = unsafe { self.cq.inner.get() };
        inner.control == 0 && self.in_flight() == 0
    }
}
