//! The stream protocol of rsockets over any [`Endpoint`]: see doc/rsocket.md for its tables and
//! pictures.
//!
//! Bytes go by writes into a receive buffer of the peer, whose halves it grants in turn through the
//! target SGL in our memory. Each write carries its length as immediate data and uses up a credit.
//! Everything that the peer writes or says is checked against what it was granted.
//!
//! Three parts, each under a lock of its own: `send` (`slock`), `recv` (`rlock`), and the
//! completion queue (`cq`, under `Progress`), which is the only one that hears the peer.
#![allow(unsafe_code)]

mod cq;
mod iomap;
mod recv;
mod send;
mod shutdown;
#[cfg(test)]
mod tests;

pub use recv::RecvOptions;
pub use shutdown::How;

use crate::progress::{Event, Progress};
use crate::provider::{Endpoint, TABLES};
use crate::wire::{ConnData, Iomap, Sge};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use shm::rsockets::Row;
use shm::{CachePadded, Errno, FastLock};
use std::time::{Duration, Instant};

/// Entries of our target SGL.
pub const SGL: u32 = 2;
/// Work requests kept back for control messages.
pub const CONTROL: u32 = 4;
/// Least free space of the send buffer for a write.
pub const SNDLOWAT: u32 = 2048;

/// Looks in vain until a program that does not want to wait lets others run: its peer may need this
/// very processor.
const PATIENCE: u32 = 1024;

/// Sizes of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sends that can be under way (RDMA_SQSIZE).
    pub sq: u16,
    /// Receives that the peer is granted at a time (RDMA_RQSIZE).
    pub rq: u16,
    /// Bytes of the send buffer (SO_SNDBUF).
    pub sbuf: u32,
    /// Bytes of the receive buffer, granted to the peer in halves (SO_RCVBUF).
    pub rbuf: u32,
    /// What is granted of each half while the receiver keeps up: what is used again and again is to
    /// stay in the caches.
    pub usual_half: u32,
    /// A receiver that has not looked for so long, and then finds no room left, did not keep up.
    pub away: Duration,
    /// Entries of the target iomap: how many buffers the *peer* may map for us to write to.
    pub iomaps: u16,
}

impl Config {
    #[inline]
    fn half(&self) -> u32 {
        self.rbuf / 2
    }

    /// Bytes of memory that the peer must be able to write.
    pub fn memory(&self) -> usize {
        self.rbuf_at() + self.rbuf as usize
    }

    #[inline]
    fn iomap_at() -> usize {
        SGL as usize * Sge::LEN
    }

    #[inline]
    fn rbuf_at(&self) -> usize {
        // The buffer begins a page, so that copies are aligned.
        (Self::iomap_at() + usize::from(self.iomaps) * Iomap::LEN).next_multiple_of(4096)
    }

    /// Received data messages that can wait to be read.
    #[inline]
    fn rmsgs(&self) -> u32 {
        (u32::from(self.rq) + 1).next_power_of_two()
    }

    /// Bytes of private memory that [`Stream`] needs beside itself.
    pub fn private(&self) -> usize {
        self.tables_at() + iomap::Maps::LEN + TABLES
    }

    /// Where in it the tables are: those of the maps, then the endpoint's.
    fn tables_at(&self) -> usize {
        let control = Sge::LEN * CONTROL as usize;
        (self.rmsgs() as usize * 4 + self.sbuf as usize + control).next_multiple_of(8)
    }
}

/// Bits of [`Stream::state`].
pub mod state {
    /// Neither end has ended the whole of it.
    pub const CONNECTED: u32 = 1;
    /// The peer may send more: neither did it shut that down, nor we.
    pub const READABLE: u32 = 2;
    /// We may send: we have not shut that down.
    pub const WRITABLE: u32 = 4;
    /// Either end has ended it.
    pub const DISCONNECTED: u32 = 8;
    /// The peer died, or broke the protocol, or the network failed.
    pub const ERROR: u32 = 16;
}

/// What grows with every message of data, and with every one that makes room to send, and changes
/// with the end: where it has not, nothing has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Nothing more comes.
    pub ended: bool,
    /// Data messages.
    pub came: u32,
    /// Credits, buffers granted by the peer, writes that are complete.
    pub room: [u32; 3],
}

/// Places in our own memory that the peer writes to, and what it told of its own.
struct Peer {
    sgl: Sge,
    iomap: Sge,
    swap: bool,
}

/// One end of a connection.
pub struct Stream<E> {
    /// What moves the bytes.
    pub endpoint: E,
    config: Config,
    peer: Peer,
    state: AtomicU32,
    error: AtomicI32,
    spin: Duration,
    rmsg: *mut u32,
    sbuf: *mut u8,
    memory: *mut u8,
    /// Where its counters are.
    row: &'static Row,
    send: CachePadded<send::Sender>,
    recv: CachePadded<recv::Receiver>,
    progress: CachePadded<Progress>,
    cq: CachePadded<cq::Queue>,
    maps: CachePadded<iomap::Maps>,
}

// SAFETY: the cells in `send`, `recv`, `cq` and `maps` are used under their locks only, the
// pointers are to mappings that live as long as the stream.
unsafe impl<E: Endpoint + Sync> Sync for Stream<E> {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl<E: Endpoint + Send> Send for Stream<E> {}

/// A cell used under a lock.
#[derive(Default)]
struct Guarded<T>(UnsafeCell<T>);

impl<T> Guarded<T> {
    /// # Safety
    /// The caller holds the lock that guards it, and no other reference.
    #[expect(clippy::mut_from_ref, reason = "the lock is the exclusive reference")]
    unsafe fn get(&self) -> &mut T {
        // SAFETY: by the contract.
        unsafe { &mut *self.0.get() }
    }
}

struct Events<'a, E>(&'a E, &'static Row);

impl<E: Endpoint> Event for Events<'_, E> {
    fn request(&self) {
        self.0.request_event();
    }

    fn wait(&self) -> Result<(), Errno> {
        self.1.slept.add(1);
        self.0.await_event()
    }

    fn take(&self) {
        self.0.take_event();
    }
}

/// What this end says of itself. `memory` is the endpoint's region of [`Config::memory`] bytes.
pub fn conn_data(config: &Config, memory: &crate::provider::Region) -> ConnData {
    let at =
        |offset: usize, length| Sge { addr: memory.addr + offset as u64, key: memory.key, length };
    ConnData {
        big_endian: ConnData::native(),
        credits: config.rq,
        iomaps: Some(config.iomaps),
        target_sgl: at(0, SGL),
        data_buf: at(config.rbuf_at(), config.usual_half),
    }
}

impl<E: Endpoint> Stream<E> {
    /// A connected stream. `private` is zeroed memory of [`Config::private`] bytes, aligned to 8,
    /// that lives as long as the stream, as does the endpoint's.
    pub fn new(
        endpoint: E,
        config: Config,
        peer: &ConnData,
        private: *mut u8,
        spin: Duration,
    ) -> Self {
        let memory = endpoint.memory();
        debug_assert!(memory.len >= config.memory());
        let tables = private.wrapping_add(config.tables_at());
        endpoint.lend_tables(tables.wrapping_add(iomap::Maps::LEN));
        let iomap_at = u64::from(peer.target_sgl.length) * Sge::LEN as u64;
        let iomap = Sge {
            addr: peer.target_sgl.addr + iomap_at,
            key: peer.target_sgl.key,
            length: peer.iomaps.unwrap_or(0).into(),
        };
        Self {
            peer: Peer { sgl: peer.target_sgl, iomap, swap: peer.big_endian != ConnData::native() },
            state: AtomicU32::new(state::CONNECTED | state::READABLE | state::WRITABLE),
            error: AtomicI32::new(0),
            spin,
            rmsg: private.cast(),
            sbuf: private.wrapping_add(config.rmsgs() as usize * 4),
            memory: memory.ptr,
            row: crate::census::unseen(),
            send: CachePadded::new(send::Sender::new(peer.data_buf)),
            recv: CachePadded::default(),
            progress: CachePadded::default(),
            cq: CachePadded::new(cq::Queue::new(&config, peer.credits)),
            maps: CachePadded::new(iomap::Maps::new(tables)),
            endpoint,
            config,
        }
    }

    /// With its counters in this row.
    pub fn noted(self, row: &'static Row) -> Self {
        Self { row, ..self }
    }

    /// Bits of [`state`], as of now: completions that wait are not processed.
    #[inline]
    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    #[inline]
    fn is(&self, bit: u32) -> bool {
        self.state() & bit != 0
    }

    /// SO_ERROR: read once.
    pub fn take_error(&self) -> i32 {
        self.error.swap(0, Ordering::Relaxed)
    }

    /// The connection failed; a state that has ended stays as it is.
    fn fail(&self, error: Errno) {
        let up = state::CONNECTED | state::READABLE | state::WRITABLE;
        let changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |s| {
            (s & state::CONNECTED != 0).then_some(s & !up | state::ERROR)
        });
        if changed.is_ok() {
            self.error.store(error.raw_os_error(), Ordering::Relaxed);
        }
    }

    fn end(&self) {
        let up = state::CONNECTED | state::READABLE | state::WRITABLE;
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |s| {
            (s & state::CONNECTED != 0).then_some(s & !up | state::DISCONNECTED)
        });
    }

    /// Processes completions until `ready`: at once, or after a short busy wait, or asleep.
    fn complete(&self, block: bool, mut ready: impl FnMut() -> bool) -> Result<(), Errno> {
        let event = Events(&self.endpoint, self.row);
        let mut step = || {
            self.process();
            let ready = ready();
            if ready {
                self.grant();
            }
            ready
        };
        match self.progress.run(&event, false, &mut step) {
            Err(Errno::AGAIN) if block => {}
            done => {
                if done.is_err() && self.cq.idle.load(Ordering::Relaxed).is_multiple_of(PATIENCE) {
                    std::thread::yield_now();
                }
                return done;
            }
        }
        // Also where a signal handler waits that came in the middle of a send.
        self.endpoint.release_events();
        let is_in_vain = self.spin.is_zero() || self.endpoint.peer_needs_this_processor();
        let start = Instant::now();
        while !is_in_vain && start.elapsed() < self.spin {
            for _ in 0..16 {
                core::hint::spin_loop();
                if self.progress.run(&event, false, &mut step).is_ok() {
                    return Ok(());
                }
            }
        }
        self.progress.run(&event, true, step)
    }

    /// What `poll` would say. Processes completions.
    pub fn poll(&self, events: i16) -> i16 {
        self.poll_news(events).0
    }

    /// [`Self::poll`], and what the stream had come to by then.
    pub fn poll_news(&self, events: i16) -> (i16, News) {
        let _ = self.progress.with(|| self.process());
        self.seen(events)
    }

    /// [`Self::poll_news`] of what has been processed.
    pub fn seen(&self, events: i16) -> (i16, News) {
        // The news first: what comes in between is then told twice rather than never.
        let cq = &self.cq;
        let news = News {
            ended: self.peer_has_ended(),
            came: cq.rmsg_tail.load(Ordering::Acquire),
            room: [&cq.credits, &cq.sge_tail, &cq.done].map(|n| n.load(Ordering::Acquire)),
        };
        (self.revents(events), news)
    }

    /// Whether the peer has said that it sends no more, or the whole has ended (EPOLLRDHUP).
    pub fn peer_has_ended(&self) -> bool {
        let state = self.state();
        state & state::READABLE == 0
    }

    /// Whether the connection has ended, one way or the other: nothing comes any more.
    pub fn is_over(&self) -> bool {
        !self.is(state::CONNECTED)
    }

    /// Prepares a wait: true if there is something to be had, or else [`Self::poll_leave`] must
    /// follow the wait. `ready` is asked when completions have been processed.
    pub fn enter(&self, mut ready: impl FnMut() -> bool) -> bool {
        let ready = || {
            self.process();
            ready()
        };
        self.endpoint.release_events();
        // A handler that interrupted a holder of the lock must not wait for it.
        self.progress.enter(&Events(&self.endpoint, self.row), ready).unwrap_or(true)
    }

    /// Prepares a wait in `poll`: the events that are there already, or none and then
    /// [`Self::poll_leave`] must follow the wait.
    pub fn poll_enter(&self, events: i16) -> i16 {
        let mut revents = 0;
        let ready = || {
            revents = self.revents(events);
            revents != 0
        };
        if self.enter(ready) && revents == 0 { libc::POLLERR } else { revents }
    }

    /// What to wait on between [`Self::poll_enter`] and [`Self::poll_leave`].
    pub fn event_fd(&self) -> rustix::fd::RawFd {
        self.endpoint.event_fd()
    }

    /// Ends a wait that [`Self::poll_enter`] prepared. `has_event`: [`Self::event_fd`] was found
    /// readable.
    pub fn poll_leave(&self, has_event: bool) {
        if has_event {
            self.row.slept.add(1);
        }
        self.progress.leave(&Events(&self.endpoint, self.row), has_event);
    }

    fn revents(&self, events: i16) -> i16 {
        let state = self.state();
        let mut revents = 0;
        if self.has_data() || state & state::READABLE == 0 {
            revents |= events & (libc::POLLIN | libc::POLLRDNORM);
        }
        // A send that fails at once does not wait, either.
        if state & state::WRITABLE == 0 || self.can_send() {
            revents |= events & (libc::POLLOUT | libc::POLLWRNORM);
        }
        if self.peer_has_ended() {
            revents |= events & libc::POLLRDHUP;
        }
        if self.has_data() && events & (libc::POLLIN | libc::POLLRDNORM) != 0 {
            // What was sent before the end is to be read first: many programs stop at POLLHUP. Who
            // does not ask for it is told the end, or would be woken by that again and again.
            return revents;
        }
        if state & state::DISCONNECTED != 0 {
            revents |= libc::POLLHUP;
        } else if state & state::ERROR != 0 {
            revents |= libc::POLLERR;
        }
        revents
    }
}

/// A lock whose owner this very thread is, interrupted by a signal handler.
fn lock(lock: &FastLock<true>) -> Result<shm::FastGuard<'_, true>, Errno> {
    lock.lock().map_err(|_| Errno::AGAIN)
}
