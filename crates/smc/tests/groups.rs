//! Link groups when handshakes go wrong: nothing is leaked, and the next connection finds what it
//! needs.
#![allow(unsafe_code)]

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::*;

use common::raw::{
    self, SEALED, accept_of, confirm_of, decline_of, half, hear_clc, memfd, say, token, v2, write,
};
use common::{End, open_fds, pair, rings, serial, tcp, upgrade};
use smc::clc::Message;
use smc::conn::upgrade::Stage;
use smc::conn::{CLOSED, DONE, LEFT};
use smc::{group, reason, table};

type Leftover = (usize, (usize, u32));

fn leftover() -> Leftover {
    table::get();
    smc::kind::LOOPBACK.init();
    // Channels that other tests' groups have kept: `tcp` closes them.
    group::lanes::forget_peers();
    (open_fds(), group::census())
}

/// A client of ours and a stranger that plays its server, who has read the Proposal.
fn asked() -> (End, i32, OwnedFd) {
    let (other, mine) = tcp(false);
    let end = End::new(mine);
    let listener = raw::listen(other);
    end.step();
    let ch = raw::accept(&listener);
    assert!(matches!(hear_clc(&ch), Some(Message::Proposal(_))));
    (end, other, ch)
}

/// A server of ours and a stranger that plays its client, with the Accept that the server sent.
fn asking() -> (End, i32, OwnedFd, Message, Option<OwnedFd>) {
    let (mine, other) = tcp(false);
    let end = End::new(mine);
    end.step();
    let ch = raw::connect(other).expect("the server listens");
    say(&ch, &write(&Message::Proposal(raw::proposal(0xffff)), other), &[]);
    end.step();
    let (raw, passed) = raw::hear(ch.as_raw_fd(), false).expect("an answer");
    (end, other, ch, Message::decode(&raw).expect("CLC"), passed)
}

#[test]
fn a_server_that_hangs_up_after_its_accept() {
    let _serial = serial();
    let before = leftover();
    for _ in 0..3 {
        let (end, other, ch) = asked();
        say(&ch, &write(&accept_of(half()), other), &[memfd(raw::arena(4), SEALED).as_raw_fd()]);
        drop(ch);
        end.step();
        assert_eq!(end.reason(), reason::RENDEZVOUS);
        assert!(!end.conn.is_committed() && end.conn.is_frozen());
        end.close();
        smc::sys::close(other);
        raw::next_stranger();
    }
    assert_eq!(leftover(), before, "the client's half of the group");
}

#[test]
fn a_client_that_never_confirms() {
    let _serial = serial();
    let before = leftover();
    for hangs_up in [false, true] {
        let (end, other, ch, ..) = asking();
        if hangs_up {
            drop(ch);
            end.step();
            assert!([reason::CNF_ERR, reason::RENDEZVOUS].contains(&end.reason()));
        }
        end.close();
        smc::sys::close(other);
        raw::next_stranger();
    }
    assert_eq!(leftover(), before);
}

/// What was given back once must not be given back again: by then it is another connection's.
#[test]
fn a_client_that_hangs_up_after_its_proposal() {
    let _serial = serial();
    let arena = memfd(raw::arena(4), SEALED);
    let (first, other1, ch, ..) = asking();
    say(&ch, &write(&confirm_of(half()), other1), &[arena.as_raw_fd()]);
    first.step();
    assert!(first.conn.is_committed());
    let live = group::census().1;

    let (mine, other2) = tcp(false);
    let second = End::new(mine);
    second.step();
    let ch = raw::connect(other2).expect("the server listens");
    say(&ch, &write(&Message::Proposal(raw::proposal(0xffff)), other2), &[]);
    drop(ch);
    second.step();
    assert_eq!(second.reason(), reason::RENDEZVOUS);
    let (third, other3, _ch, answer, _) = asking();
    let Message::Accept(smc::clc::Accept::SmcD(third_half)) = answer else { panic!("{answer:?}") };
    second.close();
    assert_eq!(group::census().1, live + 1);
    assert_eq!(third.conn.identity.my_token.load(Relaxed), third_half.token);
    assert_eq!(header(&third).rx_arm.load(Relaxed), 1, "still as it was exposed");
    let (fourth, other4, _ch, answer, _) = asking();
    let Message::Accept(smc::clc::Accept::SmcD(fourth_half)) = answer else { panic!("{answer:?}") };
    assert_ne!(fourth_half.token, third_half.token, "one buffer for two connections");
    drop((first, third, fourth));
    close_all(&[other1, other2, other3, other4]);
}

/// A peer that lost its half of an idle group makes first contact anew: ours must not stay for
/// ever.
#[test]
fn first_contact_again() {
    let _serial = serial();
    let before = leftover();
    for round in 0..4 {
        let (end, other, ch) = asked();
        let mut again = half();
        again.token = ((round + 1000) << 24) | 1;
        say(&ch, &write(&accept_of(again), other), &[memfd(raw::arena(4), SEALED).as_raw_fd()]);
        end.step();
        // The stranger attaches our buffer.
        header(&end).kind.store(0xfe, SeqCst);
        end.step();
        assert!(end.conn.is_committed(), "{}", end.describe());
        // The stranger closes in order, so that our buffer is quiet.
        header(&end).cons.store(DONE | CLOSED | LEFT, SeqCst);
        end.close();
        smc::sys::close(other);
    }
    let (groups, live) = group::census();
    assert_eq!(live, 0);
    assert!(groups <= before.1.0 + 1, "{groups} groups for one peer, {} before", before.1.0);
}

/// A server that attaches after the client's close must find that said in its buffer: the kernel's
/// word may be yet to come.
#[test]
fn a_client_that_closes_before_the_server_attaches() {
    let _serial = serial();
    let (end, other, ch) = asked();
    let arena = memfd(raw::arena(4), SEALED);
    say(&ch, &write(&accept_of(half()), other), &[arena.as_raw_fd()]);
    end.step();
    assert!(end.conn.is_exposed() && !end.conn.is_committed(), "{}", end.describe());
    let ends = || {
        let mut bytes = vec![0; raw::arena(4) as usize];
        std::fs::File::from(arena.try_clone().expect("a descriptor"))
            .read_exact_at(&mut bytes, 0)
            .expect("its bytes");
        let words =
            bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        words.filter(|word| *word == DONE | CLOSED | LEFT).count()
    };
    assert_eq!(ends(), 0);
    let fd = end.let_go();
    assert_eq!(ends(), 1);
    close_all(&[fd, other]);
}

/// And what that server sends goes to TCP, which answers as it does for a closed end.
#[test]
fn a_server_that_attaches_after_the_clients_close() {
    let _serial = serial();
    let arena = memfd(raw::arena(4), SEALED);
    let (end, other, ch, ..) = asking();
    header(&end).cons.store(DONE | CLOSED | LEFT, SeqCst);
    say(&ch, &write(&confirm_of(half()), other), &[arena.as_raw_fd()]);
    end.step();
    assert!(end.conn.is_committed(), "{}", end.describe());
    assert_eq!(end.send(b"late"), Ok(4));
    let mut buf = [0; 8];
    assert_eq!((common::raw_recv(other, &mut buf, 0), &buf[..4]), (Ok(4), &b"late"[..]));
    drop(end);
    smc::sys::close(other);
}

/// The first handshake that ends closes the arena's descriptor, which another thread may be about
/// to pass on.
#[test]
fn what_is_lent_stays_open() {
    let _serial = serial();
    let (end, other, ch) = asked();
    let mut half = half();
    half.token = (2000 << 24) | 1;
    say(&ch, &write(&accept_of(half), other), &[memfd(raw::arena(4), SEALED).as_raw_fd()]);
    end.step();
    let id = end.conn.identity.group.load(Relaxed);
    let (peer, ..) = group::peer_of(id).expect("the group lives");
    let (dmb, lent) = group::take_dmb(id, peer).expect("a buffer");
    let file = |fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    let fd = lent.fd.as_ref().expect("the peer has not attached yet").raw();
    let open = file(fd);
    header(&end).kind.store(0xfe, SeqCst);
    end.step();
    assert!(end.conn.is_committed(), "{}", end.describe());
    assert_eq!(file(fd), open);
    drop(lent);
    assert_ne!(file(fd), open, "closed by the last who had it");
    group::give_back(id, dmb.token, false);
    header(&end).cons.store(DONE | CLOSED | LEFT, SeqCst);
    end.close();
    smc::sys::close(other);
}

fn close_all(fds: &[i32]) {
    for fd in fds {
        smc::sys::close(*fd);
    }
}

fn header(end: &End) -> &smc::conn::DmbHeader {
    // SAFETY: an exposed buffer of ours, which stays mapped.
    unsafe { &*end.conn.my_header() }
}

/// An arena counts as known to the peer only once the peer can have it: a client that had to
/// decline gets it again.
#[test]
fn an_arena_is_passed_until_the_peer_has_it() {
    let _serial = serial();
    let arena = memfd(raw::arena(4), SEALED);
    // First contact succeeds.
    let (first, other1, ch, answer, passed) = asking();
    assert!(matches!(answer, Message::Accept(a) if a.first_contact()) && passed.is_some());
    say(&ch, &write(&confirm_of(half()), other1), &[arena.as_raw_fd()]);
    first.step();
    assert!(first.conn.is_committed());
    // Buffers of another size need another arena; the client has no memory for its part.
    smc::config::CONFIG.dmb_size.store(16 << 10, Relaxed);
    let (second, other2, ch, answer, passed) = asking();
    assert!(matches!(answer, Message::Accept(a) if !a.first_contact()) && passed.is_some());
    say(&ch, &write(&decline_of(reason::MEMORY), other2), &[]);
    second.step();
    assert_eq!((second.reason(), second.peer_reason()), (reason::PEER_DECL, reason::MEMORY));
    // The next connection lies in the same arena.
    let (third, other3, ch, answer, passed) = asking();
    assert!(matches!(answer, Message::Accept(a) if !a.first_contact()));
    assert!(passed.is_some(), "the client declined, so it need not have kept the arena");
    let mut confirm = half();
    confirm.token = token(1);
    v2(&mut confirm).first_contact = None;
    say(&ch, &write(&confirm_of(confirm), other3), &[]);
    third.step();
    assert!(third.conn.is_committed());
    drop((first, second, third));
    close_all(&[other1, other2, other3]);
}

/// Each Decline in a living group takes a buffer out of service; they must come back.
#[test]
fn declined_buffers_come_back() {
    let _serial = serial();
    let arena = memfd(raw::arena(4), SEALED);
    let (first, other, ch, ..) = asking();
    say(&ch, &write(&confirm_of(half()), other), &[arena.as_raw_fd()]);
    first.step();
    assert!(first.conn.is_committed());
    let mut slots = Vec::new();
    for _ in 0..10 {
        let (end, other, ch, answer, _) = asking();
        let Message::Accept(smc::clc::Accept::SmcD(half)) = answer else { panic!("{answer:?}") };
        slots.push(dibs::loopback::slot_of(half.token));
        say(&ch, &write(&decline_of(reason::MEMORY), other), &[]);
        end.step();
        end.close();
        smc::sys::close(other);
    }
    assert!(
        slots.iter().all(|s| *s == slots[0]),
        "a client that declined never wrote to them: {slots:?}"
    );
    drop(first);
    smc::sys::close(other);
}

#[test]
fn out_of_sync_ends_the_group_for_new_connections() {
    let _serial = serial();
    let arena = memfd(raw::arena(4), SEALED);
    let (first, other1, ch, ..) = asking();
    say(&ch, &write(&confirm_of(half()), other1), &[arena.as_raw_fd()]);
    first.step();
    let (second, other2, ch, answer, _) = asking();
    assert!(matches!(answer, Message::Accept(a) if !a.first_contact()));
    say(&ch, &write(&decline_of(reason::SYNC_ERR), other2), &[]);
    second.step();
    assert_eq!(second.peer_reason(), reason::SYNC_ERR);
    let (third, other3, _ch, answer, passed) = asking();
    assert!(matches!(answer, Message::Accept(a) if a.first_contact()) && passed.is_some());
    // The first connection is none the worse for it.
    assert!(first.settle() || !first.conn.switch_due());
    assert_eq!(first.send(&[1; 100]), Ok(100));
    drop((first, second, third));
    close_all(&[other1, other2, other3]);
}

/// While one connection makes first contact, a second one waits for it and then shares its group.
#[test]
fn two_first_contacts_at_once() {
    let _serial = serial();
    let before = group::census().0;
    let (one, two) = (pair(), pair());
    for _ in 0..3 {
        for (server, client) in [&one, &two] {
            client.step();
            server.step();
        }
    }
    upgrade(&one.0, &one.1);
    upgrade(&two.0, &two.1);
    assert_eq!(one.0.conn.identity.group.load(Relaxed), two.0.conn.identity.group.load(Relaxed));
    assert_eq!(one.1.conn.identity.group.load(Relaxed), two.1.conn.identity.group.load(Relaxed));
    assert!(group::census().0 <= before + 2);
}

/// Ends the link groups of this process with itself: the next connection makes first contact.
fn begin_afresh() {
    let (server, client) = rings();
    let groups = [&server, &client].map(|end| end.conn.identity.group.load(Relaxed));
    drop((server, client));
    groups.iter().for_each(|id| group::failed(*id, true));
}

/// The server takes the group for made as soon as it has read the Confirm, whatever has become of the
/// connection that made it.
#[test]
fn a_first_connection_that_closes_when_its_client_has_confirmed() {
    let _serial = serial();
    for reads_before_its_close in [true, false] {
        begin_afresh();
        let (server, client) = pair();
        while client.conn.upgrade.stage() != Stage::Confirmed {
            server.step();
            client.step();
        }
        client.close();
        if reads_before_its_close {
            server.step();
            assert!(server.conn.is_committed(), "{}", server.describe());
        }
        server.close();
        for _ in 0..3 {
            drop(rings());
        }
    }
}

/// The same over the server's shoulder: it has the second connection join the group of the first.
#[test]
fn a_group_outlives_its_first_connection() {
    let _serial = serial();
    let arena = memfd(raw::arena(4), SEALED);
    let (first, other1, ch) = asked();
    say(&ch, &write(&accept_of(half()), other1), &[arena.as_raw_fd()]);
    first.step();
    assert_eq!(first.conn.upgrade.stage(), Stage::Confirmed);
    first.close();
    assert!(matches!(hear_clc(&ch), Some(Message::Confirm(_))));
    let (second, other2, ch) = asked();
    let mut joins = half();
    joins.token = token(1);
    v2(&mut joins).first_contact = None;
    say(&ch, &write(&accept_of(joins), other2), &[]);
    second.step();
    let answer = hear_clc(&ch);
    assert!(matches!(answer, Some(Message::Confirm(_))), "{answer:?} {}", second.describe());
    drop(second);
    close_all(&[other1, other2]);
}

/// What a client finds that closes behind its Confirm: the server's Decline, or that it has hung up.
#[test]
fn a_group_whose_server_has_declined_or_gone_ends_with_its_first_connection() {
    let _serial = serial();
    let before = leftover();
    let arena = memfd(raw::arena(4), SEALED);
    let open = open_fds();
    for declines in [true, false] {
        let (end, other, ch) = asked();
        say(&ch, &write(&accept_of(half()), other), &[arena.as_raw_fd()]);
        end.step();
        assert_eq!(end.conn.upgrade.stage(), Stage::Confirmed);
        if declines {
            assert!(matches!(hear_clc(&ch), Some(Message::Confirm(_))));
            say(&ch, &write(&decline_of(reason::MEMORY), other), &[]);
        } else {
            drop(ch);
        }
        end.close();
        assert_eq!(group::census(), before.1, "declines: {declines}");
        smc::sys::close(other);
        raw::next_stranger();
    }
    assert_eq!(open_fds(), open);
}

/// A server whose memory cannot be attached has nothing to read the client's ring with, or the
/// client nobody to tell of it: the client's bytes must not vanish in silence.
#[test]
fn a_server_that_fails_at_the_confirm() {
    let _serial = serial();
    let (server, client) = pair();
    // Until the client has confirmed.
    while client.conn.identity.peer_token.load(Relaxed) == 0 {
        server.step();
        client.step();
    }
    // The client's arena is gone, as when the server could not map it.
    smc::kind::Kind::Loopback.device().drop_group(client.conn.identity.group.load(Relaxed));
    server.step();
    assert_eq!(server.reason(), reason::RENDEZVOUS);
    let mut sent = 0u64;
    let mut got = 0u64;
    let mut buf = [0; 50_000];
    for _ in 0..50 {
        match client.send(&common::bytes(1, sent, 20_000)) {
            Ok(n) => sent += n as u64,
            Err(libc::EAGAIN) => {}
            // An error that both ends get is an honest end.
            Err(_) => return,
        }
        match server.recv(&mut buf, 0) {
            Ok(0) | Err(libc::ECONNRESET) => return,
            Ok(n) => {
                assert!(buf[..n] == common::bytes(1, got, n));
                got += n as u64;
            }
            Err(e) => assert_eq!(e, libc::EAGAIN),
        }
    }
    assert!(
        sent >= 500_000,
        "stuck after {sent} bytes: client {} server {}",
        client.describe(),
        server.describe()
    );
    assert_eq!(got, sent);
}

/// shutdown(SHUT_RDWR), the peer closes, a new connection, and only then the close: what the first
/// end still writes must not land in the new connection's buffer.
#[test]
fn a_buffer_waits_for_the_close_behind_a_shutdown() {
    let _serial = serial();
    let (a, b) = rings();
    let freed = b.conn.identity.my_token.load(Relaxed);
    a.shutdown(libc::SHUT_RDWR);
    b.close();
    let (c, d) = rings();
    let taken = [c.conn.identity.my_token.load(Relaxed), d.conn.identity.my_token.load(Relaxed)];
    assert!(!taken.contains(&freed), "the first end has not closed yet");
    a.close();
    assert_eq!(c.send(b"there"), Ok(5));
    let mut buf = [0; 10];
    assert_eq!(d.recv(&mut buf, 0), Ok(5));
    assert_eq!(d.recv(&mut buf, 0), Err(libc::EAGAIN), "no end of another connection");
    c.close();
    d.close();
    let (e, f) = rings();
    let (g, h) = rings();
    let tokens = [&e, &f, &g, &h].map(|end| end.conn.identity.my_token.load(Relaxed));
    assert!(tokens.contains(&freed), "in use again after that");
}
