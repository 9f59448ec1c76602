//! The checksum over ism: who agrees on it, that every stream passes it, and that a flipped bit
//! does not.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering::*};

use common::{End, bytes, pair, rings, serial, upgrade};
use smc::conn::HEADER_LEN;
use smc::{group, reason, sys, table};

/// Bytes at the end of a DMB that are records.
const TAIL: usize = 64;
const DMB: usize = 64 << 10;

fn set(prefer: &str, integrity: bool) {
    // From here on there is no link group to join but the one that is made next.
    group::after_fork_child();
    smc::setting::set(b"PREFER", prefer.as_bytes());
    smc::setting::set(b"INTEGRITY", if integrity { b"1" } else { b"0" });
}

fn checked() -> (End, End) {
    set("ism", true);
    rings()
}

fn ring(end: &End) -> usize {
    end.conn.rx.snapshot().size as usize
}

/// The injector: what the copy damages on its way into the receiver's buffer.
fn flip(end: &End, offset: usize, bit: u32) {
    let at = end.conn.my_header().cast::<u8>().cast_mut().wrapping_add(offset);
    // SAFETY: a byte of an exposed buffer, which stays mapped.
    unsafe { at.write_volatile(at.read_volatile() ^ 1 << bit) };
}

fn record(end: &End, number: usize) -> &AtomicU64 {
    // SAFETY: the last bytes of an exposed buffer: aligned, mapped for good.
    unsafe { &*end.conn.my_header().cast::<u8>().add(DMB - TAIL + 8 * number).cast() }
}

fn damaged() -> u64 {
    table::get().map_or(0, |t| t.stats.damaged.load(Relaxed))
}

#[test]
fn both_ends_must_ask_for_it() {
    let _serial = serial();
    for (of_server, of_client) in [(true, true), (true, false), (false, true), (false, false)] {
        set("ism", false);
        let (server, client) = pair();
        for _ in 0..20 {
            smc::setting::set(b"INTEGRITY", if of_server { b"1" } else { b"0" });
            server.step();
            smc::setting::set(b"INTEGRITY", if of_client { b"1" } else { b"0" });
            client.step();
        }
        assert!(server.settle() && client.settle(), "{} {}", server.describe(), client.describe());
        let tail = if of_server && of_client { TAIL } else { 0 };
        for (end, other) in [(&server, &client), (&client, &server)] {
            assert_eq!(ring(end), DMB - HEADER_LEN as usize - tail, "{of_server} {of_client}");
            let sent = bytes(3, 0, 1001);
            let mut got = vec![0; sent.len()];
            assert_eq!((end.send(&sent), other.recv(&mut got, 0)), (Ok(1001), Ok(1001)));
            assert!(got == sent);
            let rows = table::get().expect("a table").groups();
            let id = end.conn.identity.group.load(Relaxed);
            let own = |row: &&smc::census::Row| {
                (row.id.load(Relaxed), row.pid.load(Relaxed)) == (id, sys::getpid())
            };
            let row = rows.iter().find(own).expect("a row");
            assert_eq!(row.checked.load(Relaxed) == 1, tail != 0);
        }
        // A later connection of the group keeps to it, whatever was set since.
        join(&server, tail);
    }
    smc::setting::set(b"INTEGRITY", b"0");
}

fn join(earlier: &End, tail: usize) {
    smc::setting::set(b"INTEGRITY", b"1");
    let (server, client) = pair();
    upgrade(&server, &client);
    assert_eq!(server.conn.identity.group.load(Relaxed), earlier.conn.identity.group.load(Relaxed));
    assert_eq!([ring(&server), ring(&client)], [DMB - HEADER_LEN as usize - tail; 2]);
}

#[test]
fn loopback_has_nothing_to_check() {
    let _serial = serial();
    set("loopback", true);
    let (server, client) = rings();
    assert_eq!([ring(&server), ring(&client)], [DMB - HEADER_LEN as usize; 2]);
    smc::setting::set(b"INTEGRITY", b"0");
}

/// Any bit, of bytes that were read in part or not at all, at the seam of the ring and elsewhere.
#[test]
fn a_flipped_bit_ends_the_connection() {
    let _serial = serial();
    for (before, sent, at, bit) in
        [(0, 1, 0, 0), (0, 4000, 3999, 7), (60_000, 9000, 5000, 3), (60_000, 9000, 8000, 4)]
    {
        let (server, client) = checked();
        let (beside, other) = rings();
        let mut got = vec![0; 70_000];
        if before > 0 {
            assert_eq!(client.send(&bytes(1, 0, before)), Ok(before));
            assert_eq!(server.recv(&mut got[..before], 0), Ok(before));
        }
        assert_eq!(client.send(&bytes(1, before as u64, sent)), Ok(sent));
        flip(&server, HEADER_LEN as usize + (before + at) % ring(&server), bit);
        let counted = damaged();
        // Neither a look nor a count of bytes makes it any more whole.
        assert_eq!(server.conn.unread(server.fd), 0);
        assert_eq!(server.recv(&mut got, libc::MSG_PEEK), Err(libc::ECONNRESET));
        assert_eq!(server.recv(&mut got, 0), Err(libc::ECONNRESET), "after a look, too");
        assert_eq!((server.reason(), server.conn.is_broken()), (reason::DAMAGED, true));
        assert_eq!(damaged(), counted + 1);
        assert!(
            client.recv(&mut got, 0).is_err_and(|e| e == libc::ECONNRESET),
            "the peer learns of it"
        );
        assert_eq!((beside.send(b"as before"), other.recv(&mut got, 0)), (Ok(9), Ok(9)));
    }
    smc::setting::set(b"INTEGRITY", b"0");
}

/// What was found whole is delivered; what came later and is damaged is not.
#[test]
fn what_came_whole_is_delivered() {
    let _serial = serial();
    let (server, client) = checked();
    let mut got = [0; 1000];
    assert_eq!(
        (client.send(&bytes(2, 0, 1000)), server.recv(&mut got[..400], 0)),
        (Ok(1000), Ok(400))
    );
    assert_eq!(client.send(&bytes(2, 1000, 1000)), Ok(1000));
    flip(&server, HEADER_LEN as usize + 1500, 1);
    assert_eq!(server.recv(&mut got[..600], 0), Ok(600));
    assert!(got[..600] == bytes(2, 400, 600));
    assert_eq!(server.recv(&mut got, 0), Err(libc::ECONNRESET));
    smc::setting::set(b"INTEGRITY", b"0");
}

/// Between the two halves of a write, a writer has left the next record and not its cursor; or it
/// died there.
#[test]
fn a_write_that_was_cut_off_is_not_seen() {
    let _serial = serial();
    let (server, client) = checked();
    let mut got = [0; 1000];
    for round in 0..5 {
        assert_eq!(client.send(&bytes(4, round * 100, 100)), Ok(100));
        // The next one goes where the record before the last is.
        record(&server, (round as usize + 1) % 2).store(((round + 2) * 100) << 16 | 0x1234, SeqCst);
        assert_eq!(server.recv(&mut got, 0), Ok(100), "{}", server.describe());
        assert!(got[..100] == bytes(4, round * 100, 100));
        assert_eq!(server.recv(&mut got, 0), Err(libc::EAGAIN));
    }
    // A cursor without its record is no honest peer's.
    assert_eq!(client.send(b"one more"), Ok(8));
    (0..2).for_each(|number| record(&server, number).store(0, SeqCst));
    assert_eq!(server.recv(&mut got, 0), Err(libc::ECONNRESET));
    assert_eq!(server.reason(), reason::DAMAGED);
    smc::setting::set(b"INTEGRITY", b"0");
}
