//! One direction of the data path beside a queue that does the same.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;

use proptest::prelude::*;
use smc::conn::{Got, IN, OUT, Pieces, RecvError, SendError, Sent};

use super::{End, bytes, copying};

/// One direction of a connection, and what must be true of it.
pub struct Direction<'a> {
    pub from: &'a End,
    pub to: &'a End,
    stream: u8,
    pub size: u64,
    pub queue: VecDeque<u8>,
    pub sent: u64,
    /// The sender has asked for a doorbell since the reader last told it anything.
    asked: bool,
}

pub fn iov(data: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }
}

/// `data` in pieces of uneven lengths, empty ones among them.
fn pieces(data: &[u8], cut: usize) -> Vec<libc::iovec> {
    let mut v = vec![iov(&[])];
    for chunk in data.chunks(cut.max(1)) {
        let (a, b) = chunk.split_at(chunk.len() / 3);
        v.extend([iov(a), iov(b), iov(&[])]);
    }
    v
}

impl<'a> Direction<'a> {
    pub fn new(from: &'a End, to: &'a End, stream: u8) -> Self {
        let size = u64::from(from.conn.tx.snapshot().size);
        assert_eq!(size, u64::from(to.conn.rx.snapshot().size));
        Self { from, to, stream, size, queue: VecDeque::new(), sent: 0, asked: false }
    }

    fn next(&self, n: usize) -> Vec<u8> {
        bytes(self.stream, self.sent, n)
    }

    /// What the sender may believe to be free: it looks only when it has to.
    pub fn free(&self, want: usize) -> usize {
        let known = self.size - (self.sent - self.from.conn.tx.snapshot().cons.pos);
        if known >= want as u64 {
            known as usize
        } else {
            (self.size - self.outstanding()) as usize
        }
    }

    /// Sent, and not known to be read.
    fn outstanding(&self) -> u64 {
        if !copying() {
            return self.unread_there();
        }
        // Told with anything else that is told; how late is checked in `read`.
        let mut told = self.from.conn.tx.snapshot().cons;
        // SAFETY: an exposed buffer, which stays mapped.
        let word = unsafe { &*self.from.conn.my_header() }.cons.load(Relaxed);
        let moved = told.follow(word, self.size as u32, self.size as u32);
        assert!(moved.is_ok(), "an impossible cursor");
        self.sent - told.pos
    }

    /// Sent, and not read by the receiver's last word, told or not.
    fn unread_there(&self) -> u64 {
        self.sent - self.to.conn.rx.snapshot().published
    }

    pub fn send(&mut self, n: usize, cut: usize) -> Result<(), TestCaseError> {
        let data = self.next(n);
        let v = pieces(&data, cut);
        let mut from = Pieces::new(&v);
        let free = self.free(n);
        let full = self.from.conn.tx.counts.full.load(Relaxed);
        let sent = self.from.conn.send(self.from.fd, &mut from);
        let took = if let Sent::Bytes(n) = sent { n } else { 0 };
        prop_assert_eq!(from.left(), n - took);
        prop_assert_eq!(
            self.from.conn.tx.counts.full.load(Relaxed) - full,
            u64::from(sent == Sent::Full)
        );
        let expect = match n {
            // The kernel's to answer: there may be an error.
            0 => Sent::Kernel,
            _ if free > 0 => Sent::Bytes(n.min(free)),
            _ => Sent::Full,
        };
        prop_assert_eq!(&sent, &expect);
        self.queue.extend(&data[..took]);
        self.sent += took as u64;
        Ok(())
    }

    /// As sendfile does: bytes from somewhere that may end early, or fail.
    pub fn send_from(&mut self, n: usize, limit: usize, fails: bool) -> Result<(), TestCaseError> {
        let data = self.next(n);
        let free = self.free(n);
        let mut at = 0;
        let sent = self.from.conn.send_from(self.from.fd, n, |dst, len| {
            let k = len.min(limit - at);
            if k == 0 && fails {
                return Err(libc::EIO);
            }
            // SAFETY: `dst` has room for `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(data[at..].as_ptr(), dst, k) };
            at += k;
            Ok(k)
        });
        let n = n.min(free).min(limit);
        let expect = match n {
            _ if data.is_empty() => Sent::Kernel,
            _ if free == 0 => Sent::Full,
            0 if fails => Sent::Err(SendError::Source(libc::EIO)),
            n => Sent::Bytes(n),
        };
        prop_assert_eq!(&sent, &expect);
        self.queue.extend(&data[..n]);
        self.sent += n as u64;
        Ok(())
    }

    pub fn recv(&mut self, n: usize, flags: i32, cut: usize) -> Result<(), TestCaseError> {
        let mut buf = vec![0xAA; n];
        let v = pieces(&buf, cut);
        let mut into = Pieces::new(&v);
        let got = self.to.conn.recv(self.to.fd, &mut into, flags);
        let n = n.min(self.queue.len());
        let expect = if self.queue.is_empty() { Got::Empty } else { Got::Bytes(n) };
        prop_assert_eq!(&got, &expect);
        prop_assert_eq!(into.left(), buf.len() - n);
        if flags & libc::MSG_TRUNC != 0 {
            prop_assert!(buf.iter().all(|b| *b == 0xAA), "discarded, not delivered");
        } else {
            prop_assert!(self.queue.iter().take(n).eq(&buf[..n]), "wrong bytes");
            prop_assert!(buf.split_off(n).iter().all(|b| *b == 0xAA), "written beyond the end");
        }
        if flags & libc::MSG_PEEK == 0 && got != Got::Empty {
            self.read(n)?;
        }
        Ok(())
    }

    /// As splice does: a receiver that takes less than it is offered, or fails.
    pub fn recv_into(&mut self, n: usize, limit: usize, fails: bool) -> Result<(), TestCaseError> {
        let mut data = Vec::new();
        let got = self.to.conn.recv_into(self.to.fd, n, false, |src, len| {
            let k = len.min(limit - data.len());
            if k == 0 && fails {
                return Err(libc::EPIPE);
            }
            // SAFETY: `src` has `len` bytes.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(src, k) });
            Ok(k)
        });
        let took = n.min(self.queue.len()).min(limit);
        let expect = match took {
            _ if self.queue.is_empty() => Got::Empty,
            0 if fails && n > 0 => Got::Err(RecvError::Sink(libc::EPIPE)),
            n => Got::Bytes(n),
        };
        prop_assert_eq!(&got, &expect);
        prop_assert!(self.queue.iter().take(took).eq(&data), "wrong bytes");
        if matches!(got, Got::Bytes(_)) { self.read(took) } else { Ok(()) }
    }

    fn read(&mut self, n: usize) -> Result<(), TestCaseError> {
        self.queue.drain(..n);
        let lag = self.outstanding() - self.queue.len() as u64;
        prop_assert!(
            lag < self.size / 4,
            "{} bytes freed and not told of a ring of {}",
            lag,
            self.size
        );
        // Where telling costs a copy it waits for a reason.
        if self.queue.is_empty() && !copying() || self.asked {
            prop_assert_eq!(lag, 0, "the sender asked: {}, left: {}", self.asked, self.queue.len());
        }
        if self.queue.len() as u64 <= self.size / 3 * 2 {
            self.asked = false;
        }
        Ok(())
    }

    pub fn ask(&mut self) {
        self.from.conn.arm_space();
        self.asked = true;
    }

    pub fn check(&self) -> Result<(), TestCaseError> {
        let (from, to) = (self.from, self.to);
        prop_assert_eq!(to.conn.unread(to.fd), self.queue.len());
        prop_assert_eq!(from.conn.unsent() as u64, self.unread_there());
        prop_assert!(self.outstanding() >= self.queue.len() as u64);
        prop_assert_eq!(to.conn.has_news(), !self.queue.is_empty());
        let (reader, writer) = (to.conn.ready(to.fd), from.conn.ready(from.fd));
        let (readable, writable) =
            (!self.queue.is_empty(), self.outstanding() <= self.size / 3 * 2);
        prop_assert_eq!(reader & IN, if readable { IN } else { 0 });
        prop_assert_eq!(
            writer & OUT,
            if writable { OUT } else { 0 },
            "{} of {}",
            self.outstanding(),
            self.size
        );
        prop_assert_eq!((reader | writer) & !(IN | OUT), 0, "no ends");
        Ok(())
    }
}
