//! Descriptors that travel in messages of Unix sockets.
#![allow(unsafe_code)]

use libc::{mmsghdr, msghdr};
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
            // SAFETY: the caller's obligation.
            let message = unsafe { &*msg };
            let end = message.msg_control.addr() + message.msg_controllen;
            // The kernel refuses a message whose header promises more than there is.
            let len = header.cmsg_len.min(end - at.addr());
            let n = len.saturating_sub(cmsg_len(0)) / size_of::<i32>();
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

/// The kernel takes no more messages in one call.
const MOST: u32 = 1024;

/// sendmmsg on a socket that is none of ours; `plain` is the application's own call.
///
/// # Safety
/// As for the system call.
pub unsafe fn sendmmsg(v: *mut mmsghdr, n: u32, plain: impl FnOnce() -> isize) -> isize {
    if crate::faulty(v) {
        return plain();
    }
    let n = n.min(MOST) as usize;
    // SAFETY: one of `n` messages.
    let passes = |i: &usize| unsafe { (*v.wrapping_add(*i)).msg_hdr.msg_controllen } > 0;
    // SAFETY: as above.
    (0..n).filter(passes).for_each(|i| unsafe { before(v.wrapping_add(i).cast()) });
    let r = plain();
    let sent = r.max(0) as usize;
    // SAFETY: as above; the header is what a message begins with.
    (sent..n).filter(passes).for_each(|i| unsafe { undo(v.wrapping_add(i).cast()) });
    r
}

/// recvmmsg on a socket that is none of ours; `plain` is the application's own call.
///
/// # Safety
/// As for the system call.
pub unsafe fn recvmmsg(v: *mut mmsghdr, plain: impl FnOnce() -> isize) -> isize {
    let r = plain();
    for i in 0..r.max(0) as usize {
        let m = v.wrapping_add(i);
        // SAFETY: a message that the kernel has filled in.
        if unsafe { (*m).msg_hdr.msg_controllen } > 0 {
            // SAFETY: as above.
            unsafe { after(m.cast()) };
        }
    }
    r
}

/// Descriptors that have come over a Unix socket.
///
/// # Safety
/// `msg` must be a msghdr that recvmsg has filled.
pub unsafe fn after(msg: *const msghdr) {
    // SAFETY: forwarded.
    unsafe { each_passed(msg, fds::travel::receive) }
}
