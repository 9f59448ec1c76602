//! A peer over ism that lies about where its buffer is, beside an honest connection: it is
//! declined, and its connection stays TCP with every byte; and one that dies in the middle of a
//! write.
#![allow(unsafe_code)]

mod common;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::*};

use common::raw::{self, accept_of, confirm_of, half, hear_clc, say, v2};
use common::{End, bytes, rings, serial, tcp, until};
use smc::clc::{Message, SmcD};
use smc::conn::HEADER_LEN;
use smc::{reason, sys};

const SLOT: u64 = 64 << 10;
const PAGE: u64 = 4096;

/// Base, length and proof, as they stand between a message and its trailer.
#[derive(Clone, Copy, Debug)]
struct Place([u64; 3]);

/// An arena of the stranger's, in this process: what is there is as true as it can be.
fn arena() -> Place {
    let len = (2 * PAGE + 4 * SLOT) as usize;
    // SAFETY: a new mapping, which stays.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    let proof = 0x1234_5678_9abc_def1;
    // SAFETY: the first word of that mapping.
    unsafe { base.cast::<u64>().write(proof) };
    Place([base as u64, len as u64, proof])
}

fn with_place(message: &Message, place: Option<Place>) -> Vec<u8> {
    let mut raw = raw::encode(message);
    raw.extend(place.iter().flat_map(|place| place.0).flat_map(u64::to_be_bytes));
    raw::with_trailer(raw, 0, 0)
}

fn ism_half() -> SmcD {
    let mut half = half();
    half.gid = raw::gid_on(0xff00);
    v2(&mut half).chid = 0xff00;
    half
}

/// The stranger at the other end says this after our Proposal or Accept: our end, the other, and
/// whether it is upgraded.
fn meet(
    victim_is_server: bool,
    place: Option<Place>,
    change: impl Fn(&mut SmcD),
) -> (End, i32, bool) {
    let (low, high) = tcp(false);
    let (mine, other) = if victim_is_server { (low, high) } else { (high, low) };
    let end = End::new(mine);
    let mut theirs = ism_half();
    change(&mut theirs);
    let listener = (!victim_is_server).then(|| raw::listen(other));
    end.step();
    let ch = match &listener {
        Some(listener) => raw::accept(listener),
        None => raw::connect(other).expect("the server listens"),
    };
    if victim_is_server {
        let mut proposal = raw::proposal(0xff00);
        let devices =
            &mut proposal.v2.as_mut().and_then(|v2| v2.smcd.as_mut()).expect("SMC-D").devices;
        *devices = smc::clc::Devices::new();
        devices.push(smc::clc::Device { gid: raw::gid_on(0xff00), chid: 0xff00 }).expect("room");
        say(&ch, &raw::write(&Message::Proposal(proposal), other), &[]);
        end.step();
        assert!(matches!(hear_clc_with_place(&ch), Some(Message::Accept(_))));
        say(&ch, &with_place(&confirm_of(theirs), place), &[]);
    } else {
        assert!(matches!(hear_clc(&ch), Some(Message::Proposal(_))));
        say(&ch, &with_place(&accept_of(theirs), place), &[]);
    }
    end.step();
    let upgraded = if victim_is_server { end.conn.is_committed() } else { end.conn.is_exposed() };
    if !upgraded {
        assert!(matches!(hear_clc(&ch), Some(Message::Decline(_))), "{}", end.describe());
    }
    (end, other, upgraded)
}

fn hear_clc_with_place(ch: &std::os::fd::OwnedFd) -> Option<Message> {
    let (raw, fd) = raw::hear(ch.as_raw_fd(), false)?;
    assert!(fd.is_none(), "no memory to map is passed over ism");
    Message::decode(&raw).ok()
}

/// Both ways over TCP.
fn is_tcp(end: &End, other: i32) {
    let mut got = [0; 500];
    assert_eq!(end.send(&bytes(1, 0, 500)), Ok(500));
    until("what was sent", || common::raw_recv(other, &mut got, libc::MSG_PEEK) == Ok(500));
    assert_eq!(common::raw_recv(other, &mut got, 0), Ok(500));
    assert!(got[..] == bytes(1, 0, 500));
    assert_eq!(common::raw_send(other, &bytes(2, 0, 500)), Ok(500));
    until("what came", || end.recv(&mut got, libc::MSG_PEEK) == Ok(500));
    assert_eq!(end.recv(&mut got, 0), Ok(500));
    assert!(got[..] == bytes(2, 0, 500) && !end.conn.switched());
}

fn talk((a, b): &(End, End), at: u64) {
    for (from, to) in [(a, b), (b, a)] {
        let mut got = [0; 3000];
        assert_eq!((from.send(&bytes(7, at, 3000)), to.recv(&mut got, 0)), (Ok(3000), Ok(3000)));
        assert!(got[..] == bytes(7, at, 3000));
    }
}

#[test]
fn a_false_place_is_declined() {
    let _serial = serial();
    smc::setting::set(b"PREFER", b"ism");
    let honest = rings();
    // Beside the honest connection's own memory, too: where it lies is no secret to this process.
    let near = honest.0.conn.my_header() as u64 & !(PAGE - 1);
    let mut round = 0;
    for victim_is_server in [true, false] {
        let good = arena();
        let Place([base, len, proof]) = good;
        let (false_form, not_there) = (reason::VIOLATION, reason::SYNC_ERR);
        let places = [
            (None, false_form),
            (Some(Place([base, len, proof ^ 1])), not_there),
            (Some(Place([base, len, 0])), false_form),
            (Some(Place([base + PAGE, len, proof])), not_there),
            (Some(Place([base + 1, len, proof])), false_form),
            (Some(Place([0, len, proof])), not_there),
            (Some(Place([u64::MAX - 7, len, proof])), false_form),
            (Some(Place([near, len, proof])), not_there),
            (Some(Place([base, len + 1, proof])), false_form),
            (Some(Place([base, 0, proof])), false_form),
            (Some(Place([base, u64::MAX, proof])), false_form),
            // An arena in which the slot that the token names does not lie.
            (Some(Place([base, 2 * PAGE + SLOT, proof])), false_form),
        ];
        for (place, why) in places {
            let (end, other, upgraded) =
                meet(victim_is_server, place, |half| half.token = raw::token(1));
            assert!(!upgraded, "{place:x?}");
            assert_eq!(end.reason(), why, "{place:x?}");
            is_tcp(&end, other);
            talk(&honest, round);
            round += 1;
            end.close();
            sys::close(other);
            raw::next_stranger();
        }
        // A size that does not fit the arena's slots, and the same without a lie.
        let (end, other, upgraded) =
            meet(victim_is_server, Some(good), |half| half.token = raw::token(4));
        assert!(!upgraded);
        is_tcp(&end, other);
        end.close();
        sys::close(other);
        raw::next_stranger();
        let (end, other, upgraded) = meet(victim_is_server, Some(good), |_| {});
        assert!(upgraded, "what is true is believed: {}", end.describe());
        end.close();
        sys::close(other);
        raw::next_stranger();
        talk(&honest, round);
    }
}

/// The image that a peer names is its own memory, wherever it says; forged, it tells lies about
/// that peer alone.
#[test]
fn forged_words_of_an_image() {
    let _serial = serial();
    smc::setting::set(b"PREFER", b"ism");
    let honest = rings();
    for image in [0, 1, 0xfff, 1 << 40, (1 << 56) - 1, honest.0.conn.my_header() as u64] {
        let (victim, other) = rings();
        assert_eq!(victim.send(&bytes(3, 0, 1000)), Ok(1000));
        // SAFETY: an exposed buffer, which stays mapped; all atomics.
        let header = unsafe { &*victim.conn.my_header() };
        header.kind.store(0xfe | image << 8, SeqCst);
        assert!(victim.conn.unsent() <= 1000);
        header.kin.store(std::process::id() + 1, SeqCst);
        header.prod.store(u64::MAX >> 17, SeqCst);
        let mut got = [0; 100];
        assert!(matches!(victim.recv(&mut got, 0), Err(libc::ECONNRESET)), "{}", victim.describe());
        assert_eq!(victim.reason(), reason::VIOLATION);
        talk(&honest, image & 0xffff);
        drop(other);
    }
}

/// Its bytes are in our ring and its cursor is not: nobody sees them, with the checksum or without.
#[test]
fn a_peer_that_dies_between_the_halves_of_a_write() {
    let _serial = serial();
    smc::setting::set(b"PREFER", b"ism");
    for integrity in [b"0", b"1"] {
        smc::group::after_fork_child();
        smc::setting::set(b"INTEGRITY", integrity);
        let honest = rings();
        let (victim, other) = rings();
        assert_eq!(other.send(&bytes(5, 0, 700)), Ok(700));
        let base = victim.conn.my_header().cast::<u8>().cast_mut();
        // SAFETY: the ring behind the header, and the first of its records if there are any.
        unsafe {
            base.add(HEADER_LEN as usize + 700).write_bytes(0xee, 4000);
            if integrity == b"1" {
                (*base.add(SLOT as usize - 64 + 8).cast::<AtomicU64>())
                    .store((4700 << 16) | 0x4321, SeqCst);
            }
        }
        other.crash();
        let mut got = [0; 5000];
        assert_eq!(victim.recv(&mut got, 0), Ok(700), "{}", victim.describe());
        assert!(got[..700] == bytes(5, 0, 700));
        until("the end", || matches!(victim.recv(&mut got, 0), Ok(0) | Err(libc::ECONNRESET)));
        assert_eq!(victim.conn.rx.snapshot().prod.pos, 700);
        talk(&honest, 0);
    }
    smc::setting::set(b"INTEGRITY", b"0");
}
