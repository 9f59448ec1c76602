//! What a fork does to the connections that both processes will hold.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use smc::conn::Conn;
use smc::{home, reason, sys, table};

use super::life::{create, drop_ref, held_here, hold, lost, lost_by, uncount};
use super::*;
use crate::ledger;

/// Before fork: both processes will hold every connection.
pub fn before_fork() {
    ledger::reap(false, lost_by);
    go_back_from_links();
    let fork = FORKS.fetch_add(1, Relaxed) + 1;
    each(|fd, k| {
        let index = match k {
            Kind::Conn(i) => Some(i),
            // A socket without an object yet may come to be used on both sides: give it one now.
            Kind::Tcp => create(fd).map(|port| port.index),
            _ => None,
        };
        // One that another thread closes meanwhile would come to be ended twice.
        if let Some(i) = index.filter(|&i| hold(i)) {
            let l = local(i);
            if l.counted_for.swap(fork, Relaxed) != fork {
                l.counted.store(0, Relaxed);
            }
            // Made for this fork, it is the child's as well: what that held is given back when it
            // is killed.
            let _ = l.born.compare_exchange(fork, fork.wrapping_sub(1), Relaxed, Relaxed);
            l.counted.fetch_add(1, Relaxed);
            conn(i).await_step();
        }
    });
}

/// In the child. Other threads may have opened and closed sockets between the count in
/// `before_fork` and the fork itself. What was not counted is its parent's alone, and the child's
/// exit would end it under the parent: it leaves that on TCP, unseen.
fn settle_count() {
    if !table::exists() {
        return;
    }
    let Some(t) = table::get() else { return };
    let fork = FORKS.load(Relaxed);
    each(|fd, k| {
        let counted = match k {
            Kind::Conn(i) if local(i).counted_for.load(Relaxed) == fork => Some(local(i)),
            Kind::Conn(_) | Kind::Tcp => None,
            _ => return,
        };
        match (counted, word(fd)) {
            (Some(l), _) => drop(l.counted.fetch_sub(1, Relaxed)),
            (None, Some(w)) => w.store(0, Relaxed),
            _ => {}
        }
    });
    for i in (0..t.used()).filter(|&i| local(i).counted_for.load(Relaxed) == fork) {
        match local(i).counted.load(Relaxed).cast_signed() {
            0 => {}
            closed @ 1.. => lost(i, closed as u32),
            opened => drop(conn(i).identity.refs.fetch_add(opened.unsigned_abs(), AcqRel)),
        }
    }
}

/// Behind a fork that has failed: nobody holds what was counted for the child. Left so, no
/// connection that there was would ever be upgraded, and of an upgraded one no close would be the last.
pub fn after_failed_fork() {
    let Some(t) = table::get().filter(|_| table::exists()) else { return };
    let fork = FORKS.load(Relaxed);
    let counted = |&i: &u32| local(i).counted_for.load(Relaxed) == fork && table::is_mapped(i);
    for i in (0..t.used()).filter(counted) {
        match local(i).counted.swap(0, Relaxed) {
            0 => {}
            counted => lost(i, counted),
        }
    }
}

/// Before a child in our memory is made. It gives back in our stead what it inherits, but has
/// credentials of its own, from which the kernel takes no requests for our RDMA device.
pub fn go_back_before_vfork() {
    if home::is_owner() && smc::kind::VERBS.provider() == Some(smc::device::Provider::Hardware) {
        go_back_from_links();
    }
}

fn go_back_from_links() {
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && conn(i).cannot_be_forked()
        {
            while_alone(i, fd, |port| {
                if port.conn.cannot_be_forked() {
                    go_back_for_others(port, reason::SHARED_FD.code());
                }
            });
        }
    });
}

/// Runs `f`, which takes a connection back to TCP, while other threads use that. A step of one of them
/// would go on from where the return has left the upgrade: with a buffer that the peer attaches, in a
/// connection that looks at none.
#[cold]
#[inline(never)]
pub(crate) fn while_alone(index: u32, fd: i32, f: impl FnOnce(Port)) {
    while_held(index, fd, |port| {
        let c = port.conn;
        let alone = hold_upgrade(c);
        f(port);
        if alone {
            c.release_upgrade();
        }
    });
}

/// Keeps the upgrade from going on, once a step that another thread is in the middle of has ended.
/// False where the step is our own, below a signal handler, or does not end.
fn hold_upgrade(c: &Conn) -> bool {
    c.await_step();
    c.hold_upgrade()
}

/// Runs `f` on a connection that other threads use, with a descriptor of ours. They may close it
/// meanwhile: its slot, and its number, would be another connection's, to which `f` would do what
/// it was to do to this one.
pub(crate) fn while_held(index: u32, fd: i32, f: impl FnOnce(Port)) {
    let c = conn(index);
    if c.identity.refs.fetch_update(AcqRel, Acquire, |refs| (refs > 0).then_some(refs + 1)).is_err()
    {
        return;
    }
    if !held_here(index) {
        uncount(index);
        return;
    }
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) as i32;
    let own = if copy >= 0 { smc::hidden::park(copy) } else { -1 };
    super::life::settle_over();
    let is_named = names(fd, index);
    if is_named && own >= 0 {
        smc::meet::identify(c, own);
    }
    // The number may have changed hands before it was copied.
    let same = own >= 0 && sys::socket_inode(own) == Some(c.own().inode.load(Relaxed));
    if is_named && (same || own < 0) {
        f(port_at(index, if same { own } else { fd }));
    }
    drop_ref(index, if same { own } else { -1 });
    if own >= 0 {
        smc::hidden::close(own);
    }
}

fn each_connection(f: &mut dyn FnMut(u32)) {
    each(|_, k| {
        if let Kind::Conn(i) = k {
            f(i);
        }
    });
}

/// In the fork child.
pub fn after_fork_child() {
    super::life::forget_over();
    let parent = home::process();
    home::settle();
    if !WORDS.load(Relaxed).is_null() {
        settle_count();
        ledger::after_fork_child(parent, each_connection);
    }
    // SAFETY: the only thread of the child.
    unsafe { table::after_fork_child(each_connection) };
    // It is for the parent to find out that its own parent has let go of one.
    each_connection(&mut |i| local(i).came.store(0, Relaxed));
}
