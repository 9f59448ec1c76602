//! What keeps a connection on TCP, or brings it back there.

use core::sync::atomic::Ordering::*;

use smc::{home, reason};

use super::life::drop_ref;
use super::*;

/// Before a sandbox that kills for system calls which the program itself does not make, or a
/// descriptor table of a single thread, of which marks for the whole process would be wrong: all
/// connections go back to TCP and are forgotten.
#[cold]
pub fn stop_for_good(why: u32) {
    if home::is_copy() {
        stop_unseen();
        return;
    }
    if !home::is_owner() || STOPPED.swap(true, Relaxed) {
        return;
    }
    smc::config::CONFIG.disable();
    each(|fd, k| {
        if let Kind::Conn(i) = k {
            go_back_for_others(port_at(i, fd), why);
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
        // What the peer has yet to give back, and an event that only we can put a name to, are
        // still served.
        let waiting = conn(i).needs_us() || local(i).regs.load(Relaxed) != 0;
        if !waiting && let Some(w) = word(fd) {
            w.store(0, Release);
            drop_ref(i, -1);
        }
    });
}

/// The same in a child with memory of its own that was made past libc's fork: its parent answers
/// for the connections, and the child, which has a filter of its own to fear, must not make a table
/// or look for one.
#[cold]
fn stop_unseen() {
    if STOPPED.swap(true, Relaxed) {
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
pub(super) fn go_back_for_stdio(fd: i32) {
    if let Some(port) = port(fd) {
        go_back_for_others(port, reason::STDIO.code());
    }
}

/// Gives up an upgrade that is under way, and lets `back` take the connection to TCP.
fn take_back(port: Port, back: impl FnOnce(&Conn, i32) -> bool) {
    let Port { index, conn, fd } = port;
    smc::meet::identify(conn, fd);
    smc::meet::abandon(conn, fd);
    back(conn, fd);
    serve_other_end(conn);
    crate::epoll::on_reverted(index);
}

/// What was given back to the other end it sends again with its next call. If it is this process's,
/// too, that call may be the one which waits for those bytes.
fn serve_other_end(conn: &Conn) {
    let own = conn.identity.pid.load(Relaxed);
    let [mine, theirs] = conn.tokens();
    if conn.identity.peer_pid.load(Relaxed) != own || own == 0 || mine == 0 {
        return;
    }
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && self::conn(i).tokens() == [theirs, mine]
        {
            while_held(i, fd, |port| _ = port.conn.flush_takeback(port.fd));
        }
    });
}

/// Takes a connection back to TCP, for good. Our hooks go on serving it, and read what is left in
/// the ring.
#[cold]
pub fn go_back(port: Port, why: u32) {
    take_back(port, |conn, fd| conn.go_back_or_break(fd, why, false));
}

/// Takes a connection back to TCP, for good, as far as that goes now.
pub(super) fn drain(port: Port, why: u32) {
    take_back(port, |conn, fd| {
        conn.drain(fd, why);
        true
    });
}

/// Takes a connection back to TCP whose descriptor will be used past our hooks: where the kernel's
/// stream cannot be made whole the connection is broken.
#[cold]
pub fn go_back_for_others(port: Port, why: u32) {
    take_back(port, |conn, fd| conn.go_back_or_break(fd, why, true));
}

/// Takes a connection back to TCP whose readiness the kernel alone can tell from now on. It is
/// never broken: bytes that cannot be brought back to the kernel's stream are read by our hooks.
#[cold]
pub fn go_back_for_readiness(port: Port, why: u32) {
    take_back(port, |conn, fd| conn.go_back(fd, why, true));
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

/// The application is about to put something of its own on a number that we hid a descriptor at:
/// the number that this has now.
pub fn make_way(fd: i32) -> Option<i32> {
    each(|own, k| {
        if let Kind::Conn(i) = k
            && conn(i).upgrade.meeting().descriptor() == Some(fd)
        {
            smc::meet::abandon(conn(i), own);
        }
    });
    let now = smc::give_way(fd)?;
    super::inside::moved_fd(fd, now);
    Some(now)
}

/// Before this process loses rights, or gets out of reach of a peer that has none: what is copied
/// by them would be reset.
#[cold]
pub fn go_back_from_copies() {
    if !home::is_owner() || has_stopped() {
        return;
    }
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && conn(i).goes_by_rights()
        {
            while_held(i, fd, |port| go_back_for_others(port, reason::RIGHTS.code()));
        }
    });
}
