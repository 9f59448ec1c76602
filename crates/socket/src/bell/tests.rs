//! Bells over real sockets: who is woken by one, and what is not told twice.
#![allow(unsafe_code)]

use super::*;
use crate::poll;
use crate::tests::{Epoll, Pair, SCRIPTED, close, port, recv, send, serial, upgraded};
use std::thread;
use std::time::Duration;

/// A thread reads one byte after the other, each of which is sent when it is asleep. Some must
/// be rung for without a byte on the connection.
fn is_rung_by_its_bell(pair: &Pair, read: impl Fn() -> Vec<u8> + Sync) {
    const MOST: usize = 400;
    let doorbells = &port(pair.0).conn.tx.counts.doorbells;
    let unread = || sys::ioctl_int(pair.1, libc::FIONREAD).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| while read() != b"e" {});
        let (mut by_bell, mut sent) = (0, 0);
        while by_bell < 3 && sent < MOST {
            sent += 1;
            thread::sleep(Duration::from_millis(3));
            let before = (unread(), doorbells.load(Relaxed));
            assert_eq!(send(pair.0, b"m", 0), 1);
            thread::sleep(Duration::from_millis(3));
            by_bell += u32::from(unread() == before.0 && doorbells.load(Relaxed) > before.1);
        }
        assert_eq!(send(pair.0, b"e", 0), 1);
        assert_eq!(by_bell, 3, "of {sent}");
    });
}

#[test]
fn a_receive_that_blocks_is_woken_by_a_bell() {
    let _turn = serial();
    SCRIPTED.restarts.store(true, SeqCst);
    let pair = upgraded();
    is_rung_by_its_bell(&pair, || recv(pair.1, 1, 0).unwrap());
}

#[test]
fn poll_is_woken_by_a_bell() {
    let _turn = serial();
    let pair = upgraded();
    is_rung_by_its_bell(&pair, || {
        let mut list = [pollfd { fd: pair.1, events: libc::POLLIN, revents: 0 }];
        // SAFETY: a live list.
        let n = unsafe {
            poll::poll(list.as_mut_ptr(), 1, None, core::ptr::null(), || panic!("it is upgraded"))
        };
        assert_eq!((n, list[0].revents), (1, libc::POLLIN));
        recv(pair.1, 1, 0).unwrap()
    });
}

/// One message after the other is told of by an epoll set.
fn read_by_epoll(ep: &Epoll, pair: &Pair) -> Vec<u8> {
    assert_eq!(ep.wait(None), Ok(vec![(pair.1, libc::EPOLLIN as u32)]));
    recv(pair.1, 1, 0).unwrap()
}

#[test]
fn an_epoll_set_is_woken_by_a_bell() {
    let _turn = serial();
    let (pair, ep) = (upgraded(), Epoll::new());
    ep.add(pair.1, libc::EPOLLIN);
    is_rung_by_its_bell(&pair, || read_by_epoll(&ep, &pair));
}

#[test]
fn a_set_of_another_user_is_woken_by_a_bell_that_it_has_made() {
    let _turn = serial();
    let pair = upgraded();
    // The first of this user, by a pipe, which the peer still has when the second sleeps with the
    // same wait number.
    let ep = Epoll::new();
    ep.add(pair.1, libc::EPOLLIN);
    is_rung_by_its_bell(&pair, || read_by_epoll(&ep, &pair));
    drop(ep);
    let ep = Epoll::new();
    ep.add(pair.1, libc::EPOLLIN);
    let own = sys::unix_pair().unwrap();
    let is_possible = smc::channel::refuse_descriptors(own[0]);
    own.into_iter().for_each(|fd| _ = sys::close(fd));
    // SAFETY: no arguments.
    if !is_possible || unsafe { libc::geteuid() } != 0 {
        println!(
            "skipped: only root can be two users, and Linux before 6.16 has no bells between them"
        );
        return;
    }
    let bells = || smc::hidden::all().filter(|&fd| sys::is_connected_unix_stream(fd)).count();
    let before = bells();
    is_rung_by_its_bell(&pair, || {
        const SOMEBODY: u32 = 65534;
        // SAFETY: integers; of this thread alone, not of the process as through libc.
        unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, SOMEBODY, u32::MAX) };
        read_by_epoll(&ep, &pair)
    });
    assert_eq!(bells(), before + 2);
}

/// A wait number stands for one sleep: two threads on a connection share the doorbells of its
/// stream.
#[test]
fn two_that_wait_for_one_connection_are_both_woken() {
    let _turn = serial();
    SCRIPTED.restarts.store(true, SeqCst);
    let pair = upgraded();
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut got = 0;
                while recv(pair.1, 1, 0).unwrap() != b"e" {
                    got += 1;
                }
                got
            })
        });
        for at in 0..200 {
            if at % 20 == 0 {
                thread::sleep(Duration::from_millis(3));
            }
            assert_eq!(send(pair.0, b"m", 0), 1);
        }
        thread::sleep(Duration::from_millis(3));
        assert_eq!(send(pair.0, b"ee", 0), 2);
        assert_eq!(readers.map(|reader| reader.join().unwrap()).iter().sum::<i32>(), 200);
    });
}

/// A connection that the kernel watched and that another process still has goes on telling this
/// thread of its end.
#[test]
fn the_end_of_an_earlier_connection_is_not_that_of_the_next() {
    const OFTEN: usize = 20;
    let _turn = serial();
    SCRIPTED.restarts.store(true, SeqCst);
    let (earlier, next) = (upgraded(), upgraded());
    let pause = || thread::sleep(Duration::from_millis(2));
    let talk = |pair: &Pair, at: &(dyn Fn(usize) + Sync)| {
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..OFTEN {
                    pause();
                    at(n);
                    assert_eq!(send(pair.0, b"m", 0), 1);
                }
            });
            // Always the same thread, which has slept on both.
            for _ in 0..OFTEN {
                assert_eq!(recv(pair.1, 1, 0), Ok(b"m".to_vec()));
            }
        });
    };
    talk(&earlier, &|_| ());
    let elsewhere = sys::fcntl(earlier.1, libc::F_DUPFD_CLOEXEC, 0) as i32;
    close(earlier.1);
    talk(&next, &|n| {
        if n == OFTEN / 2 {
            close(earlier.0);
            pause();
        }
    });
    assert!(!port(next.1).conn.peer_died());
    close(next.0);
    assert_eq!(recv(next.1, 1, 0), Ok(vec![]));
    sys::close(elsewhere);
    core::mem::forget(earlier);
}
