//! Messages of fixed size, whole or not at all.
#![allow(unsafe_code)]

use super::{MOMENT, PATIENCE};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::net::{RecvFlags, SendFlags};
use shm::Errno;
use std::time::Instant;

pub(super) fn send_whole(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    // The first bytes on a new connection always fit.
    match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(Errno::CONNRESET),
        Err(e) => Err(e),
    }
}

/// All of it within [`PATIENCE`], and the beginning within [`MOMENT`]: who sends byte for byte, or
/// nothing, must not keep others waiting for long.
pub(super) fn receive_whole(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(), Errno> {
    let start = Instant::now();
    let mut done = 0;
    while done < bytes.len() {
        match rustix::net::recv(fd, &mut bytes[done..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Errno::CONNRESET),
            Ok((_, n)) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let limit = if done == 0 { MOMENT } else { PATIENCE };
                let left = limit.checked_sub(start.elapsed()).ok_or(Errno::TIMEDOUT)?;
                let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                match rustix::event::poll(&mut fds, Some(&left)) {
                    Ok(0) => return Err(Errno::TIMEDOUT),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e),
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: not -1, and open until the meeting ends.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes; messages have fixed sizes, so that they are there.
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("a message of fixed size");
        self.0 = rest;
        *first
    }
}
