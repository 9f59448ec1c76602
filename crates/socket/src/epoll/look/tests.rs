//! What a look at a set tells, and which connections it passes over.
#![allow(unsafe_code)]

use super::*;
use crate::fds::{Kind, go_back_for_others, kind};
use crate::tests::{Epoll, Pair, close, port, recv, send, serial, upgraded};
use crate::{endpoint, option};
use smc::{reason, table as connections};

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
    h.hot().all = h.ticks();
    let mut out = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: room for as many.
    let n = unsafe { h.look(out.as_mut_ptr(), 8, &[]) };
    out[..n].iter().map(|ev| ev.events).collect()
}

/// How many registrations the next look passes over if nothing happens.
fn calm(ep: &Epoll) -> usize {
    of(ep).hot().list.iter().filter(|spot| spot.is_calm()).count()
}

/// How many it looks into again.
fn restless(ep: &Epoll) -> usize {
    of(ep).hot().list.len() - calm(ep)
}

/// Into how many registrations looks go.
fn looked(ep: &Epoll) -> usize {
    of(ep).hot().looked
}

/// A set with one connection, which is calm: its two ends and the set.
fn at_rest(events: i32) -> (Pair, Epoll) {
    let (pair, ep) = (upgraded(), Epoll::new());
    ep.add(pair.1, events);
    for _ in 0..3 {
        ep.now();
    }
    assert_eq!((look(&ep), calm(&ep), looked(&ep)), (vec![], 1, 1));
    (pair, ep)
}

/// Connections in a set beside which all are announced.
const OTHERS: usize = 15;

/// The same beside so many others that looks go into none.
fn announced(events: i32) -> (Pair, Epoll, Vec<Pair>) {
    let ((pair, ep), others) = (at_rest(events), Vec::from([(); OTHERS].map(|()| upgraded())));
    others.iter().for_each(|other| ep.add(other.1, IN_));
    settle(&ep);
    assert_eq!(calm(&ep), OTHERS + 1);
    (pair, ep, others)
}

/// Looks that find nothing, until they go into none.
fn settle(ep: &Epoll) {
    let looks = (0..30).find(|_| look(ep).is_empty() && looked(ep) == 0);
    assert!(looks.is_some(), "{} are looked at", looked(ep));
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
                assert_eq!((look(ep), restless(ep)), (vec![], 1));
                while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
            },
            0x100,
        ),
        (
            "what was read before is to be told again",
            ET,
            |pair, ep| {
                send(pair.0, b"1", 0);
                assert_eq!((look(ep).len(), look(ep).len(), restless(ep)), (1, 0, 0));
                ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_ | ET);
            },
            1,
        ),
        (
            "an edge of space",
            ET | libc::EPOLLOUT,
            |pair, ep| {
                while send(pair.1, &[7; 1 << 16], libc::MSG_DONTWAIT) > 0 {}
                assert_eq!((look(ep), restless(ep)), (vec![], 1), "it waits for space");
                while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
            },
            4,
        ),
    ];
    for (what, events, happens, told) in all {
        for many in [false, true] {
            let is_space = events == libc::EPOLLWRNORM;
            let watched = IN_ | if is_space { 0 } else { libc::EPOLLRDHUP | events };
            let (pair, ep, _others) = match many {
                true => announced(watched),
                false => {
                    let (pair, ep) = at_rest(watched);
                    (pair, ep, vec![])
                }
            };
            if is_space {
                ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_ | events);
                ep.now();
            }
            happens(&pair, &ep);
            let found = look(&ep);
            assert_eq!(found, [told], "{what}, {many}");
        }
    }
}

/// News are told of by the connections that have them, and those alone are looked at.
#[test]
fn looks_go_into_what_is_announced() {
    let _turn = serial();
    let (pair, ep, others) = announced(IN_);
    for round in 0..20 {
        let other = &others[round % OTHERS];
        send(pair.0, b"1", 0);
        send(other.0, b"1", 0);
        assert_eq!((look(&ep).len(), looked(&ep)), (2, 2));
        assert_eq!((look(&ep).len(), looked(&ep)), (2, 2), "level-triggered");
        assert!(recv(pair.1, 9, 0).is_ok() && recv(other.1, 9, 0).is_ok());
        settle(&ep);
        // What comes between a sleep's arms and its look is found as well.
        assert!(of(&ep).first_due().is_none());
        of(&ep).arm();
        send(pair.0, b"1", 0);
        assert!(of(&ep).first_due().is_some() && of(&ep).has_news());
        assert_eq!(look(&ep), [IN_ as u32]);
        assert!(recv(pair.1, 9, 0).is_ok());
    }
}

/// A peer may set bits as it likes: they cost looks.
#[test]
fn bits_that_say_nothing_true_cost_a_look() {
    let _turn = serial();
    let (pair, ep, others) = announced(IN_);
    let (bits, _) = port(pair.1).conn.announced().unwrap();
    let row = of(&ep).hot().row;
    for slot in 0..smc::conn::announce::SLOTS as u32 + 7 {
        bits.set(smc::conn::announce::cover_of(9, row), slot);
    }
    settle(&ep);
    close(others[0].1);
    // Its name stands where it stood.
    (0..64).for_each(|slot| bits.set(smc::conn::announce::cover_of(9, row), slot));
    send(pair.0, b"1", 0);
    assert_eq!(look(&ep), [IN_ as u32]);
}

/// Rows are few. A set that gets none looks at all that it has; one that is closed leaves its row to
/// the next.
#[test]
fn a_set_gives_its_row_back() {
    let _turn = serial();
    let table = connections::get().unwrap();
    let rows: Vec<u32> =
        core::iter::repeat_with(|| table.take_row()).take_while(|row| *row != 0).collect();
    assert_eq!(rows.len(), smc::conn::announce::ROWS);
    let (pair, ep) = at_rest(IN_);
    let others = [(); OTHERS].map(|()| upgraded());
    others.iter().for_each(|other| ep.add(other.1, IN_));
    (0..30).for_each(|_| drop(ep.now()));
    assert_eq!((calm(&ep), looked(&ep), of(&ep).hot().row), (OTHERS + 1, OTHERS + 1, 0));
    send(pair.0, b"1", 0);
    assert_eq!(look(&ep), [IN_ as u32]);
    rows.into_iter().for_each(|row| table.free_row(row));
    let (_pair, first, _others) = announced(IN_);
    let row = of(&first).hot().row;
    drop(first);
    let (_pair, second, _others) = announced(IN_);
    assert_eq!(of(&second).hot().row, row);
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
    // The look at all has made each forget what was there; the five others were looked into since.
    let looked_into = h.hot().list.iter().filter(|spot| spot.calm.is_some()).count();
    assert!(h.hot().all != 0);
    assert_eq!(looked_into, 5);
}

#[test]
fn what_no_word_stands_for_goes_cold_soon() {
    let _turn = serial();
    let (_pair, ep) = at_rest(IN_);
    let spots = |h: &mut Held| h.hot().list.len();
    for _ in 0..=COLD_AFTER {
        let mut h = of(&ep);
        // However long this thread has had no processor.
        h.hot().list[0].since = h.ticks();
        h.arm();
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

/// Without a bell one byte on one connection stands for all that the wait covers: it is closed by
/// another thread before the one that sleeps has seen the byte.
#[test]
fn a_doorbell_that_was_closed_with_its_connection_is_asked_for_anew() {
    let _turn = serial();
    let ep = Epoll::new();
    // Which end is the server is by chance, and so is the link group.
    let page = |pair: &Pair| port(pair.1).conn.peer_waits();
    let mut pairs = Vec::new();
    let (one, other) = loop {
        let pair = upgraded();
        match pairs.iter().position(|known| page(known) == page(&pair)) {
            Some(at) => break (pairs.remove(at), pair),
            None => pairs.push(pair),
        }
        assert!(pairs.len() < 100, "no two of one group");
    };
    [one.1, other.1].into_iter().for_each(|fd| ep.add(fd, IN_));
    for _ in 0..3 {
        ep.now();
    }
    let bells = |pair: &Pair| sys::ioctl_int(pair.1, libc::FIONREAD).unwrap();
    let Kind::Epoll(index) = kind(ep.0) else { panic!("no set") };
    let s = set(index).unwrap();
    s.sleepers.enter();
    // Who was armed by itself before, as every connection is at its beginning, is rung for that first.
    let stands_for_both = (0..10).any(|_| {
        of(&ep).disarm();
        of(&ep).arm();
        of(&ep).ears().close(ep.0, s.wait.load(Relaxed));
        let before = [&one, &other].map(bells);
        assert_eq!((send(one.0, b"1", 0), send(other.0, b"1", 0)), (1, 1));
        let rang = [&one, &other].map(bells) != before.map(|n| n + 1);
        assert_eq!(recv(other.1, 1, 0), Ok(b"1".to_vec()));
        assert_eq!(recv(one.1, 1, 0), Ok(b"1".to_vec()));
        rang && bells(&one) == before[0] + 1
    });
    assert!(stands_for_both);
    assert_eq!(close(one.1), 0);
    let mut out = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: room for as many.
    let mut told = || unsafe { sys::epoll_pwait(ep.0, out.as_mut_ptr(), 8, 0, core::ptr::null()) };
    while told() > 0 {}
    assert_eq!(send(other.0, b"1", 0), 1);
    assert_eq!(told(), 1);
    s.sleepers.leave();
    of(&ep).disarm();
}
