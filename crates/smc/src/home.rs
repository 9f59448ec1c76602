//! Whose memory this is, without a question to the kernel where that can be known: a bell asks it each
//! time, and a system call costs a fifth of what ringing does.
#![allow(unsafe_code)]

use core::ptr::from_ref;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use crate::sys;

/// The memory of a process that settled there, and of nobody else.
const OWN: u32 = 1;
/// A child that runs in this memory was made, or may have been: from then on only the kernel knows
/// who is who.
const SHARED: u32 = 2;
/// The copy that a child has which was made past the handlers of pthread_atfork.
const COPY: u32 = 0;

/// Nobody has settled, or the kernel wipes nothing: only the kernel knows who is who.
const UNSETTLED: u32 = 3;

static UNKNOWN: AtomicU32 = AtomicU32::new(UNSETTLED);
/// What this memory is: a word that the kernel wipes in every child with memory of its own, however it
/// was made.
static HOME: AtomicPtr<AtomicU32> = AtomicPtr::new(from_ref(&UNKNOWN).cast_mut());
/// The process that owns this memory; a vfork child shares it and must not change it.
static PROCESS: AtomicU32 = AtomicU32::new(0);

#[inline]
fn home() -> &'static AtomicU32 {
    // SYNC: home. Relaxed: what the word says is read by the pointer, so behind it.
    // SAFETY: a static, or a page that stays mapped.
    unsafe { &*HOME.load(Relaxed) }
}

/// The calling process owns this memory: at the start, and in a fork child, whose memory is a copy.
pub fn settle() {
    PROCESS.store(sys::getpid(), Relaxed);
    // Where vfork and clone are not among our entry points, a child in this memory would go unseen.
    let mut seen = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    if core::ptr::eq(home(), &UNKNOWN) {
        const PAGE: usize = 4096;
        let page = sys::reserve(PAGE, false);
        // SAFETY: a page of our own.
        let wiped = |p| unsafe { sys::advise(p, PAGE, libc::MADV_WIPEONFORK) } == 0;
        if page.is_null() || !wiped(page) {
            return;
        }
        let page: *mut AtomicU32 = page.cast();
        // A constructor of another library may have made such a child, which lives on.
        seen &= UNKNOWN.load(Relaxed) == UNSETTLED;
        // A thread that read the zero of a new page would take this memory for a copy, and stop all upgrades.
        // SAFETY: mapped above, for good.
        unsafe { &*page }.store(if seen { OWN } else { SHARED }, Relaxed);
        // SYNC: home. Behind the word; pairs with `home`.
        HOME.store(page, Release);
        return;
    }
    home().store(if seen { OWN } else { SHARED }, Relaxed);
}

/// A child may be made that runs in this memory, with descriptors of its own.
pub fn share() {
    for unshared in [OWN, UNSETTLED] {
        let _ = home().compare_exchange(unshared, SHARED, Relaxed, Relaxed);
    }
}

/// The process that owns this memory; 0 in front of `settle`.
pub fn process() -> u32 {
    PROCESS.load(Relaxed)
}

/// Whether this memory is a copy in which its process has not settled.
pub fn is_copy() -> bool {
    home().load(Relaxed) == COPY
}

/// Whether the caller is this process, and not a child of it that runs in its memory or in a copy.
#[inline]
pub fn is(process: u32) -> bool {
    match home().load(Relaxed) {
        OWN => process == PROCESS.load(Relaxed),
        _ => is_by_kernel(process),
    }
}

/// Whether this is the process whose memory this is, and not its vfork child.
#[inline]
pub fn is_owner() -> bool {
    home().load(Relaxed) == OWN || is_by_kernel(PROCESS.load(Relaxed))
}

#[cold]
#[inline(never)]
fn is_by_kernel(process: u32) -> bool {
    sys::getpid() == process
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child answers that calls nothing but these functions.
    fn in_child(ask: fn(u32) -> bool) -> bool {
        let parent = sys::getpid();
        // SAFETY: the child asks words of its memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let answer = ask(parent);
            // SAFETY: ends the child without handlers of the parent's.
            unsafe { libc::_exit(answer.into()) };
        }
        let mut status = 0;
        // SAFETY: a live word.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status) != 0
    }

    /// Emulators answer the call and do nothing.
    fn kernel_wipes() -> bool {
        let page: *mut u32 = sys::reserve(4096, false).cast();
        // SAFETY: a page of our own.
        let advised = unsafe { sys::advise(page.cast(), 4096, libc::MADV_WIPEONFORK) } == 0;
        // SAFETY: as above.
        unsafe { page.write(1) };
        PAGE.store(page, Relaxed);
        // SAFETY: as above, in a child.
        advised && in_child(|_| unsafe { PAGE.load(Relaxed).read_volatile() } == 0)
    }

    static PAGE: AtomicPtr<u32> = AtomicPtr::new(core::ptr::null_mut());

    #[test]
    fn a_child_is_not_its_parent() {
        if !kernel_wipes() {
            println!("skipped: a_child_is_not_its_parent: MADV_WIPEONFORK does nothing here");
            return;
        }
        // Whoever was made before the library settled lives on.
        assert!(in_child(|_| {
            share();
            settle();
            home().load(Relaxed) == SHARED && is_owner()
        }));
        settle();
        let own = sys::getpid();
        for shared in [false, true] {
            assert!(is(own) && is_owner() && !is(own + 1) && !is_copy());
            assert!(in_child(|_| is_copy() && !is_owner()));
            assert!(in_child(|parent| !is(parent) && is(sys::getpid())));
            assert!(in_child(|parent| {
                settle();
                is_owner() && !is_copy() && !is(parent) && is(sys::getpid())
            }));
            if !shared {
                share();
            }
        }
    }
}
