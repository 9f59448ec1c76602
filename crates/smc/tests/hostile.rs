//! A peer that writes anything it likes into the buffer it was given: it harms its own connection
//! and nothing else.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use common::{End, bytes, rings, serial};
use proptest::prelude::*;
use smc::conn::{
    ABORT, CLAIMED, CLOSED, DONE, DmbHeader, HEADER_LEN, REVERTED, REVOKED, RUNG_REVOKED,
};
use smc::{group, reason, table};

common::over!(ism, verbs, checked_ism);

/// The header, which the peer can write to.
fn header(end: &End) -> &DmbHeader {
    // SAFETY: an exposed buffer, which stays mapped; all atomics.
    unsafe { &*end.conn.my_header() }
}

/// A buffer filled with a pattern.
struct Canary {
    group: u32,
    dmb: dibs::Dmb,
}

impl Canary {
    /// `like` is a connection of the group, whose buffers lie side by side.
    fn new(like: &End) -> Self {
        let group = like.conn.identity.group.load(Relaxed);
        let (peer, ..) = group::peer_of(group).expect("the group lives");
        let (dmb, _) = group::take_dmb(group, peer).expect("a buffer");
        // SAFETY: a buffer that nobody else uses.
        unsafe { dmb.addr.write_bytes(0xC5, dmb.len as usize) };
        Self { group, dmb }
    }

    fn is_next_to(&self, end: &End) -> bool {
        (end.conn.my_header() as usize).abs_diff(self.dmb.addr as usize) == self.dmb.len as usize
    }

    fn sings(&self) -> bool {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.dmb.addr, self.dmb.len as usize) }
            .iter()
            .all(|b| *b == 0xC5)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        group::give_back(self.group, self.dmb.token, false);
    }
}

/// A connection between canaries, and one near it.
struct Cage {
    victim: End,
    other: End,
    near: (End, End),
    canaries: Vec<Canary>,
}

fn cage() -> Cage {
    let near = rings();
    let before = [Canary::new(&near.0), Canary::new(&near.1)];
    let (victim, other) = rings();
    let after = [Canary::new(&near.0), Canary::new(&near.1)];
    let canaries: Vec<_> = [before, after].into_iter().flatten().collect();
    assert_eq!(canaries.iter().filter(|c| c.is_next_to(&victim)).count(), 2);
    assert_eq!(canaries.iter().filter(|c| c.is_next_to(&other)).count(), 2);
    Cage { victim, other, near, canaries }
}

/// The neighbours are untouched and the other connection works.
fn unharmed(cage: &Cage) {
    assert!(cage.canaries.iter().all(Canary::sings), "{}", cage.victim.describe());
    let (a, b) = &cage.near;
    for (from, to) in [(a, b), (b, a)] {
        let mut buf = [0; 2000];
        assert_eq!(from.send(&bytes(9, 0, 2000)), Ok(2000));
        assert_eq!(to.recv(&mut buf, 0), Ok(2000));
        assert!(buf[..] == bytes(9, 0, 2000));
    }
}

/// Every call there is; the results don't matter.
fn use_it(end: &End) {
    let (c, fd) = (end.conn, end.fd);
    let mut buf = vec![0; 70_000];
    let mut all = || {
        for flags in [libc::MSG_PEEK, libc::MSG_TRUNC, 0] {
            let _ = recv(end, &mut buf[..9000], flags);
        }
        let _ = end.send(&[1; 5000]);
        let _ = c.arm_data();
        c.arm_space();
        c.cover(3, 0);
        c.drain_doorbells(fd, c.doorbells_seen());
        let _ =
            (c.ready(fd), c.unread(fd), c.unsent(), c.has_news(), c.read_stamp(), c.space_epoch());
        let _ = (
            c.doorbells_due(),
            c.peer_elsewhere(),
            c.peer_gone(),
            c.dmb_is_quiet(),
            c.space_is_silent(),
        );
        let _ = (c.flush_takeback(fd), c.clear_stale(fd, c.doorbells_seen(), true, false));
    };
    all();
    end.poll(libc::POLLIN | libc::POLLOUT);
    all();
}

/// Not `End::recv`, which relies on what `ready` says.
fn recv(end: &End, buf: &mut [u8], flags: i32) -> smc::conn::Got {
    let iov = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
    end.conn.recv(end.fd, &mut smc::conn::Pieces::new(&iov), flags)
}

fn words(h: &DmbHeader) -> ([&AtomicU64; 5], [&AtomicU32; 6]) {
    (
        [&h.kind, &h.prod, &h.cons, &h.switch, &h.takeback],
        [&h.rx_arm, &h.tx_arm, &h.cover, &h.cpu, &h.rung, &h.kin],
    )
}

fn write(h: &DmbHeader, word: usize, value: u64) {
    match (word, words(h)) {
        (0..5, (long, _)) => long[word].store(value, SeqCst),
        (_, (_, short)) => short[word - 5].store(value as u32, SeqCst),
    }
}

/// Values near what is plausible, and far from it.
fn value() -> impl Strategy<Value = u64> {
    let flags = prop_oneof![
        Just(0),
        Just(DONE),
        Just(CLOSED),
        Just(ABORT),
        Just(REVERTED),
        Just(REVOKED),
        Just(CLAIMED),
        any::<u64>().prop_map(|v| v << 48)
    ];
    let cursor = (any::<u16>().prop_map(|w| w % 4), prop_oneof![0..70_000u32, any::<u32>()])
        .prop_map(|(wrap, count)| u64::from(wrap) | u64::from(count) << 16);
    prop_oneof![
        4 => (flags, cursor).prop_map(|(f, c)| f | c),
        2 => 0..300_000u64,
        1 => any::<u64>(),
        1 => any::<u32>().prop_map(|v| u64::from(v & !RUNG_REVOKED)),
        2 => (0..70_000u64).prop_map(|from| from << 1 | 1),
        1 => Just(u64::MAX),
        1 => Just(0),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Write(bool, usize, u64),
    Scribble(bool, u8),
    Send(bool, usize),
    Recv(bool, usize),
    Use(bool),
    Revert(bool, bool),
    Shutdown(bool, i32),
}

fn op() -> impl Strategy<Value = Op> {
    let who = any::<bool>;
    prop_oneof![
        6 => (who(), 0..11usize, value()).prop_map(|(who, w, v)| Op::Write(who, w, v)),
        1 => (who(), any::<u8>()).prop_map(|(who, b)| Op::Scribble(who, b)),
        4 => (who(), 1..70_000usize).prop_map(|(who, n)| Op::Send(who, n)),
        3 => (who(), 1..70_000usize).prop_map(|(who, n)| Op::Recv(who, n)),
        2 => who().prop_map(Op::Use),
        1 => (who(), any::<bool>()).prop_map(|(who, foreign)| Op::Revert(who, foreign)),
        1 => (who(), 0..3i32).prop_map(|(who, how)| Op::Shutdown(who, how)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_at_any_time(ops in prop::collection::vec(op(), 1..30), copy: bool) {
        let _serial = serial();
        smc::config::CONFIG.copy.store(copy, Relaxed);
        let cage = cage();
        let end = |who: bool| if who { &cage.victim } else { &cage.other };
        let mut buf = vec![0; 70_000];
        for op in ops {
            match op {
                Op::Write(who, word, v) => write(header(end(who)), word, v),
                Op::Scribble(who, b) => {
                    let size = end(who).conn.rx.snapshot().size as usize;
                    // SAFETY: the ring behind the header.
                    unsafe { end(who).conn.my_header().cast_mut().cast::<u8>().add(HEADER_LEN as usize).write_bytes(b, size) };
                }
                Op::Send(who, n) => drop(end(who).send(&buf[..n])),
                Op::Recv(who, n) => drop(recv(end(who), &mut buf[..n], 0)),
                Op::Use(who) => use_it(end(who)),
                Op::Revert(who, foreign) => {
                    // Doorbells that were counted and never sent cost a second of waiting; not
                    // here.
                    let rung = header(end(who)).rung.load(Relaxed) & RUNG_REVOKED;
                    header(end(who)).rung.store(rung | end(who).conn.rx.snapshot().drained & !RUNG_REVOKED, Relaxed);
                    end(who).conn.go_back_or_break(end(who).fd, reason::PASSED_FD.code(), foreign);
                }
                Op::Shutdown(who, how) => drop(end(who).shutdown(how)),
            }
        }
        use_it(&cage.victim);
        use_it(&cage.other);
        unharmed(&cage);
    }
}

fn violations() -> u64 {
    table::get().map_or(0, |t| t.stats.violations.load(Relaxed))
}

/// Impossible cursors end the connection with ECONNRESET, once, and are counted, once.
#[test]
fn an_impossible_cursor() {
    let _serial = serial();
    for (word, value, shows) in [
        (1, 65_472 << 16, "count beyond the ring"),
        (1, 2, "two laps"),
        (1, 0xffff, "backwards"),
        (2, 65_300 << 16, "read what was not sent"),
    ] {
        let cage = cage();
        let (victim, before) = (&cage.victim, violations());
        if word == 1 {
            assert_eq!(cage.other.send(&[1; 10]), Ok(10));
        }
        write(header(victim), word, value);
        let mut buf = [0; 100];
        let found = if word == 1 {
            victim.recv(&mut buf, 0)
        } else {
            victim.send(&[0; 65_000]).and_then(|_| victim.send(&[0; 65_000]))
        };
        assert_eq!(found, Err(libc::ECONNRESET), "{shows}");
        assert_eq!(violations(), before + 1, "{shows}");
        assert!(victim.conn.is_broken());
        assert_eq!(victim.reason(), reason::VIOLATION);
        assert!(matches!(victim.send(b"x"), Err(libc::ECONNRESET | libc::EPIPE)));
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        assert_ne!(victim.poll(all) & libc::POLLHUP, 0);
        use_it(victim);
        assert_eq!(violations(), before + 1, "counted once");
        // The other end, which did nothing of the kind here, sees a reset.
        common::until("the reset arrives", || {
            matches!(cage.other.recv(&mut buf, 0), Err(libc::ECONNRESET) | Ok(0))
        });
        unharmed(&cage);
    }
}

/// A takeback of bytes that were acknowledged as read, or never sent.
#[test]
fn an_impossible_takeback() {
    let _serial = serial();
    for from in [0, 999, 1001, 5000, 1 << 40, u64::MAX >> 1] {
        let cage = cage();
        let victim = &cage.victim;
        assert_eq!(victim.send(&bytes(1, 0, 1000)), Ok(1000));
        assert_eq!(cage.other.recv(&mut [0; 1000], 0), Ok(1000));
        assert_eq!(victim.conn.unsent(), 0);
        let before = violations();
        header(victim).takeback.store(from << 1 | 1, SeqCst);
        // Over loopback it counts with the claim in the word of the ring.
        header(&cage.other).prod.fetch_or(CLAIMED, SeqCst);
        victim.conn.flush_takeback(victim.fd);
        use_it(victim);
        // Over ism nobody was told yet that they were read: the peer gets again what it threw away.
        let known = !common::copying() || from > 1000;
        assert_eq!(violations(), before + u64::from(known), "from {from}: {}", victim.describe());
        unharmed(&cage);
    }
}

/// End flags out of nothing: what is in the ring is still delivered.
#[test]
fn ends_out_of_nothing() {
    let _serial = serial();
    for (flag, end) in [(DONE, Ok(0)), (CLOSED, Ok(0)), (ABORT, Err(libc::ECONNRESET))] {
        let cage = cage();
        assert_eq!(cage.other.send(&[5; 300]), Ok(300));
        header(&cage.victim).cons.store(flag, SeqCst);
        let mut buf = [0; 1000];
        assert_eq!(cage.victim.recv(&mut buf, 0), Ok(300));
        assert_eq!(cage.victim.recv(&mut buf, 0), end);
        assert_eq!(cage.victim.recv(&mut buf, 0), Ok(0));
        unharmed(&cage);
    }
}

/// A switch offset that is not where the peer's TCP bytes end only changes what this connection
/// reads.
#[test]
fn a_false_switch_offset() {
    let _serial = serial();
    for offset in [0, 1, 5, 6, 1 << 20, u64::MAX >> 1] {
        let near = rings();
        let (victim, other) = common::pair();
        assert_eq!(other.send(b"hello"), Ok(5));
        while !victim.conn.is_exposed() {
            victim.step();
            other.step();
        }
        header(&victim).switch.store(offset << 1 | 1, SeqCst);
        for _ in 0..3 {
            use_it(&victim);
            victim.settle();
        }
        unharmed(&Cage { victim, other, near, canaries: Vec::new() });
    }
}
