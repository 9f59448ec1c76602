//! Level, edge and oneshot; signals, limits and kernels in the way of a wait.

use super::*;
use crate::tests::{Answer::*, Epoll, Pair, SCRIPTED, recv, send, serial, upgraded};

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
