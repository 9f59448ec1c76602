//! Connections that change hands over Unix sockets, before an upgrade. The sender's table keeps the
//! place, with a reference that travels: a receiver that has the connection in its memory takes it
//! over, which is the sender itself, or one that it has forked since. A child that was there before
//! makes a connection of its own of it, by what its parent notes in its ledger, and leaves it on
//! TCP until the parent has none of its descriptors any more. Of any other it is a plain socket of
//! the kernel's. What was not taken over in `LOST_AFTER` seconds, for the message may have been
//! thrown away, is given up, so that a server does not run out of places.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use smc::conn::Conn;
use smc::table::{self, Header};
use smc::{meet, sys};

use super::life::{end_unheld, held_here, leave_unheld};
use super::{Kind, conn, has_stopped, local, mark, port, purge};
use crate::ledger;

/// Seconds; a receiver that is so late has lost no more than the upgrade.
const LOST_AFTER: u32 = 3;

/// Where the next look at the table begins.
static HAND: AtomicU32 = AtomicU32::new(0);
/// Whether references of ours may be under way, and whether the present round over the table has
/// come by some.
static AWAY: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicBool = AtomicBool::new(false);

fn seconds() -> u32 {
    (sys::coarse_ns() / 1_000_000_000) as u32
}

/// A connection that nobody has upgraded leaves over a Unix socket: its reference travels with it.
/// True when the descriptor can be passed as it is.
pub fn pass(c: &Conn, fd: i32) -> bool {
    if !c.hold_unexposed() {
        return false;
    }
    meet::identify(c, fd);
    let inode = sys::socket_inode(fd).unwrap_or(0);
    let l = local(table::index_of(c) as u32);
    l.passed.store(inode, Relaxed);
    if !c.is_frozen() {
        l.note.store(ledger::passes(inode), Relaxed);
    }
    c.identity.departed.store(seconds(), Relaxed);
    // In this order: while our own descriptor is there, more references are counted than travel.
    c.identity.refs.fetch_add(1, AcqRel);
    set_out(c, 1);
    c.release_upgrade();
    true
}

/// `n` references travel.
fn set_out(c: &Conn, n: u32) {
    c.identity.travelling.fetch_add(n, AcqRel);
    SEEN.store(true, Relaxed);
    AWAY.store(true, Relaxed);
}

/// Takes one of the travelling references, which is the caller's then. False when there is none: it
/// was given up as lost, or one message was received twice (MSG_PEEK).
fn arrives(c: &Conn) -> bool {
    // SYNC: travelling. Pairs with `end_lost`: one of both takes the reference, and the other
    // leaves the connection alone.
    c.identity.travelling.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1)).is_ok()
}

/// It was not sent after all.
pub fn stays(c: &Conn) {
    if arrives(c) {
        let l = local(table::index_of(c) as u32);
        ledger::takes_back(l.note.swap(0, Relaxed), l.passed.load(Relaxed));
        c.identity.refs.fetch_sub(1, AcqRel);
    }
}

/// A socket came over a Unix socket: if this process, or one that it was forked from, has sent it,
/// its travelling reference is now ours.
pub fn receive(fd: i32) {
    purge(fd);
    if !table::exists() || has_stopped() {
        return;
    }
    let Some(inode) = sys::socket_inode(fd) else { return };
    let Some(t) = table::get() else { return };
    // Others can write what stands in the slot, and are not to make a connection of any socket that
    // comes here.
    let sent =
        |i, _: &Conn| local(i).passed.load(Relaxed) == inode && local(i).came.load(Relaxed) == 0;
    let Some(i) = t.find(inode, sent) else {
        return take_on(fd, inode);
    };
    let c = conn(i);
    if !arrives(c) {
        return;
    }
    if local(i).passed.load(Relaxed) != inode {
        // Given up between the two looks, and the place is that of another one which travels.
        set_out(c, 1);
        return;
    }
    if !held_here(i) {
        return;
    }
    local(i).fd.store(fd as u32, Relaxed);
    mark(fd, Kind::Conn(i));
}

/// Makes a connection of our own of one that our parent has passed to us. As long as the parent has
/// a descriptor of it, too, it counts among those who hold it.
fn take_on(fd: i32, inode: u32) {
    let Some(note) = ledger::takes_on(inode) else { return };
    smc::meet::inherited::note_all();
    mark(fd, Kind::Tcp);
    let Some(port) = port(fd) else {
        // With an object of its own it would pass for one that nobody else has.
        return mark(fd, Kind::Other);
    };
    let l = local(port.index);
    port.conn.identity.refs.fetch_add(1, AcqRel);
    l.passed.store(inode, Relaxed);
    l.note.store(note, Relaxed);
    l.came.store(1, Release);
}

/// Whether a connection that our parent counts among the holders of is ours alone by now: the
/// parent is not counted any more then.
#[cold]
pub fn is_let_go(index: u32) -> bool {
    let l = local(index);
    if l.came.load(Acquire) != 1 || !ledger::is_let_go(l.note.load(Relaxed), l.passed.load(Relaxed))
    {
        return false;
    }
    count_parent_no_more(index);
    !super::is_shared(index)
}

pub(super) fn count_parent_no_more(index: u32) {
    if local(index).came.swap(0, AcqRel) == 1 {
        conn(index).identity.refs.fetch_sub(1, AcqRel);
    }
}

/// Gives up what did not arrive, at the next `places` of the table: no descriptor of those who
/// share it names it, and nobody upgrades it. The kernel's socket may live on in a program that
/// knows nothing of us. What others have taken on is left to them.
pub fn end_lost(t: &Header, places: u32) {
    let used = t.used();
    if !AWAY.load(Relaxed) || used == 0 {
        return;
    }
    let places = places.min(used);
    // From the start again behind the last place: a count to be divided by `used` would follow the
    // growth of the table.
    let next = |from: u32| if from >= used { places } else { from + places };
    let from = HAND.fetch_update(Relaxed, Relaxed, |from| Some(next(from))).unwrap_or(0);
    let from = if from >= used { 0 } else { from };
    if from == 0 && !SEEN.swap(false, Relaxed) {
        AWAY.store(false, Relaxed);
        return;
    }
    let now = seconds();
    for index in (0..places).map(|i| (from + i) % used).filter(|&index| table::is_here(index)) {
        let c = t.conn(index);
        let n = c.identity.travelling.load(Acquire);
        if n == 0 {
            leave_unheld(index, c);
            continue;
        }
        SEEN.store(true, Relaxed);
        let overdue = now.wrapping_sub(c.identity.departed.load(Relaxed)) > LOST_AFTER;
        if !overdue || c.identity.refs.load(Acquire) != n {
            continue;
        }
        // SYNC: travelling. Pairs with `arrives`: a receiver that was quicker has made it less.
        if c.identity.travelling.compare_exchange(n, 0, AcqRel, Acquire).is_err() {
            continue;
        }
        if c.identity.refs.compare_exchange(n, 0, AcqRel, Acquire).is_ok() {
            end_unheld(index);
        } else {
            // It arrived and left again between the two looks.
            set_out(c, n);
        }
    }
}
