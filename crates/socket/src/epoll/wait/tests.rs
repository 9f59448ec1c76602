//! Level, edge and oneshot; signals, limits and kernels in the way of a wait.

use super::*;
use crate::tests::{
    Answer::*, Epoll, Pair, SCRIPTED, close, connected, port, recv, send, serial, upgrade, upgraded,
};
use core::sync::atomic::AtomicI32;

const IN: i32 = libc::EPOLLIN;

#[test]
fn level_is_told_until_it_is_read() {
    let _turn = serial();
    let (Pair(a, b), ep) = (&upgraded(), Epoll::new());
    ep.add(*b, IN);
    assert_eq!(ep.now(), []);
    send(*a, b"12", 0);
    assert_eq!(ep.now(), [(*b, IN as u32)]);
    assert_eq!(recv(*b, 1, 0), Ok(b"1".to_vec()));
    assert_eq!(ep.now(), [(*b, IN as u32)]);
    assert_eq!(recv(*b, 1, 0), Ok(b"2".to_vec()));
    assert_eq!(ep.now(), []);
}

#[test]
fn an_edge_is_told_once_for_each_arrival() {
    let _turn = serial();
    let (Pair(a, b), ep) = (&upgraded(), Epoll::new());
    ep.add(*b, IN | libc::EPOLLET);
    ep.now();
    send(*a, b"1", 0);
    assert_eq!(ep.now(), [(*b, IN as u32)]);
    assert_eq!(ep.now(), []);
    send(*a, b"2", 0);
    assert_eq!(ep.now(), [(*b, IN as u32)]);
    assert_eq!(ep.now(), []);
}

#[test]
fn oneshot_is_off_until_it_is_asked_for_again() {
    let _turn = serial();
    let (Pair(a, b), ep) = (&upgraded(), Epoll::new());
    ep.add(*b, IN | libc::EPOLLONESHOT);
    send(*a, b"1", 0);
    assert_eq!(ep.now(), [(*b, IN as u32)]);
    send(*a, b"2", 0);
    assert_eq!(ep.now(), []);
    assert_eq!(ep.control(libc::EPOLL_CTL_MOD, *b, IN | libc::EPOLLONESHOT), 0);
    assert_eq!(ep.now(), [(*b, IN as u32)]);
}

#[test]
fn who_removes_and_adds_all_the_time_is_spared_the_kernel_and_told_the_same() {
    let _turn = serial();
    let (Pair(a, b), ep) = (&upgraded(), Epoll::new());
    for round in 0..10 {
        ep.add(*b, IN);
        send(*a, b"1", 0);
        assert_eq!(ep.now(), [(*b, IN as u32)], "round {round}");
        assert_eq!(recv(*b, 1, 0), Ok(b"1".to_vec()));
        assert_eq!(ep.control(libc::EPOLL_CTL_DEL, *b, 0), 0);
        assert_eq!(ep.control(libc::EPOLL_CTL_DEL, *b, 0), -(libc::ENOENT as isize));
        assert_eq!(ep.control(libc::EPOLL_CTL_MOD, *b, IN), -(libc::ENOENT as isize));
        send(*a, b"2", 0);
        assert_eq!(ep.now(), [], "round {round}");
        assert_eq!(recv(*b, 1, 0), Ok(b"2".to_vec()));
    }
}

#[test]
fn a_signal_and_a_limit_end_a_sleep() {
    let _turn = serial();
    let (Pair(_a, b), ep) = (&upgraded(), Epoll::new());
    ep.add(*b, IN);
    SCRIPTED.script(ep.0, &[Is(-(libc::EINTR as isize))]);
    assert_eq!(ep.wait(None), Err(libc::EINTR));
    SCRIPTED.script(ep.0, &[Passes(3_600_000_000_000)]);
    assert_eq!(ep.wait(Some(3_600_000_000_000)), Ok(vec![]));
    assert_eq!(SCRIPTED.left(ep.0), 0);
}

#[test]
fn a_kernel_without_nanoseconds_is_asked_for_milliseconds() {
    let _turn = serial();
    let (Pair(_a, b), ep) = (&upgraded(), Epoll::new());
    ep.add(*b, IN);
    SCRIPTED.old.store(true, SeqCst);
    let before = SCRIPTED.pwaits.load(SeqCst);
    SCRIPTED.script(ep.0, &[Passes(1_500_000)]);
    assert_eq!(ep.wait(Some(1_500_000)), Ok(vec![]));
    assert_eq!((SCRIPTED.pwaits.load(SeqCst), *SCRIPTED.last_ms.lock().unwrap()), (before + 1, 2));
}

/// Another thread closes the set, and opens one that gets its number and its place: an event of that one
/// is not for who waits on the first.
#[test]
fn a_wait_on_a_closed_set_takes_nothing_of_the_next() {
    static NUMBERS: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];
    fn replace() {
        let [set, from, to] = [0, 1, 2].map(|at: usize| NUMBERS[at].load(SeqCst));
        close(set);
        let next = Epoll::new();
        assert_eq!(next.0, set);
        next.add(to, IN | libc::EPOLLET);
        assert_eq!(send(from, b"1", 0), 1);
        core::mem::forget(next);
    }
    let _turn = serial();
    let (pair, other, ep) = (upgraded(), upgraded(), Epoll::new());
    ep.add(other.1, IN);
    for (at, number) in [ep.0, pair.0, pair.1].into_iter().enumerate() {
        NUMBERS[at].store(number, SeqCst);
    }
    let place = |ep: &Epoll| match fds::kind(ep.0) {
        Kind::Epoll(at) => at,
        _ => panic!("no set"),
    };
    let before = place(&ep);
    SCRIPTED.script(ep.0, &[Does(replace)]);
    assert_eq!(ep.wait(None), Err(libc::EBADF));
    assert_eq!((place(&ep), SCRIPTED.left(ep.0)), (before, 0));
    assert_eq!(ep.now(), [(pair.1, IN as u32)]);
}

/// Payload of before the switch that nobody reads lies in front of all doorbells: after some of them the
/// peer is asked for no more, and an edge-triggered set looks by itself.
#[test]
fn room_is_told_beside_payload_that_is_left_on_tcp() {
    let _turn = serial();
    let (pair, ep) = (connected(), Epoll::new());
    // Who reads stays so much behind.
    assert_eq!(send(pair.0, &[b'x'; 20], 0), 20);
    upgrade(&pair);
    ep.add(pair.1, libc::EPOLLOUT | libc::EPOLLET);
    ep.now();
    for round in 0..12 {
        while send(pair.1, &[7; 4096], libc::MSG_DONTWAIT) > 0 {}
        assert_eq!(ep.now(), [], "round {round}");
        while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
        assert_eq!(ep.now(), [(pair.1, libc::EPOLLOUT as u32)], "round {round}");
    }
    assert!(port(pair.1).conn.is_muffled());
}
