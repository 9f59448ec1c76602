//! What lies where in a slot, and what one remembers of the connection before.
#![allow(unsafe_code)]

use super::*;
use core::mem::{MaybeUninit, offset_of};
use locked::Locked;

/// A slot in which every byte is `byte`.
fn slot(byte: u8) -> Conn {
    let mut slot = MaybeUninit::<Conn>::uninit();
    // SAFETY: writable.
    unsafe { slot.as_mut_ptr().write_bytes(byte, 1) };
    // SAFETY: any pattern that is a bool is a valid connection.
    unsafe { slot.assume_init() }
}

/// All that is in it, but what belongs to the table and the words of locks, which outlive
/// connections.
fn describe(conn: &Conn) -> String {
    conn.identity.gen_.store(0, Relaxed);
    conn.next_free.store(0, Relaxed);
    let all = format!("{conn:?} {:?} {:?}", conn.rx.snapshot(), conn.tx.snapshot());
    let names = conn.identity.names().map(|addr| addr.key());
    let lock =
        all.find("FastLock").map(|at| &all[at..at + all[at..].find('}').expect("a struct") + 1]);
    all.replace(lock.expect("two locks"), "") + &format!(" {names:?}")
}

#[test]
fn a_slot_remembers_nothing_of_its_last_connection() {
    let (fresh, used) = (slot(0), slot(1));
    assert_ne!(describe(&fresh), describe(&used));
    fresh.reset();
    used.reset();
    assert_eq!(describe(&fresh), describe(&used));
    assert_eq!(
        (fresh.identity.refs.load(Relaxed), fresh.rx.snapshot().tcp_read),
        (1, receiver::UNKNOWN)
    );
}

#[test]
fn what_every_call_looks_at_shares_a_cache_line_and_directions_do_not() {
    const LINE: usize = 64;
    let identity = offset_of!(Conn, identity);
    assert_eq!(offset_of!(Conn, phase), 0);
    assert!(offset_of!(Conn, ending) + size_of::<Ending>() <= LINE);
    assert!(
        identity + offset_of!(Identity, bounds) < LINE
            && identity + offset_of!(Identity, user_rcvlowat) < LINE
    );
    assert!(identity + offset_of!(Identity, pid) < 2 * LINE);
    for (at, cursors) in [
        (
            offset_of!(Conn, rx),
            offset_of!(Receiver, state) + Locked::<Rx>::STATE_AT + offset_of!(Rx, published),
        ),
        (
            offset_of!(Conn, tx),
            offset_of!(Sender, state) + Locked::<Tx>::STATE_AT + offset_of!(Tx, word),
        ),
    ] {
        assert_eq!((at % LINE, cursors), (0, LINE));
    }
}
