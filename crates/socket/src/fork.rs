//! fork: what both processes need so that each finds its half whole.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};

use smc::{home, sys, table};

use crate::{bell, epoll, faulty, fds, ledger};

/// Locks that `prepare` took. A fork in a signal handler that interrupted their holder does not
/// take them, and must not let go of them either.
static HELD: AtomicU8 = AtomicU8::new(0);
const TABLES: u8 = 1;
const FORK: u8 = 2;
const SLOTS: u8 = 4;

static FORKING: shm::FastLock<false> = shm::FastLock::new();
/// The thread whose fork has counted last.
static FORKER: AtomicU32 = AtomicU32::new(0);

/// Before a fork. A front that has locks of its own takes them afterwards, and lets go of them
/// before `parent` or `child`.
pub fn prepare() {
    if fds::has_stopped() {
        return;
    }
    // Of a fork in a signal handler that interrupted this very place, the guards are its thread's
    // already.
    let hold = |lock: Result<_, _>, bit| {
        if lock.map(core::mem::forget::<shm::FastGuard<'_, false>>).is_ok() {
            HELD.fetch_or(bit, Relaxed);
        }
    };
    // One fork at a time: each counts the descriptors for its child.
    hold(FORKING.lock(), FORK);
    FORKER.store(shm::thread_id(), Relaxed);
    fds::before_fork();
    epoll::before_fork();
    // Held over the fork so that the child finds the tables whole.
    hold(epoll::table_lock().lock(), TABLES);
    ledger::before_fork(fds::forks());
    if table::before_fork() {
        HELD.fetch_or(SLOTS, Relaxed);
    }
}

/// After a fork, or a failed one, in the parent.
pub fn parent() {
    if fds::has_stopped() {
        return;
    }
    ledger::after_fork_parent();
    smc::after_fork_parent();
    let held = HELD.swap(0, Relaxed);
    // SAFETY: taken in `prepare` by this thread.
    unsafe { table::after_fork_parent(held & SLOTS != 0) };
    if held & TABLES != 0 {
        // SAFETY: taken in `prepare` by this thread.
        unsafe { epoll::table_lock().force_unlock() };
    }
    if held & FORK != 0 {
        // SAFETY: taken in `prepare` by this thread.
        unsafe { FORKING.force_unlock() };
    }
}

/// Behind `parent`, of this thread's fork, which has failed. Where another thread has forked in between
/// what was counted stays so.
pub fn failed() {
    if fds::has_stopped() {
        return;
    }
    let Ok(_guard) = FORKING.lock() else { return };
    if FORKER.swap(0, Relaxed) == shm::thread_id() {
        fds::after_failed_fork();
        ledger::after_failed_fork();
    }
}

/// After a fork, in the child.
pub fn child() {
    HELD.store(0, Relaxed);
    if fds::has_stopped() {
        shm::thread::forget_thread_id();
        return;
    }
    shm::thread::refresh_thread_id();
    // SAFETY: the only thread of the child.
    unsafe { epoll::table_lock().reset() };
    // SAFETY: as above.
    unsafe { FORKING.reset() };
    fds::after_fork_child();
    fds::drain::after_fork_child();
    smc::after_fork_child();
    fds::rings::after_fork_child();
    bell::after_fork_child();
    // Behind all others: it may take a connection back to TCP.
    epoll::after_fork_child();
}

/// What clone3 is told, as far as we look at it.
#[repr(C)]
struct CloneArgs {
    flags: u64,
    _ids: [u64; 3],
    _exit_signal: u64,
    stack: u64,
}

/// Whether a system call that makes a process is a fork: a copy of this memory, and on the same
/// stack, so that it returns through the frame that asked for it. What else clone makes is left
/// alone.
///
/// # Safety
/// `a` and `b` must be the first arguments of system call `n`.
pub unsafe fn is_fork(n: i64, a: usize, b: usize) -> bool {
    // A shared table of descriptors would be changed by both.
    const SHARED: u64 =
        (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_VFORK) as u64;
    match n {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => a as u64 & SHARED == 0 && b == 0,
        libc::SYS_clone3 if b >= size_of::<CloneArgs>() && !faulty(a as *const CloneArgs) => {
            // SAFETY: the caller passes its clone_args, of `b` bytes.
            let args = unsafe { &*(a as *const CloneArgs) };
            args.flags & SHARED == 0 && args.stack == 0
        }
        _ => false,
    }
}

/// Before a child that may run in this memory.
pub fn before_vfork() {
    home::share();
    fds::go_back_before_vfork();
}

/// Ends the process, whose place in its family others take.
pub fn exit(status: i32) -> ! {
    fds::before_exit();
    sys::exit(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_copy_of_the_process_is_a_fork() {
        // SAFETY: what is no clone3 has no pointers.
        let fork = |n, a: i32, b| unsafe { is_fork(n, a as usize, b) };
        assert!(fork(libc::SYS_clone, libc::SIGCHLD, 0));
        assert!(!fork(libc::SYS_clone, libc::CLONE_VM | libc::SIGCHLD, 0));
        assert!(!fork(libc::SYS_clone, libc::CLONE_FILES, 0));
        assert!(!fork(libc::SYS_clone, 0, 0x7000_0000), "on a stack of its own");
        assert!(!fork(libc::SYS_read, 0, 0));
        let args = |flags: i32, stack| CloneArgs {
            flags: flags as u64,
            _ids: [0; 3],
            _exit_signal: 0,
            stack,
        };
        // SAFETY: live arguments.
        let fork3 = |args: &CloneArgs, n| unsafe {
            is_fork(libc::SYS_clone3, core::ptr::from_ref(args) as usize, n)
        };
        assert!(fork3(&args(0, 0), size_of::<CloneArgs>()));
        assert!(!fork3(&args(libc::CLONE_VFORK, 0), size_of::<CloneArgs>()));
        assert!(!fork3(&args(0, 4096), size_of::<CloneArgs>()));
        assert!(!fork3(&args(0, 0), 8), "cut short");
    }
}
