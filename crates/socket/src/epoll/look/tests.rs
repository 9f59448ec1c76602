//! What a look at a set tells, and which connections it passes over.
#![allow(unsafe_code)]

use super::*;
use crate::fds::{Kind, go_back_for_others, kind};
use crate::tests::{Epoll, Pair, close, port, recv, send, serial, upgraded};
use crate::{endpoint, option};
use smc::reason;

const ET: i32 = libc::EPOLLET;
const IN_: i32 = libc::EPOLLIN;

fn of(ep: &Epoll) -> Held {
    let Kind::Epoll(index) = kind(ep.0) else { panic!("no set") };
    held(index, set(index).unwrap()).unwrap()
}

/// What a look finds that does not ask the kernel.
fn look(ep: &Epoll) -> Vec<u32> {
    let mut h = of(ep);
    // The time at which all are looked at is not now.
    (h.hot().all, h.hot().left) = (h.ticks(), 0);
    let mut out = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: room for as many.
    let n = unsafe { h.look(out.as_mut_ptr(), 8, &[]) };
    out[..n].iter().map(|ev| ev.events).collect()
}

/// How many registrations the next look passes over if nothing happens.
fn calm(ep: &Epoll) -> usize {
    of(ep).hot().list.iter().filter(|spot| spot.is_calm()).count()
}

/// A set with one connection, which is calm: its two ends and the set.
fn at_rest(events: i32) -> (Pair, Epoll) {
    let (pair, ep) = (upgraded(), Epoll::new());
    ep.add(pair.1, events);
    for _ in 0..3 {
        ep.now();
    }
    assert_eq!((look(&ep), calm(&ep)), (vec![], 1));
    (pair, ep)
}

fn shutdown(fd: i32, how: i32) {
    assert_eq!(endpoint::shutdown(fd, how, || sys::shutdown(fd, how)), 0);
}

/// Whatever its peer does is found by the next look, and so is what its own process does.
#[test]
fn a_calm_connection_is_looked_at_when_something_happens() {
    let _turn = serial();
    type Happens = fn(&Pair, &Epoll);
    let all: [(&str, i32, Happens, u32); 9] = [
        ("data", 0, |pair, _| _ = send(pair.0, b"1", 0), 1),
        ("the peer ends its stream", 0, |pair, _| shutdown(pair.0, libc::SHUT_WR), 1 | RDHUP),
        ("the peer ends both", 0, |pair, _| shutdown(pair.0, libc::SHUT_RDWR), 1 | RDHUP),
        ("receives are shut", 0, |pair, _| shutdown(pair.1, libc::SHUT_RD), 1 | RDHUP),
        ("all is shut", 0, |pair, _| shutdown(pair.1, libc::SHUT_RDWR), 1 | RDHUP | HUP),
        (
            "space is waited for",
            0,
            |pair, ep| _ = ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_ | 4),
            4,
        ),
        (
            "space by its other name",
            libc::EPOLLWRNORM,
            |pair, ep| {
                look(ep);
                while port(pair.1).conn.has_space() {
                    send(pair.1, &[7; 4096], 0);
                }
                assert_eq!((look(ep), calm(ep)), (vec![], 0));
                while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
            },
            0x100,
        ),
        (
            "what was read before is to be told again",
            ET,
            |pair, ep| {
                send(pair.0, b"1", 0);
                assert_eq!((look(ep).len(), look(ep).len(), calm(ep)), (1, 0, 1));
                ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_ | ET);
            },
            1,
        ),
        (
            "an edge of space",
            ET | libc::EPOLLOUT,
            |pair, ep| {
                while send(pair.1, &[7; 1 << 16], libc::MSG_DONTWAIT) > 0 {}
                assert_eq!((look(ep), calm(ep)), (vec![], 0), "it waits for space");
                while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
            },
            4,
        ),
    ];
    for (what, events, happens, told) in all {
        let (pair, ep) = match events {
            libc::EPOLLWRNORM => (upgraded(), Epoll::new()),
            _ => at_rest(IN_ | libc::EPOLLRDHUP | events),
        };
        if events == libc::EPOLLWRNORM {
            ep.add(pair.1, IN_ | events);
            ep.now();
        }
        happens(&pair, &ep);
        let found = look(&ep);
        assert_eq!(found, [told], "{what}");
    }
}

#[test]
fn who_waits_for_more_than_data_is_always_looked_at() {
    let _turn = serial();
    let (pair, ep) = (upgraded(), Epoll::new());
    ep.add(pair.1, IN_ | libc::EPOLLPRI);
    assert_eq!((ep.now(), ep.now(), calm(&ep)), (vec![], vec![], 0));
    ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_);
    assert_eq!((look(&ep), look(&ep), calm(&ep)), (vec![], vec![], 1));
    let (level, name, mark) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100i32);
    let plain = || sys::setsockopt(pair.1, level, name, &mark);
    // SAFETY: a live int.
    let set = unsafe { option::set(pair.1, level, name, (&raw const mark).cast(), 4, plain) };
    assert_eq!(set, 0);
    send(pair.0, &[1; 99], 0);
    assert_eq!((look(&ep), calm(&ep)), (vec![], 0), "too few bytes for its mark");
    send(pair.0, b"1", 0);
    assert_eq!(look(&ep), [IN_ as u32]);
}

/// A send that leaves no room, and is not told so, costs nobody the edge of it.
#[test]
fn who_sleeps_is_told_of_room_that_was_taken_since() {
    let _turn = serial();
    let (pair, ep) = at_rest(IN_ | ET | libc::EPOLLOUT);
    let c = port(pair.1).conn;
    while c.has_space() {
        assert_eq!(send(pair.1, &[7; 4096], 0), 4096);
    }
    assert_eq!((look(&ep), calm(&ep)), (vec![], 1));
    let before = c.space_epoch();
    of(&ep).arm();
    assert_ne!(c.space_epoch(), before);
    while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
    assert_eq!(look(&ep), [4]);
}

#[test]
fn looks_go_into_all_of_them_in_turn() {
    let _turn = serial();
    let ((pair, ep), others) = (at_rest(IN_), [(); 5].map(|()| upgraded()));
    others.iter().for_each(|other| ep.add(other.1, IN_));
    for _ in 0..9 {
        ep.now();
    }
    assert_eq!(calm(&ep), 6);
    // Always ready, and more is not asked for.
    send(pair.0, b"1", 0);
    let mut h = of(&ep);
    h.hot().all = 0;
    let mut event = epoll_event { events: 0, u64: 0 };
    for _ in 0..12 {
        // SAFETY: room for one.
        assert_eq!(unsafe { h.look(&raw mut event, 1, &[]) }, 1);
    }
    assert!(h.hot().all != 0 && h.hot().left == 0);
}

#[test]
fn what_no_word_stands_for_goes_cold_soon() {
    let _turn = serial();
    let (_pair, ep) = at_rest(IN_);
    let spots = |h: &mut Held| h.hot().list.len();
    for _ in 0..=COLD_AFTER {
        of(&ep).arm();
    }
    assert_eq!(spots(&mut of(&ep)), 1, "its messages cost less while it is hot");
    let index = of(&ep).hot().list[0].index;
    of(&ep).uncover(index);
    of(&ep).arm();
    assert_eq!(spots(&mut of(&ep)), 0);
}

#[test]
fn what_was_removed_is_slept_for_no_more() {
    let _turn = serial();
    let (pair, ep) = at_rest(IN_);
    for _ in 0..9 {
        assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
        ep.add(pair.1, IN_);
        ep.now();
    }
    assert_eq!((look(&ep), calm(&ep)), (vec![], 1));
    assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
    of(&ep).arm();
    assert!(of(&ep).hot().list.is_empty());
}

#[test]
fn a_calm_connection_that_goes_back_to_tcp_is_the_kernels() {
    let _turn = serial();
    let (pair, ep) = at_rest(IN_);
    go_back_for_others(port(pair.0), reason::STDIO.code());
    assert_eq!(send(pair.0, b"1", 0), 1);
    // By Nagle's rule it may wait for the acknowledgement of a doorbell.
    assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, IN_ as u32)]));
}

#[test]
fn a_closed_connection_is_not_told_of() {
    let _turn = serial();
    let (pair, ep) = at_rest(IN_);
    send(pair.0, b"1", 0);
    close(pair.1);
    assert_eq!((look(&ep), ep.now()), (vec![], vec![]));
}
