//! Back to TCP in the middle of traffic: whoever reads the socket next, with our help or without,
//! sees every byte once and no doorbell.

mod common;

use common::traffic::{Side, Traffic};
use common::{bytes, pair, raw_recv, rings, serial, upgrade, while_looked_at};
use proptest::prelude::*;
use smc::reason;
use std::sync::atomic::Ordering::Relaxed;

common::over!(ism, verbs, checked_ism);

/// Both directions work, in small and in large.
fn exercise(t: &mut Traffic) {
    for n in [1, 3000, 100_000] {
        for i in [0, 1] {
            t.send(i, n);
        }
        t.settle();
    }
}

#[test]
fn with_nothing_under_way() {
    let _serial = serial();
    for close in [false, true] {
        for who in [0, 1] {
            let mut t = Traffic::new(rings());
            exercise(&mut t);
            assert!(t.revert(who, close));
            exercise(&mut t);
            assert!(t.revert(1 - who, close));
            exercise(&mut t);
        }
    }
}

#[test]
fn with_unread_bytes_both_ways() {
    let _serial = serial();
    for close in [false, true] {
        for (mine, theirs) in [(0, 10), (10, 0), (5000, 60_000), (65_472, 65_472)] {
            let mut t = Traffic::new(rings());
            t.send(0, theirs);
            t.send(1, mine);
            assert!(t.revert(0, close));
            exercise(&mut t);
        }
    }
}

/// The peer says more before it hears of the recall.
#[test]
fn new_bytes_do_not_overtake_those_taken_back() {
    let _serial = serial();
    for close in [false, true] {
        let mut t = Traffic::new(rings());
        t.send(1, 5000);
        t.recv(0, 1000);
        assert!(t.revert(0, close));
        t.send(1, 300);
        t.settle();
        exercise(&mut t);
    }
}

/// The peer asks how much of what it sent was read before it hears of the recall.
#[test]
fn looking_at_the_queue_does_not_disturb_the_recall() {
    let _serial = serial();
    for close in [false, true] {
        let mut t = Traffic::new(rings());
        t.send(1, 5000);
        t.recv(0, 1000);
        assert!(t.revert(0, close));
        let Side::Ours(peer) = &t.sides[1] else { panic!() };
        peer.conn.unsent();
        t.settle();
    }
}

/// Bytes from before the upgrade are still in the kernel, with doorbells behind them. Either all is
/// put in order, or the connection is reset; never wrong bytes.
#[test]
fn with_bytes_from_before_the_switch() {
    let _serial = serial();
    for on_ring in [0, 100] {
        let (a, b) = pair();
        let mut t = Traffic::new((a, b));
        t.send(1, 2000);
        let [Side::Ours(a), Side::Ours(b)] = &t.sides else { panic!() };
        upgrade(a, b);
        a.settle();
        b.settle();
        t.send(1, on_ring);
        t.recv(0, 500);
        if t.revert(0, false) {
            exercise(&mut t);
            continue;
        }
        assert_ne!(on_ring, 0, "without a doorbell the stream is in order");
        // What is still to be had is right, and then both ends are reset: an end of the stream would
        // pass for that of a whole one.
        for i in [0, 1] {
            let mut buf = [0; 4000];
            common::until("the reset", || match t.sides[i].recv(&mut buf) {
                Err(libc::ECONNRESET) => true,
                Ok(n) => {
                    assert_ne!(n, 0, "{}", t.describe());
                    assert!(t.queues[i].iter().take(n).eq(&buf[..n]), "{}", t.describe());
                    t.queues[i].drain(..n);
                    false
                }
                Err(_) => false,
            });
        }
    }
}

/// A thread is inside a receive, so the switch that the peer has made was not seen yet.
#[test]
fn while_a_thread_receives() {
    let _serial = serial();
    for n in [0, 1, 1000] {
        let (a, b) = pair();
        assert!(a.conn.enter_kernel_recv());
        upgrade(&a, &b);
        let mut t = Traffic::new((a, b));
        t.send(1, n);
        let reverted = t.revert(0, false);
        // The doorbell, or what was sent again, wakes that thread, or it is still there.
        let Side::Foreign(_, Some(a)) = &t.sides[0] else {
            assert!(!reverted);
            continue;
        };
        a.conn.leave_kernel_recv(a.fd, 0, false);
        exercise(&mut t);
    }
}

#[test]
fn before_the_peer_switches() {
    let _serial = serial();
    for foreign in [false, true] {
        let (a, b) = pair();
        // The sends of `b` stay on TCP, as with a thread inside one.
        assert!(b.conn.enter_kernel_send());
        for _ in 0..10 {
            a.step();
            b.step();
        }
        assert!(a.conn.sends_on_ring() && b.conn.is_committed() && !b.conn.sends_on_ring());
        let mut t = Traffic::new((a, b));
        t.send(0, 500);
        t.send(1, 500);
        t.recv(0, 100);
        if foreign {
            assert!(t.revert(0, false));
        } else {
            let Side::Ours(a) = &t.sides[0] else { panic!() };
            assert!(a.conn.go_back_or_break(a.fd, reason::URGENT.code(), false));
        }
        let Side::Ours(b) = &t.sides[1] else { panic!() };
        b.conn.leave_kernel_send();
        exercise(&mut t);
    }
}

/// As above, and a thread of the reverted end waits inside a receive while the peer switches in
/// vain.
#[test]
fn a_receive_spans_a_switch_in_vain() {
    let _serial = serial();
    let (a, b) = pair();
    assert!(b.conn.enter_kernel_send());
    for _ in 0..10 {
        a.step();
        b.step();
    }
    assert!(a.conn.go_back_or_break(a.fd, reason::URGENT.code(), false));
    assert!(a.conn.enter_kernel_recv());
    b.conn.leave_kernel_send();
    b.conn.try_switch_tx(b.fd);
    assert_eq!(b.send(b"payload"), Ok(7));
    let mut buf = [0; 100];
    let got = raw_recv(a.fd, &mut buf, 0).unwrap_or(0);
    assert_eq!(
        a.conn.leave_kernel_recv(a.fd, got, false),
        7,
        "all of it is payload: {}",
        a.describe()
    );
}

/// The peer makes no call: nobody looks at its end while the connection is given away.
#[test]
fn without_a_call_of_the_peer() {
    let _serial = serial();
    // With memory that stays the unread bytes need not be waited for.
    for (unread, why) in
        [(0, reason::PASSED_FD), (0, reason::INHERITED), (0, reason::STDIO), (3000, reason::STDIO)]
    {
        let mut t = Traffic::new(rings());
        exercise(&mut t);
        t.send(1, 4000);
        t.recv(0, 4000 - unread);
        let Side::Ours(a) = &t.sides[0] else { panic!() };
        assert!(a.conn.go_back_or_break(a.fd, why.code(), true), "{unread} {why:?}");
        assert!(a.conn.receives_are_back() && !a.conn.is_broken(), "{}", a.describe());
        // Only now it does, and finds out by itself.
        t.send(1, 500);
        let Side::Ours(b) = &t.sides[1] else { panic!() };
        assert!(b.conn.sends_go_back(), "{}", b.describe());
        exercise(&mut t);
    }
}

/// What has gone back stays back.
#[test]
fn no_return_to_the_ring() {
    let _serial = serial();
    let (a, b) = pair();
    assert!(a.conn.enter_kernel_send());
    for _ in 0..10 {
        a.step();
        b.step();
    }
    a.conn.leave_kernel_send();
    assert!(a.conn.is_committed() && !a.conn.sends_on_ring());
    assert!(while_looked_at(Some(&b), || a.conn.go_back_or_break(
        a.fd,
        reason::PASSED_FD.code(),
        true
    )));
    assert!(!a.conn.try_switch_tx(a.fd), "reverted, and now {}", a.describe());
}

/// Whoever passed the descriptor on closes its own; the peer must not take that for the end of the
/// connection.
#[test]
fn a_close_here_is_no_end_there() {
    let _serial = serial();
    let mut t = Traffic::new(rings());
    exercise(&mut t);
    assert!(t.revert(0, true));
    let Side::Ours(peer) = &t.sides[1] else { panic!() };
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    assert_eq!(peer.poll(all), libc::POLLOUT);
    assert!(!peer.conn.peer_gone());
    // Nobody reads: the kernel's buffers fill up, and then it is not writable.
    while peer.send(&[0; 1 << 16]).is_ok() {}
    assert_eq!(peer.poll(all), 0);
    smc::sys::setsockopt(t.sides[0].fd(), libc::SOL_SOCKET, libc::SO_LINGER, &[1i32, 0]);
    let nothing = std::fs::File::open("/dev/null").expect("/dev/null");
    t.sides[0] = Side::Foreign(nothing.into(), None);
    let Side::Ours(peer) = &t.sides[1] else { panic!() };
    assert_ne!(peer.poll(all) & libc::POLLERR, 0, "a real reset is one");
}

/// What was given back does not fit the kernel's buffers when its sender ends: it comes all the
/// same, and then the end.
#[test]
fn an_end_comes_behind_what_is_sent_again() {
    let _serial = serial();
    for closes in [false, true] {
        let mut t = Traffic::new(rings());
        let small = 4096i32;
        smc::sys::setsockopt(t.sides[1].fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &small);
        smc::sys::setsockopt(t.sides[0].fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &small);
        exercise(&mut t);
        let sent = bytes(1, 0, 60_000);
        let Side::Ours(b) = &t.sides[1] else { panic!() };
        assert_eq!(b.send(&sent), Ok(sent.len()));
        let Side::Ours(a) = &t.sides[0] else { panic!() };
        // Its memory stays, so it need not wait for the peer.
        assert!(a.conn.go_back_or_break(a.fd, reason::STDIO.code(), true), "{}", a.describe());
        let [Side::Ours(a), Side::Ours(b)] = t.sides else { panic!() };
        std::thread::scope(|s| {
            s.spawn(move || {
                if closes {
                    b.close();
                } else {
                    b.shutdown(libc::SHUT_WR);
                    // Until the other end is gone.
                    raw_recv(b.fd, &mut [0], 0).ok();
                }
            });
            let (mut got, mut buf) = (Vec::new(), [0; 1000]);
            loop {
                match raw_recv(a.fd, &mut buf, 0) {
                    Ok(0) => break,
                    Ok(n) => got.extend_from_slice(&buf[..n]),
                    Err(libc::EAGAIN) => std::thread::sleep(std::time::Duration::from_millis(1)),
                    Err(e) => panic!("{e} after {} bytes", got.len()),
                }
            }
            assert!(got == sent, "{} of {} bytes came, closed: {closes}", got.len(), sent.len());
            drop(a);
        });
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize, usize),
    Recv(usize, usize),
    Revert(usize, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let size = || prop_oneof![1..100usize, 1..20_000usize, 1..70_000usize];
    prop_oneof![
        8 => (0..2usize, size()).prop_map(|(i, n)| Op::Send(i, n)),
        8 => (0..2usize, size()).prop_map(|(i, n)| Op::Recv(i, n)),
        1 => (0..2usize, any::<bool>()).prop_map(|(i, close)| Op::Revert(i, close)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn at_any_time(before in 0..3000usize, ops in prop::collection::vec(op(), 1..50)) {
        let _serial = serial();
        let (a, b) = pair();
        let mut t = Traffic::new((a, b));
        t.send(0, before);
        t.recv(1, 5000);
        let [Side::Ours(a), Side::Ours(b)] = &t.sides else { panic!() };
        upgrade(a, b);
        for op in ops {
            match op {
                Op::Send(i, n) => t.send(i, n),
                Op::Recv(i, n) => { t.recv(i, n); }
                Op::Revert(i, close) => if !t.revert(i, close) { return Ok(()) },
            }
        }
        t.settle();
    }
}

/// The peer has closed with bytes of its unread in our ring, and cannot send them again: whoever
/// reads the descriptor next gets a reset. That is no fault of the peer's.
#[test]
fn what_nobody_can_put_in_order_is_no_violation() {
    let _serial = serial();
    let violations = || smc::table::get().map_or(0, |t| t.stats.violations.load(Relaxed));
    let before = violations();
    let (a, b) = rings();
    assert_eq!(b.send(&bytes(1, 0, 3000)), Ok(3000));
    b.close();
    assert!(!a.conn.go_back_or_break(a.fd, reason::PASSED_FD.code(), true), "{}", a.describe());
    assert!(a.conn.is_broken());
    assert_eq!((a.reason(), violations()), (reason::PASSED_FD, before));
}
