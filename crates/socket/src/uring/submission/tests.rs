//! Submissions by their words, without a ring.
#![allow(unsafe_code)]

use super::*;
use crate::tests::{Epoll, connected, port, recv, send, serial, upgraded};

const READ: u8 = 22;
const SPLICE: u8 = 30;
const EPOLL_CTL: u8 = 29;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const LINK_NEXT: u8 = 1 << 2;

fn sqe(opcode: u8, flags: u8, fd: i32) -> Sqe {
    let sqe = Sqe::default();
    sqe[0].store(u64::from(fd as u32) << 32 | u64::from(flags) << 8 | u64::from(opcode), Relaxed);
    sqe[4].store(0x1234, Relaxed);
    sqe
}

fn opcode_and_result(sqe: &Sqe) -> (u8, i32) {
    (sqe[0].load(Relaxed) as u8, sqe[3].load(Relaxed) as i32)
}

fn control(set: i32, op: i32, fd: i32, event: &epoll_event) -> Sqe {
    let sqe = sqe(EPOLL_CTL, 0, set);
    sqe[1].store(fd as u64, Relaxed);
    sqe[2].store(core::ptr::from_ref(event) as u64, Relaxed);
    sqe[3].store(op as u64, Relaxed);
    sqe
}

#[test]
fn what_is_named_goes_to_tcp_and_the_rest_stays() {
    let _turn = serial();
    let [named, fixed, source] = [upgraded(), upgraded(), upgraded()];
    assert_eq!(send(named.1, b"unread", 0), 6);
    let mut look = Look::new();
    look.at(&sqe(READ, 0, named.0));
    look.at(&sqe(READ, FIXED_FILE, fixed.0));
    let splice = sqe(SPLICE, FIXED_FILE, 0);
    splice[5].store((source.0 as u64) << 32, Relaxed);
    look.at(&splice);
    assert_eq!(port(named.0).conn.reason(), reason::IO_URING);
    assert!(port(named.0).conn.is_frozen() && !port(named.0).conn.sends_on_ring());
    assert!(port(source.0).conn.is_frozen());
    assert!(port(fixed.0).conn.switched() && !port(fixed.0).conn.is_frozen());
    assert_eq!(send(named.1, b"more", 0), 4);
    assert_eq!(recv(named.0, 20, 0), Ok(b"unreadmore".to_vec()));
    // One that was never upgraded will not be.
    let fresh = connected();
    look.at(&sqe(READ, 0, fresh.0));
    assert!(port(fresh.0).conn.is_frozen());
    let list = [-1, fixed.0];
    let update = sqe(FILES_UPDATE, 0, -1);
    update[2].store(list.as_ptr() as u64, Relaxed);
    update[3].store(2, Relaxed);
    look.at(&update);
    assert!(port(fixed.0).conn.is_frozen());
}

#[test]
fn sets_are_changed_here() {
    let _turn = serial();
    let (pair, set) = (upgraded(), Epoll::new());
    let event = epoll_event { events: libc::EPOLLIN as u32, u64: pair.0 as u64 };
    let mut look = Look::new();
    for (op, result) in [
        (libc::EPOLL_CTL_ADD, 0),
        (libc::EPOLL_CTL_ADD, -libc::EEXIST),
        (libc::EPOLL_CTL_DEL, 0),
        (libc::EPOLL_CTL_MOD, -libc::ENOENT),
        (libc::EPOLL_CTL_ADD, 0),
    ] {
        let sqe = control(set.0, op, pair.0, &event);
        look.at(&sqe);
        let done = if result == 0 || can_fail() { 0 } else { EPOLL_CTL };
        assert_eq!(opcode_and_result(&sqe).0, done);
        assert!(done != 0 || opcode_and_result(&sqe).1 == result, "{op}: {sqe:?}");
        assert_eq!(sqe[4].load(Relaxed), 0x1234, "the program's word stays");
    }
    assert_eq!(send(pair.1, b"1", 0), 1);
    assert_eq!(set.now(), [(pair.0, libc::EPOLLIN as u32)]);
    assert!(port(pair.0).conn.switched());
    // A file is none of ours.
    let sqe = control(set.0, libc::EPOLL_CTL_ADD, 0, &event);
    look.at(&sqe);
    assert_eq!(opcode_and_result(&sqe).0, EPOLL_CTL);
}

#[test]
fn what_waits_for_others_is_left_to_the_kernel() {
    let _turn = serial();
    let (pair, set) = (upgraded(), Epoll::new());
    let event = epoll_event { events: libc::EPOLLIN as u32, u64: pair.0 as u64 };
    let mut look = Look::new();
    look.at(&sqe(0, LINK_NEXT, -1));
    let behind = control(set.0, libc::EPOLL_CTL_ADD, pair.0, &event);
    look.at(&behind);
    assert_eq!(opcode_and_result(&behind), (EPOLL_CTL, libc::EPOLL_CTL_ADD));
    assert!(port(pair.0).conn.is_frozen());
}

#[test]
fn a_close_ends_a_connection_and_spares_what_is_hidden() {
    let _turn = serial();
    let pair = upgraded();
    let hidden = hidden::all().next().expect("a channel");
    let mut look = Look::new();
    let ours = sqe(CLOSE, 0, hidden);
    look.at(&ours);
    assert_eq!((ours[0].load(Relaxed) >> 32) as i32, -1);
    let direct = sqe(CLOSE, 0, 0);
    direct[5].store(3 << 32, Relaxed);
    look.at(&direct);
    assert_eq!(send(pair.0, b"last", 0), 4);
    look.at(&sqe(CLOSE, 0, pair.0));
    assert_eq!(fds::kind(pair.0), Kind::Other);
    assert_eq!(recv(pair.1, 9, 0), Ok(b"last".to_vec()));
    assert_eq!(recv(pair.1, 9, 0), Ok(Vec::new()));
}

#[test]
fn every_operation_is_sorted() {
    assert_eq!([0, 11, 31, 45, 54, 62].map(names), [Names::Nothing; 6]);
    assert_eq!([1, 6, 13, 26, 47, 59, 61].map(names), [Names::File; 7]);
    assert!((65..=255).all(|newer| names(newer) == Names::Unknown));
}
