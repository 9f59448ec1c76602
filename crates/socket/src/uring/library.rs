//! Rings of liburing, which enters the kernel by instruction: its functions are looked at from
//! outside. Its structure leads to the memory of the submissions, also of those that it has not
//! told the kernel of yet.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::config::{CONFIG, IoUring};

use super::submission::{Look, give_all};
use super::{Params, SETUP_KNOWN, SETUP_SQPOLL, STAYS, stay, version};
use crate::fds;
use crate::fds::rings::{SETUP_SQE128, Sqe};

/// The part of `struct io_uring` that all versions of liburing have in common.
#[repr(C)]
pub struct Ring {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    mask: *const AtomicU32,
    entries: *const AtomicU32,
    flags: *const AtomicU32,
    dropped: *const AtomicU32,
    array: *const AtomicU32,
    sqes: *const Sqe,
    /// What the program has filled in and the kernel has not been told of.
    sqe_head: u32,
    sqe_tail: u32,
}

/// Before liburing sets up a ring with these flags; an error number, negative, if it must not.
pub fn before_setup(flags: u32) -> Result<(), i32> {
    if !fds::has_begun() {
        return Ok(());
    }
    match CONFIG.io_uring() {
        IoUring::Deny => return Err(-libc::ENOSYS),
        IoUring::Look if flags & SETUP_SQPOLL != 0 && !STAYS.load(Relaxed) => {
            return Err(-libc::EPERM);
        }
        IoUring::Look if flags & !SETUP_KNOWN == 0 && flags & SETUP_SQE128 == 0 => {}
        IoUring::Look | IoUring::Stay => stay(),
    }
    Ok(())
}

/// The flags in a program's parameters.
///
/// # Safety
/// `params` must be what the application gives to liburing.
pub unsafe fn flags_of(params: *const Params) -> u32 {
    // SAFETY: the caller's obligation.
    if crate::faulty(params) { 0 } else { unsafe { (*params).flags } }
}

/// In front of a function of liburing that submits what is in the ring.
///
/// # Safety
/// `ring` must be what the application gives to liburing.
pub unsafe fn look(ring: *const Ring) {
    if !fds::has_begun() || STAYS.load(Relaxed) || fds::has_stopped() || crate::faulty(ring) {
        return;
    }
    // SAFETY: liburing reads the same.
    let ring = unsafe { ring.read() };
    if [ring.head, ring.tail, ring.mask].iter().any(|word| crate::faulty(*word)) {
        return;
    }
    let [head, tail, mask] = [ring.head, ring.tail, ring.mask].map(word);
    let mut look = Look::new();
    let mut at = |place: u32| {
        if place <= mask && !crate::faulty(ring.sqes) {
            // SAFETY: one of as many submissions.
            look.at(unsafe { &*ring.sqes.wrapping_add(place as usize) });
        }
    };
    for i in 0..tail.wrapping_sub(head).min(mask.saturating_add(1)) {
        let i = head.wrapping_add(i) & mask;
        let has_array = !crate::faulty(ring.array);
        at(if has_array { word(ring.array.wrapping_add(i as usize)) } else { i });
    }
    for i in 0..ring.sqe_tail.wrapping_sub(ring.sqe_head).min(mask.saturating_add(1)) {
        at(ring.sqe_head.wrapping_add(i) & mask);
    }
}

/// In front of a function of liburing that waits with a time limit. Before Linux 5.11 it submits what
/// is in the ring, with a time limit of its own; since then it submits nothing, and another thread may
/// be in the middle of filling in what would be looked at.
///
/// # Safety
/// As `look`.
pub unsafe fn look_before_wait(ring: *const Ring) {
    if !version::is_since(5, 11) {
        // SAFETY: forwarded.
        unsafe { look(ring) };
    }
}

/// A word of the ring, which is mapped as long as the structure is in use.
fn word(at: *const AtomicU32) -> u32 {
    // SAFETY: as liburing reads it.
    unsafe { &*at }.load(Acquire)
}

/// In front of a function of liburing that registers `n` files.
///
/// # Safety
/// `list` must be what the application gives to liburing.
pub unsafe fn give_files(list: *const i32, n: u32) {
    // SAFETY: forwarded.
    unsafe { give_all(list, n) };
}

/// In front of a function of liburing after which a ring takes certain operations only: what we put
/// in place of one may not be among them.
pub fn before_restrictions() {
    if CONFIG.io_uring() == IoUring::Look {
        stay();
    }
}
