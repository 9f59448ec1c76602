//! Offers: a connection between processes that know each other is offered in a lane when connect
//! returns, and looked for behind its first operations. Before the number of operations behind
//! which an upgrade begins (`--after`) nothing else is done.

use super::*;
use crate::conn::upgrade::{NOT, OFFERED};

/// Operations of a new connection behind which is looked whether its client has offered it: the
/// first, and the one after that where the server speaks first.
const FIRST: u32 = 2;

/// Before the operations behind which an upgrade begins.
pub(super) fn is_early(conn: &Conn) -> bool {
    conn.ops.load(Relaxed) < CONFIG.after.load(Relaxed)
        && conn.tcp_bytes.load(Relaxed) < CONFIG.after_bytes.load(Relaxed)
}

/// When a new connection is looked at first.
#[inline]
pub fn first_look() -> u32 {
    let after = CONFIG.after.load(Relaxed);
    if lanes::are_in_use() { after.min(1) } else { after }
}

/// Whether a step would come to nothing, because its time has not come and no connection is
/// offered.
pub fn is_in_vain(conn: &Conn) -> bool {
    let vain = is_early(conn) && conn.upgrade.is_unbegun() && !lanes::any_offer();
    if vain {
        look_early(conn);
    }
    vain
}

/// Nobody has offered the connection yet.
pub(super) fn look_early(conn: &Conn) {
    let (ops, after) = (conn.ops.load(Relaxed), CONFIG.after.load(Relaxed));
    let next = if ops < FIRST { ops + 1 } else { after };
    conn.upgrade.due_ops.store(next, Relaxed);
    conn.next_try.store(next, Relaxed);
}

/// Offers a connection that was just opened to the processes that its peer's address has led to
/// before: from their answer on, which is there when the first response is, it needs no further
/// operations.
#[cold]
pub fn offer(conn: &Conn, fd: i32, shared: impl Fn() -> bool) {
    if !is_early(conn) || !conn.upgrade.is_unbegun() {
        return;
    }
    // Of one that is not open yet the kernel has no names, and they would not be asked for again.
    let Some(names) = inet::names(fd) else { return };
    // Both ends of one with itself are one.
    let is_other = names[0].key() != names[1].key() && inet::is_local(&names);
    if !is_other || conn.phase().has(p::FROZEN | p::CLOSED) || !conn.hold_upgrade() {
        return;
    }
    if !shared() && conn.upgrade.is_unbegun() {
        identify_as(conn, fd, Some(names));
        if eligible(conn, fd).is_none()
            && let Some(generation) = group::generation()
            && lanes::offer(conn)
        {
            conn.own().generation.store(generation, Relaxed);
            conn.upgrade.seek(Seeking::Lane(Lane::Offers));
            conn.upgrade.offered.store(OFFERED, Relaxed);
            pace::soon(conn);
        }
    }
    conn.release_upgrade();
}

/// Client: whether the next connection to this address is to be offered, by what came of this one.
pub(super) fn learn(conn: &Conn) {
    /// Operations that make good for the handshake and for the doorbells of both switches, where
    /// the other end sleeps.
    const CALLS: u64 = 12;
    const BYTES: u64 = 256 << 10;
    if conn.upgrade.offered.swap(NOT, Relaxed) == OFFERED {
        let (sent, got) = (&conn.tx.counts, &conn.rx.counts);
        let calls =
            u64::from(conn.ops.load(Relaxed)) + sent.calls.load(Relaxed) + got.calls.load(Relaxed);
        let bytes =
            conn.tcp_bytes.load(Relaxed) + sent.bytes.load(Relaxed) + got.bytes.load(Relaxed);
        lanes::learn(conn, calls >= CALLS || bytes >= BYTES);
    }
}
