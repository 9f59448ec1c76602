//! How waits end: by signals, by time limits, by what comes.
#![allow(unsafe_code)]

use crate::tests::{Answer::*, Epoll, SCRIPTED, close, port, recv, send, serial, upgraded};
use core::sync::atomic::Ordering::*;
use smc::sys;
use std::sync::mpsc::channel;
use std::thread::{sleep, spawn};
use std::time::Duration;

const INTERRUPTED: isize = -(libc::EINTR as isize);

fn limit(fd: i32, option: i32, seconds: i64) {
    assert_eq!(sys::setsockopt(fd, libc::SOL_SOCKET, option, &[seconds, 0]), 0);
}

#[test]
fn a_signal_ends_a_receive_that_waits() {
    let _turn = serial();
    let pair = upgraded();
    SCRIPTED.script(pair.1, &[Is(INTERRUPTED)]);
    assert_eq!(recv(pair.1, 1, 0), Err(libc::EINTR));
    assert_eq!(SCRIPTED.left(pair.1), 0);
}

/// The kernel restarts recv by itself behind a handler that asks for it: the peek, which is
/// one, never says EINTR then. A receive that insists sleeps in poll, which is never restarted,
/// and must be.
#[test]
fn a_wait_by_poll_goes_on_behind_a_handler_that_asks_for_it() {
    let _turn = serial();
    let pair = upgraded();
    SCRIPTED.restarts.store(true, SeqCst);
    while send(pair.0, &[7; 4096], libc::MSG_DONTWAIT) > 0 {}
    SCRIPTED.script(pair.0, &[Is(INTERRUPTED), Is(INTERRUPTED), Is(-(libc::ENOMEM as isize))]);
    assert_eq!(send(pair.0, b"y", 0), -(libc::ENOMEM as isize));
    assert_eq!(SCRIPTED.left(pair.0), 0);
    SCRIPTED.restarts.store(false, SeqCst);
    SCRIPTED.script(pair.0, &[Is(INTERRUPTED), Is(0)]);
    assert_eq!(send(pair.0, b"y", 0), INTERRUPTED);
    assert_eq!(SCRIPTED.left(pair.0), 1);
    SCRIPTED.script(pair.0, &[]);
}

#[test]
fn a_time_limit_ends_a_send_into_a_full_ring() {
    let _turn = serial();
    let pair = upgraded();
    while send(pair.0, &[7; 4096], libc::MSG_DONTWAIT) > 0 {}
    limit(pair.0, libc::SO_SNDTIMEO, 3600);
    // A signal restarts nothing that has a limit.
    SCRIPTED.restarts.store(true, SeqCst);
    SCRIPTED.script(pair.0, &[Is(INTERRUPTED)]);
    assert_eq!(send(pair.0, b"y", 0), INTERRUPTED);
    SCRIPTED.script(pair.0, &[Passes(1_000_000_000), Passes(3_600_000_000_000)]);
    assert_eq!(send(pair.0, b"y", 0), -(libc::EAGAIN as isize));
    assert_eq!(SCRIPTED.left(pair.0), 0, "the limit counts for the call, not for each sleep");
}

#[test]
fn a_receive_that_has_something_returns_it_when_its_time_is_over() {
    let _turn = serial();
    let pair = upgraded();
    limit(pair.1, libc::SO_RCVTIMEO, 60);
    assert_eq!(send(pair.0, b"part", 0), 4);
    SCRIPTED.script(pair.1, &[Passes(61_000_000_000)]);
    assert_eq!(recv(pair.1, 8, libc::MSG_WAITALL), Ok(b"part".to_vec()));
    assert_eq!(SCRIPTED.left(pair.1), 0);
}

/// A connection in a set does not stay for the call: its number, closed, is no descriptor, of which poll
/// tells at once, again and again.
#[test]
fn a_send_that_waits_ends_with_its_connection() {
    let _turn = serial();
    let pair = upgraded();
    let set = Epoll::new();
    set.add(pair.0, libc::EPOLLIN);
    while send(pair.0, &[7; 4096], libc::MSG_DONTWAIT) > 0 {}
    let (done, ended) = channel();
    let fd = pair.0;
    let sender = spawn(move || done.send(send(fd, b"y", 0)));
    while port(fd).conn.sleepers.inside().next().is_none() {
        sleep(Duration::from_millis(1));
    }
    close(fd);
    let r = ended.recv_timeout(Duration::from_secs(60)).expect("it goes on for ever");
    assert_eq!(r, -(libc::EBADF as isize));
    sender.join().unwrap().unwrap();
}

#[test]
fn limits_of_the_kernel_are_read_as_it_reads_them() {
    use super::{Refused, duration};
    use libc::timespec;
    // SAFETY: a live timespec, null, or no address at all.
    let at = |t: *const timespec| unsafe { duration(t) };
    let of = |t: &timespec| at(t);
    assert_eq!(of(&timespec { tv_sec: 1, tv_nsec: 5 }), Ok(Some(1_000_000_005)));
    assert_eq!(of(&timespec { tv_sec: i64::MAX, tv_nsec: 5 }), Ok(Some(u64::MAX)));
    assert_eq!(of(&timespec { tv_sec: -1, tv_nsec: 0 }), Err(Refused));
    assert_eq!(of(&timespec { tv_sec: 0, tv_nsec: 1_000_000_000 }), Err(Refused));
    assert_eq!(at(core::ptr::null()), Ok(None));
    assert_eq!(at(core::ptr::without_provenance(8)), Err(Refused));
}
