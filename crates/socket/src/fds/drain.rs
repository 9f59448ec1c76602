//! `shortwire off --drain`: the connections of a process go back to TCP while it runs. So does one
//! that is stuck (`smc::conn::patience`).
//!
//! Only the process itself can take them there, in a call of its own. A word in its table tells it,
//! at which each call looks, and each wait before it sleeps; `shortwire` wakes epoll sets that
//! sleep, and a connection that goes back rings its peer's doorbell. The peer has to do its part, so
//! waits look again soon until it has.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use smc::conn::Conn;
use smc::reason::{DRAINED, STUCK};
use smc::{conn, home, sys, table};

use super::tcp::drain;
use crate::fds::{self, Kind};

/// Two walks over all connections are so far apart, in nanoseconds.
const APART: u64 = 5_000_000;
/// How long waits look by themselves: a peer that sleeps answers when it wakes.
const PATIENCE: u64 = 2_000_000_000;
/// How long such a wait sleeps.
const NAP: u64 = 20_000_000;

/// When the last walk began, and the first one of those that were not long apart.
static LAST: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicU64 = AtomicU64::new(0);
/// The thread that walks.
static WALKS: AtomicU32 = AtomicU32::new(0);

/// Takes connections back if that is wanted. In front of a wait, with no lock held. How long the
/// wait may sleep at most, if it is to look again.
#[inline(always)]
pub fn look() -> Option<u64> {
    if conn::any_is_stuck() {
        free();
    }
    if table::may_drain() { walk() } else { None }
}

/// Ends the connection if its device was taken away, and takes connections back as `look` does: in
/// each call, as one that never finds its ring empty or full never waits.
#[inline(always)]
pub fn look_for_changes(c: &Conn) {
    if table::may_have_changed() {
        changes(c);
    }
}

#[cold]
#[inline(never)]
fn changes(c: &Conn) {
    if c.needs_device() && !c.has_no_device() && table::may_drain() {
        walk();
    }
}

/// Takes those that are stuck back to TCP.
#[cold]
#[inline(never)]
fn free() {
    if !home::is_owner()
        || fds::has_stopped()
        || shm::lock::on_signal_stack()
        || !conn::take_stuck()
    {
        return;
    }
    fds::each(|fd, kind| {
        if let Kind::Conn(index) = kind
            && fds::conn(index).take_stuck()
        {
            fds::while_held(index, fd, |port| drain(port, STUCK.code()));
        }
    });
}

/// In a fork child: who walks in the parent does not do so here.
pub fn after_fork_child() {
    WALKS.store(0, Relaxed);
}

#[cold]
#[inline(never)]
fn walk() -> Option<u64> {
    if !fds::readiness_differs()
        || !home::is_owner()
        || fds::has_stopped()
        || shm::lock::on_signal_stack()
    {
        return None;
    }
    let (now, last) = (sys::now_ns(), LAST.load(Relaxed));
    if now.saturating_sub(last) > PATIENCE {
        FIRST.store(now, Relaxed);
    }
    let nap = (now.saturating_sub(FIRST.load(Relaxed)) < PATIENCE).then_some(NAP);
    if now.saturating_sub(last) < APART || !table::is_draining() {
        return nap;
    }
    let me = shm::thread_id();
    // One that has left by a jump may come again.
    let mine = WALKS.compare_exchange(0, me, Acquire, Relaxed).unwrap_or_else(|who| who);
    if mine != 0 && mine != me {
        return nap;
    }
    LAST.store(now, Relaxed);
    let mut left = false;
    fds::each(|fd, kind| {
        let Kind::Conn(index) = kind else { return };
        let conn = fds::conn(index);
        if !conn.is_exposed() {
            return;
        }
        if !conn.is_back() {
            fds::while_held(index, fd, |port| drain(port, DRAINED.code()));
            left |= !conn.is_back();
        } else if conn.is_committed() {
            // Its peer was faster, or another process that has it. Once: it stays there.
            let reason = &conn.identity.reason;
            if reason.compare_exchange(0, DRAINED.code(), Relaxed, Relaxed).is_ok() {
                crate::epoll::on_reverted(index);
            }
        }
    });
    WALKS.store(0, Release);
    nap.filter(|_| left)
}

#[cfg(test)]
mod tests {
    use smc::reason;

    use super::super::tcp::drain;
    use crate::tests::{port, recv, send, serial, upgraded};

    #[test]
    fn what_is_under_way_arrives_and_then_both_ends_are_on_tcp() {
        let _turn = serial();
        let pair = upgraded();
        let block: Vec<u8> = (0..40_000u32).map(|n| n as u8).collect();
        for (from, to) in [(pair.0, pair.1), (pair.1, pair.0)] {
            assert_eq!(send(from, &block, 0), block.len() as isize);
            // One end is taken back, and both go on to send.
            drain(port(from), reason::DRAINED.code());
            assert_eq!(send(from, b"behind", 0), 6);
            assert_eq!(send(to, b"against", 0), 7);
            // Part of it in the ring, the rest over TCP.
            let unread = |fd| port(fd).conn.unread(fd);
            assert_eq!((unread(from), unread(to)), (7, block.len() + 6));
            let mut all = Vec::new();
            while all.len() < block.len() + 6 {
                all.extend(recv(to, 1 << 20, 0).expect("bytes"));
            }
            assert_eq!((&all[..block.len()], &all[block.len()..]), (&block[..], &b"behind"[..]));
            assert_eq!(recv(from, 20, 0), Ok(b"against".to_vec()));
        }
        for fd in [pair.0, pair.1] {
            drain(port(fd), reason::DRAINED.code());
        }
        for (from, to) in [(pair.0, pair.1), (pair.1, pair.0)] {
            drain(port(from), reason::DRAINED.code());
            assert!(!port(from).conn.switched() && port(from).conn.is_back());
            assert_eq!(port(from).conn.reason(), reason::DRAINED);
            assert_eq!(send(from, b"tcp", 0), 3);
            assert_eq!(recv(to, 8, 0), Ok(b"tcp".to_vec()));
        }
    }
}
