//! What a fork does to the connections that both processes will hold.

use core::sync::atomic::Ordering::*;

use smc::conn::Conn;
use smc::{reason, sys, table};

use super::life::{create, drop_ref, hold, lost};
use super::*;
use crate::ledger::{self, held};

/// Before fork: both processes will hold every connection.
pub fn before_fork() {
    ledger::reap(false, lost);
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
            l.counted.fetch_add(1, Relaxed);
            conn(i).await_step();
        }
    });
}

/// In the child. Other threads may have opened and closed sockets between the count in `before_fork` and the fork itself. What
/// was not counted is its parent's alone, and the child's exit would end it under the parent: it leaves that on TCP, unseen.
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
    for i in
        (0..t.high_water.load(Relaxed).min(table::CAPACITY)).filter(|&i| local(i).counted_for.load(Relaxed) == fork)
    {
        match local(i).counted.load(Relaxed).cast_signed() {
            0 => {}
            closed @ 1.. => lost(i, closed as u32),
            opened => drop(conn(i).refs.fetch_add(opened.unsigned_abs(), AcqRel)),
        }
    }
}

/// Before a child in our memory is made. It gives back in our stead what it inherits, but has credentials of its own, from
/// which the kernel takes no requests for our RDMA device.
pub fn go_back_before_vfork() {
    if owner() && smc::kind::VERBS.provider() == Some(smc::device::Provider::Hardware) {
        go_back_from_links();
    }
}

fn go_back_from_links() {
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && conn(i).cannot_be_forked()
        {
            while_held(i, fd, |port| {
                let c = port.conn;
                // A step of another thread would go on from where the return has left the upgrade: with a buffer that the peer
                // attaches, in a connection that looks at none.
                let alone = hold_upgrade(c);
                if c.cannot_be_forked() {
                    give_up(port, reason::SHARED_FD.code());
                }
                if alone {
                    c.release_upgrade();
                }
            });
        }
    });
}

/// Keeps the upgrade from going on, once a step that another thread is in the middle of has ended. False where the step is our
/// own, below a signal handler, or does not end.
fn hold_upgrade(c: &Conn) -> bool {
    c.await_step();
    c.hold_upgrade()
}

/// Runs `f` on a connection that other threads use, with a descriptor of ours. They may close it meanwhile: its slot, and its
/// number, would be another connection's, to which `f` would do what it was to do to this one.
fn while_held(index: u32, fd: i32, f: impl FnOnce(Port)) {
    let c = conn(index);
    if c.refs.fetch_update(AcqRel, Acquire, |refs| (refs > 0).then_some(refs + 1)).is_err() {
        return;
    }
    held(index).fetch_add(1, AcqRel);
    smc::meet::identify(c, fd);
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) as i32;
    let own = if copy >= 0 { smc::hidden::park(copy) } else { -1 };
    // The number may have changed hands before it was copied.
    let same = own >= 0 && sys::socket_inode(own) == Some(c.inode.load(Relaxed));
    if kind(fd) == Kind::Conn(index) {
        f(port_at(index, if same { own } else { fd }));
    }
    drop_ref(index, if same { own } else { -1 });
    if own >= 0 {
        smc::hidden::close(own);
    }
}

/// In the fork child.
pub fn after_fork_child() {
    let parent = PID.load(Relaxed);
    settle_down();
    SHARED.store(UNSEEN_SHARING, Relaxed);
    if !WORDS.load(Relaxed).is_null() {
        settle_count();
        ledger::after_fork_child(parent, |count| {
            each(|_, k| {
                if let Kind::Conn(i) = k {
                    count(i);
                }
            });
        });
    }
}
