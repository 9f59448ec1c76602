//! Receive buffers go back to their pool when both ends are done with them: all of them, and not
//! earlier.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::Ordering::*;

use common::{End, bytes, open_fds, rings, serial, until};
use smc::group;

common::over!(ism, verbs);

#[test]
fn buffers_come_back() {
    let _serial = serial();
    drop(rings());
    let (fds, census) = (open_fds(), group::census());
    let first = {
        let (server, client) = rings();
        [server.conn.identity.my_token.load(Relaxed), client.conn.identity.my_token.load(Relaxed)]
    };
    for round in 0..50 {
        let (server, client) = rings();
        if round % 2 == 0 {
            // With unread bytes, so that the close is an abort.
            assert_eq!(server.send(b"unread"), Ok(6));
        }
        let tokens = [
            server.conn.identity.my_token.load(Relaxed),
            client.conn.identity.my_token.load(Relaxed),
        ];
        let slots = tokens.map(dibs::loopback::slot_of);
        let firsts = first.map(dibs::loopback::slot_of);
        assert!(
            (0..2).all(|i| slots[i] <= firsts[i] + 1),
            "round {round}: {slots:?} after {firsts:?}"
        );
        if round % 3 == 0 { drop((client, server)) } else { drop((server, client)) }
    }
    assert_eq!((open_fds(), group::census()), (fds, census));
}

/// Many closes in which the other end never says that it is done, as when peers are killed.
#[test]
fn buffers_of_dead_peers_do_not_pile_up() {
    let _serial = serial();
    drop(rings());
    let groups = group::census().0;
    for _ in 0..300 {
        let (server, client) = rings();
        client.crash();
        until("the death is known", || {
            server.poll(libc::POLLIN);
            server.conn.is_dead()
        });
        server.close();
    }
    let (server, _client) = rings();
    assert!(dibs::loopback::slot_of(server.conn.identity.my_token.load(Relaxed)) < 80);
    assert!(group::census().0 <= groups + 2);
}

/// The first connection has ended at `one` only: `other` goes on writing to the buffer that it was
/// given. Nobody else must have that yet.
fn goes_on_writing(one: End, other: End) {
    one.close();
    let next = rings();
    other.close();
    for (from, to) in [(&next.0, &next.1), (&next.1, &next.0)] {
        let mut buf = [0; 100];
        assert_eq!(from.send(&bytes(1, 0, 100)), Ok(100));
        assert_eq!(to.recv(&mut buf, 0), Ok(100), "{} from {}", to.describe(), from.describe());
        assert!(buf[..] == bytes(1, 0, 100));
    }
}

const ALL: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;

/// After our own shutdown the kernel says the same of the connection as after the death of the
/// peer.
#[test]
fn a_shutdown_here_is_no_death_there() {
    let _serial = serial();
    for swap in [false, true] {
        let (server, client) = rings();
        let (one, other) = if swap { (client, server) } else { (server, client) };
        one.shutdown(libc::SHUT_RDWR);
        one.poll(ALL);
        goes_on_writing(one, other);
    }
}

/// So it does after the reset with which we answer a peer that breaks the protocol.
#[test]
fn a_broken_connection_keeps_its_buffer() {
    let _serial = serial();
    let (one, other) = rings();
    // SAFETY: an exposed buffer, which stays mapped; all atomics.
    unsafe { &*one.conn.my_header() }.prod.store(2, SeqCst);
    assert_eq!(one.recv(&mut [0; 9], 0), Err(libc::ECONNRESET));
    assert!(one.conn.is_broken());
    one.poll(ALL);
    goes_on_writing(one, other);
}

/// Bytes of rings that this process has touched and that are still there.
fn held() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let arenas = maps.split_inclusive("VmFlags").filter(|map| map.contains("shortwire-arena"));
    let size = |map: &str| {
        map.lines().find_map(|line| {
            line.strip_prefix("Rss:")?.trim().strip_suffix("kB")?.trim().parse().ok()
        })
    };
    arenas.filter_map(size).map(|kib: u64| kib << 10).sum()
}

fn received(end: &End, n: usize) -> Vec<u8> {
    let mut buf = vec![0; n];
    let got = end.recv(&mut buf, 0).expect("bytes");
    buf.truncate(got);
    buf
}

/// What was written before a rest is read in order after it, and a ring with bytes in it is left
/// alone.
#[test]
fn a_ring_at_rest_gives_its_memory_back() {
    let _serial = serial();
    if common::copying() {
        println!("skipped: the ring is the peer's own memory");
        return;
    }
    let (server, client) = rings();
    let mut at = 0;
    let mut go_round = |rounds: u64| {
        for _ in 0..rounds {
            let data = bytes(1, at, 9000);
            assert_eq!(client.send(&data), Ok(9000));
            assert!(received(&server, 9000) == data);
            at += 9000;
        }
    };
    let rest = || {
        let before = held();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        smc::conn::rest::stir();
        while smc::conn::rest::before_sleep().is_some() {
            assert!(std::time::Instant::now() < end, "the sweeps never end");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        (before, held())
    };
    go_round(20);
    let (before, after) = rest();
    assert!(after + (48 << 10) <= before, "{before} bytes before, {after} after");
    go_round(3);
    assert_eq!(client.send(b"unread"), Ok(6));
    let (before, after) = rest();
    assert_eq!(before, after, "a ring that holds something");
    assert_eq!(received(&server, 100), b"unread");
    go_round(20);
}

/// Beyond the limit connections stay TCP, and say why; what ends makes room.
#[test]
fn the_limit_on_memory() {
    let _serial = serial();
    let limit = &smc::config::CONFIG.max_memory;
    let before = limit.swap(4 * (64 << 10), Relaxed);
    // Each connection takes two: both ends are in this process.
    let two: Vec<_> = (0..2).map(|_| rings()).collect();
    let (server, client) = common::pair();
    for _ in 0..20 {
        server.step();
        client.step();
    }
    assert!(!server.conn.sends_on_ring() && !client.conn.sends_on_ring());
    assert_eq!((server.reason(), client.reason()), (smc::reason::MAX_DMB, smc::reason::PEER_DECL));
    assert_eq!(client.peer_reason(), smc::reason::MAX_DMB);
    drop(two);
    drop(rings());
    limit.store(before, Relaxed);
}
