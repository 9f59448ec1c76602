//! What keeps a connection on TCP, or brings it back there.

use core::sync::atomic::Ordering::*;

use smc::reason;

use super::life::drop_ref;
use super::*;

/// Before a sandbox that kills for system calls which the program itself does not make, or a descriptor table of a single
/// thread, of which marks for the whole process would be wrong: all connections go back to TCP and are forgotten.
#[cold]
pub fn leave_for_good(why: u32) {
    if home() == Some(0) {
        leave_unseen();
        return;
    }
    if !owner() || LEFT.swap(true, Relaxed) {
        return;
    }
    smc::config::CONFIG.disable();
    each(|fd, k| {
        if let Kind::Conn(i) = k {
            give_up(port_at(i, fd), why);
        }
    });
    each(|fd, k| {
        let Kind::Conn(i) = k else {
            if k == Kind::Tcp
                && let Some(w) = word(fd)
            {
                w.store(0, Release);
            }
            return;
        };
        // What the peer has yet to give back, and an event that only we can put a name to, are still served.
        let waiting = conn(i).switched() || local(i).regs.load(Relaxed) != 0;
        if !waiting && let Some(w) = word(fd) {
            w.store(0, Release);
            drop_ref(i, -1);
        }
    });
}

/// The same in a child with memory of its own that was made past libc's fork: its parent answers for the connections, and the
/// child, which has a filter of its own to fear, must not make a table or look for one.
#[cold]
fn leave_unseen() {
    if LEFT.swap(true, Relaxed) {
        return;
    }
    smc::config::CONFIG.disable();
    each(|fd, _| {
        if let Some(w) = word(fd) {
            w.store(0, Release);
        }
    });
}

/// A number that stdin, stdout or stderr reads and writes, past every hook.
#[cold]
pub(super) fn leave_to_stdio(fd: i32) {
    if let Some(port) = port(fd) {
        give_up(port, reason::STDIO.code());
    }
}

/// Keeps a connection on TCP for good, bringing it back there if need be. Our hooks go on serving it.
#[cold]
pub fn freeze(port: Port, why: u32) {
    let Port { index, conn: c, fd } = port;
    smc::meet::identify(c, fd);
    smc::meet::abandon(c, fd);
    c.revert(fd, why, false);
    crate::epoll::on_reverted(index);
}

/// The same for a descriptor that will be used past our hooks: the kernel's stream must be whole.
#[cold]
pub fn give_up(port: Port, why: u32) {
    let Port { index, conn: c, fd } = port;
    smc::meet::identify(c, fd);
    smc::meet::abandon(c, fd);
    c.revert(fd, why, true);
    crate::epoll::on_reverted(index);
}

/// The same for a connection whose readiness the kernel alone can tell. Bytes that cannot be brought back are still read by
/// our hooks.
#[cold]
pub fn leave_ring(port: Port, why: u32) {
    let Port { index, conn: c, fd } = port;
    smc::meet::identify(c, fd);
    smc::meet::abandon(c, fd);
    c.go_back(fd, why, true);
    crate::epoll::on_reverted(index);
}

/// Notes that a connection's readiness is no longer the kernel's alone.
pub fn on_upgraded(port: Port) {
    let Port { index, fd, .. } = port;
    let l = local(index);
    l.fd.store(fd as u32, Relaxed);
    if l.upgraded.swap(1, AcqRel) == 0 {
        UPGRADED.fetch_add(1, Relaxed);
    }
    crate::epoll::on_switched(index);
}

/// The application is about to put something of its own on a number that we hid a descriptor at: the number that this has now.
pub fn make_way(fd: i32) -> Option<i32> {
    each(|own, k| {
        if let Kind::Conn(i) = k
            && conn(i).upgrade.meeting().descriptor() == Some(fd)
        {
            smc::meet::abandon(conn(i), own);
        }
    });
    let now = smc::give_way(fd)?;
    crate::epoll::moved_fd(fd, now);
    Some(now)
}

/// Before this process loses rights, or gets out of reach of a peer that has none: what is copied by them would be reset.
#[cold]
pub fn go_back_from_copies() {
    if !owner() || has_left() {
        return;
    }
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && conn(i).goes_by_rights()
        {
            give_up(port_at(i, fd), reason::RIGHTS.code());
        }
    });
}
