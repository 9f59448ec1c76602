//! Descriptors that travel in messages of Unix sockets.
#![allow(unsafe_code)]

use libc::msghdr;
use smc::reason;

use crate::fds::{self, Port};

/// Every descriptor in a message's SCM_RIGHTS.
///
/// # Safety
/// `msg` must be a valid msghdr.
unsafe fn each_passed(msg: *const msghdr, mut f: impl FnMut(i32)) {
    // SAFETY: the caller's obligation.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(at).cast::<i32>();
                let n = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize) / 4;
                (0..n).for_each(|i| f(data.add(i).read_unaligned()));
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
}

/// Descriptors that are about to leave over a Unix socket go back to TCP: whoever gets them may know nothing of rings.
///
/// # Safety
/// `msg` must be a valid msghdr.
pub unsafe fn before(msg: *const msghdr) {
    let prepare = |fd| {
        if let Some(port) = fds::port(fd)
            && !fds::travel::pass(port.conn, fd)
        {
            fds::give_up(port, reason::PASSED_FD.code());
        }
    };
    // SAFETY: forwarded.
    unsafe { each_passed(msg, prepare) }
}

/// The message was not sent after all: the references that were to travel stay. What is frozen may have been given up
/// instead of counted; a reference too many only keeps it on TCP.
///
/// # Safety
/// `msg` must be a valid msghdr.
pub unsafe fn undo(msg: *const msghdr) {
    let undo = |fd| {
        if let Some(Port { conn: c, .. }) = fds::existing(fd)
            && !(c.is_exposed() || c.is_frozen())
        {
            fds::travel::stays(c);
        }
    };
    // SAFETY: forwarded.
    unsafe { each_passed(msg, undo) }
}

/// Descriptors that have come over a Unix socket.
///
/// # Safety
/// `msg` must be a msghdr that recvmsg has filled.
pub unsafe fn after(msg: *const msghdr) {
    // SAFETY: forwarded.
    unsafe { each_passed(msg, fds::travel::receive) }
}
