//! Connections that change hands over Unix sockets, before an upgrade. The sender's table keeps the place, with a reference
//! that travels: a receiver of the same family takes it over. One of another family does not, nor does anybody if the message
//! is thrown away: what was not taken over in `LOST_AFTER` seconds is given up, so that a server whose workers are other
//! programs does not run out of places. Who receives it later than that has a plain socket of the kernel's.

use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::conn::Conn;
use smc::table::{self, Header};
use smc::{meet, sys};

use super::life::end_unheld;
use super::{Kind, conn, has_left, held, local, mark, purge};

/// Seconds; a receiver that is so late has lost no more than the upgrade.
const LOST_AFTER: u32 = 3;

/// Where the next look at the table begins.
static HAND: AtomicU32 = AtomicU32::new(0);

fn seconds() -> u32 {
    (sys::coarse_ns() / 1_000_000_000) as u32
}

/// A connection that nobody has upgraded leaves over a Unix socket: its reference travels with it. True when the
/// descriptor can be passed as it is.
pub fn pass(c: &Conn, fd: i32) -> bool {
    if c.is_exposed() || !c.hold_upgrade() {
        return false;
    }
    meet::identify(c, fd);
    c.departed.store(seconds(), Relaxed);
    // In this order: while our own descriptor is there, more references are counted than travel.
    c.refs.fetch_add(1, AcqRel);
    set_out(c, 1);
    c.release_upgrade();
    true
}

/// `n` references travel.
fn set_out(c: &Conn, n: u32) {
    if let Some(t) = table::get() {
        t.travelling.fetch_add(n, Relaxed);
    }
    c.travelling.fetch_add(n, AcqRel);
}

/// `n` references do not travel any more.
fn ended(n: u32) {
    if let Some(t) = table::get() {
        t.travelling.fetch_sub(n, Relaxed);
    }
}

/// Takes one of the travelling references, which is the caller's then. False when there is none: it was given up as lost, or
/// one message was received twice (MSG_PEEK).
fn arrives(c: &Conn) -> bool {
    // SYNC: travelling. Pairs with `recall`: one of both takes the reference, and the other leaves the connection alone.
    let taken = c.travelling.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1)).is_ok();
    if taken {
        ended(1);
    }
    taken
}

/// It was not sent after all.
pub fn stays(c: &Conn) {
    if arrives(c) {
        c.refs.fetch_sub(1, AcqRel);
    }
}

/// A socket came over a Unix socket: if it is one of the family's, its travelling reference is now ours.
pub fn receive(fd: i32) {
    purge(fd);
    if !table::exists() || has_left() {
        return;
    }
    let Some(inode) = sys::socket_inode(fd) else { return };
    let Some(t) = table::get() else { return };
    let Some(i) = t.by_inode(inode) else { return };
    let c = conn(i);
    if !arrives(c) {
        return;
    }
    if c.inode.load(Relaxed) != inode {
        // Given up between the two looks, and the place is that of another one which travels.
        set_out(c, 1);
        return;
    }
    held(i).fetch_add(1, AcqRel);
    local(i).fd.store(fd as u32, Relaxed);
    mark(fd, Kind::Conn(i));
}

/// Gives up what did not arrive, at the next `places` of the table: no descriptor in the family names it, and nobody upgrades
/// it. The kernel's socket may live on in a program that knows nothing of us.
pub fn recall(t: &Header, places: u32) {
    let used = t.high_water.load(Relaxed).min(table::CAPACITY);
    if t.travelling.load(Relaxed) == 0 || used == 0 {
        return;
    }
    let places = places.min(used);
    // From the start again behind the last place: a count to be divided by `used` would follow the growth of the table.
    let next = |from: u32| if from >= used { places } else { from + places };
    let from = HAND.fetch_update(Relaxed, Relaxed, |from| Some(next(from))).unwrap_or(0);
    let from = if from >= used { 0 } else { from };
    let now = seconds();
    for index in (0..places).map(|i| (from + i) % used) {
        let c = t.conn(index);
        let n = c.travelling.load(Acquire);
        let overdue = now.wrapping_sub(c.departed.load(Relaxed)) > LOST_AFTER;
        if n == 0 || !overdue || c.refs.load(Acquire) != n {
            continue;
        }
        // SYNC: travelling. Pairs with `arrives`: a receiver that was quicker has made it less.
        if c.travelling.compare_exchange(n, 0, AcqRel, Acquire).is_err() {
            continue;
        }
        ended(n);
        if c.refs.compare_exchange(n, 0, AcqRel, Acquire).is_ok() {
            end_unheld(index);
        } else {
            // It arrived and left again between the two looks.
            set_out(c, n);
        }
    }
}
