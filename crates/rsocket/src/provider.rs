//! What a stream needs from RDMA: a queue pair with its completion queue, memory that the peer may
//! write, and an event to sleep on. The names are those of the verbs.
//!
//! A provider may be a queue pair in shared memory ([`crate::shared`]), hardware behind libibverbs,
//! or a wrapper that makes faults (`faulty`). Connections come from each provider's own rendezvous,
//! which carries [`crate::wire::ConnData`] as private data.
#![allow(unsafe_code)]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(any(test, feature = "conformance"))]
pub mod faulty;

mod any;

pub(crate) use any::Any;

use rustix::fd::RawFd;
use shm::Errno;

/// Local memory that the peer may write, known to it by `addr` and `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it lies here.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Where it begins, as the peer is to name it: not an address of this process with every
    /// provider.
    pub addr: u64,
    /// What the peer must show beside the address (rkey).
    pub key: u32,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// As the peer has told it.
    pub addr: u64,
    /// As the peer has told it (rkey).
    pub key: u32,
}

/// Which of its two posters a work request comes from. Each lane has one poster at a time; a
/// provider with a queue for each needs no lock between them. Requests of one lane arrive in their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Data and what must stay in order with it; under the lock of sends.
    Stream,
    /// Credits and target SGEs; under the lock of the completion queue.
    Control,
}

/// A work completion, as `ibv_poll_cq` gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A receive: the immediate data of the peer's write.
    Recv(u32),
    /// A write of ours, by the id that it was posted with.
    Sent {
        /// As given to [`Endpoint::post_write`]; not unique.
        id: u32,
        /// False: the write failed, and with it the connection.
        ok: bool,
    },
}

/// Why a write was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The send queue is full, or the peer has no receive posted: later.
    Full,
    /// The peer has no such memory.
    Access,
    /// The connection is gone.
    Gone,
}

/// What [`Endpoint::lend_tables`] lends.
pub const TABLES: usize = 8192;

/// One end of a connected, reliable queue pair.
pub trait Endpoint {
    /// Bytes that a post takes with it, so that the caller may change them when it returns. More
    /// must lie still until their completion.
    fn inline_limit(&self) -> usize;

    /// Whether a successful post is already complete, and no [`Completion::Sent`] follows.
    fn synchronous(&self) -> bool;

    /// The memory made for the connection, writable by the peer.
    fn memory(&self) -> Region;

    /// Tells of the memory in which all bytes lie that are posted and not taken along. Once, before
    /// the first post.
    fn lend(&self, _ptr: *mut u8, _len: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Zeroed memory of [`TABLES`] bytes, aligned to 8, which lives as long as the endpoint and is
    /// shared over a fork as that is: for tables that most connections do not use. In the endpoint
    /// itself they would pass over the stack of whoever connects.
    fn lend_tables(&self, _at: *mut u8) {}

    /// Gives back `count` receives. Under the lock of the completion queue.
    fn post_recv(&self, count: u32);

    /// Writes `pieces`, one after the other, to `to`; then, with `imm`, takes one of the peer's
    /// receives and tells it. Nothing of it is visible to the peer later than its immediate data.
    ///
    /// # Safety
    /// Each piece is readable, until the completion if it is larger than [`Self::inline_limit`]. No
    /// other thread posts on this lane.
    unsafe fn post_write(
        &self,
        lane: Lane,
        pieces: &[(*const u8, usize)],
        to: Remote,
        imm: Option<u32>,
        id: u32,
    ) -> Result<(), PostError>;

    /// What has completed since, at most as much as `out` holds. Under the lock of the completion
    /// queue.
    fn poll_cq(&self, out: &mut [Completion]) -> usize;

    /// Asks for an event with the next completion. The caller polls once more before it sleeps.
    /// Under the lock of the completion queue.
    fn request_event(&self);

    /// Sleeps until there is an event, and leaves it there.
    fn await_event(&self) -> Result<(), Errno>;

    /// Takes away an event, if there is one. Under the lock of the completion queue.
    fn take_event(&self);

    /// Readable while there is an event.
    fn event_fd(&self) -> RawFd;

    /// Whether the peer is gone: nothing arrives any more but what is on the completion queue.
    fn is_gone(&self) -> bool;

    /// Of a peer that is gone: whether it went in order, though without a word.
    fn has_left(&self) -> bool {
        false
    }

    /// Whether the peer, as far as can be told, runs on the processor that the calling thread has: it
    /// does nothing before that thread sleeps.
    fn peer_needs_this_processor(&self) -> bool {
        false
    }

    /// From here to [`Self::release_events`] events for writes on the stream lane may be held back
    /// from a peer that cannot use them before. Under the lock of sends.
    fn hold_events(&self) {}

    /// Ends that, before the caller returns or sleeps. Under any lock, or none.
    fn release_events(&self) {}

    /// Finds out whether the peer is gone, for who polls without ever sleeping.
    fn probe(&self);

    /// Opens memory of the application to the peer's writes.
    fn expose(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno>;

    /// Ends [`Self::expose`].
    fn conceal(&self, region: Region);

    /// No more events; wakes who sleeps, here and there.
    fn disconnect(&self);
}
