//! One member of a set: what is asked of it, and what it has shown.
#![allow(unsafe_code)]

use super::Set;
use crate::provider::Any;
use crate::socket::{Phase, Socket, last_error};
use crate::stream::{News, Stream};
use crate::{kernel, poll, table};
use rustix::fd::{AsRawFd, RawFd};
use shm::Errno;

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// Told whether they were asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

pub enum Kind {
    /// No rsocket.
    Kernel,
    Rsocket {
        socket: &'static Socket,
        /// It listens, or is a datagram socket, and the kernel watches it as asked.
        watched: bool,
        /// Its stream's event is in the outer set.
        heard: bool,
    },
}

pub struct Member {
    pub events: u32,
    pub data: u64,
    pub kind: Kind,
    /// It has been told once, as EPOLLONESHOT has it.
    rests: bool,
    /// For EPOLLET: the events of the last look, and what the stream had come to.
    shown: u32,
    news: News,
}

impl Member {
    pub fn new(socket: Option<&'static Socket>, events: u32, data: u64) -> Self {
        let kind = socket.map_or(Kind::Kernel, |socket| Kind::Rsocket {
            socket,
            watched: false,
            heard: false,
        });
        Self { events, data, kind, rests: false, shown: 0, news: News::default() }
    }

    pub fn is_rsocket(&self) -> bool {
        matches!(self.kind, Kind::Rsocket { .. })
    }

    /// The kernel is told anew, at the next look, what is asked.
    pub fn unwatch(&mut self, set: &Set, fd: RawFd) {
        if let Kind::Rsocket { watched, .. } = &mut self.kind
            && core::mem::take(watched)
        {
            let _ = control(&set.inner, libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    }

    /// Whether the kernel watches it, for which it is told if it was not yet.
    pub fn watch(&mut self, set: &Set, fd: RawFd) -> Result<bool, Errno> {
        let Kind::Rsocket { socket, watched, .. } = &mut self.kind else { return Ok(true) };
        if !matches!(socket.phase(), Phase::Listening | Phase::Datagram) {
            return Ok(false);
        }
        if !core::mem::replace(watched, true) {
            self.tell(set, libc::EPOLL_CTL_ADD, fd)?;
        }
        Ok(true)
    }

    /// It has become an rsocket. False if it is no member: the kernel has forgotten the descriptor that
    /// was, because it was closed, and another one has its number.
    pub fn take_over(&mut self, set: &Set, fd: RawFd, socket: &'static Socket) -> bool {
        if self.is_rsocket() {
            return true;
        }
        let was_there = control(&set.inner, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok();
        *self = Self::new(Some(socket), self.events, self.data);
        was_there
    }

    /// Tells the kernel what is asked of a descriptor that it watches.
    pub fn tell(&self, set: &Set, operation: i32, fd: RawFd) -> Result<(), Errno> {
        control(&set.inner, operation, fd, self.events, fd as u64)
    }

    /// It is no member any more.
    pub fn leave(mut self, set: &Set, fd: RawFd) -> Result<(), Errno> {
        self.unwatch(set, fd);
        match self.kind {
            Kind::Kernel => control(&set.inner, libc::EPOLL_CTL_DEL, fd, 0, 0),
            Kind::Rsocket { .. } => {
                self.unlisten(set);
                Ok(())
            }
        }
    }

    /// The rsocket that a sleep must prepare for.
    pub fn waits_for(&self, fd: RawFd) -> Option<&'static Socket> {
        match self.kind {
            Kind::Rsocket { socket, .. } if !self.rests && table::find(fd).is_some() => {
                Some(socket)
            }
            _ => None,
        }
    }

    /// Puts the event of its stream into the outer set.
    pub fn listen(&mut self, set: &Set, fd: RawFd, event: RawFd) -> Result<(), Errno> {
        if let Kind::Rsocket { heard, .. } = &mut self.kind
            && !core::mem::replace(heard, true)
        {
            let asked = libc::EPOLLIN as u32;
            control(&set.outer, libc::EPOLL_CTL_ADD, event, asked, fd as u64)?;
        }
        Ok(())
    }

    /// Takes the event of its stream out of the outer set again. One that has ended has its event for
    /// ever: with nothing to tell of it who sleeps would be woken at once, again and again.
    fn unlisten(&mut self, set: &Set) {
        if let Kind::Rsocket { socket, heard, .. } = &mut self.kind
            && core::mem::take(heard)
            && let Some(stream) = socket.streaming()
        {
            let _ = control(&set.outer, libc::EPOLL_CTL_DEL, stream.event_fd(), 0, 0);
        }
    }

    /// Whether nothing more can come to be told: it was told as often as asked, or what its stream's end
    /// left to tell was told.
    pub fn is_done(&mut self, set: &Set) -> bool {
        let Kind::Rsocket { socket, .. } = self.kind else { return false };
        let is_done = self.rests
            || socket.streaming().is_some_and(|s| s.is_over() && self.would_show(s) == 0);
        if is_done {
            self.unlisten(set);
        }
        is_done
    }

    /// What it has to tell now; that is then told.
    pub fn look(&mut self, set: &Set, fd: RawFd) -> Result<u32, Errno> {
        let Kind::Rsocket { socket, .. } = self.kind else { return Ok(0) };
        if self.rests || self.watch(set, fd)? {
            return Ok(0);
        }
        let (events, news) = match socket.streaming() {
            Some(stream) => {
                let (revents, news) = stream.poll_news(poll_events(self.events));
                (self.asked(revents), news)
            }
            None => {
                let revents = poll::look(socket, poll_events(self.events));
                (self.asked(revents), News::default())
            }
        };
        let tells = if self.events & EDGE == 0 { events } else { self.fresh(events, news) };
        (self.shown, self.news) = (events, news);
        self.rests = tells != 0 && self.events & ONCE != 0;
        Ok(tells)
    }

    /// What [`Self::look`] would tell of this stream, whose completions have been processed.
    pub fn would_show(&self, stream: &Stream<Any>) -> u32 {
        let (revents, news) = stream.seen(poll_events(self.events));
        let events = self.asked(revents);
        if self.events & EDGE == 0 { events } else { self.fresh(events, news) }
    }

    fn asked(&self, revents: i16) -> u32 {
        revents as u16 as u32 & (self.events | ALWAYS)
    }

    /// All of `events` if any of them is new since they were shown: it was not there, or more has
    /// come, or more room. An end is new beside the data in front of it: who has read that since would
    /// else wait for ever.
    fn fresh(&self, events: u32, news: News) -> u32 {
        let mut new = events & !self.shown;
        if (news.came, news.ended) != (self.news.came, self.news.ended) {
            new |= events & (IN | libc::EPOLLRDNORM as u32);
        }
        if news.room != self.news.room {
            new |= events & (OUT | libc::EPOLLWRNORM as u32);
        }
        if new == 0 { 0 } else { events }
    }
}

/// Without the bits that say how to tell: those of `poll` have the same values.
fn poll_events(events: u32) -> i16 {
    const ALL: i32 = libc::EPOLLPRI | libc::EPOLLRDNORM | libc::EPOLLWRNORM | libc::EPOLLRDHUP;
    (events & (IN | OUT | ALL as u32)) as i16
}

fn control(
    set: &impl AsRawFd,
    operation: i32,
    fd: RawFd,
    events: u32,
    data: u64,
) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: an event of our own.
    match unsafe { kernel::epoll_ctl(set.as_raw_fd(), operation, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}
