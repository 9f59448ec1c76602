//! Waits of real threads, each as the preloaded library's `wait` does it: count, arm, look, clear
//! old doorbells, sleep in the kernel.
#![allow(unsafe_code)]

use std::thread;
use std::time::Duration;

use smc::conn::sleepers::{READS, WRITES};
use smc::conn::{Conn, Got, IN, OUT, Pieces, RDHUP, Sent};
use smc::sys;

use super::End;

/// A connection and its descriptor, for any thread.
#[derive(Clone, Copy)]
pub struct Port {
    pub conn: &'static Conn,
    pub fd: i32,
}

impl Port {
    pub fn of(end: &End) -> Self {
        sys::fcntl(end.fd, libc::F_SETFL, 0);
        Self { conn: end.conn, fd: end.fd }
    }

    pub fn clear_stale(self, seen: u32, reader: bool, writer: bool) -> bool {
        self.conn.clear_stale(self.fd, seen, reader, writer)
    }

    /// See `wait::for_data`.
    pub fn wait_for_data(self) {
        let mut seat = self.conn.sleepers.enter();
        seat.sleeps(READS);
        self.sleep_for_data();
    }

    fn sleep_for_data(self) {
        let (c, fd) = (self.conn, self.fd);
        let seen = c.doorbells_seen();
        assert!(c.arm_data());
        if c.ready(fd) & IN != 0 {
            return;
        }
        if self.clear_stale(seen, true, false) {
            return thread::yield_now();
        }
        let mut byte = 0u8;
        // SAFETY: one writable byte.
        match unsafe { sys::recv(fd, &raw mut byte, 1, libc::MSG_PEEK) } {
            0 => drop(c.kernel_end(RDHUP)),
            n if n < 0 && n != -(libc::EINTR as isize) => drop(c.kernel_error(-n as i32)),
            _ => {}
        }
    }

    /// See `wait::for_space`.
    pub fn wait_for_space(self) {
        let mut seat = self.conn.sleepers.enter();
        seat.sleeps(WRITES);
        self.sleep_for_space();
    }

    fn sleep_for_space(self) {
        let (c, fd) = (self.conn, self.fd);
        let mut nap = 1_000_000;
        loop {
            let seen = c.doorbells_seen();
            c.arm_space();
            if c.ready(fd) & OUT != 0 {
                return;
            }
            let held = self.clear_stale(seen, false, true);
            let mut left = None;
            if c.space_is_silent() || held {
                left = Some(nap);
                nap = (nap * 2).min(10_000_000);
            }
            let mut p = [libc::pollfd {
                fd,
                events: if held { 0 } else { libc::POLLIN | libc::POLLRDHUP },
                revents: 0,
            }];
            ppoll(&mut p, left);
            c.kernel_end(p[0].revents as u16 as u32);
        }
    }

    pub fn recv(self, buf: &mut [u8]) -> Got {
        let iov = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
        self.conn.recv(self.fd, &mut Pieces::new(&iov), 0)
    }

    pub fn send(self, data: &[u8]) -> Sent {
        let iov = [libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }];
        self.conn.send(self.fd, &mut Pieces::new(&iov))
    }

    pub fn shut(self) {
        self.conn.shutdown(self.fd, libc::SHUT_WR);
        sys::shutdown(self.fd, libc::SHUT_WR);
    }
}

pub fn ppoll(p: &mut [libc::pollfd], nanoseconds: Option<u64>) {
    let limit = nanoseconds.map(|n| libc::timespec {
        tv_sec: (n / 1_000_000_000) as i64,
        tv_nsec: (n % 1_000_000_000) as i64,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: pointers to live locals.
    unsafe { sys::ppoll(p.as_mut_ptr(), p.len() as libc::nfds_t, limit, std::ptr::null()) };
}

/// Sizes that keep changing between tiny and larger than the ring.
pub struct Sizes(pub u64);

impl Sizes {
    pub fn next(&mut self) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let r = (self.0 >> 33) as usize;
        match self.0 >> 60 {
            0..4 => 1 + r % 20,
            4..10 => 1 + r % 3000,
            10..14 => 1 + r % 20_000,
            _ => 1 + r % 100_000,
        }
    }

    /// Now and then somebody has something else to do.
    pub fn dawdle(&mut self) {
        match self.next() % 400 {
            0 => thread::sleep(Duration::from_micros(300)),
            1..4 => thread::yield_now(),
            _ => {}
        }
    }
}

/// Length of the pattern that a stream repeats: a prime, so that it never fits a ring.
const PERIOD: usize = 99_991;
/// Most bytes that are sent or received at a time.
pub const MOST: usize = 100_000;

/// The bytes that a stream repeats, long enough for a slice of `MOST` from anywhere in a period.
pub fn pattern(stream: u8) -> Vec<u8> {
    let one = super::bytes(stream, 0, PERIOD);
    one.iter().chain(&one).chain(&one[..MOST - PERIOD]).copied().collect()
}

/// `n` bytes of a stream from `at` on.
pub fn part(pattern: &[u8], at: u64, n: usize) -> &[u8] {
    let from = (at % PERIOD as u64) as usize;
    &pattern[from..from + n]
}
