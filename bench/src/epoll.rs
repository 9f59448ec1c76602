//! epoll through the C library, not through system calls of our own: an ordinary program goes
//! through libc, and a preloaded library can only stand in there.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

#[derive(Clone, Copy)]
pub struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above just made this descriptor and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 256] })
    }

    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN)
    }

    pub fn want_write(&self, fd: RawFd, token: u64, wanted: bool) -> io::Result<()> {
        let events = if wanted { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        self.control(libc::EPOLL_CTL_MOD, fd, token, events)
    }

    fn control(&self, operation: i32, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` is live for the call; the kernel copies it.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for events; an empty list when the time is over or a signal came.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        let milliseconds = timeout.map_or(-1, |time| time.as_millis().min(60_000) as i32 + 1);
        // SAFETY: the pointer and length are those of `self.events`, which lives through the call.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as i32,
                milliseconds,
            )
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => 0,
                error => return Err(error),
            },
        };
        let ready: Vec<Ready> = self.events[..count].iter().map(ready).collect();
        Ok(ready.into_iter())
    }
}

fn ready(event: &libc::epoll_event) -> Ready {
    // The struct is packed: copy the fields instead of borrowing them.
    let (bits, token) = (event.events as i32, event.u64);
    Ready {
        token,
        readable: bits & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0,
        writable: bits & libc::EPOLLOUT != 0,
    }
}
