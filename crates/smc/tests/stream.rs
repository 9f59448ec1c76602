//! The data path against a queue: any interleaving of calls, with any sizes, in both modes of the device.

mod common;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;

use common::{End, bytes, rings, serial};
use proptest::prelude::*;
use smc::config::CONFIG;
use smc::conn::{DmbHeader, Got, IN, OUT, Pieces, Sent};

/// One direction of a connection, and what must be true of it.
struct Direction<'a> {
    from: &'a End,
    to: &'a End,
    stream: u8,
    size: u64,
    queue: VecDeque<u8>,
    sent: u64,
    /// The sender has asked for a doorbell since the reader last told it anything.
    asked: bool,
}

fn iov(data: &[u8]) -> libc::iovec {
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
    fn new(from: &'a End, to: &'a End, stream: u8) -> Self {
        let size = u64::from(from.conn.tx_snapshot().size);
        assert_eq!(size, u64::from(to.conn.rx_snapshot().size));
        Self { from, to, stream, size, queue: VecDeque::new(), sent: 0, asked: false }
    }

    fn next(&self, n: usize) -> Vec<u8> {
        bytes(self.stream, self.sent, n)
    }

    /// What the sender may believe to be free: it looks only when it has to.
    fn free(&self, want: usize) -> usize {
        let known = self.size - (self.sent - self.from.conn.tx_snapshot().cons.pos);
        if known >= want as u64 { known as usize } else { (self.size - self.outstanding()) as usize }
    }

    /// Sent, and not known to be read.
    fn outstanding(&self) -> u64 {
        self.sent - self.to.conn.rx_snapshot().published
    }

    fn send(&mut self, n: usize, cut: usize) -> Result<(), TestCaseError> {
        let data = self.next(n);
        let v = pieces(&data, cut);
        let mut from = Pieces::new(&v);
        let free = self.free(n);
        let full = self.from.conn.tx_counts.full.load(Relaxed);
        let sent = self.from.conn.send(self.from.fd, &mut from);
        let took = if let Sent::Bytes(n) = sent { n } else { 0 };
        prop_assert_eq!(from.left(), n - took);
        prop_assert_eq!(self.from.conn.tx_counts.full.load(Relaxed) - full, u64::from(sent == Sent::Full));
        let expect = if n == 0 || free > 0 { Sent::Bytes(n.min(free)) } else { Sent::Full };
        prop_assert_eq!(&sent, &expect);
        self.queue.extend(&data[..took]);
        self.sent += took as u64;
        Ok(())
    }

    /// As sendfile does: bytes from somewhere that may end early, or fail.
    fn send_from(&mut self, n: usize, limit: usize, fails: bool) -> Result<(), TestCaseError> {
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
            _ if data.is_empty() => Sent::Bytes(0),
            _ if free == 0 => Sent::Full,
            0 if fails => Sent::Err(libc::EIO),
            n => Sent::Bytes(n),
        };
        prop_assert_eq!(&sent, &expect);
        self.queue.extend(&data[..n]);
        self.sent += n as u64;
        Ok(())
    }

    fn recv(&mut self, n: usize, flags: i32, cut: usize) -> Result<(), TestCaseError> {
        let mut buf = vec![0xAA; n];
        let v = pieces(&buf, cut);
        let mut into = Pieces::new(&v);
        let got = self.to.conn.recv(self.to.fd, &mut into, flags);
        let n = n.min(self.queue.len());
        let expect = if self.queue.is_empty() { Got::Empty } else { Got::Bytes(n) };
        prop_assert_eq!(got, expect);
        prop_assert_eq!(into.left(), buf.len() - n);
        if flags & libc::MSG_TRUNC != 0 {
            prop_assert!(buf.iter().all(|b| *b == 0xAA), "discarded, not delivered");
        } else {
            prop_assert!(self.queue.iter().take(n).eq(&buf[..n]), "wrong bytes");
            prop_assert!(buf.split_off(n).iter().all(|b| *b == 0xAA), "written beyond the end");
        }
        if flags & libc::MSG_PEEK == 0 {
            self.read(n)?;
        }
        Ok(())
    }

    /// As splice does: a receiver that takes less than it is offered, or fails.
    fn recv_into(&mut self, n: usize, limit: usize, fails: bool) -> Result<(), TestCaseError> {
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
            0 if fails && n > 0 => Got::Err(libc::EPIPE),
            n => Got::Bytes(n),
        };
        prop_assert_eq!(got, expect);
        prop_assert!(self.queue.iter().take(took).eq(&data), "wrong bytes");
        self.read(took)
    }

    fn read(&mut self, n: usize) -> Result<(), TestCaseError> {
        self.queue.drain(..n);
        let lag = self.outstanding() - self.queue.len() as u64;
        prop_assert!(lag < self.size / 4, "{} bytes freed and not told of a ring of {}", lag, self.size);
        if n > 0 && (self.queue.is_empty() || self.asked) {
            prop_assert_eq!(lag, 0, "the sender asked: {}, left: {}", self.asked, self.queue.len());
        }
        if n > 0 && self.asked && self.queue.len() as u64 <= self.size / 3 * 2 {
            self.asked = false;
        }
        Ok(())
    }

    fn ask(&mut self) {
        self.from.conn.arm_space();
        self.asked = true;
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let (from, to) = (self.from, self.to);
        prop_assert_eq!(to.conn.unread(to.fd), self.queue.len());
        prop_assert_eq!(from.conn.unsent() as u64, self.outstanding());
        prop_assert!(self.outstanding() >= self.queue.len() as u64);
        prop_assert_eq!(to.conn.has_news(), !self.queue.is_empty());
        let (reader, writer) = (to.conn.ready(to.fd), from.conn.ready(from.fd));
        let (readable, writable) = (!self.queue.is_empty(), self.outstanding() <= self.size / 3 * 2);
        prop_assert_eq!(reader & IN, if readable { IN } else { 0 });
        prop_assert_eq!(writer & OUT, if writable { OUT } else { 0 }, "{} of {}", self.outstanding(), self.size);
        prop_assert_eq!((reader | writer) & !(IN | OUT), 0, "no ends");
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize, usize),
    SendFrom(usize, usize, bool),
    Recv(usize, usize),
    Peek(usize),
    Discard(usize),
    RecvInto(usize, usize, bool),
    Ask,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![2 => 0..100usize, 4 => 0..9000usize, 3 => 0..70_000usize, 1 => 0..300_000usize]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (size(), 1..5000usize).prop_map(|(n, cut)| Op::Send(n, cut)),
        2 => (size(), size(), any::<bool>()).prop_map(|(n, limit, fails)| Op::SendFrom(n, limit, fails)),
        6 => (size(), 1..5000usize).prop_map(|(n, cut)| Op::Recv(n, cut)),
        2 => size().prop_map(Op::Peek),
        1 => size().prop_map(Op::Discard),
        2 => (size(), size(), any::<bool>()).prop_map(|(n, limit, fails)| Op::RecvInto(n, limit, fails)),
        1 => Just(Op::Ask),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving(
        ops in prop::collection::vec((any::<bool>(), op()), 1..120), code in 0..5u32, copy: bool,
    ) {
        let _serial = serial();
        CONFIG.dmb_size.store(16384 << code, Relaxed);
        CONFIG.copy.store(copy, Relaxed);
        let (a, b) = rings();
        let mut directions = [Direction::new(&a, &b, 1), Direction::new(&b, &a, 2)];
        for (which, op) in ops {
            let d = &mut directions[usize::from(which)];
            match op {
                Op::Send(n, cut) => d.send(n, cut)?,
                Op::SendFrom(n, limit, fails) => d.send_from(n, limit, fails)?,
                Op::Recv(n, cut) => d.recv(n, 0, cut)?,
                Op::Peek(n) => d.recv(n, libc::MSG_PEEK, 700)?,
                Op::Discard(n) => d.recv(n, libc::MSG_TRUNC, 900)?,
                Op::RecvInto(n, limit, fails) => d.recv_into(n, limit, fails)?,
                Op::Ask => d.ask(),
            }
            directions[0].check()?;
            directions[1].check()?;
        }
        for d in &mut directions {
            while !d.queue.is_empty() {
                d.recv(50_000, 0, 5000)?;
            }
            prop_assert_eq!(d.to.conn.rx_counts.bytes.load(Relaxed), d.sent);
            prop_assert_eq!(d.from.conn.tx_counts.bytes.load(Relaxed), d.sent);
        }
    }
}

/// Full to the last byte and empty to the last byte, at every offset at which the ring can wrap.
#[test]
fn edges_of_the_ring() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    for copy in [false, true] {
        CONFIG.copy.store(copy, Relaxed);
        let (a, b) = rings();
        let mut d = Direction::new(&a, &b, 3);
        let size = d.size as usize;
        for step in [1, 7, size - 1, size, 4096, size / 2] {
            for n in [size, size + 1, 1] {
                d.send(n, 1000).unwrap();
            }
            d.check().unwrap();
            assert!(d.queue.len() == size && a.conn.send(a.fd, &mut Pieces::new(&[iov(b"x")])) == Sent::Full);
            d.recv(step, 0, 333).unwrap();
            d.ask();
            while !d.queue.is_empty() {
                d.recv(size / 5, 0, 5000).unwrap();
            }
            d.check().unwrap();
            assert_eq!((d.free(size), b.conn.ready(b.fd) & IN), (size, 0));
        }
    }
}

/// The 16 bits of the cursor's wrap count go round.
#[test]
fn more_laps_than_a_cursor_counts() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    let (a, b) = rings();
    let size = a.conn.tx_snapshot().size as usize;
    for lap in 0..70_000u32 {
        let sent = a.conn.send_from(a.fd, size, |dst, len| {
            // SAFETY: `dst` has room for `len` bytes.
            unsafe { dst.cast::<u32>().write_unaligned(lap) };
            Ok(len)
        });
        assert_eq!(sent, Sent::Bytes(size));
        let mut seen = u32::MAX;
        let got = b.conn.recv_into(b.fd, size, false, |src, len| {
            // SAFETY: `src` has `len` bytes, at least four.
            seen = unsafe { src.cast::<u32>().read_unaligned() };
            Ok(len)
        });
        assert_eq!((got, seen), (Got::Bytes(size), lap));
    }
}

/// A receiver sees the bytes that the device moved, not those of its own cache: copy mode writes the same ring.
#[test]
fn the_header_is_what_smc_says() {
    let _serial = serial();
    let (a, b) = rings();
    assert_eq!(a.send(&[1; 100]), Ok(100));
    // SAFETY: an exposed buffer, which stays mapped.
    let h: &DmbHeader = unsafe { &*b.conn.my_header() };
    assert_eq!(h.kind.load(Relaxed), 0xfe);
    assert_eq!(h.prod.load(Relaxed).to_le_bytes(), [0, 0, 100, 0, 0, 0, 0, 0], "wrap 0, count 100, no flags");
    let mut buf = [0; 100];
    assert_eq!(b.recv(&mut buf, 0), Ok(100));
    // SAFETY: as above.
    let h: &DmbHeader = unsafe { &*a.conn.my_header() };
    assert_eq!(h.cons.load(Relaxed).to_le_bytes(), [0, 0, 100, 0, 0, 0, 0, 0]);
}
