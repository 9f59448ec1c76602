//! Leaving TCP: the handshake between two ends, what they had sent before it, and link groups.

mod common;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;

use common::{End, byte, bytes, open_fds, pair, raw, rings, serial, tcp, upgrade};
use proptest::prelude::*;
use smc::conn::Got;
use smc::kind::Kind;
use smc::{group, table};

common::over!(ism, verbs);

/// Reads all there is and checks it against a stream.
fn drain(end: &End, stream: u8, at: &mut u64) {
    let mut buf = [0u8; 5000];
    while let Ok(n) = end.recv(&mut buf, 0) {
        assert!(n > 0, "no end of the stream here: {}", end.describe());
        assert!(buf[..n] == bytes(stream, *at, n), "wrong bytes at {at}: {}", end.describe());
        *at += n as u64;
    }
}

#[test]
fn both_families_upgrade() {
    let _serial = serial();
    for v6 in [false, true] {
        let (a, b) = tcp(v6);
        let (a, b) = (End::new(a), End::new(b));
        assert!(a.is_server() && !b.is_server());
        upgrade(&a, &b);
        for (from, to, stream) in [(&a, &b, 1), (&b, &a, 2)] {
            assert_eq!(from.reason().code(), 0);
            assert_eq!(from.send(&bytes(stream, 0, 10_000)), Ok(10_000));
            let mut at = 0;
            drain(to, stream, &mut at);
            assert_eq!(at, 10_000);
            assert!(to.conn.receives_on_ring() && from.conn.sends_on_ring());
            assert_eq!(from.conn.tx.counts.bytes.load(Relaxed), 10_000);
        }
    }
}

#[test]
fn either_end_may_come_first() {
    let _serial = serial();
    for client_first in [false, true] {
        let (server, client) = pair();
        for _ in 0..4 {
            if client_first { client.step() } else { server.step() }
        }
        upgrade(&server, &client);
    }
}

#[test]
fn an_end_without_a_partner_stays_tcp() {
    let _serial = serial();
    let (server, client) = pair();
    for end in [&server, &client] {
        end.conn.ops.store((1 << 16) + 1, Relaxed);
        end.step();
        assert!(
            !end.conn.is_frozen(),
            "so many operations go by before a peer on a busy machine runs"
        );
        end.conn.upgrade.since_ms.store(smc::sys::coarse_ms().wrapping_sub(6000), Relaxed);
        end.step();
        assert_eq!(end.reason(), smc::reason::PEER_NO_SMC);
        assert!(end.conn.is_frozen());
        assert_eq!(end.conn.next_try.load(Relaxed), u32::MAX);
    }
}

/// Connections whose other ends never come, and that rest, must not keep others from meeting for
/// ever.
#[test]
fn names_that_nobody_calls_make_room() {
    let _serial = serial();
    let mut lonely: Vec<(End, i32)> = Vec::new();
    while lonely.last().is_none_or(|(end, _)| end.reason() != smc::reason::FD_LIMIT) {
        assert!(lonely.len() < smc::hidden::MAX);
        let (mine, other) = tcp(false);
        let end = End::new(mine);
        end.step();
        lonely.push((end, other));
    }
    let (server, client) = tcp(false);
    let (server, client) = (End::new(server), End::new(client));
    let step = || {
        server.step();
        client.step();
        server.conn.sends_on_ring() && client.conn.sends_on_ring()
    };
    common::until("upgraded", step);
    let (again, other) = &lonely[0];
    again.step();
    assert_eq!(again.send(b"as before"), Ok(9));
    assert_eq!(common::raw_recv(*other, &mut [0; 16], 0), Ok(9));
    lonely.iter().for_each(|(_, other)| _ = smc::sys::close(*other));
}

/// A fork child has the memory of the groups that there are.
#[test]
fn behind_a_fork_connections_have_groups_of_their_own() {
    let _serial = serial();
    let (server, client) = rings();
    if matches!(server.conn.kind(), Kind::Verbs) {
        // Connections over it are not shared with a child.
        return;
    }
    smc::after_fork_parent();
    let (later, other) = rings();
    assert_ne!(server.conn.link_group(), later.conn.link_group());
    assert_ne!(client.conn.link_group(), other.conn.link_group());
    // Those from before go on.
    assert_eq!(client.send(b"as before"), Ok(9));
    drop((server, client));
    let (again, _peer) = rings();
    assert_eq!(again.conn.link_group(), later.conn.link_group());
}

#[test]
fn a_handshake_goes_on_that_a_fork_comes_into() {
    let _serial = serial();
    for steps in 1..6 {
        group::lanes::forget_peers();
        let (server, client) = tcp(false);
        let (server, client) = (End::new(server), End::new(client));
        for step in 0..steps {
            if step % 2 == 0 { &client } else { &server }.step();
        }
        smc::after_fork_parent();
        upgrade(&server, &client);
    }
}

#[test]
fn a_second_connection_reuses_the_group() {
    let _serial = serial();
    let table = table::get().unwrap();
    let (first_server, first_client) = rings();
    let (groups, live) = group::census();
    let made = table.stats.link_groups.load(Relaxed);
    // What is passed can be looked at by the name.
    group::lanes::forget_peers();
    let fds = open_fds();

    let (server, client) = tcp(false);
    let (server, client) = (End::new(server), End::new(client));
    client.step();
    server.step();
    client.step();
    server.step();
    let (_, passed) = raw::hear(client.channel(), true).expect("an Accept");
    assert!(passed.is_none(), "the client has the server's arena");
    client.step();
    let (_, passed) = raw::hear(server.channel(), true).expect("a Confirm");
    assert!(passed.is_none(), "the server has the client's arena");
    upgrade(&server, &client);

    assert_eq!(
        server.conn.identity.group.load(Relaxed),
        first_server.conn.identity.group.load(Relaxed)
    );
    assert_eq!(
        client.conn.identity.group.load(Relaxed),
        first_client.conn.identity.group.load(Relaxed)
    );
    assert_eq!(group::census(), (groups, live + 2));
    assert_eq!(table.stats.link_groups.load(Relaxed), made);
    assert_eq!(open_fds(), fds + 2, "two ends of TCP and nothing else");
    drop((server, client));
    assert_eq!((open_fds(), group::census()), (fds, (groups, live)));
}

#[test]
fn a_mixed_size_is_a_new_arena_in_the_same_group() {
    let _serial = serial();
    let one = rings();
    smc::config::CONFIG.dmb_size.store(16 << 10, Relaxed);
    let two = rings();
    assert_eq!(one.0.conn.identity.group.load(Relaxed), two.0.conn.identity.group.load(Relaxed));
    for (from, to) in [(&two.0, &two.1), (&two.1, &two.0)] {
        assert_eq!(from.send(&[7; 20_000]), Ok((16 << 10) - 64));
        let mut at = 0;
        let mut buf = [0; 20_000];
        while let Ok(n) = to.recv(&mut buf, 0) {
            at += n;
        }
        assert_eq!(at, (16 << 10) - 64);
    }
}

/// What was sent over TCP and not read counts as readable, doorbells behind it do not.
#[test]
fn fionread_counts_payload_only() {
    let _serial = serial();
    let (server, client) = pair();
    assert_eq!(client.send(b"hello"), Ok(5));
    upgrade(&server, &client);
    assert!(server.settle() && client.settle());
    // A doorbell for space, behind the five bytes.
    while server.send(&[1; 40_000]).is_ok() {}
    server.conn.arm_space();
    let mut at = 0;
    while client.recv(&mut [0; 70_000], 0).is_ok_and(|n| {
        at += n;
        true
    }) {}
    assert_eq!(at, (64 << 10) - 64);
    assert_eq!(server.conn.doorbells_due(), 1);
    assert_eq!(server.conn.unread(server.fd), 5);
    let mut buf = [0; 9];
    assert_eq!((server.recv(&mut buf, 0), &buf[..5]), (Ok(5), &b"hello"[..]));
    assert_eq!(server.conn.unread(server.fd), 0);
}

/// A doorbell is one byte: it must wake whoever waits in the kernel, whatever low-water mark the
/// application set.
#[test]
fn the_low_water_mark_of_the_kernel_is_one() {
    let _serial = serial();
    for by_receive in [false, true] {
        let (server, client) = pair();
        smc::sys::setsockopt(server.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &100i32);
        if by_receive {
            assert!(server.conn.enter_kernel_recv());
            server.step();
            assert_eq!(
                server.conn.identity.user_rcvlowat.load(Relaxed),
                0,
                "waits for a receive that may not know of the mark"
            );
            server.conn.identity.user_rcvlowat.store(100, Relaxed);
        }
        upgrade(&server, &client);
        if by_receive {
            // The thread that was inside a receive comes out with nothing.
            server.conn.leave_kernel_recv(server.fd, 0, false);
        }
        assert!(server.settle());
        assert_eq!(server.conn.identity.user_rcvlowat.load(Relaxed), 100);
        let mut low = 0i32;
        smc::sys::getsockopt(server.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut low);
        assert_eq!(low, 1, "by_receive {by_receive}");
    }
}

/// One end is the first to use a ring; what the other reads before it can send itself must be told
/// afterwards.
#[test]
fn space_freed_before_the_end_of_the_upgrade_is_told() {
    let _serial = serial();
    let (server, client) = pair();
    while !server.conn.sends_on_ring() && !client.conn.sends_on_ring() {
        server.step();
        if !server.conn.sends_on_ring() {
            client.step();
        }
    }
    let (sender, reader) =
        if server.conn.sends_on_ring() { (&server, &client) } else { (&client, &server) };
    assert!(!reader.conn.is_committed());
    while sender.send(&[3; 30_000]).is_ok() {}
    assert!(reader.conn.settle_rx(reader.fd));
    let mut got = 0;
    while let Got::Bytes(n) = reader.conn.recv_into(reader.fd, 70_000, false, |_, n| Ok(n)) {
        got += n;
    }
    assert_eq!(got, (64 << 10) - 64);
    upgrade(&server, &client);
    // An idle reader looks again, and finds nothing.
    assert_eq!(reader.recv(&mut [0; 9], 0), Err(libc::EAGAIN));
    assert_eq!(
        sender.send(&[3; 10]),
        Ok(10),
        "server {} client {}",
        server.describe(),
        client.describe()
    );
}

#[derive(Clone, Debug)]
enum Op {
    Send(bool, usize),
    Recv(bool, usize),
    Peek(bool, usize),
    Step(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let size = prop_oneof![1..200usize, 1..60_000usize];
    let op = prop_oneof![
        (any::<bool>(), size.clone()).prop_map(|(end, n)| Op::Send(end, n)),
        (any::<bool>(), size.clone()).prop_map(|(end, n)| Op::Recv(end, n)),
        (any::<bool>(), size).prop_map(|(end, n)| Op::Peek(end, n)),
        any::<bool>().prop_map(Op::Step),
        any::<bool>().prop_map(Op::Step),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The upgrade happens somewhere in the middle of traffic both ways.
    #[test]
    fn no_byte_is_lost_at_the_switch(ops in ops(), v6: bool) {
        let _serial = serial();
        let (a, b) = tcp(v6);
        let ends = [End::new(a), End::new(b)];
        let mut queues = [VecDeque::new(), VecDeque::new()];
        let mut sent = [0u64; 2];
        let mut buf = vec![0; 60_000];
        let mut read = |to: usize, n: usize, flags: i32, queue: &mut VecDeque<u8>| {
            match ends[to].recv(&mut buf[..n], flags) {
                Ok(got) => {
                    prop_assert!(got > 0 && got <= queue.len(), "{got} of {}: {}", queue.len(), ends[to].describe());
                    prop_assert!(queue.iter().take(got).eq(&buf[..got]), "wrong bytes: {}", ends[to].describe());
                    if flags & libc::MSG_PEEK == 0 {
                        queue.drain(..got);
                    }
                    Ok(true)
                }
                Err(libc::EAGAIN) => Ok(false),
                Err(e) => Err(TestCaseError::fail(format!("errno {e}: {}", ends[to].describe()))),
            }
        };
        for op in ops {
            match op {
                Op::Step(end) => ends[usize::from(end)].step(),
                Op::Send(end, n) => {
                    let i = usize::from(end);
                    let data = bytes(end as u8, sent[i], n);
                    match ends[i].send(&data) {
                        Ok(n) => {
                            queues[1 - i].extend(&data[..n]);
                            sent[i] += n as u64;
                        }
                        Err(e) => prop_assert_eq!(e, libc::EAGAIN),
                    }
                }
                Op::Recv(end, n) | Op::Peek(end, n) => {
                    let flags = if matches!(op, Op::Peek(..)) { libc::MSG_PEEK } else { 0 };
                    read(usize::from(end), n, flags, &mut queues[usize::from(end)])?;
                }
            }
        }
        upgrade(&ends[0], &ends[1]);
        for i in [0, 1] {
            common::until("the rest is read", || {
                while read(i, 60_000, 0, &mut queues[i]).unwrap() {}
                queues[i].is_empty()
            });
            prop_assert_eq!(ends[i].conn.tcp_bytes.load(Relaxed), 0);
            prop_assert!(ends[i].settle() && ends[i].conn.sends_on_ring());
            prop_assert_eq!(ends[1 - i].send(&[byte(9, 0)]), Ok(1));
            prop_assert_eq!(ends[i].conn.unread(ends[i].fd), 1);
        }
    }
}
