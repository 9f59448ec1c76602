//! `epoll` for rsockets and other descriptors.

use crate::set;
use rustix::fd::{AsRawFd, RawFd};
use std::io::Result;
use std::time::Duration;

/// What [`RsocketSet::wait`] found of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// EPOLLIN and the like.
    pub events: u32,
    /// What the member was added with.
    pub data: u64,
}

/// A set to wait for: streams, listeners and datagram sockets of this module, and any descriptor
/// that `epoll` takes. It does not own its members; one that is closed is none any more.
///
/// ```no_run
/// use shortwire_rsocket::net::{RsocketListener, RsocketSet};
///
/// let listener = RsocketListener::bind("127.0.0.1:7471")?;
/// let set = RsocketSet::new()?;
/// set.add(&listener, libc::EPOLLIN as u32, 1)?;
/// for event in set.wait(16, None)? {
///     println!("{} is ready for {:#x}", event.data, event.events);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct RsocketSet(RawFd);

impl RsocketSet {
    /// An empty one.
    pub fn new() -> Result<Self> {
        Ok(Self(set::create(libc::EPOLL_CLOEXEC)?))
    }

    /// Makes it a member, for these events (EPOLLIN, EPOLLET ...). `AlreadyExists` if it is one.
    pub fn add(&self, member: &impl AsRawFd, events: u32, data: u64) -> Result<()> {
        Ok(set::find(self.0)?.add(member.as_raw_fd(), events, data)?)
    }

    /// Asks other events of a member. `NotFound` if it is none.
    pub fn modify(&self, member: &impl AsRawFd, events: u32, data: u64) -> Result<()> {
        Ok(set::find(self.0)?.modify(member.as_raw_fd(), events, data)?)
    }

    /// Takes a member out. `NotFound` if it is none.
    pub fn remove(&self, member: &impl AsRawFd) -> Result<()> {
        Ok(set::find(self.0)?.remove(member.as_raw_fd())?)
    }

    /// Up to `most` members that are ready, after at most `timeout` (None: for ever).
    pub fn wait(&self, most: usize, timeout: Option<Duration>) -> Result<Vec<Event>> {
        let mut out = vec![libc::epoll_event { events: 0, u64: 0 }; most];
        let found = set::find(self.0)?.wait(&mut out, timeout, None)?;
        let event = |e: &libc::epoll_event| Event { events: e.events, data: e.u64 };
        Ok(out[..found].iter().map(event).collect())
    }
}

impl Drop for RsocketSet {
    fn drop(&mut self) {
        let _ = set::close(self.0);
    }
}
