//! A connection from its first call to its last descriptor, in this process and its family.

use core::sync::atomic::Ordering::*;

use smc::conn::Conn;
use smc::{group, reason, table};

use super::inside::keep;
use super::tcp::freeze;
use super::*;
use crate::ledger;

#[cold]
pub(super) fn create(fd: i32) -> Option<Port> {
    let table = table::get()?;
    if CREATED.fetch_add(1, Relaxed).is_multiple_of(REAP_EVERY) {
        ledger::reap(true, lost);
        travel::recall(table, RECALLED);
    }
    let index = table.alloc().or_else(|| {
        ledger::reap(true, lost);
        travel::recall(table, table::CAPACITY);
        table.alloc()
    })?;
    let c = table.conn(index);
    c.reset();
    smc::witness::begin(c);
    c.next_try.store(smc::config::CONFIG.after.load(Relaxed), Relaxed);
    c.pid.store(PID.load(Relaxed), Relaxed);
    let l = local(index);
    held(index).store(1, Relaxed);
    l.regs.store(0, Relaxed);
    l.fd.store(fd as u32, Relaxed);
    l.upgraded.store(0, Relaxed);
    l.removals.store(0, Relaxed);
    l.kept.store(0, Relaxed);
    match word(fd)?.compare_exchange(TAG_TCP, TAG_CONN | u64::from(index), AcqRel, Acquire) {
        Ok(_) => Some(port_at(index, fd)),
        Err(_) => {
            held(index).store(0, Relaxed);
            c.gen_.fetch_add(1, Release);
            table.free(index);
            existing(fd)
        }
    }
}

/// Counts another descriptor of a connection; false if it has ended.
pub(super) fn hold(index: u32) -> bool {
    conn(index).refs.fetch_update(AcqRel, Relaxed, |refs| (refs > 0).then_some(refs + 1)).is_ok()
}

/// `new` names what `old` names.
pub fn share(old: i32, new: i32) {
    let k = kind(old);
    match k {
        Kind::Conn(i) if hold(i) => _ = held(i).fetch_add(1, AcqRel),
        // The other descriptor was closed meanwhile, and the connection, which stays on TCP, is to get another object.
        Kind::Conn(_) => return mark(new, Kind::Tcp),
        // A second descriptor for a socket without an object yet: both must come to name the same one.
        Kind::Tcp => {
            if create(old).is_some() {
                return share(old, new);
            }
        }
        Kind::Epoll(i) => crate::epoll::share(i),
        Kind::Other => {}
    }
    match word(new) {
        Some(_) => mark(new, k),
        // Beyond our array nothing is watched: what is unwatched must not be upgraded.
        None => {
            if let Kind::Conn(i) = k {
                freeze(port_at(i, old), reason::FD_LIMIT.code());
            }
        }
    }
}

/// As `share`, where the kernel has already closed what `new` named before.
pub fn share_over(old: i32, new: i32) {
    if kind(old) == Kind::Other {
        purge(new);
    } else {
        share(old, new);
    }
}

/// Whether other processes hold descriptors of this connection.
pub fn is_shared(index: u32) -> bool {
    conn(index).refs.load(Acquire) != held(index).load(Acquire)
}

/// What must precede the close of `fd` in this process; the kernel's close follows.
pub fn before_close(fd: i32) {
    let Some(w) = word(fd) else { return };
    if w.load(Relaxed) == 0 || !owner() {
        return;
    }
    if let Kind::Conn(i) = decode(w.load(Acquire))
        && conn(i).refs.load(Relaxed) > 1
    {
        crate::epoll::before_close(i, fd);
    }
    match decode(w.swap(0, AcqRel)) {
        Kind::Conn(i) => drop_ref(i, fd),
        Kind::Epoll(i) => crate::epoll::forget(i, fd),
        _ => {}
    }
}

/// One descriptor less; with the last one of all processes the connection ends. `fd` is still open, or -1.
pub(super) fn drop_ref(index: u32, fd: i32) {
    let c = conn(index);
    let l = local(index);
    if fd >= 0
        && held(index).load(Acquire) == 1
        && c.refs.load(Acquire) == 1
        && (end_untouched(c, l, index) || keep(c, l, fd))
    {
        return;
    }
    if held(index).load(Acquire) == 1 && c.refs.load(Acquire) > 1 && c.is_exposed() {
        // A child that was killed holds nothing any more, and this may be the last descriptor: without a word to the peer its
        // close would pass for a death.
        ledger::reap(true, lost);
    }
    // In this order: who is killed in between leaves one too many.
    let here = held(index).fetch_sub(1, AcqRel) - 1;
    let all = c.refs.fetch_sub(1, AcqRel) - 1;
    if here == 0 {
        if l.upgraded.swap(0, AcqRel) != 0 {
            UPGRADED.fetch_sub(1, Relaxed);
        }
        crate::epoll::forget_conn(index);
    } else if l.fd.load(Relaxed) == fd as u32 {
        let other = (0..high()).find(|&f| kind(f) == Kind::Conn(index));
        l.fd.store(other.unwrap_or(-1) as u32, Relaxed);
    }
    if here > 0 && !c.switched() && crate::epoll::registered_as(index, fd) {
        // The kernel's registration lives on with the other descriptors, but can't be changed any more.
        freeze(port_at(index, fd), reason::UNSEEN.code());
    }
    if all == 0 {
        crate::deferred::forget(index);
        if is_for_parent(c) {
            if fd >= 0 {
                c.close(fd);
            }
            // As if this process had been killed while it held it.
            c.refs.fetch_add(1, AcqRel);
            held(index).fetch_add(1, AcqRel);
            return;
        }
        smc::meet::abandon(c, fd);
        if fd >= 0 {
            c.close(fd);
        }
        group::release(c);
        finish(c);
        c.gen_.fetch_add(1, Release);
        if let Some(t) = table::get() {
            t.free(index);
        }
    }
}

/// Ends a connection that stayed on TCP and had nothing done to it, whose only descriptor is being closed: most of those that live
/// for one request. False if there is more to do.
fn end_untouched(c: &Conn, l: &Local, index: u32) -> bool {
    if l.upgraded.load(Relaxed) != 0 || smc::witness::is_in_use() || !c.end_untouched() {
        return false;
    }
    // A copy that another thread has made meanwhile counts here first.
    if c.refs.compare_exchange(1, 0, AcqRel, Relaxed).is_err() {
        c.goes_on();
        return false;
    }
    held(index).store(0, Release);
    crate::epoll::forget_conn(index);
    crate::deferred::forget(index);
    finish(c);
    c.gen_.store(c.gen_.load(Relaxed).wrapping_add(1), Release);
    if let Some(t) = table::get() {
        t.free(index);
    }
    true
}

/// Whether our parent, whose link group it belongs to, can and must end a connection that we held last: its buffers would be in
/// use there for good, and the image of the peer's header, with what stands in it, would serve the next connection.
fn is_for_parent(c: &Conn) -> bool {
    let upgraded = c.my_token.load(Relaxed) != 0;
    upgraded && c.pid.load(Relaxed) != PID.load(Relaxed) && ledger::is_settled_by(c.pid.load(Relaxed))
}

/// A child that held `n` descriptors of a connection was killed.
pub(super) fn lost(index: u32, n: u32) {
    let less = conn(index).refs.fetch_update(AcqRel, Acquire, |refs| refs.checked_sub(n));
    if less == Ok(n) {
        // The last holder. The kernel has closed the socket, and what only the child had mapped is gone with it.
        end_unheld(index);
    }
}

/// Ends a connection to which nobody in the family has a descriptor.
pub(super) fn end_unheld(index: u32) {
    let c = conn(index);
    if c.pid.load(Relaxed) == PID.load(Relaxed) {
        smc::meet::abandon(c, -1);
        group::release(c);
    } else {
        c.upgrade.forget();
    }
    finish(c);
    c.gen_.fetch_add(1, Release);
    if let Some(t) = table::get() {
        t.free(index);
    }
}

/// Adds a finished connection's counts to the table's sums.
fn finish(c: &Conn) {
    let Some(t) = table::get() else { return };
    if !c.is_committed() {
        if c.ops.load(Relaxed) > 0 {
            t.stats.count_fallback(c.reason.load(Relaxed));
        }
        return;
    }
    t.stats.wakeups.add(&c.wakeups);
    t.stats.rx.add(&c.rx.counts);
    t.stats.tx.add(&c.tx.counts);
}
