//! io_uring: what a program hands to the kernel in a ring is looked at before the kernel has it.
//!
//! A ring names descriptors past every other call of the program. Each connection that it names is
//! taken to TCP for good in front of the call that submits (`submission.rs`); all others of the
//! process go on as without a ring. Rings are looked at where they are entered: by number, of which
//! we map the memory ourselves (`fds/rings.rs`), or in liburing, whose structure leads to it
//! (`library.rs`). A ring that cannot be looked at keeps the whole process on TCP.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering::*};

use smc::config::{CONFIG, IoUring};
use smc::reason;

use crate::fail;
use crate::fds::rings::{self, Entered};
use crate::fds::{self, Kind};

pub mod library;
mod submission;
mod version;

pub(crate) use submission::give_for;
use submission::{Look, give_all};

pub use crate::fds::rings::Params;

const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_NO_MMAP: u32 = 1 << 14;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
/// Those of `io_uring_setup` up to CQE_MIXED. What came later changes how submissions lie in
/// memory, or may.
const SETUP_KNOWN: u32 = (1 << 19) - 1;
/// Where nobody can look: the kernel reads by itself, or memory and descriptor are not to be had.
const SETUP_REFUSED: u32 = SETUP_SQPOLL | SETUP_NO_MMAP | SETUP_REGISTERED_FD_ONLY;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_SQ_WAKEUP: u32 = 1 << 1;
const ENTER_REGISTERED_RING: u32 = 1 << 4;

/// The process stays on TCP because of a ring.
static STAYS: AtomicBool = AtomicBool::new(false);
/// io_uring_setup by number; `call` is the front's.
///
/// # Safety
/// `params` must be what the application gives to io_uring_setup.
pub unsafe fn setup(params: *const Params, call: impl FnOnce() -> isize) -> isize {
    if !fds::has_begun() {
        return call();
    }
    match CONFIG.io_uring() {
        IoUring::Deny => return fail(libc::ENOSYS),
        IoUring::Stay => {
            stay();
            return call();
        }
        IoUring::Look if STAYS.load(Relaxed) || fds::has_stopped() || crate::faulty(params) => {
            return call();
        }
        IoUring::Look => {}
    }
    // SAFETY: the application's parameters.
    let flags = unsafe { (*params).flags };
    if flags & SETUP_REFUSED != 0 {
        return fail(libc::EPERM);
    }
    if flags & !SETUP_KNOWN != 0 {
        stay();
        return call();
    }
    let ring = call();
    // SAFETY: the kernel has filled it in.
    if ring >= 0 && !rings::note(ring as i32, unsafe { &*params }, flags, go_back_all) {
        stay();
    }
    ring
}

/// io_uring_enter by number; `call` is the front's, with how many submissions, completions to wait
/// for, and flags.
pub fn enter(
    ring: i32,
    submit: u32,
    wait: u32,
    flags: u32,
    call: impl Fn(u32, u32, u32) -> isize,
) -> isize {
    if !fds::has_begun() || STAYS.load(Relaxed) || fds::has_stopped() {
        return call(submit, wait, flags);
    }
    let known = fds::ring(ring).filter(|_| flags & ENTER_REGISTERED_RING == 0);
    let Some(index) = known else {
        // Set up unseen, in another program or by instruction.
        if submit != 0 || flags & ENTER_SQ_WAKEUP != 0 {
            stay();
        }
        return call(submit, wait, flags);
    };
    rings::prove();
    if submit == 0 {
        return call(0, wait, flags);
    }
    let mut look = Look::new();
    let show = |sqe: &rings::Sqe| look.at(sqe);
    match rings::enter(index, submit, show, |n| call(n, 0, flags & !ENTER_GETEVENTS)) {
        // The kernel, too, does not wait where it took less than it was told, nor tells of the wait
        // where it took any.
        Entered::Took(taken, n) => {
            if taken == submit as isize && n == submit && flags & ENTER_GETEVENTS != 0 {
                call(0, wait, flags);
            }
            taken
        }
        Entered::Unknown => {
            stay();
            call(submit, wait, flags)
        }
        Entered::Interrupts => fail(libc::EBUSY),
    }
}

/// io_uring_register by number; `call` is the front's.
///
/// # Safety
/// `arg` must be what the application gives to io_uring_register.
pub unsafe fn register(op: u32, arg: usize, n: u32, call: impl FnOnce() -> isize) -> isize {
    /// With a ring's registered index in place of its descriptor.
    const USE_REGISTERED_RING: u32 = 1 << 31;
    const RESTRICTIONS: u32 = 11;
    const RING_FDS: u32 = 20;
    const RESIZE_RINGS: u32 = 33;
    const LAST_KNOWN: u32 = 37;
    if !fds::has_begun()
        || STAYS.load(Relaxed)
        || fds::has_stopped()
        || CONFIG.io_uring() != IoUring::Look
    {
        return call();
    }
    match op & !USE_REGISTERED_RING {
        // As a kernel that does not know them: a ring under another name, or in other memory.
        RING_FDS | RESIZE_RINGS => return fail(libc::EINVAL),
        // What we put in place of a submission might be forbidden. What is newer may name anything.
        RESTRICTIONS => stay(),
        op if op > LAST_KNOWN => stay(),
        // SAFETY: forwarded.
        op => unsafe { give_registered(op, arg, n) },
    }
    call()
}

/// Files that are registered with a ring: submissions name them by places of their own from then
/// on.
///
/// # Safety
/// `arg` must be what the application gives to io_uring_register.
unsafe fn give_registered(op: u32, arg: usize, n: u32) {
    const FILES: u32 = 2;
    const FILES_UPDATE: u32 = 6;
    const FILES2: u32 = 13;
    const FILES_UPDATE2: u32 = 14;
    let words = arg as *const u64;
    // Offsets in `io_uring_rsrc_update`, `io_uring_rsrc_register` and `io_uring_rsrc_update2`, in
    // words.
    let (list, count) = match op {
        FILES => (arg as u64, n),
        FILES_UPDATE | FILES2 | FILES_UPDATE2 if crate::faulty(words) => return,
        // SAFETY: the application's structure, here and below.
        FILES_UPDATE => (unsafe { words.wrapping_add(1).read_unaligned() }, n),
        FILES2 => {
            // SAFETY: as above.
            let count = unsafe { words.cast::<u32>().read_unaligned() };
            // SAFETY: as above.
            (unsafe { words.wrapping_add(2).read_unaligned() }, count)
        }
        FILES_UPDATE2 => {
            // SAFETY: as above.
            let count = unsafe { words.wrapping_add(3).cast::<u32>().read_unaligned() };
            // SAFETY: as above.
            (unsafe { words.wrapping_add(1).read_unaligned() }, count)
        }
        _ => return,
    };
    // SAFETY: so many numbers are registered.
    unsafe { give_all(list as *const i32, count) };
}

/// Everything goes back to TCP and stays there.
#[cold]
fn stay() {
    STAYS.store(true, Relaxed);
    CONFIG.disable();
    go_back_all();
}

#[cold]
fn go_back_all() {
    fds::each(|fd, k| {
        if let Kind::Conn(i) = k {
            fds::while_alone(i, fd, |port| {
                fds::go_back_for_others(port, reason::IO_URING.code());
            });
        }
    });
}
