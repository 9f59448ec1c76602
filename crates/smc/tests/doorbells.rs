//! Waiting threads: each sleep is armed, checked and really slept, as in the preloaded library's
//! `wait`, and always ends.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::Ordering::*;
use std::thread;
use std::time::Instant;

use common::flow::{Receiver, Sender, watched};
use common::wait::{Port, Sizes, ppoll};
use common::{rings, serial};
use smc::config::CONFIG;
use smc::conn::sleepers::{READS, WRITES};
use smc::conn::{Got, IN, OUT, Waits};
use smc::table;

common::over!(ism, verbs);

/// A thread that lives as long as these tests: init's.
const ANOTHER: u32 = 1;

/// A reader and a writer on each end.
fn four_threads(name: &str) {
    let pairs = [rings()];
    let ports = [Port::of(&pairs[0].0), Port::of(&pairs[0].1)];
    watched(name, &pairs, |flows, until| {
        thread::scope(|s| {
            for i in [0, 1] {
                s.spawn(move || {
                    let mut sender = Sender::new(ports[i], &flows[i], i as u8, until);
                    while sender.go() {
                        ports[i].wait_for_space();
                    }
                });
                s.spawn(move || {
                    let mut receiver = Receiver::new(ports[i], &flows[1 - i], 1 - i as u8);
                    while receiver.go() {
                        ports[i].wait_for_data();
                    }
                });
            }
        });
    });
}

#[test]
fn blocking_threads() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    four_threads("16 KiB");
    CONFIG.dmb_size.store(256 << 10, Relaxed);
    four_threads("256 KiB");
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    CONFIG.copy.store(true, Relaxed);
    four_threads("16 KiB, copying");
}

/// A writer sleeps for space, and its doorbell comes while a reader of the same end is about to
/// sleep. Whatever the reader does with that doorbell, the writer is woken when there is room.
#[test]
fn a_reader_does_not_eat_the_doorbell_of_a_writer() {
    let _serial = serial();
    let (a, b) = rings();
    let size = a.conn.tx.snapshot().size as usize;
    let (port, data) = (Port { conn: a.conn, fd: a.fd }, vec![1; size]);
    // `b` knows of the first half of what is in its ring, `a` of all of it.
    assert_eq!(a.send(&data[..size / 2]), Ok(size / 2));
    assert_eq!(b.recv(&mut [0; 1], 0), Ok(1));
    assert_eq!(a.send(&data[size / 2..]), Ok(size - size / 2));
    // The writer.
    let mut writer = a.conn.sleepers.enter_as(ANOTHER);
    writer.sleeps(WRITES);
    a.conn.arm_space();
    assert_eq!(a.conn.ready(a.fd) & OUT, 0);
    // A quarter is read: too little to write again.
    assert_eq!(b.recv(&mut vec![0; size / 4], 0), Ok(size / 4));
    assert_eq!(a.conn.ready(a.fd) & OUT, 0);
    // The reader.
    let mut reader = a.conn.sleepers.enter();
    reader.sleeps(READS);
    let seen = a.conn.doorbells_seen();
    assert!(a.conn.arm_data());
    assert_eq!(a.conn.ready(a.fd) & IN, 0);
    port.clear_stale(seen, true, false);
    // All of it is read.
    while b.recv(&mut vec![0; size / 4], 0).is_ok() {}
    assert_eq!(a.conn.ready(a.fd) & OUT, OUT);
    assert_ne!(
        smc::sys::poll_now(a.fd, libc::POLLIN),
        0,
        "nothing wakes the writer: {}",
        a.describe()
    );
}

/// The same of a reader that sleeps for data, which another reader has taken meanwhile.
#[test]
fn a_writer_does_not_eat_the_doorbell_of_a_reader() {
    let _serial = serial();
    let (a, b) = rings();
    let port = Port { conn: a.conn, fd: a.fd };
    let mut reader = a.conn.sleepers.enter_as(ANOTHER);
    reader.sleeps(READS);
    assert!(a.conn.arm_data());
    assert_eq!(b.send(&[1; 10]), Ok(10));
    assert_eq!(a.recv(&mut [0; 10], 0), Ok(10));
    // The writer.
    let mut writer = a.conn.sleepers.enter();
    writer.sleeps(WRITES);
    let seen = a.conn.doorbells_seen();
    a.conn.arm_space();
    port.clear_stale(seen, false, true);
    assert_eq!(b.send(&[1; 10]), Ok(10));
    assert_ne!(
        smc::sys::poll_now(a.fd, libc::POLLIN),
        0,
        "nothing wakes the reader: {}",
        a.describe()
    );
}

/// A thread that is put off between the count of a doorbell and its byte, or left by a jump, leaves a
/// byte less than was counted. The next one, which answers the very arm of who is about to sleep, is
/// not taken in its stead unnoticed.
#[test]
fn a_doorbell_that_does_not_come_costs_nobody_the_next_one() {
    let _serial = serial();
    let (a, b) = rings();
    assert!(a.conn.arm_data());
    assert_eq!(b.send(&[1; 10]), Ok(10));
    assert_eq!(a.recv(&mut [0; 10], 0), Ok(10));
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    assert_eq!(unsafe { smc::sys::recv(a.fd, &raw mut byte, 1, 0) }, 1, "the one that is lost");
    let seen = a.conn.doorbells_seen();
    assert!(a.conn.arm_data());
    assert_eq!(a.conn.ready(a.fd) & IN, 0);
    assert_eq!(b.send(&[1; 10]), Ok(10));
    assert!(
        a.conn.clear_stale(a.fd, seen, true, false) || smc::sys::poll_now(a.fd, libc::POLLIN) != 0,
        "nothing wakes the reader: {}",
        a.describe()
    );
}

/// Requests and answers: somebody sleeps for every one of them.
fn ping_pong(name: &str) {
    let pairs = [rings()];
    let ports = [Port::of(&pairs[0].0), Port::of(&pairs[0].1)];
    watched(name, &pairs, |flows, until| {
        thread::scope(|s| {
            for i in [0, 1] {
                s.spawn(move || {
                    let mut sender = Sender::new(ports[i], &flows[i], i as u8, until);
                    let mut receiver = Receiver::new(ports[i], &flows[1 - i], 1 - i as u8);
                    // Both ends draw the same sizes.
                    let mut sizes = Sizes(7);
                    for turn in 0.. {
                        let n = sizes.next().min(40_000);
                        if turn % 2 == i {
                            if Instant::now() >= until {
                                break;
                            }
                            sender.left = n;
                            while !sender.request() {
                                ports[i].wait_for_space();
                            }
                            continue;
                        }
                        let end = receiver.at + n as u64;
                        while receiver.at < end {
                            match receiver.some((end - receiver.at) as usize) {
                                Got::Eof => return ports[i].shut(),
                                Got::Empty => ports[i].wait_for_data(),
                                _ => {}
                            }
                        }
                    }
                    ports[i].shut();
                    while receiver.go() {
                        ports[i].wait_for_data();
                    }
                });
            }
        });
    });
}

#[test]
fn requests_and_answers() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    ping_pong("ping-pong");
}

/// One thread per end does both directions of several connections and sleeps on all of them at
/// once, either armed one by one as poll does it, or covered by a single wait word as epoll does
/// it.
fn event_loops(name: &str, covered: bool) {
    let pairs: Vec<_> = (0..3).map(|_| rings()).collect();
    let ports: Vec<[Port; 2]> = pairs.iter().map(|(a, b)| [Port::of(a), Port::of(b)]).collect();
    let waits =
        [0, 1].map(|_| if covered { table::get().expect("a table").take_wait() } else { 0 });
    watched(name, &pairs, |flows, until| {
        thread::scope(|s| {
            for side in [0, 1] {
                let (ports, wait) = (&ports, waits[side]);
                s.spawn(move || {
                    let mut works: Vec<_> = ports
                        .iter()
                        .enumerate()
                        .map(|(k, p)| {
                            let stream = |side: usize| (2 * k + side) as u8;
                            p[side].conn.cover(wait, 0);
                            (
                                Some(Sender::new(
                                    p[side],
                                    &flows[2 * k + side],
                                    stream(side),
                                    until,
                                )),
                                Some(Receiver::new(
                                    p[side],
                                    &flows[2 * k + 1 - side],
                                    stream(1 - side),
                                )),
                            )
                        })
                        .collect();
                    loop {
                        for (sender, receiver) in &mut works {
                            sender.take_if(|s| !s.go());
                            receiver.take_if(|r| !r.go());
                        }
                        works.retain(|(s, r)| s.is_some() || r.is_some());
                        if works.is_empty() {
                            break;
                        }
                        sleep_on(&works, wait);
                    }
                });
            }
        });
    });
    for wait in waits {
        table::get().expect("a table").free_wait(wait);
    }
}

fn sleep_on(works: &[(Option<Sender>, Option<Receiver>)], wait: u32) {
    let ports = works.iter().map(|(s, r)| {
        s.as_ref().map(|s| s.port).or(r.as_ref().map(|r| r.port)).expect("one of them")
    });
    let ports: Vec<_> = ports.zip(works).map(|(p, (s, r))| (p, s.is_some(), r.is_some())).collect();
    let page = |p: Port| -> &Waits {
        // SAFETY: a control page of a living group.
        unsafe { &*p.conn.peer_waits() }
    };
    let mut silent = false;
    let seen: Vec<u32> = ports.iter().map(|(p, ..)| p.conn.doorbells_seen()).collect();
    let mut seats = Vec::new();
    for &(p, sends, receives) in &ports {
        let mut seat = p.conn.sleepers.enter();
        seat.sleeps_too(if receives { READS } else { 0 } | if sends { WRITES } else { 0 });
        seats.push(seat);
        if wait == 0 {
            assert!(p.conn.arm_data());
        }
        if sends {
            p.conn.arm_space();
            silent |= p.conn.space_is_silent() && p.conn.ready(p.fd) & OUT == 0;
        }
    }
    if wait != 0 {
        page(ports[0].0).sleep(wait);
    }
    let wanted = |(p, sends, receives): &(Port, bool, bool)| {
        let want = if *sends { OUT } else { 0 } | if *receives { IN } else { 0 };
        p.conn.ready(p.fd) & want != 0
    };
    if !ports.iter().zip(seen).any(|(port, seen)| {
        wanted(port) || {
            port.0.clear_stale(seen, port.2, port.1);
            false
        }
    }) {
        let mut fds: Vec<_> = ports
            .iter()
            .map(|(p, ..)| libc::pollfd {
                fd: p.fd,
                events: libc::POLLIN | libc::POLLRDHUP,
                revents: 0,
            })
            .collect();
        // The kernel keeps telling of an end that the rest of the work does not wait for.
        let ended = ports.iter().any(|(.., receives)| !receives);
        ppoll(&mut fds, (silent || ended).then_some(2_000_000));
        for ((p, ..), k) in ports.iter().zip(&fds) {
            p.conn.kernel_end(k.revents as u16 as u32);
        }
    }
    if wait != 0 {
        page(ports[0].0).wake(wait);
    }
}

#[test]
fn event_loops_armed_one_by_one() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    event_loops("poll", false);
}

#[test]
fn event_loops_under_one_cover() {
    let _serial = serial();
    CONFIG.dmb_size.store(16 << 10, Relaxed);
    // Over ism nobody sees the peer's wait words: each connection is armed by itself.
    event_loops("epoll", !common::copying());
}
