//! Registrations that change while others do: threads, closes, handlers, a kernel that refuses.
#![allow(unsafe_code)]

use super::*;
use crate::tests::{Epoll, Pair, connected, port, recv, send, serial, upgrade, upgraded};
use std::thread;
use std::time::{Duration, Instant};

fn known(fd: i32) -> usize {
    of_conn(port(fd).index).count()
}

/// Whoever comes first, the notes are the kernel's.
#[test]
fn threads_may_add_and_remove_the_same() {
    let _turn = serial();
    for pair in [connected(), upgraded()] {
        let eps = [Epoll::new(), Epoll::new()];
        let op = |ep: &Epoll, op| ep.control(op, pair.1, libc::EPOLLIN);
        thread::scope(|scope| {
            for ep in &eps {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..2000 {
                            let added = op(ep, libc::EPOLL_CTL_ADD);
                            assert!(added == 0 || added == -(libc::EEXIST as isize), "{added}");
                            let removed = op(ep, libc::EPOLL_CTL_DEL);
                            assert!(
                                removed == 0 || removed == -(libc::ENOENT as isize),
                                "{removed}"
                            );
                        }
                    });
                }
            }
        });
        // The kernel refuses what it knows already.
        let none = epoll_event { events: 0, u64: 0 };
        let kernel_has =
            |ep: &&Epoll| match smc::sys::epoll_ctl(ep.0, libc::EPOLL_CTL_ADD, pair.1, &none) {
                0 => smc::sys::epoll_ctl(ep.0, libc::EPOLL_CTL_DEL, pair.1, &none) != 0,
                _ => true,
            };
        assert_eq!(known(pair.1), eps.iter().filter(kernel_has).count());
        eps.iter().for_each(|ep| _ = op(ep, libc::EPOLL_CTL_DEL));
        send(pair.0, b"1", 0);
        assert!(eps.iter().all(|ep| ep.now().is_empty()));
        eps.iter().for_each(|ep| ep.add(pair.1, libc::EPOLLIN));
        assert_eq!(known(pair.1), 2);
        for ep in &eps {
            assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
        }
        assert_eq!(recv(pair.1, 9, 0), Ok(b"1".to_vec()));
    }
}

/// Nor does who changes one lose sight of it while the connection's list changes under the search.
#[test]
fn a_change_finds_what_stays_beside_what_comes_and_goes() {
    let _turn = serial();
    for pair in [connected(), upgraded()] {
        let (stays, other) = (Epoll::new(), Epoll::new());
        stays.add(pair.1, libc::EPOLLIN);
        let asked = core::cell::Cell::new(0);
        thread::scope(|scope| {
            let goes = scope.spawn(|| {
                for _ in 0..5000 {
                    other.add(pair.1, libc::EPOLLIN);
                    assert_eq!(other.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
                }
            });
            loop {
                let ask = || asked.set(asked.get() + 1);
                let r = control_beside(&stays, libc::EPOLL_CTL_MOD, pair.1, ask, || {});
                assert_eq!(r, 0);
                // Behind the first change: a busy machine may let the other thread end before it.
                if goes.is_finished() {
                    break;
                }
            }
        });
        let is_hooked = port(pair.1).conn.receives_on_ring();
        assert_eq!(
            asked.get() == 0,
            is_hooked,
            "what is hooked is no longer the kernel's to change"
        );
        send(pair.0, b"1", 0);
        assert_eq!(stays.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
        assert_eq!(recv(pair.1, 9, 0), Ok(b"1".to_vec()));
        assert_eq!(known(pair.1), 1);
    }
}

#[test]
fn what_the_kernel_refuses_is_not_noted() {
    let _turn = serial();
    let (pair, ep) = (connected(), Epoll::new());
    ep.add(pair.1, libc::EPOLLIN);
    assert_eq!(ep.control(libc::EPOLL_CTL_ADD, pair.1, libc::EPOLLOUT), -(libc::EEXIST as isize));
    assert_eq!(known(pair.1), 1);
    send(pair.0, b"1", 0);
    assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
    assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
    assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), -(libc::ENOENT as isize));
    assert_eq!(known(pair.1), 0);
}

/// epoll_ctl with something that another thread does while the kernel is asked, or has
/// answered.
fn control_beside(ep: &Epoll, op: i32, fd: i32, before: impl Fn(), after: impl Fn()) -> isize {
    let own = epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
    let call = |other: Option<&mut epoll_event>| {
        before();
        let r = smc::sys::epoll_ctl(ep.0, op, fd, other.map_or(&own, |ev| ev));
        after();
        r
    };
    // SAFETY: a live event.
    unsafe { control(ep.0, op, fd, &raw const own, call) }
}

#[test]
fn a_close_while_the_kernel_is_asked_leaves_no_note() {
    let _turn = serial();
    for early in [true, false] {
        let (pair, ep) = (upgraded(), Epoll::new());
        let index = port(pair.1).index;
        let close_it = |now: bool| move || _ = now.then(|| crate::tests::close(pair.1));
        let r = control_beside(&ep, libc::EPOLL_CTL_ADD, pair.1, close_it(early), close_it(!early));
        assert_eq!(r, if early { -(libc::EBADF as isize) } else { 0 });
        assert_eq!(of_conn(index).count(), 0);
        // What comes to have that number, and that place, is not known.
        let next = upgraded();
        ep.add(next.1, libc::EPOLLIN);
        send(next.0, b"1", 0);
        assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(next.1, libc::EPOLLIN as u32)]));
    }
}

/// Another connection has come to the number, and is in the set under it.
#[test]
fn what_the_kernel_takes_in_place_of_what_was_meant_stays_on_tcp() {
    let _turn = serial();
    let (pair, other, ep) = (upgraded(), upgraded(), Epoll::new());
    // SAFETY: integers only.
    let put = || unsafe { libc::dup2(other.1, pair.1) } as isize;
    let over = || _ = crate::descriptors::dup_over(other.1, pair.1, put);
    assert_eq!(control_beside(&ep, libc::EPOLL_CTL_ADD, pair.1, over, || ()), 0);
    assert_eq!(port(other.1).conn.identity.reason.load(Relaxed), reason::UNSEEN.code());
    send(other.0, b"1", 0);
    assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
    // The same of a number that is not known yet when that is found.
    let (pair, next) = (upgraded(), connected());
    let index = port(pair.1).index;
    let unknown = || {
        crate::descriptors::close(pair.1, || smc::sys::close(pair.1));
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::dup2(next.1, pair.1) }, pair.1);
    };
    assert_eq!(control_beside(&ep, libc::EPOLL_CTL_ADD, pair.1, unknown, || ()), 0);
    assert_eq!(of_conn(index).count(), 0);
    fds::mark(pair.1, Kind::Tcp);
    assert_eq!(port(pair.1).conn.identity.reason.load(Relaxed), reason::UNSEEN.code());
}

/// The change hooks what the kernel then has.
#[test]
fn who_leaves_tcp_while_it_is_added_or_removed_stays_in_shared_memory() {
    let _turn = serial();
    let refused = -(libc::EEXIST as isize);
    for (had, op, answer) in [
        (false, libc::EPOLL_CTL_ADD, 0),
        (true, libc::EPOLL_CTL_ADD, refused),
        (true, libc::EPOLL_CTL_DEL, 0),
    ] {
        let (pair, ep) = (connected(), Epoll::new());
        if had {
            ep.add(pair.1, libc::EPOLLIN);
        }
        let beside = || thread::scope(|scope| _ = scope.spawn(|| upgrade(&pair)));
        assert_eq!(control_beside(&ep, op, pair.1, beside, || ()), answer);
        let (has, c) = (op == libc::EPOLL_CTL_ADD, port(pair.1).conn);
        assert_eq!(known(pair.1), usize::from(has));
        send(pair.0, b"1", 0);
        if has {
            assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
        }
        assert!(ep.now().len() == usize::from(has) && c.receives_on_ring());
        assert_ne!(c.identity.reason.load(Relaxed), reason::UNSEEN.code());
    }
}

/// What the kernel refuses to remove, because others have removed it unseen, cannot be hooked.
#[test]
fn who_leaves_tcp_beside_a_change_that_the_kernel_refuses_goes_back() {
    let _turn = serial();
    let (pair, ep) = (connected(), Epoll::new());
    ep.add(pair.1, libc::EPOLLIN);
    let none = epoll_event { events: 0, u64: 0 };
    assert_eq!(smc::sys::epoll_ctl(ep.0, libc::EPOLL_CTL_DEL, pair.1, &none), 0);
    let beside = || thread::scope(|scope| _ = scope.spawn(|| upgrade(&pair)));
    let removed = control_beside(&ep, libc::EPOLL_CTL_DEL, pair.1, beside, || ());
    assert_eq!(removed, -(libc::ENOENT as isize));
    assert_eq!(port(pair.1).conn.identity.reason.load(Relaxed), reason::UNSEEN.code());
}

/// A handler that has interrupted the change may wait for the connection itself.
#[test]
fn who_leaves_tcp_in_the_thread_of_the_change_goes_back() {
    let _turn = serial();
    for op in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_DEL] {
        let (pair, ep) = (connected(), Epoll::new());
        if op == libc::EPOLL_CTL_DEL {
            ep.add(pair.1, libc::EPOLLIN);
        }
        assert_eq!(control_beside(&ep, op, pair.1, || switch_once(&pair), || ()), 0);
        assert_eq!(port(pair.1).conn.identity.reason.load(Relaxed), reason::UNSEEN.code());
    }
}

/// Its upgrade begins, and may not last.
fn switch_once(pair: &Pair) {
    let end = Instant::now() + Duration::from_secs(20);
    while port(pair.1).conn.identity.reason.load(Relaxed) != reason::UNSEEN.code() {
        assert!(Instant::now() < end, "no upgrade");
        for (from, to) in [(pair.0, pair.1), (pair.1, pair.0)] {
            assert_eq!(send(from, b"x", 0), 1);
            assert_eq!(recv(to, 1, 0), Ok(b"x".to_vec()));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A sleeper is woken by another registration if that of the change is being removed.
#[test]
fn a_kick_needs_a_registration_that_the_kernel_has() {
    let _turn = serial();
    let (gone, stays, ep) = (upgraded(), upgraded(), Epoll::new());
    [&gone, &stays].iter().for_each(|pair| ep.add(pair.1, libc::EPOLLIN));
    ep.now();
    let Kind::Epoll(index) = fds::kind(ep.0) else { panic!("no set") };
    let (i, _) = of_conn(port(gone.1).index).next().unwrap();
    let none = epoll_event { events: 0, u64: 0 };
    let mut out = none;
    // SAFETY: room for one event.
    let mut told = || unsafe { smc::sys::epoll_pwait(ep.0, &raw mut out, 1, 0, core::ptr::null()) };
    while told() > 0 {}
    assert_eq!(smc::sys::epoll_ctl(ep.0, libc::EPOLL_CTL_DEL, gone.1, &none), 0);
    held(index, set(index).unwrap()).unwrap().kick(i);
    assert_eq!(told(), 1);
}

/// A handler that closes a connection, or adds one, interrupts a look at a set that another
/// thread waits for with the tables.
#[test]
fn a_handler_in_a_look_does_not_wait_for_the_tables() {
    use core::sync::atomic::AtomicU32;
    static TOOK: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: i32) {
        TOOK.store(1 + u32::from(tables().is_some()), SeqCst);
    }
    let _turn = serial();
    let ep = Epoll::new();
    let Kind::Epoll(index) = fds::kind(ep.0) else { panic!("no set") };
    let handler: extern "C" fn(i32) = handler;
    let raise = || {
        // SAFETY: a handler that touches atomics and a lock.
        unsafe {
            libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t);
            libc::raise(libc::SIGUSR2);
        }
        TOOK.swap(0, SeqCst)
    };
    assert_eq!(raise(), 2, "nothing is interrupted");
    let looking = held(index, set(index).unwrap());
    assert_eq!(raise(), 1);
    drop(looking);
    assert_eq!(raise(), 2);
}

/// A handler in an epoll_ctl changes other sets, but waits for nobody who may wait for that
/// one.
#[test]
fn a_handler_in_a_change_waits_for_no_other() {
    use core::sync::atomic::{AtomicI32, AtomicU32};
    static OTHER: AtomicI32 = AtomicI32::new(-1);
    static TOOK: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: i32) {
        let Kind::Epoll(index) = fds::kind(OTHER.load(SeqCst)) else { return };
        TOOK.store(1 + u32::from(turn(index, set(index).unwrap()).is_some()), SeqCst);
    }
    let _turn = serial();
    let (own, other) = (Epoll::new(), Epoll::new());
    let [of_own, of_other] = [&own, &other].map(|ep| {
        let Kind::Epoll(index) = fds::kind(ep.0) else { panic!("no set") };
        (index, set(index).unwrap())
    });
    let handler: extern "C" fn(i32) = handler;
    let raise = |ep: &Epoll| {
        OTHER.store(ep.0, SeqCst);
        // SAFETY: a handler that touches atomics and locks.
        unsafe {
            libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t);
            libc::raise(libc::SIGUSR2);
        }
        TOOK.swap(0, SeqCst)
    };
    let change = turn(of_own.0, of_own.1).unwrap();
    assert_eq!((raise(&own), raise(&other)), (1, 2));
    thread::scope(|scope| {
        let (has, may_go) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        scope.spawn(move || {
            let _change = turn(of_other.0, of_other.1).unwrap();
            has.0.send(()).unwrap();
            may_go.1.recv().unwrap();
        });
        has.1.recv().unwrap();
        assert_eq!(raise(&other), 1, "another thread has it");
        may_go.0.send(()).unwrap();
    });
    drop(change);
    assert_eq!(raise(&own), 2);
}
