//! A connection from its first call to its last descriptor, in this process and those that share
//! it.

use core::sync::atomic::{Ordering::*, fence};

use smc::conn::Conn;
use smc::{group, home, reason, sys, table};

use super::inside::keep;
use super::tcp::go_back;
use super::*;
use crate::ledger;

#[cold]
pub(super) fn create(fd: i32) -> Option<Port> {
    if home::is_copy() {
        // A child that was made past the fork handlers: by our copy of the table it would take the
        // places that its parent takes.
        return None;
    }
    let table = table::get()?;
    // Threads that count at once may lose one: the look comes one connection later then.
    let created = CREATED.load(Relaxed);
    CREATED.store(created.wrapping_add(1), Relaxed);
    if created.is_multiple_of(REAP_EVERY) {
        ledger::reap(true, lost_by);
        travel::end_lost(table, LOST_PLACES);
    }
    let index = table.alloc().or_else(|| {
        ledger::reap(true, lost_by);
        travel::end_lost(table, table::CAPACITY);
        table.alloc()
    })?;
    let c = table.conn(index);
    // Before it is in use: what nobody holds here is left to others.
    held(index).store(1, Relaxed);
    c.reset();
    smc::witness::begin(c);
    c.next_try.store(smc::meet::first_look(), Relaxed);
    c.identity.pid.store(home::process(), Relaxed);
    let l = local(index);
    l.born.store(FORKS.load(Relaxed), Relaxed);
    [&l.passed, &l.note, &l.came].iter().for_each(|word| word.store(0, Relaxed));
    l.regs.store(0, Relaxed);
    l.fd.store(fd as u32, Relaxed);
    l.upgraded.store(0, Relaxed);
    l.removals.store(0, Relaxed);
    l.kept.store(0, Relaxed);
    match word(fd)?.compare_exchange(TAG_TCP, TAG_CONN | u64::from(index), AcqRel, Acquire) {
        Ok(_) => Some(port_at(index, fd)),
        Err(_) => {
            held(index).store(0, Relaxed);
            c.identity.gen_.fetch_add(1, Release);
            table.free(index);
            existing(fd)
        }
    }
}

/// Counts another descriptor of a connection; false if it has ended.
pub(super) fn hold(index: u32) -> bool {
    conn(index)
        .identity
        .refs
        .fetch_update(AcqRel, Relaxed, |refs| (refs > 0).then_some(refs + 1))
        .is_ok()
}

/// Takes back what was counted for a descriptor of a connection that is not to be had here any
/// more. False.
pub(super) fn uncount(index: u32) -> bool {
    held(index).fetch_sub(1, AcqRel);
    conn(index).identity.refs.fetch_sub(1, AcqRel);
    false
}

/// `new` names what `old` names.
pub fn share(old: i32, new: i32) {
    let k = kind(old);
    match k {
        Kind::Conn(i) if hold(i) && (held_here(i) || uncount(i)) => {}
        // The other descriptor was closed meanwhile, and the connection, which stays on TCP, is to
        // get another object.
        Kind::Conn(_) => return mark(new, Kind::Tcp),
        // A second descriptor for a socket without an object yet: both must come to name the same
        // one.
        Kind::Tcp => {
            if create(old).is_some() {
                return share(old, new);
            }
        }
        Kind::Epoll(i) => crate::epoll::share(i),
        Kind::Other => {
            if let Some(ring) = ring(old) {
                return rings::share(ring, new);
            }
        }
    }
    match word(new) {
        Some(_) => mark(new, k),
        // Beyond our array nothing is watched: what is unwatched must not be upgraded.
        None => {
            if let Kind::Conn(i) = k {
                go_back(port_at(i, old), reason::FD_LIMIT.code());
            }
        }
    }
}

/// Notes another descriptor of a connection, counted already; false if this process has nothing of
/// it any more.
pub(super) fn held_here(index: u32) -> bool {
    if held(index).fetch_add(1, SeqCst) > 0 {
        return true;
    }
    // SYNC: held. Another thread may have closed what was here the only one, and left the rest to
    // other processes: it finds the count behind its leave, or this enters behind that leave. Pairs
    // with `slots::leave`.
    fence(SeqCst);
    table::get().is_some_and(|table| table.enter(index))
}

/// As `share`, where the kernel has already closed what `new` named before.
pub fn share_over(old: i32, new: i32) {
    if kind(old) == Kind::Other && ring(old).is_none() {
        purge(new);
    } else {
        share(old, new);
    }
}

/// Calls under way that put one file over another's number: until they have returned nobody knows
/// which of both it names.
static OVER: AtomicU32 = AtomicU32::new(0);

/// Something is about to be put over a number that names a connection.
pub(crate) fn begin_over() {
    // SYNC: over. In front of the kernel's change; pairs with `settle_over`.
    OVER.fetch_add(1, SeqCst);
}

/// It has been, and the number stands for it.
pub(crate) fn end_over() {
    // In a fork child the calls of its parent's threads are not counted any more.
    let _ = OVER.fetch_update(SeqCst, SeqCst, |calls| calls.checked_sub(1));
}

/// In a fork child: the calls of other threads are not under way here.
pub(super) fn forget_over() {
    OVER.store(0, SeqCst);
}

/// Waits until numbers stand for what they name, unless this is a handler that interrupted such a
/// call.
#[inline]
pub(crate) fn settle_over() {
    // SYNC: over. Behind the call by which this thread has learnt of the change.
    if OVER.load(SeqCst) != 0 {
        wait_for_settlement();
    }
}

#[cold]
fn wait_for_settlement() {
    const PATIENCE: u32 = 1000;
    for _ in 0..PATIENCE {
        sys::nap();
        if OVER.load(SeqCst) == 0 {
            return;
        }
    }
}

/// Whether other processes hold descriptors of this connection.
pub fn is_shared(index: u32) -> bool {
    conn(index).identity.refs.load(Acquire) != held(index).load(Acquire)
        && !travel::is_let_go(index)
}

/// What must precede the close of `fd` in this process; the kernel's close follows.
pub fn before_close(fd: i32) {
    let Some(w) = word(fd) else { return };
    let seen = w.load(Acquire);
    if seen == 0 || !home::is_owner() {
        return;
    }
    if seen & TAG_MASK == TAG_CONN && conn(seen as u32).identity.refs.load(Relaxed) > 1 {
        crate::epoll::before_close(seen as u32, fd);
    }
    // SYNC: underway. In front of the look for notes of it; pairs with `epoll::underway`.
    let old = w.swap(0, SeqCst);
    if old & TAG_MASK == TAG_CONN {
        drop_ref(old as u32, fd);
    } else {
        close_other(old, fd);
    }
}

/// A number that named no connection.
fn close_other(old: u64, fd: i32) {
    match decode(old) {
        Kind::Epoll(i) => crate::epoll::forget(i, fd),
        _ => retire_ring(old),
    }
}

/// A number that named an io_uring, or nothing of ours.
#[cold]
fn retire_ring(old: u64) {
    if old & TAG_MASK == TAG_RING {
        rings::forget(old as u32);
    }
}

/// One descriptor less; with the last one of all processes the connection ends. `fd` is still open,
/// or -1.
pub(super) fn drop_ref(index: u32, fd: i32) {
    let c = conn(index);
    let l = local(index);
    if l.came.load(Relaxed) != 0 && held(index).load(Acquire) == 1 {
        // What its parent still has is another connection's.
        travel::count_parent_no_more(index);
    }
    if fd >= 0
        && held(index).load(Acquire) == 1
        && c.identity.refs.load(Acquire) == 1
        && (end_untouched(c, l, index) || keep(c, l, fd))
    {
        return;
    }
    if held(index).load(Acquire) == 1 && c.identity.refs.load(Acquire) > 1 && c.is_exposed() {
        // A child that was killed holds nothing any more, and this may be the last descriptor:
        // without a word to the peer its close would pass for a death.
        ledger::reap(true, lost_by);
    }
    // In this order: who is killed in between leaves one too many.
    let here = held(index).fetch_sub(1, AcqRel) - 1;
    let all = c.identity.refs.fetch_sub(1, AcqRel) - 1;
    if here == 0 {
        if l.upgraded.swap(0, AcqRel) != 0 {
            UPGRADED.fetch_sub(1, Relaxed);
        }
        crate::epoll::forget_conn(index);
    } else if l.fd.load(Relaxed) == fd as u32 {
        let other = (0..high()).find(|&f| kind(f) == Kind::Conn(index));
        l.fd.store(other.unwrap_or(-1) as u32, Relaxed);
    }
    if here > 0 && !c.needs_us() && crate::epoll::registered_as(index, fd) {
        // The kernel's registration lives on with the other descriptors, but can't be changed any
        // more.
        go_back(port_at(index, fd), reason::UNSEEN.code());
    }
    if all == 0 {
        crate::deferred::forget(index);
        if is_for_parent(c) {
            if fd >= 0 {
                c.close(fd);
            }
            // As if this process had been killed while it held it.
            c.identity.refs.fetch_add(1, AcqRel);
            held(index).fetch_add(1, AcqRel);
            return;
        }
        smc::meet::abandon(c, fd);
        if fd >= 0 {
            c.close(fd);
        }
        group::release(c);
        finish(c);
        c.identity.gen_.fetch_add(1, Release);
        if let Some(t) = table::get() {
            t.free(index);
        }
    } else if here == 0 && !is_ours_to_end(c) {
        match c.identity.travelling.load(Acquire) {
            0 => left_to_others(index),
            // Whoever gets it is alone with it.
            1 if all == 1 => ledger::lets_go(l.note.load(Relaxed), l.passed.load(Relaxed)),
            _ => {}
        }
    }
}

/// Whether this process has to end it, whoever holds it last: buffers of ours are in use.
fn is_ours_to_end(c: &Conn) -> bool {
    c.identity.pid.load(Relaxed) == home::process() && c.tokens()[0] != 0
}

/// This process holds nothing of a connection any more, and others do.
pub(super) fn left_to_others(index: u32) {
    crate::deferred::forget(index);
    smc::meet::leave(conn(index));
    if let Some(t) = table::get() {
        t.leave(index);
        if held(index).load(Acquire) > 0 {
            // SYNC: held. Another thread was in the middle of `held_here`.
            t.enter(index);
        }
    }
}

/// Leaves to others what was theirs to take on and is held by nobody here.
pub(super) fn leave_unheld(index: u32, c: &Conn) {
    // In this order: what is in use has been held.
    let is_others = c.identity.gen_.load(Acquire) & 1 == 1 && c.identity.refs.load(Acquire) > 0;
    if is_others && held(index).load(Acquire) == 0 && !is_ours_to_end(c) {
        left_to_others(index);
    }
}

/// Ends a connection that stayed on TCP and had nothing done to it, whose only descriptor is being
/// closed: most of those that live for one request. False if there is more to do.
fn end_untouched(c: &Conn, l: &Local, index: u32) -> bool {
    if l.upgraded.load(Relaxed) != 0 || smc::witness::is_in_use() || !c.end_untouched() {
        return false;
    }
    // A copy that another thread has made meanwhile counts here first.
    if c.identity.refs.compare_exchange(1, 0, AcqRel, Relaxed).is_err() {
        c.goes_on();
        return false;
    }
    held(index).store(0, Release);
    crate::epoll::forget_conn(index);
    crate::deferred::forget(index);
    finish(c);
    c.identity.gen_.store(c.identity.gen_.load(Relaxed).wrapping_add(1), Release);
    if let Some(t) = table::get() {
        t.free(index);
    }
    true
}

/// Whether our parent, whose link group it belongs to, can and must end a connection that we held
/// last: its buffers would be in use there for good, and the image of the peer's header, with what
/// stands in it, would serve the next connection.
fn is_for_parent(c: &Conn) -> bool {
    let upgraded = c.tokens()[0] != 0;
    upgraded
        && c.identity.pid.load(Relaxed) != home::process()
        && ledger::is_settled_by(c.identity.pid.load(Relaxed))
}

/// A child that comes from fork `since`, and says that it held `n` descriptors of a connection, was
/// killed. It had none of those that have come into being since.
pub(super) fn lost_by(index: u32, n: u32, since: u32) {
    if table::is_mapped(index)
        && local(index).born.load(Relaxed).wrapping_sub(since).cast_signed() < 0
    {
        lost(index, n);
    }
}

/// `n` descriptors of a connection, which were counted, are no more.
pub(super) fn lost(index: u32, n: u32) {
    let less = conn(index).identity.refs.fetch_update(AcqRel, Acquire, |refs| refs.checked_sub(n));
    if less == Ok(n) {
        // The last holder. The kernel has closed the socket, and what only the child had mapped is
        // gone with it.
        end_unheld(index);
    }
}

/// Ends a connection to which nobody in the family has a descriptor.
pub(super) fn end_unheld(index: u32) {
    let c = conn(index);
    if c.identity.pid.load(Relaxed) == home::process() {
        smc::meet::abandon(c, -1);
        c.was_closed();
        group::release(c);
    } else {
        c.upgrade.forget();
    }
    finish(c);
    c.identity.gen_.fetch_add(1, Release);
    if let Some(t) = table::get() {
        t.free(index);
    }
}

/// Its counts are added to the table's sums before its end, which this process will not see. It
/// counts on from zero, should others use it. `ends`: the process does.
pub(super) fn count_so_far(index: u32, ends: bool) {
    let c = conn(index);
    if c.is_committed() {
        finish(c);
        c.counted();
    } else if ends && !is_shared(index) {
        finish(c);
        // Under a second number it is not counted once more.
        c.ops.store(0, Relaxed);
    }
}

/// Adds a finished connection's counts to the table's sums.
fn finish(c: &Conn) {
    let Some(t) = table::get() else { return };
    if !c.is_committed() {
        if c.ops.load(Relaxed) > 0 {
            let reason = c.identity.reason.load(Relaxed);
            t.stats.count_fallback(reason);
            // Of others it was said. That most connections are short is no news.
            if !c.phase().is_frozen() && reason != smc::reason::NOT_YET.code() {
                c.tell(smc::reason::Reason(reason));
            }
        }
        return;
    }
    t.stats.wakeups.add(&c.wakeups);
    t.stats.rx.add(&c.rx.counts);
    t.stats.tx.add(&c.tx.counts);
}
