//! Descriptors that travel in messages of Unix sockets.
#![allow(unsafe_code)]

use libc::msghdr;
use smc::reason;

use crate::fds::{self, Port};

/// Every descriptor in a message's SCM_RIGHTS.
///
/// # Safety
/// `msg` must be a valid msghdr.
pub(crate) unsafe fn each_passed(msg: *const msghdr, mut f: impl FnMut(i32)) {
    // SAFETY: the caller's obligation.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    // SAFETY: within the message.
    while let Some(header) = unsafe { at.as_ref() } {
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let data = at.cast::<u8>().wrapping_add(cmsg_len(0)).cast::<i32>();
            let n = header.cmsg_len.saturating_sub(cmsg_len(0)) / size_of::<i32>();
            // SAFETY: so many numbers stand behind the header.
            (0..n).for_each(|i| f(unsafe { data.wrapping_add(i).read_unaligned() }));
        }
        // SAFETY: a header of this message.
        at = unsafe { libc::CMSG_NXTHDR(msg, at) };
    }
}

/// Length of control data of so many bytes, with its header.
pub(crate) fn cmsg_len(bytes: usize) -> usize {
    // SAFETY: arithmetic.
    unsafe { libc::CMSG_LEN(bytes as u32) as usize }
}

/// The same, up to where other control data may follow.
pub(crate) fn cmsg_space(bytes: usize) -> usize {
    // SAFETY: arithmetic.
    unsafe { libc::CMSG_SPACE(bytes as u32) as usize }
}

/// Descriptors that are about to leave over a Unix socket go back to TCP: whoever gets them may
/// know nothing of rings.
///
/// # Safety
/// `msg` must be a valid msghdr.
pub unsafe fn before(msg: *const msghdr) {
    let prepare = |fd| {
        if let Some(port) = fds::port(fd)
            && !fds::travel::pass(port.conn, fd)
        {
            fds::go_back_for_others(port, reason::PASSED_FD.code());
        }
    };
    // SAFETY: forwarded.
    unsafe { each_passed(msg, prepare) }
}

/// The message was not sent after all: the references that were to travel stay. What is frozen may
/// have been given up instead of counted; a reference too many only keeps it on TCP.
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
