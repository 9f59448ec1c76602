//! How connections end: whatever either side does, both see what they would have seen on TCP.

mod common;

use common::script::Op::{self, *};
use common::script::{BOTH, CLIENT, SERVER, Switched, compare, like_tcp, like_tcp_if};
use common::{pair, rings, serial, until};
use proptest::prelude::*;

common::over!(ism, verbs, checked_ism, checked_verbs);

#[test]
fn half_close_then_data_then_the_end() {
    like_tcp(&[
        (SERVER, Send(1000)),
        (SERVER, Shut(libc::SHUT_WR)),
        (CLIENT, Poll),
        (CLIENT, Recv(400)),
        (CLIENT, Poll),
        (CLIENT, Recv(5000)),
        (CLIENT, Recv(10)),
        (CLIENT, Poll),
        (CLIENT, Send(500)),
        (SERVER, Poll),
        (SERVER, Send(1)),
        (SERVER, Recv(5000)),
        (CLIENT, Shut(libc::SHUT_WR)),
        (SERVER, Poll),
        (SERVER, Recv(10)),
        (SERVER, Recv(10)),
        (CLIENT, Poll),
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Recv(1)),
        (CLIENT, Error),
    ]);
}

#[test]
fn close_with_everything_read() {
    like_tcp(&[
        (CLIENT, Send(300)),
        (SERVER, Recv(5000)),
        (SERVER, Send(700)),
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Peek(10)),
        (CLIENT, Recv(200)),
        (CLIENT, Recv(5000)),
        (CLIENT, Recv(1)),
        (CLIENT, Poll),
        (CLIENT, Error),
        (CLIENT, Recv(1)),
    ]);
}

#[test]
fn close_with_unread_data() {
    like_tcp(&[
        (CLIENT, Send(300)),
        (SERVER, Recv(30)),
        (SERVER, Send(700)),
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Recv(200)),
        (CLIENT, Recv(5000)),
        (CLIENT, Recv(1)),
        (CLIENT, Recv(1)),
        (CLIENT, Poll),
        (CLIENT, Send(1)),
        (CLIENT, Error),
    ]);
}

#[test]
fn an_error_is_fetched_once() {
    like_tcp(&[
        (CLIENT, Send(300)),
        (SERVER, Close),
        (CLIENT, Error),
        (CLIENT, Error),
        (CLIENT, Recv(1)),
        (CLIENT, Poll),
        (CLIENT, Send(1)),
    ]);
    like_tcp(&[
        (CLIENT, Send(300)),
        (SERVER, Close),
        (CLIENT, Send(1)),
        (CLIENT, Recv(1)),
        (CLIENT, Error),
        (CLIENT, Send(1)),
    ]);
}

#[test]
fn linger_zero() {
    like_tcp(&[
        (SERVER, Send(50)),
        (SERVER, Linger0),
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Recv(500)),
        (CLIENT, Recv(1)),
        (CLIENT, Recv(1)),
        (CLIENT, Poll),
    ]);
    like_tcp(&[
        (SERVER, Shut(libc::SHUT_WR)),
        (SERVER, Linger0),
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Recv(500)),
        (CLIENT, Error),
    ]);
}

#[test]
fn sends_to_a_peer_that_closed() {
    like_tcp(&[
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Send(10)),
        (CLIENT, Poll),
        (CLIENT, Send(10)),
        (CLIENT, Poll),
        (CLIENT, Recv(10)),
        (CLIENT, Error),
        (CLIENT, Send(1)),
    ]);
    like_tcp(&[
        (SERVER, Send(40)),
        (SERVER, Close),
        (CLIENT, Send(10)),
        (CLIENT, Recv(500)),
        (CLIENT, Recv(1)),
        (CLIENT, Send(1)),
    ]);
}

#[test]
fn shutdown_of_receives_and_of_both() {
    like_tcp(&[
        (SERVER, Shut(libc::SHUT_RD)),
        (SERVER, Poll),
        (SERVER, Recv(500)),
        (SERVER, Recv(1)),
        (SERVER, Send(5)),
        (CLIENT, Recv(500)),
        (SERVER, Close),
        (CLIENT, Poll),
    ]);
    like_tcp(&[
        (SERVER, Send(5)),
        (SERVER, Shut(libc::SHUT_RDWR)),
        (SERVER, Poll),
        (SERVER, Recv(500)),
        (SERVER, Recv(1)),
        (SERVER, Send(5)),
        (CLIENT, Poll),
        (CLIENT, Recv(500)),
        (CLIENT, Recv(1)),
        (CLIENT, Close),
        (SERVER, Poll),
    ]);
}

#[test]
fn both_close() {
    like_tcp(&[
        (SERVER, Shut(libc::SHUT_WR)),
        (CLIENT, Shut(libc::SHUT_WR)),
        (SERVER, Poll),
        (CLIENT, Poll),
        (SERVER, Recv(500)),
        (CLIENT, Recv(500)),
        (SERVER, Close),
        (CLIENT, Poll),
        (CLIENT, Recv(1)),
        (CLIENT, Close),
    ]);
}

#[test]
fn killed() {
    like_tcp(&[
        (SERVER, Send(100)),
        (SERVER, Recv(500)),
        (SERVER, Crash),
        (CLIENT, Poll),
        (CLIENT, Recv(30)),
        (CLIENT, Recv(500)),
        (CLIENT, Recv(1)),
        (CLIENT, Poll),
    ]);
    like_tcp(&[
        (CLIENT, Send(100)),
        (SERVER, Send(100)),
        (SERVER, Crash),
        (CLIENT, Poll),
        (CLIENT, Recv(500)),
        (CLIENT, Recv(1)),
        (CLIENT, Recv(1)),
        (CLIENT, Send(1)),
    ]);
    // Until somebody asks the kernel, nobody knows, and the ring takes what it is given. With the
    // server's sends on TCP the kernel's answer might be a mere half-close.
    like_tcp_if(
        &[
            (SERVER, Recv(500)),
            (SERVER, Crash),
            (CLIENT, Recv(500)),
            (CLIENT, Poll),
            (CLIENT, Send(10)),
            (CLIENT, Send(10)),
            (CLIENT, Poll),
        ],
        |server, _| server,
    );
}

/// A peer that died while its own sends were still on TCP has left a FIN, which by itself could be
/// a half-close; a writer that waits for room in its ring must find out all the same.
#[test]
fn killed_before_its_sends_left_tcp() {
    let _serial = serial();
    let (server, client) = pair();
    assert!(server.conn.enter_kernel_send());
    for _ in 0..10 {
        server.step();
        client.step();
    }
    assert!(client.conn.sends_on_ring() && !server.conn.sends_on_ring() && server.settle());
    while client.send(&[0; 30_000]).is_ok() {}
    // An unread doorbell would make it a reset.
    server.conn.drain_doorbells(server.fd, server.conn.doorbells_seen());
    server.crash();
    until("the writer learns of it", || {
        client.poll(libc::POLLOUT);
        client.send(&[0]) != Err(libc::EAGAIN)
    });
}

/// A peer that has ended its half and is killed then leaves nothing behind that the kernel would
/// tell of: sends must come to an end all the same, long before its ring is full.
#[test]
fn killed_behind_its_own_half() {
    let _serial = serial();
    let (server, client) = rings();
    server.shutdown(libc::SHUT_WR);
    assert_eq!(client.recv(&mut [0; 10], 0), Ok(0));
    server.crash();
    let mut sent = 0;
    until("a send is refused", || {
        let r = client.send(&[0; 10]);
        sent += r.unwrap_or(0);
        r == Err(libc::EPIPE)
    });
    assert!(sent < 20_000, "{sent} bytes for nobody");
}

/// What the peer sends to an end that has shut both directions is answered by a reset, which ends
/// that connection and no more: the two processes go on with their link group.
#[test]
fn own_reset_is_no_death_of_the_peer() {
    let _serial = serial();
    for shuts in [CLIENT, SERVER] {
        let (server, client) = rings();
        let (one, other) = if shuts == CLIENT { (client, server) } else { (server, client) };
        one.shutdown(libc::SHUT_RDWR);
        assert_eq!(other.send(&[0; 10]), Ok(10));
        until("the reset is seen", || {
            one.poll(libc::POLLIN);
            one.conn.is_dead()
        });
        // Before the peer says that it has closed.
        one.close();
        other.close();
        rings();
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..3000usize).prop_map(Send),
        5 => (1..5000usize).prop_map(Recv),
        1 => (1..5000usize).prop_map(Peek),
        5 => Just(Poll),
        1 => Just(Error),
        2 => (0..3i32).prop_map(Shut),
        1 => Just(Linger0),
        2 => Just(Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_script_is_like_tcp(
        script in prop::collection::vec((any::<bool>(), op()), 1..16), a in 0..200usize, b in 0..200usize, which in 0..3,
    ) {
        let _serial = serial();
        // What a socket shows after it has given up reading, and the peer sends all the same, is
        // TCP's own oddity.
        let mut blind = [false; 2];
        let script: Vec<_> = script
            .into_iter()
            .filter(|&(who, op)| {
                let blind = &mut blind[usize::from(who)];
                let skip = *blind && matches!(op, Recv(_) | Peek(_) | Poll | Error);
                *blind |= matches!(op, Shut(how) if how != libc::SHUT_WR);
                !skip
            })
            .collect();
        let which = [BOTH, Switched(true, false), Switched(false, true)][which as usize];
        if let Err(said) = compare(&script, [a, b], which) {
            return Err(TestCaseError::fail(said));
        }
    }
}
