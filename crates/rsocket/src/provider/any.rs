//! The provider of one socket, chosen when it was made.
#![allow(unsafe_code)]

use super::{Completion, Endpoint, Lane, PostError, Region, Remote};
use crate::shared::QueuePair;
use crate::verbs::VerbsEndpoint;
use rustix::fd::RawFd;
use shm::Errno;
use shm::rsockets::Row;

pub enum Any {
    Shared(QueuePair),
    Verbs(VerbsEndpoint),
}

macro_rules! each {
    ($self:ident, $end:ident => $call:expr) => {
        match $self {
            Any::Shared($end) => $call,
            Any::Verbs($end) => $call,
        }
    };
}

impl Any {
    pub fn is_verbs(&self) -> bool {
        matches!(self, Self::Verbs(_))
    }

    /// The process at the other end, 0 where that is elsewhere.
    pub fn peer_pid(&self) -> i32 {
        match self {
            Self::Shared(end) => end.peer_pid(),
            Self::Verbs(_) => 0,
        }
    }

    /// Whether buffers that it has opened to the peer are this process's.
    pub fn was_met_here(&self) -> bool {
        matches!(self, Self::Shared(end) if end.was_met_here())
    }

    /// Where its doorbells are counted.
    pub fn note(&self, row: &'static Row) {
        if let Self::Shared(end) = self {
            end.note(row);
        }
    }

    /// Tells the peer that this end is about to end in order. Over RDMA only `disconnect` tells it.
    pub fn announce_end(&self) {
        if let Self::Shared(end) = self {
            end.announce_end();
        }
    }

    /// Lets go of what belongs to this process; nobody may be inside.
    pub fn close(&self, last: bool) {
        match self {
            Any::Shared(end) => end.close(last),
            Any::Verbs(end) if last => end.tear_down(),
            // The child of a fork has the numbers of another process's objects, and nothing to give
            // back.
            Any::Verbs(_) => {}
        }
    }

    /// Lets go of what is here of a connection that another process has made.
    pub fn leave(&self) {
        if let Any::Shared(end) = self {
            end.leave();
        }
    }
}

impl Endpoint for Any {
    #[inline]
    fn inline_limit(&self) -> usize {
        each!(self, end => end.inline_limit())
    }

    #[inline]
    fn synchronous(&self) -> bool {
        each!(self, end => end.synchronous())
    }

    #[inline]
    fn memory(&self) -> Region {
        each!(self, end => end.memory())
    }

    fn lend(&self, ptr: *mut u8, len: usize) -> Result<(), Errno> {
        each!(self, end => end.lend(ptr, len))
    }

    fn lend_tables(&self, at: *mut u8) {
        each!(self, end => end.lend_tables(at));
    }

    #[inline]
    fn post_recv(&self, count: u32) {
        each!(self, end => end.post_recv(count));
    }

    #[inline(always)]
    unsafe fn post_write(
        &self,
        lane: Lane,
        pieces: &[(*const u8, usize)],
        to: Remote,
        imm: Option<u32>,
        id: u32,
    ) -> Result<(), PostError> {
        // SAFETY: by the same contract.
        each!(self, end => unsafe { end.post_write(lane, pieces, to, imm, id) })
    }

    #[inline]
    fn poll_cq(&self, out: &mut [Completion]) -> usize {
        each!(self, end => end.poll_cq(out))
    }

    fn request_event(&self) {
        each!(self, end => end.request_event());
    }

    fn await_event(&self) -> Result<(), Errno> {
        each!(self, end => end.await_event())
    }

    fn take_event(&self) {
        each!(self, end => end.take_event());
    }

    fn event_fd(&self) -> RawFd {
        each!(self, end => end.event_fd())
    }

    #[inline]
    fn is_gone(&self) -> bool {
        each!(self, end => end.is_gone())
    }

    fn has_left(&self) -> bool {
        each!(self, end => end.has_left())
    }

    fn peer_needs_this_processor(&self) -> bool {
        each!(self, end => end.peer_needs_this_processor())
    }

    fn hold_events(&self) {
        each!(self, end => end.hold_events());
    }

    fn release_events(&self) {
        each!(self, end => end.release_events());
    }

    fn probe(&self) {
        each!(self, end => end.probe());
    }

    fn expose(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        each!(self, end => end.expose(ptr, len))
    }

    fn conceal(&self, region: Region) {
        each!(self, end => end.conceal(region));
    }

    fn disconnect(&self) {
        each!(self, end => end.disconnect());
    }
}
