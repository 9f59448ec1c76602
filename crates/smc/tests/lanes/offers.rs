//! Connections that are offered when they are opened.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;

use smc::conn::upgrade::Stage;
use smc::{group, meet};

use super::*;

/// Operations behind which an upgrade begins where nothing is offered.
const AFTER: u32 = 8;

/// The end that accepted and the one that opened a connection to this listener.
fn opened(to: &TcpListener) -> (End, End) {
    let client = TcpStream::connect(to.local_addr().expect("its address")).expect("a connection");
    let (server, _) = to.accept().expect("its other end");
    (End::new(server.into_raw_fd()), End::new(client.into_raw_fd()))
}

fn listener(mut ports: impl Iterator<Item = u16>) -> TcpListener {
    ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).expect("a free port")
}

/// Below the ports that connect gives out.
fn low_listener() -> TcpListener {
    listener(20_000..30_000)
}

/// Above them.
fn high_listener() -> TcpListener {
    listener(61_500..65_000)
}

/// Two processes that know each other by a connection to this listener.
fn acquainted(to: &TcpListener) -> (End, End) {
    lanes::forget_peers();
    smc::after_fork_child();
    CONFIG.after.store(0, Relaxed);
    let ends = opened(to);
    upgrade(&ends.0, &ends.1);
    assert!(ends.0.settle() && ends.1.settle());
    CONFIG.after.store(AFTER, Relaxed);
    ends
}

fn offer(client: &End) -> bool {
    let to = smc::inet::names(client.fd).expect("both names")[1];
    let worth = meet::is_worth_an_offer(&to);
    meet::offer(client.conn, client.fd, || false);
    assert_eq!(is_offered(client), worth);
    worth
}

fn is_offered(client: &End) -> bool {
    client.conn.upgrade.meeting() == Meeting::Seeking(Seeking::Lane(Lane::Offers))
}

/// A connection with so many further calls ends.
fn ends_behind(calls: u32, (server, client): (End, End)) {
    for end in [&server, &client] {
        end.conn.ops.fetch_add(calls, Relaxed);
    }
    client.close();
    server.close();
}

#[test]
fn one_that_is_offered_is_upgraded_by_two_messages() {
    let _serial = serial();
    [low_listener(), high_listener()].into_iter().for_each(two_messages);
}

fn two_messages(listener: TcpListener) {
    let first = acquainted(&listener);
    let (server, client) = opened(&listener);
    let fds = open_fds();
    assert!(offer(&client));
    server.step();
    assert_eq!(server.conn.upgrade.stage(), Stage::Accepted);
    client.step();
    assert_eq!(client.conn.upgrade.stage(), Stage::Confirmed);
    server.step();
    assert!(server.conn.is_committed());
    client.step();
    assert!(client.conn.is_committed());
    assert_eq!(open_fds(), fds, "no socket of its own");
    assert_eq!(group(&client), group(&first.1));
    talk(&server, &client);
    ends_behind(20, (server, client));
    talk(&first.0, &first.1);
}

/// Nothing is offered where nobody was met, and a step before its time looks for offers alone.
#[test]
fn nothing_is_offered_to_strangers() {
    let _serial = serial();
    let (known, strange) = (low_listener(), low_listener());
    let _first = acquainted(&known);
    let (server, client) = opened(&strange);
    assert!(!offer(&client));
    for end in [&server, &client] {
        end.step();
        assert_eq!(end.conn.upgrade.meeting(), Meeting::Nowhere);
    }
    talk(&server, &client);
}

/// Another process has accepted it, or one that is not preloaded.
#[test]
fn one_that_nobody_takes_goes_on_as_ever() {
    let _serial = serial();
    let listener = low_listener();
    let _first = acquainted(&listener);
    let (server, client) = opened(&listener);
    assert!(offer(&client));
    for _ in 0..AFTER {
        client.step();
    }
    assert!(!is_offered(&client), "{}", client.describe());
    server.conn.ops.store(AFTER, Relaxed);
    upgrade(&server, &client);
    talk(&server, &client);
}

/// The client gives its offer up just when the server has accepted.
#[test]
fn an_accept_too_late() {
    let _serial = serial();
    let listener = low_listener();
    let _first = acquainted(&listener);
    let (server, client) = opened(&listener);
    assert!(offer(&client));
    server.step();
    assert_eq!(server.conn.upgrade.stage(), Stage::Accepted);
    lanes::withdraw(client.conn);
    client.conn.ops.store(AFTER, Relaxed);
    client.step();
    server.step();
    assert!(!server.conn.is_exposed(), "{}", server.describe());
    talk(&server, &client);
    server.conn.ops.store(AFTER, Relaxed);
    upgrade(&server, &client);
    talk(&server, &client);
}

/// Both ends have worked for nothing then.
#[test]
fn where_connections_end_at_once_none_is_offered() {
    let _serial = serial();
    let listener = low_listener();
    let first = acquainted(&listener);
    let mut offered = 0;
    for _ in 0..20 {
        let (server, client) = opened(&listener);
        offered += u32::from(offer(&client));
        ends_behind(2, (server, client));
    }
    assert!((1..10).contains(&offered), "{offered}");
    let ends = opened(&listener);
    for end in [&ends.0, &ends.1] {
        end.conn.ops.store(AFTER, Relaxed);
    }
    upgrade(&ends.0, &ends.1);
    for _ in 0..20 {
        let ends = opened(&listener);
        assert!(offer(&ends.1), "they last again");
        ends_behind(20, ends);
    }
    talk(&first.0, &first.1);
}

/// At every step, either end closes; no buffer and no lane stays behind.
#[test]
fn an_end_that_closes_on_the_way_gives_all_back() {
    let _serial = serial();
    [low_listener(), high_listener()].into_iter().for_each(ends_on_the_way);
}

fn ends_on_the_way(listener: TcpListener) {
    let first = acquainted(&listener);
    let (_, live) = group::census();
    for round in 0..2000 {
        let (server, client) = opened(&listener);
        assert!(offer(&client), "round {round}: no lane left");
        // It lasts, as far as is known, so that the next one is offered too.
        client.conn.ops.store(5, Relaxed);
        client.conn.tcp_bytes.store(1 << 20, Relaxed);
        for step in 0..round % 8 {
            if step % 2 == 0 { server.step() } else { client.step() }
        }
        let (gone, left) = if round / 8 % 2 == 0 { (server, client) } else { (client, server) };
        gone.close();
        for _ in 0..round / 16 % 4 {
            left.step();
        }
        left.close();
        assert_eq!(group::census().1, live, "round {round}");
    }
    let ends = [&first.0, &first.1].map(|end| end.conn.identity.my_token.load(Relaxed));
    assert!(ends.iter().all(|token| *token != 0));
    let last = opened(&listener);
    assert!(offer(&last.1));
    upgrade(&last.0, &last.1);
    for end in [&last.0, &last.1] {
        let slot = dibs::loopback::slot_of(end.conn.identity.my_token.load(Relaxed));
        assert!(slot < 40, "buffers stay behind: the next free one is {slot}");
    }
    talk(&last.0, &last.1);
    talk(&first.0, &first.1);
}
