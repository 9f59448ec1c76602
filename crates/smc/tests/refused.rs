//! Strangers and failures at the rendezvous: the connection stays TCP, with the right reason, and
//! nothing is left behind.

mod common;

use std::os::fd::{AsRawFd, OwnedFd};

use common::raw::{
    self, SEALED, accept_of, arena, confirm_of, decline_of, half, hear_clc, memfd, say, token, v2,
    with_trailer, write,
};
use common::{End, open_fds, serial, tcp};
use proptest::prelude::*;
use smc::clc::{Message, SizeCode, SmcD, SmcDLevel, Version};
use smc::reason::{self, Reason};
use smc::{group, table};

/// Both ends still are an intact TCP connection.
fn is_tcp(end: &End, other: i32) {
    assert!(!end.conn.switched(), "{}", end.describe());
    let mut buf = [0; 16];
    assert_eq!(common::raw_send(other, b"to the end"), Ok(10));
    assert_eq!((end.recv(&mut buf, 0), &buf[..10]), (Ok(10), &b"to the end"[..]));
    assert_eq!(end.recv(&mut buf, 0), Err(libc::EAGAIN));
    assert_eq!(end.send(b"from it"), Ok(7));
    assert_eq!((common::raw_recv(other, &mut buf, 0), &buf[..7]), (Ok(7), &b"from it"[..]));
    assert_eq!(common::raw_recv(other, &mut buf, 0), Err(libc::EAGAIN), "nothing else");
}

/// An upgrade of one end (the server if `server`) with a stranger at the other, who does `what`.
/// Checks that nothing leaks.
fn meets(server: bool, what: impl FnOnce(&End, i32)) {
    table::get();
    smc::kind::LOOPBACK.init();
    group::lanes::forget_peers();
    let before = (open_fds(), group::census());
    let (low, high) = tcp(false);
    let (mine, other) = if server { (low, high) } else { (high, low) };
    let end = End::new(mine);
    common::raw_send(other, b"early").expect("room");
    what(&end, other);
    let mut buf = [0; 5];
    assert_eq!((end.recv(&mut buf, 0), &buf), (Ok(5), b"early"));
    is_tcp(&end, other);
    end.step();
    is_tcp(&end, other);
    end.close();
    smc::sys::close(other);
    raw::next_stranger();
    assert_eq!(
        (open_fds(), group::census()),
        before,
        "descriptors, link groups and their connections"
    );
}

/// A stranger calls our server and says these things in turn; how the server ends up.
fn caller(says: impl FnOnce(&End, i32, &OwnedFd)) -> (Reason, Reason) {
    let mut found = Default::default();
    meets(true, |end, other| {
        end.step();
        let ch = raw::connect(other).expect("the server listens");
        says(end, other, &ch);
        end.step();
        found = (end.reason(), end.peer_reason());
    });
    found
}

/// After a good Proposal the server has accepted; the stranger says `confirm`, with descriptors.
fn confirmer(confirm: &[u8], fds: &[i32]) -> (Reason, Reason) {
    caller(|end, other, ch| {
        propose(end, other, ch);
        say(ch, confirm, fds);
    })
}

fn propose(end: &End, other: i32, ch: &OwnedFd) {
    say(ch, &write(&Message::Proposal(raw::proposal(0xffff)), other), &[]);
    end.step();
    let (raw, passed) = raw::hear(ch.as_raw_fd(), false).expect("an answer");
    assert!(matches!(Message::decode(&raw), Ok(Message::Accept(_))) && passed.is_some());
}

/// Our client calls a stranger, who answers its Proposal with this; how the client ends up, and
/// what it said at last.
fn answerer(answer: impl FnOnce(i32) -> Vec<u8>, fds: &[i32]) -> (Reason, Reason, Option<Message>) {
    let mut found = Default::default();
    meets(false, |end, other| {
        let listener = raw::listen(other);
        end.step();
        let ch = raw::accept(&listener);
        assert!(matches!(hear_clc(&ch), Some(Message::Proposal(_))));
        say(&ch, &answer(other), fds);
        end.step();
        found = (end.reason(), end.peer_reason(), hear_clc(&ch));
    });
    found
}

/// What is left of a connection that one end has ended cannot move any more.
#[test]
fn a_connection_that_is_ending() {
    let _serial = serial();
    for server in [true, false] {
        let (low, high) = tcp(false);
        let (mine, other) = if server { (low, high) } else { (high, low) };
        let end = End::new(mine);
        smc::sys::shutdown(other, libc::SHUT_WR);
        let ch = if server {
            end.step();
            let ch = raw::connect(other).expect("the server listens");
            say(&ch, &write(&Message::Proposal(raw::proposal(0xffff)), other), &[]);
            end.step();
            ch
        } else {
            let listener = raw::listen(other);
            end.step();
            raw::accept(&listener)
        };
        let said = hear_clc(&ch);
        assert!(
            matches!(&said, Some(Message::Decline(d)) if d.diagnosis == reason::ENDING),
            "{said:?}"
        );
        assert_eq!(end.reason(), reason::ENDING);
        assert_eq!(end.send(b"still"), Ok(5));
        let mut buf = [0; 5];
        assert_eq!((common::raw_recv(other, &mut buf, 0), &buf), (Ok(5), b"still"));
        assert_eq!(end.recv(&mut buf, 0), Ok(0), "the end of the stream");
        end.close();
        smc::sys::close(other);
        raw::next_stranger();
    }
}

#[test]
fn a_taken_name() {
    let _serial = serial();
    meets(true, |end, other| {
        let _squatter = raw::listen(other);
        end.step();
        assert_eq!(end.reason(), reason::NAME_TAKEN);
    });
}

#[test]
fn a_caller_that_does_not_propose() {
    let _serial = serial();
    let good = Message::Proposal(raw::proposal(0xffff));
    assert_eq!(caller(|_, _, _| ()).0, reason::NOT_YET, "silence");
    for n in [0, 1, 8, 27, 100, raw::encode(&good).len() - 1] {
        let cut = raw::encode(&good)[..n].to_vec();
        let want = if n == 0 { reason::RENDEZVOUS } else { reason::CNF_ERR };
        assert_eq!(caller(|_, _, ch| say(ch, &cut, &[])).0, want, "{n} bytes");
    }
    assert_eq!(caller(|_, _, ch| say(ch, &[0xe2; 4096], &[])).0, reason::CNF_ERR);
    for wrong in [confirm_of(half()), accept_of(half())] {
        assert_eq!(caller(|_, other, ch| say(ch, &write(&wrong, other), &[])).0, reason::CNF_ERR);
    }
    let gone = caller(|_, other, ch| say(ch, &write(&decline_of(reason::IPSEC), other), &[]));
    assert_eq!(gone, (reason::PEER_DECL, reason::IPSEC), "a Decline may come at any time");
}

#[test]
fn a_proposal_for_something_else() {
    let _serial = serial();
    let good = raw::encode(&Message::Proposal(raw::proposal(0xffff)));
    assert_eq!(caller(|_, _, ch| say(ch, &good, &[])).0, reason::RENDEZVOUS, "no trailer");
    let more = with_trailer(raw::encode(&Message::Proposal(raw::proposal(0xffff))), 5, 1);
    assert_eq!(
        caller(|_, _, ch| say(ch, &more, &[])).0,
        reason::RENDEZVOUS,
        "has read what was never sent"
    );
    let mut heard = None;
    let why = caller(|end, other, ch| {
        say(ch, &write(&Message::Proposal(raw::proposal(0xff01)), other), &[]);
        end.step();
        heard = hear_clc(ch);
    });
    assert_eq!(why.0, reason::NO_SMCD2_DEV, "another CHID");
    assert_eq!(heard, Some(decline_of(reason::NO_SMCD2_DEV)));
}

/// A descriptor that nobody asked for.
#[test]
fn a_proposal_with_a_descriptor() {
    let _serial = serial();
    let gift = memfd(4096, 0);
    for n in [1, 2, 50] {
        caller(|end, other, ch| {
            let gifts = vec![gift.as_raw_fd(); n];
            say(ch, &write(&Message::Proposal(raw::proposal(0xffff)), other), &gifts);
            end.step();
        });
    }
}

#[test]
fn a_confirm_that_confirms_nothing() {
    let _serial = serial();
    let arena = memfd(arena(4), SEALED);
    let fd = [arena.as_raw_fd()];
    let bare = |m: &Message| with_trailer(raw::encode(m), 0, 0);
    let changed = |f: &dyn Fn(&mut SmcD)| {
        let mut h = half();
        f(&mut h);
        bare(&confirm_of(h))
    };
    assert_eq!(confirmer(&bare(&accept_of(half())), &fd).0, reason::CNF_ERR);
    assert_eq!(confirmer(b"SMCD", &fd).0, reason::CNF_ERR);
    assert_eq!(confirmer(&[], &fd).0, reason::RENDEZVOUS);
    assert_eq!(
        confirmer(&bare(&decline_of(reason::MEMORY)), &fd),
        (reason::PEER_DECL, reason::MEMORY)
    );
    assert_eq!(
        confirmer(&bare(&decline_of(reason::SYNC_ERR)), &[]),
        (reason::PEER_DECL, reason::SYNC_ERR)
    );
    assert_eq!(confirmer(&changed(&|h| h.gid.lo ^= 1), &fd).0, reason::VIOLATION);
    assert_eq!(confirmer(&changed(&|h| v2(h).chid = 0xff01), &fd).0, reason::VIOLATION);
    assert_eq!(confirmer(&changed(&|h| v2(h).eid = None), &fd).0, reason::VIOLATION);
    assert_eq!(
        confirmer(&changed(&|h| h.level = SmcDLevel::V1 { first_contact: true }), &fd).0,
        reason::VIOLATION
    );
    let release = changed(&|h| v2(h).first_contact.as_mut().expect("first contact").release = 0);
    assert_eq!(confirmer(&release, &fd).0, reason::RELEASE_ERR);
    let too_large = SizeCode::new(5).expect("a code");
    type Change<'a> = &'a dyn Fn(&mut SmcD);
    let off: [(&str, Change); 4] = [
        ("a slot beyond the arena", &|h| h.token = token(4)),
        ("a slot far beyond it", &|h| h.token = token(0xff_ffff)),
        ("a buffer larger than the arena", &|h| h.size = too_large),
        ("a buffer larger than any", &|h| h.size = SizeCode::MAX),
    ];
    for (why, change) in off {
        assert_eq!(confirmer(&changed(change), &fd).0, reason::VIOLATION, "{why}");
    }
}

#[test]
fn memory_that_is_not_to_be_mapped() {
    let _serial = serial();
    let pipe = std::io::pipe().expect("a pipe");
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    let good = memfd(arena(4), SEALED);
    let read_only = ("read only for us", memfd(arena(4), SEALED | libc::F_SEAL_WRITE));
    let some: Vec<(&str, OwnedFd)> = vec![
        ("unsealed", memfd(arena(4), 0)),
        ("may shrink", memfd(arena(4), libc::F_SEAL_GROW)),
        ("may grow", memfd(arena(4), libc::F_SEAL_SHRINK)),
        ("empty", memfd(0, SEALED)),
        ("no slot", memfd(arena(0), SEALED)),
        ("half a slot", memfd(arena(0) + 4096, SEALED)),
        ("half a slot more", memfd(arena(4) + 4096, SEALED)),
        ("no whole page", memfd(arena(4) + 1, SEALED)),
        ("too many slots", memfd(arena(1025), SEALED)),
        ("a pipe", pipe.0.into()),
        ("a file", file.into()),
    ];
    let confirm = || with_trailer(raw::encode(&confirm_of(half())), 0, 0);
    assert_eq!(confirmer(&confirm(), &[]).0, reason::SYNC_ERR);
    assert_eq!(confirmer(&confirm(), &[good.as_raw_fd(); 2]).0, reason::RENDEZVOUS);
    // What the kernel refuses may be no fault of the peer's.
    let all =
        some.iter().map(|some| (some, reason::VIOLATION)).chain([(&read_only, reason::SYSTEM)]);
    for ((what, fd), want) in all {
        assert_eq!(confirmer(&confirm(), &[fd.as_raw_fd()]).0, want, "{what}");
        let (why, _, said) = answerer(|other| write(&accept_of(half()), other), &[fd.as_raw_fd()]);
        assert_eq!((why, said), (want, Some(decline_of(want))), "{what}");
    }
}

#[test]
fn an_answer_that_accepts_nothing() {
    let _serial = serial();
    let arena = memfd(arena(4), SEALED);
    let fd = [arena.as_raw_fd()];
    let refused = |message: Message, fds: &[i32], want: Reason| {
        let (why, _, said) = answerer(|other| write(&message, other), fds);
        assert_eq!((why, said), (want, Some(decline_of(want))), "{message:?}");
    };
    let changed = |f: fn(&mut SmcD)| {
        let mut h = half();
        f(&mut h);
        accept_of(h)
    };
    refused(Message::Proposal(raw::proposal(0xffff)), &fd, reason::CNF_ERR);
    refused(confirm_of(half()), &fd, reason::CNF_ERR);
    refused(changed(|h| v2(h).chid = 0xff01), &fd, reason::VIOLATION);
    refused(changed(|h| v2(h).eid = Some(smc::clc::Eid([b'X'; 32]))), &fd, reason::VIOLATION);
    refused(changed(|h| h.level = SmcDLevel::V1 { first_contact: true }), &fd, reason::MODE_UNSUPP);
    refused(
        changed(|h| v2(h).first_contact.as_mut().expect("first").release = 9),
        &fd,
        reason::RELEASE_ERR,
    );
    refused(changed(|h| v2(h).first_contact = None), &fd, reason::SYNC_ERR);
    refused(changed(|h| h.token = token(4)), &fd, reason::VIOLATION);
    refused(changed(|h| h.size = SizeCode::MAX), &fd, reason::VIOLATION);
    refused(accept_of(half()), &[], reason::SYNC_ERR);
    for n in [1, 8, 77, 129] {
        let cut = raw::encode(&accept_of(half()))[..n].to_vec();
        let (why, _, said) = answerer(|_| cut, &fd);
        assert_eq!((why, said), (reason::CNF_ERR, Some(decline_of(reason::CNF_ERR))), "{n} bytes");
    }
    assert_eq!(
        answerer(|_| raw::encode(&accept_of(half())), &fd).0,
        reason::RENDEZVOUS,
        "no trailer"
    );
    assert_eq!(answerer(|_| vec![1; 1000], &fd).0, reason::RENDEZVOUS, "too long for any message");
    assert_eq!(answerer(|_| Vec::new(), &[]).0, reason::RENDEZVOUS, "an empty message");
    for code in [reason::NO_SMCD2_DEV, reason::MEMORY, Reason(0xdead_beef)] {
        for version in [Version::V1, Version::V2] {
            let no = Message::Decline(smc::clc::Decline::new(version, code));
            assert_eq!(answerer(|other| write(&no, other), &[]), (reason::PEER_DECL, code, None));
        }
    }
}

#[test]
fn an_empty_answer_with_a_descriptor() {
    let _serial = serial();
    let gift = memfd(4096, 0);
    assert_eq!(answerer(|_| Vec::new(), &[gift.as_raw_fd()]).0, reason::RENDEZVOUS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 1..800), flip in 0..100usize, to in any::<u8>()) {
        let _serial = serial();
        let arena = memfd(arena(4), SEALED);
        let why = caller(|_, _, ch| say(ch, &bytes, &[arena.as_raw_fd()])).0;
        prop_assert!([reason::CNF_ERR, reason::RENDEZVOUS].contains(&why));
        // One byte of a good message changed: whatever comes of it, the bytes of the connection
        // stay right.
        let message = |mut raw: Vec<u8>| { raw[flip] = to; raw };
        caller(|_, other, ch| say(ch, &message(write(&Message::Proposal(raw::proposal(0xffff)), other)), &[]));
    }
}
