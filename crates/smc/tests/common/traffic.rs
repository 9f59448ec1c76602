//! Traffic between two ends that may give their connection back to TCP, checked byte by byte.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use smc::reason;

use super::{End, bytes, raw_recv, raw_send, while_looked_at};

/// Looks in vain, 100 us or more apart, behind which nothing comes any more.
const LOOKS: u32 = 10_000;

/// One end, which at some time gives its connection back, and is then a plain descriptor.
pub enum Side {
    Ours(End),
    /// Code that knows nothing of us has the descriptor; we may hold the connection object still.
    Foreign(OwnedFd, Option<End>),
}

impl Side {
    pub fn fd(&self) -> i32 {
        match self {
            Side::Ours(end) => end.fd,
            Side::Foreign(fd, _) => fd.as_raw_fd(),
        }
    }

    pub fn recv(&self, buf: &mut [u8]) -> Result<usize, i32> {
        match self {
            Side::Ours(end) => end.recv(buf, 0),
            Side::Foreign(fd, _) => raw_recv(fd.as_raw_fd(), buf, 0),
        }
    }

    pub fn send(&self, data: &[u8]) -> Result<usize, i32> {
        match self {
            Side::Ours(end) => end.send(data),
            Side::Foreign(fd, _) => raw_send(fd.as_raw_fd(), data),
        }
    }

    pub fn describe(&self) -> String {
        match self {
            Side::Ours(end) => end.describe(),
            Side::Foreign(fd, None) => format!("{fd:?}"),
            Side::Foreign(fd, Some(end)) => format!("{fd:?} of {}", end.describe()),
        }
    }

    /// Gives the connection back, as before a descriptor is passed on; with `close`, our own
    /// descriptor of it is closed then. False when it could not be done, and the connection is
    /// reset.
    pub fn revert(&mut self, close: bool) -> bool {
        let Side::Ours(end) = self else { return true };
        smc::meet::abandon(end.conn, end.fd);
        if !end.conn.go_back_or_break(end.fd, reason::PASSED_FD.code(), true) {
            return false;
        }
        // SAFETY: duplicates a descriptor; the copy is fresh.
        let passed = unsafe { OwnedFd::from_raw_fd(libc::dup(end.fd)) };
        if let Side::Ours(end) = std::mem::replace(self, Side::Foreign(passed, None))
            && let Side::Foreign(_, keeps) = self
            && !close
        {
            *keeps = Some(end);
        }
        true
    }
}

/// Two sides and what is under way between them.
pub struct Traffic {
    pub sides: [Side; 2],
    pub queues: [VecDeque<u8>; 2],
    pub sent: [u64; 2],
}

impl Traffic {
    pub fn new((a, b): (End, End)) -> Self {
        Self { sides: [Side::Ours(a), Side::Ours(b)], queues: Default::default(), sent: [0; 2] }
    }

    /// `Side::revert` of one side.
    pub fn revert(&mut self, i: usize, close: bool) -> bool {
        let [low, high] = &mut self.sides;
        let (side, peer) = if i == 0 { (low, high) } else { (high, low) };
        let peer = if let Side::Ours(end) = peer { Some(&*end) } else { None };
        while_looked_at(peer, || side.revert(close))
    }

    pub fn send(&mut self, i: usize, n: usize) {
        match self.sides[i].send(&bytes(i as u8, self.sent[i], n)) {
            Ok(n) => {
                let data = bytes(i as u8, self.sent[i], n);
                self.queues[1 - i].extend(data);
                self.sent[i] += n as u64;
            }
            Err(e) => assert_eq!(e, libc::EAGAIN, "{}", self.sides[i].describe()),
        }
    }

    /// Reads at most `n` bytes; whether there were any.
    pub fn recv(&mut self, i: usize, n: usize) -> bool {
        let mut buf = vec![0; n];
        match self.sides[i].recv(&mut buf) {
            Ok(0) => panic!("an end that nobody made: {}", self.describe()),
            Ok(n) => {
                assert!(
                    n <= self.queues[i].len(),
                    "{n} bytes where {} were left: {}",
                    self.queues[i].len(),
                    self.describe()
                );
                let at = self.queues[i].iter().zip(&buf).position(|(a, b)| a != b);
                assert!(
                    at.is_none_or(|at| at >= n),
                    "wrong byte at {at:?} of {n}: {}",
                    self.describe()
                );
                self.queues[i].drain(..n);
                true
            }
            Err(e) => {
                assert_eq!(e, libc::EAGAIN, "{}", self.describe());
                false
            }
        }
    }

    /// Everything arrives, though nobody sends any more: the ends just look for input as waiting
    /// programs do.
    pub fn settle(&mut self) {
        let mut in_vain = 0;
        while self.queues.iter().any(|q| !q.is_empty()) {
            in_vain += 1;
            for i in [0, 1] {
                while self.recv(i, 20_000) {
                    in_vain = 0;
                }
            }
            // Looks, which a busy machine puts off, and not a time in which there may have been none.
            assert!(
                in_vain < LOOKS,
                "{:?} bytes never came: {}",
                self.queues.each_ref().map(VecDeque::len),
                self.describe()
            );
            if in_vain > 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        for i in [0, 1] {
            assert!(!self.recv(i, 100));
        }
    }

    pub fn describe(&self) -> String {
        format!(
            "\n  0: {}\n  1: {}\n  queues {:?} sent {:?}",
            self.sides[0].describe(),
            self.sides[1].describe(),
            self.queues.each_ref().map(VecDeque::len),
            self.sent
        )
    }
}
