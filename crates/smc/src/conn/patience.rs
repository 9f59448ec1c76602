//! How long a peer may leave unread what is sent to it: TCP_USER_TIMEOUT, and how long a ring may be
//! in the way where TCP's buffers would not.
//!
//! In TCP the option bounds how long bytes wait for the peer's kernel, which takes them as long as
//! its buffer has room. A ring is that buffer, and what is in it has arrived: only who found too
//! little room waits, and the time counts from then on until there is room. It begins anew whenever
//! the peer has read something. The kernel itself has nothing to count, because doorbells are always
//! acknowledged.
//!
//! Without the option nobody's time ends. But programs that write to each other before either reads
//! live by what TCP's buffers hold, and rings of the usual sizes hold less: they would wait for each
//! other for ever. So a connection whose ring is full, and of which nothing is
//! read for a while, is *stuck*: it goes back to TCP (`fds::drain` in `socket`), behind what is in
//! its ring.

use super::*;
use crate::sys;
use shm::cursor::CURSOR_MASK;

/// More than TCP's buffers take over loopback from a writer whose peer reads nothing (4.1 to 4.7 MiB on
/// a fresh connection): a ring of that size is never in the way.
const TCP_TAKES: u32 = 5 << 20;
/// How long a full ring may stay unread before the connection is stuck. Programs fill a connection
/// to see what a full one does, and a peer that is merely put off for seconds must not lose its ring.
const STUCK_NS: u64 = 5_000_000_000;
/// The same where the ring of the other direction is full as well: two that write, and nobody reads.
const BOTH_STUCK_NS: u64 = 100_000_000;
/// A wait that has found its connection stuck has it taken back in front of its next sleep.
const AT_ONCE_NS: u64 = 1_000_000;

/// Connections of this process are stuck, and nobody has taken them back yet.
static STUCK: AtomicBool = AtomicBool::new(false);

/// Whether connections of this process wait to be taken back to TCP because they are stuck: a look
/// that is cheap.
#[inline(always)]
pub fn any_is_stuck() -> bool {
    STUCK.load(Relaxed)
}

/// The same, once: who is told sees to all of them.
pub fn take_stuck() -> bool {
    // SYNC: stuck. In front of the looks at the connections; pairs with `patience_left`.
    STUCK.swap(false, AcqRel)
}

/// See the module documentation.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Patience {
    /// The option, in milliseconds; 0: it waits for ever.
    limit: AtomicU32,
    /// 1: it came to an end, and with it the connection.
    over: AtomicU32,
    /// 1: the ring is full since a moment ago, and waits that began before do not know yet.
    news: AtomicU32,
    /// 1: it is stuck.
    stuck: AtomicU32,
    /// What the peer had read when a send or a wait found too little room.
    read: AtomicU64,
    /// When that was, in monotonic nanoseconds; 0: there has been room since (without the option: for
    /// `STUCK_NS`), or always.
    since: AtomicU64,
}

impl Patience {
    /// For a connection that takes the slot.
    pub(super) fn reset(&self) {
        for word in [&self.limit, &self.over, &self.news, &self.stuck] {
            word.store(0, Relaxed);
        }
        self.read.store(0, Relaxed);
        self.since.store(0, Relaxed);
    }
}

impl Conn {
    /// The application sets TCP_USER_TIMEOUT, or its listener had it, in milliseconds.
    pub fn set_patience(&self, ms: u32) {
        self.tx.patience.limit.store(ms, Relaxed);
    }

    /// A send has filled the ring, or found it full; the tx lock is held.
    #[inline]
    pub(super) fn is_full(&self) {
        if self.tx.patience.limit.load(Relaxed) != 0 || self.may_be_stuck() {
            self.begin_to_wait();
        }
    }

    /// Whether the ring holds less than TCP's buffers would, and the application has not bounded
    /// those.
    fn may_be_stuck(&self) -> bool {
        let size = self.window().peer_size.load(Relaxed);
        size < TCP_TAKES && self.tx_room() == size
    }

    #[cold]
    fn begin_to_wait(&self) {
        let patience = &self.tx.patience;
        let since = patience.since.load(Relaxed);
        if since == 0 || patience.read.load(Relaxed) != self.read_there() {
            self.count_from_now();
            // Without the option all waits since the ring was full last are bounded already, and are
            // not to be woken each time that a stream fills it.
            if since == 0 || patience.limit.load(Relaxed) != 0 {
                patience.news.store(1, Relaxed);
            }
        }
    }

    /// How far the peer says that it has read.
    fn read_there(&self) -> u64 {
        self.my().cons.load(Relaxed) & CURSOR_MASK
    }

    /// Two threads may do so at the same time, and then mean the same.
    fn count_from_now(&self) {
        let read = self.read_there();
        self.tx.patience.since.store(sys::now_ns(), Relaxed);
        // SYNC: patience. Behind the new beginning; pairs with `patience_left`.
        self.tx.patience.read.store(read, Release);
    }

    /// Whether the time began to count since this was asked last: who sleeps until there is room has
    /// to wake once, to sleep no longer than that.
    #[inline]
    pub fn began_to_wait(&self) -> bool {
        let news = &self.tx.patience.news;
        news.load(Relaxed) != 0 && news.swap(0, Relaxed) != 0
    }

    /// Whether a wait that covers the connection has to ask for its `patience`, even if there is room:
    /// another thread may fill the ring during the wait's sleep.
    #[inline(always)]
    pub fn counts(&self) -> bool {
        self.tx.patience.since.load(Relaxed) != 0
    }

    /// Nanoseconds after which a wait for room has to look again, None if nothing counts. If the
    /// time is over, the connection has ended when this returns, or is stuck.
    #[inline]
    pub fn patience(&self, fd: i32) -> Option<u64> {
        let limit = self.tx.patience.limit.load(Relaxed);
        if limit == 0 && !self.counts() { None } else { self.patience_left(fd, limit) }
    }

    /// Whether it is stuck, once.
    pub fn take_stuck(&self) -> bool {
        let stuck = &self.tx.patience.stuck;
        stuck.load(Relaxed) != 0 && stuck.swap(0, Relaxed) != 0
    }

    /// Whether the peer may be waiting for room in our ring.
    fn is_full_here(&self) -> bool {
        self.receives_on_ring() && self.unread_in_ring() > self.rx_room() as usize / 3 * 2
    }

    /// The same for who does not wait for room: ends the connection where the time is over, and begins
    /// no count. A program that waits for an answer may leave its peer as much to read as it likes.
    pub(super) fn look_at_patience(&self, fd: i32) {
        if self.tx.patience.since.load(Relaxed) != 0 {
            self.patience(fd);
        }
    }

    #[cold]
    fn patience_left(&self, fd: i32, limit: u32) -> Option<u64> {
        let patience = &self.tx.patience;
        if !self.phase().sends_freely() {
            return None;
        }
        // SYNC: patience. In this order: where the peer has read nothing since this value, the time
        // counts from when it was noted, or from later. With the beginning before that, a connection
        // would end whose peer has read just now.
        let read = patience.read.load(Acquire);
        let since = patience.since.load(Relaxed);
        if self.has_space() {
            let left = since.saturating_add(STUCK_NS).saturating_sub(sys::now_ns());
            if limit == 0 && left > 0 {
                return Some(left);
            }
            // A send that found the ring full again just now begins anew.
            let _ = patience.since.compare_exchange(since, 0, Relaxed, Relaxed);
            return None;
        }
        let ends = limit != 0;
        let limit = match limit {
            0 if !self.may_be_stuck() => return None,
            0 if self.is_full_here() => BOTH_STUCK_NS,
            0 => STUCK_NS,
            ms => u64::from(ms) * 1_000_000,
        };
        if since == 0 || self.read_there() != read {
            // A program may wait for room before any send of its has found too little; and a peer
            // that reads once, and less than makes room, would otherwise be waited for without end.
            self.count_from_now();
            return Some(limit);
        }
        let end = since.saturating_add(limit);
        match end.saturating_sub(sys::now_ns()) {
            0 if !ends => {
                patience.stuck.store(1, Relaxed);
                // SYNC: stuck. Behind the connection's own word; pairs with `take_stuck`. By an exchange,
                // so that who takes the mark sees the words of all who have set it, not of the last one.
                STUCK.swap(true, AcqRel);
                Some(AT_ONCE_NS)
            }
            0 => {
                patience.over.store(1, Relaxed);
                // The peer may live and read one day: what it has is whole, and no end of the stream
                // follows.
                self.break_for(fd, reason::TIMED_OUT, true);
                None
            }
            left => Some(left),
        }
    }

    /// The application is told of a reset, which happens once. A send that has taken some bytes has
    /// yet to tell.
    #[cold]
    pub fn tells(&self, error: SendError) {
        if matches!(error, SendError::TimedOut | SendError::Reset) {
            self.set(if self.is_reset_by_word() { p::ENDED | p::DEAD } else { p::ENDED });
        }
    }

    /// Whether it is this that broke the connection.
    pub(super) fn has_timed_out(&self) -> bool {
        self.tx.patience.over.load(Relaxed) != 0
    }
}
