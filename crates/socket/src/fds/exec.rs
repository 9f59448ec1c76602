//! Connections that another program gets, or must not get: exec, spawn, exit.

use core::sync::atomic::{AtomicPtr, Ordering::*};

use alloc::boxed::Box;
use alloc::vec::Vec;

use smc::{home, reason, sys, table};

use super::*;
use crate::ledger::{self, held};

/// The process is about to become another program. Descriptors with FD_CLOEXEC end here. The others
/// go back to TCP if they had left it, and with the table's descriptor kept open too, the new
/// program takes them on (`inherit`): it may be upgraded in turn, as in a server that accepts,
/// forks and execs.
pub fn before_exec() {
    go_back_for_exec();
    if !home::is_owner() {
        return;
    }
    if table::exists()
        && let Some(t) = table::get()
    {
        give_counters(t, false);
    }
    ledger::before_exec();
    let (mut kept, mut given_up) = (Vec::new(), take_given_up());
    end_streams(cloexec);
    each(|fd, k| {
        let Kind::Conn(i) = k else { return };
        // The next program has nothing of it that we count: the kernel closes it, or it has gone back to
        // TCP and the program may keep it for as long as it likes. Counted, it would never end in the
        // process that this one was forked from.
        if cloexec(fd) || conn(i).is_exposed() {
            conn(i).identity.refs.fetch_sub(1, AcqRel);
            given_up.push(i);
        } else {
            smc::meet::identify(conn(i), fd);
            conn(i).identity.heir.store(home::process(), Relaxed);
            kept.push(i);
        }
    });
    if !given_up.is_empty() {
        // SYNC: given_up. Behind what is in the list; pairs with `take_given_up`.
        GIVEN_UP.store(Box::into_raw(Box::new(given_up)), Release);
    }
    if kept.is_empty() {
        // Whoever has no table is to make none here: a filter that the program has put in front of
        // itself may end it for that.
        return;
    }
    // Not for a process that has changed its user: the table is its family's.
    let same_user =
        table::get().is_some_and(|t| t.uid.load(Relaxed) == rustix::process::geteuid().as_raw());
    if same_user {
        table::keep_for_exec(kept.into_iter());
    }
}

/// The connections that an exec which is under way has taken a descriptor off the count of; null: none.
static GIVEN_UP: AtomicPtr<Vec<u32>> = AtomicPtr::new(core::ptr::null_mut());

fn take_given_up() -> Vec<u32> {
    // SYNC: given_up. In front of a look into the list, which whoever takes it off has alone.
    let list = GIVEN_UP.swap(core::ptr::null_mut(), Acquire);
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: from a box, and taken off by this thread alone.
    *unsafe { Box::from_raw(list) }
}

/// exec failed.
pub fn undo_exec() {
    if !home::is_owner() {
        return;
    }
    ledger::undo_exec();
    // What was taken off, whatever another thread has done to the connections since.
    for index in take_given_up() {
        conn(index).identity.refs.fetch_add(1, AcqRel);
    }
    table::undo_exec();
}

fn cloexec(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0
}

/// In a new program: takes on the connections that it had before its exec, if any.
pub fn inherit() {
    let Some(t) = table::adopt(smc::hidden::find_tables().into_iter()) else { return };
    let me = home::process();
    smc::meet::inherited::note_all();
    for fd in sys::open_descriptors(0) {
        let Some(inode) = sys::socket_inode(fd) else { continue };
        if let Some(i) = t.find(inode, |_, c| c.identity.heir.load(Relaxed) == me)
            && t.enter(i)
        {
            let first = held(i).fetch_add(1, AcqRel) == 0;
            if first {
                local(i).fd.store(fd as u32, Relaxed);
            }
            mark(fd, Kind::Conn(i));
        }
    }
}

/// Before the kernel closes descriptors that we see no close of: what is to be sent again of their
/// streams is sent. The connections, with those.
fn end_streams(which: impl Fn(i32) -> bool) -> Vec<(&'static Conn, i32)> {
    let mut ending = Vec::new();
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && which(fd)
        {
            ending.push((conn(i), fd));
        }
    });
    Conn::end_of_process(&ending);
    ending
}

/// The process ends without closing. In a fork child, whose family goes on, what it held must be
/// given up in the table.
pub fn before_exit() {
    if !table::exists() || !home::is_owner() {
        return;
    }
    let Some(t) = table::get() else { return };
    if t.creator.load(Relaxed) != home::process() {
        for fd in 0..high() {
            if let Kind::Conn(_) = kind(fd) {
                before_close(fd);
            }
        }
    } else {
        for (conn, fd) in end_streams(|_| true) {
            // The kernel would reset it for a doorbell that is left unread, and throw away what it has
            // yet to send.
            if conn.sends_are_back() && !conn.is_broken() {
                conn.try_back_to_tcp(fd);
            } else if conn.doorbells_due() > 0 && !is_shared(table::index_of(conn) as u32) {
                conn.drain_doorbells(fd, conn.doorbells_seen());
            }
        }
        // What the children of a daemon that has gone to the background have from it is theirs alone,
        // and may leave TCP.
        for fd in 0..high() {
            if let Kind::Conn(i) = kind(fd)
                && is_shared(i)
                && !conn(i).is_exposed()
            {
                before_close(fd);
            }
        }
    }
    give_counters(t, true);
}

/// What the family has counted is kept, if the user wants that. Who forks many children lets none
/// of them do it, as long as it lives.
fn give_counters(t: &table::Header, ends: bool) {
    let creator = t.creator.load(Relaxed);
    // In a sandbox a further system call may be the last.
    if has_stopped() || creator != home::process() && !sys::is_unknown(creator) {
        return;
    }
    each(|_, k| {
        if let Kind::Conn(i) = k {
            life::count_so_far(i, ends);
        }
    });
    smc::kept::give(t);
}

/// Before this process becomes another program, or a vfork child of it does.
fn go_back_for_exec() {
    let own = home::is_owner();
    go_back_inherited(|index, fd| {
        if own && !is_shared(index) {
            // Nobody else would read on.
            return false;
        }
        sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        true
    });
}

/// Descriptors kept from a program that is spawned.
pub struct Kept(Vec<i32>);

/// Before a child that another libc function makes inherits what has no FD_CLOEXEC, and we don't
/// see its exec.
pub fn go_back_for_spawn() -> Kept {
    let mut kept = Kept(Vec::new());
    if home::is_owner() {
        go_back_inherited(|_, fd| {
            sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
            kept.0.push(fd);
            true
        });
    }
    kept
}

impl Drop for Kept {
    fn drop(&mut self) {
        for fd in self.0.drain(..) {
            sys::fcntl(fd, libc::F_SETFD, 0);
        }
    }
}

/// Gives back to TCP what another program is about to inherit. Goes by what is open, not by our
/// marks: a vfork child has rearranged its descriptors without leaving marks. Where the stream
/// cannot be put in order for others (`keep` of the connection and the descriptor), that program
/// must not get it: it would read doorbells between payload, and seldom wants the connection at
/// all, while this one goes on with it. False from `keep`: there is no such one, and it is reset.
fn go_back_inherited(mut keep: impl FnMut(u32, i32) -> bool) {
    // A buffer that is exposed is the peer's to switch to, whatever was done here. By inode, and
    // sorted: a server with thousands of sockets is not to look at each of them for each other one.
    let mut exposed = Vec::new();
    each(|_, k| {
        if let Kind::Conn(i) = k
            && conn(i).is_exposed()
        {
            exposed.push((conn(i).own().inode.load(Relaxed), i));
        }
    });
    if exposed.is_empty() {
        return;
    }
    exposed.sort_unstable();
    for fd in 0..high().max(64) {
        let flags = sys::fcntl(fd, libc::F_GETFD, 0);
        if flags < 0 || flags & libc::FD_CLOEXEC as isize != 0 {
            continue;
        }
        let Some(inode) = sys::socket_inode(fd) else { continue };
        let place = exposed.partition_point(|(other, _)| *other < inode);
        if let Some((_, i)) = exposed.get(place).copied().filter(|(other, _)| *other == inode) {
            // The peer may send on the ring by now, and is told through its own what we have not
            // read. A vfork child must leave the channel alone: its number is the parent's.
            smc::meet::conclude(conn(i));
            if !conn(i).go_back(fd, reason::INHERITED.code(), true) && !keep(i, fd) {
                conn(i).reset_by_exec(fd);
            }
            if home::is_owner() {
                crate::epoll::on_reverted(i);
            }
        }
    }
}
