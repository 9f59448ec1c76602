//! What a submission names, and what must be before the kernel has it.
//!
//! A submission lies in the program's own memory, where another thread may write it: each word is
//! loaded once.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::{epoll_event, msghdr};
use smc::{hidden, reason, sys};

use super::version;
use crate::fds::rings::Sqe;
use crate::fds::{self, Kind};
use crate::{epoll, pass};

const FIXED_FILE: u8 = 1 << 0;
const DRAIN: u8 = 1 << 1;
const LINK: u8 = 1 << 2 | 1 << 3;

/// A look at submissions in their order.
pub(super) struct Look {
    /// The next one begins when another one has ended.
    waits: bool,
    /// One behind which all wait.
    drains: bool,
}

/// What of an operation names a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Names {
    Nothing,
    File,
    /// And what is passed in a message of a Unix socket.
    Message,
    /// And a file to read from.
    Pipes,
    /// Numbers to be registered.
    List,
    Close,
    Control,
    /// An operation that is newer than this.
    Unknown,
}

fn names(opcode: u8) -> Names {
    match opcode {
        // READV, WRITEV, FSYNC, READ_FIXED, WRITE_FIXED, POLL_ADD; SYNC_FILE_RANGE; RECVMSG;
        // ACCEPT; CONNECT, FALLOCATE.
        1..=6 | 8 | 10 | 13 | 16..=17 => Names::File,
        // READ, WRITE; SEND, RECV; SHUTDOWN; URING_CMD, SEND_ZC; READ_MULTISHOT; BIND, LISTEN,
        // RECV_ZC, EPOLL_WAIT, READV_FIXED, WRITEV_FIXED; URING_CMD128.
        22..=23 | 26..=27 | 34 | 46..=47 | 49 | 56..=61 | 64 => Names::File,
        // SENDMSG, SENDMSG_ZC.
        9 | 48 => Names::Message,
        // SPLICE, TEE.
        30 | 33 => Names::Pipes,
        // FILES_UPDATE.
        20 => Names::List,
        // CLOSE.
        19 => Names::Close,
        // EPOLL_CTL.
        29 => Names::Control,
        // No descriptor, one of a directory or a plain file, or an index; or another meaning of
        // that field, as in PROVIDE_BUFFERS and SOCKET.
        0..=63 => Names::Nothing,
        _ => Names::Unknown,
    }
}

impl Look {
    pub(super) fn new() -> Self {
        Self { waits: false, drains: false }
    }

    /// Takes to TCP what a submission names, or does in its stead what only we can do.
    pub(super) fn at(&mut self, sqe: &Sqe) {
        let word = |i: usize| sqe[i].load(Relaxed);
        let first = word(0);
        let [opcode, flags, ..] = first.to_le_bytes();
        self.drains |= flags & DRAIN != 0;
        let waits = core::mem::replace(&mut self.waits, flags & LINK != 0) || self.drains;
        let fd = (first >> 32) as i32;
        // The flag means nothing to operations that name their descriptors themselves.
        let is_number = flags & FIXED_FILE == 0;
        match names(opcode) {
            Names::Nothing => {}
            Names::File if is_number => give(fd),
            Names::File => {}
            Names::Message => {
                if is_number {
                    give(fd);
                }
                give_passed(word(2) as *const msghdr);
            }
            Names::Pipes => {
                const FD_IN_FIXED: u32 = 1 << 31;
                if is_number {
                    give(fd);
                }
                if (word(3) >> 32) as u32 & FD_IN_FIXED == 0 {
                    give((word(5) >> 32) as i32);
                }
            }
            // SAFETY: the application's list.
            Names::List => unsafe { give_all(word(2) as *const i32, word(3) as u32) },
            Names::Close => {
                let direct = word(5) >> 32 != 0;
                if is_number && !direct {
                    close(sqe, first, fd, waits);
                }
            }
            Names::Control => {
                let (set, op, fd) = (fd, word(3) as i32, word(1) as i32);
                control(sqe, first, [set, op, fd], word(2) as *const epoll_event, waits);
            }
            Names::Unknown => super::stay(),
        }
    }
}

/// The kernel is about to use `fd` past our hooks: a connection goes to TCP for good, and of a set
/// the kernel alone must know what is ready.
pub(super) fn give(fd: i32) {
    give_for(fd, reason::IO_URING.code());
}

/// The same, for a reason.
pub(crate) fn give_for(fd: i32, why: u32) {
    match fds::kind(fd) {
        Kind::Other => {}
        Kind::Epoll(set) => epoll::nest(set),
        Kind::Tcp | Kind::Conn(_) => match fds::port(fd) {
            Some(port) if port.conn.is_frozen() && !port.conn.needs_us() => {}
            Some(port) => fds::go_back_for_others(port, why),
            // No place for it: what is not watched is not upgraded.
            None => {
                fds::purge(fd);
            }
        },
    }
}

/// The same for `n` numbers.
///
/// # Safety
/// `list` must be the application's, of so many.
pub(super) unsafe fn give_all(list: *const i32, n: u32) {
    // The kernel takes no more.
    const MOST: u32 = 1 << 20;
    if crate::faulty(list) {
        return;
    }
    for i in 0..n.min(MOST) as usize {
        // SAFETY: the caller's obligation.
        give(unsafe { list.wrapping_add(i).read_unaligned() });
    }
}

/// Descriptors that leave in a message: whoever gets them may know nothing of rings.
fn give_passed(msg: *const msghdr) {
    if !crate::faulty(msg) {
        // SAFETY: the application's message.
        unsafe { pass::each_passed(msg, |fd| give_for(fd, reason::PASSED_FD.code())) };
    }
}

/// The ring is about to close a number. `waits`: not at once, or never, if what is before it fails.
fn close(sqe: &Sqe, first: u64, fd: i32, waits: bool) {
    if hidden::contains(fd) {
        // For the program there is none: the kernel will say so of -1.
        sqe[0].store(first | u64::from(u32::MAX) << 32, Relaxed);
        return;
    }
    // The kernel closes no ring this way: what we have mapped of it stays, which may be what this look
    // goes through.
    if fds::ring(fd).is_some() {
        return;
    }
    if waits || matches!(fds::kind(fd), Kind::Epoll(_)) {
        give(fd);
    }
    fds::before_close(fd);
}

/// epoll_ctl of a connection is done by us, and a NOP takes its place. `waits`: not now, so the
/// kernel has to.
fn control(sqe: &Sqe, first: u64, call: [i32; 3], event: *const epoll_event, waits: bool) {
    let [set, op, fd] = call;
    match (fds::kind(set), fds::kind(fd)) {
        (Kind::Epoll(index), Kind::Tcp | Kind::Conn(_)) if !waits => {
            let plain = |theirs: Option<&mut epoll_event>| {
                let event = theirs.map_or(event, |theirs| theirs as *const _);
                // SAFETY: the application's event, or ours in its place.
                unsafe { sys::epoll_ctl_raw(set, op, fd, event) }
            };
            // SAFETY: as above.
            let r = unsafe { epoll::control(set, op, fd, event, plain) };
            if r == 0 || can_fail() {
                replace(sqe, first, r as i32);
            } else {
                // The kernel has to say so. It does, once it alone has the set.
                epoll::nest(index);
            }
        }
        (_, Kind::Tcp | Kind::Conn(_)) => give(fd),
        (_, Kind::Epoll(inner)) if op == libc::EPOLL_CTL_ADD => epoll::nest(inner),
        _ => {}
    }
}

/// Leaves an operation in place of this one that does nothing and results in `r`.
fn replace(sqe: &Sqe, first: u64, r: i32) {
    const OPCODE: u64 = 0xff;
    const PRIORITY: u64 = 0xffff_0000;
    const PERSONALITY: u64 = 0xffff_0000;
    const INJECT_RESULT: u64 = 1;
    let result = if r == 0 { 0 } else { INJECT_RESULT << 32 | u64::from(r as u32) };
    sqe[3].store(result, Relaxed);
    sqe[5].store(sqe[5].load(Relaxed) & PERSONALITY, Relaxed);
    for i in [1, 2, 6, 7] {
        sqe[i].store(0, Relaxed);
    }
    sqe[0].store(first & !(OPCODE | PRIORITY) | u64::from(u32::MAX) << 32, Relaxed);
}

/// Whether a NOP may result in an error.
fn can_fail() -> bool {
    version::is_since(6, 10)
}

#[cfg(test)]
mod tests;
