//! What a process gives up: its user, its capabilities, system calls, its table of descriptors.

use core::ffi::c_int;

use smc::{group, home, reason};

use crate::fds;

/// Changes the user of this process. Peers are left before, so that none takes us for the old one a
/// moment longer, and once more afterwards, for another thread's handshake may have come in
/// between. A vfork child has a user of its own, and its parent's memory.
pub fn change_user<R>(change: impl FnOnce() -> R) -> R {
    fds::go_back_from_copies();
    change_effective_user(change)
}

/// The same of the effective user alone; the real one, by whom the kernel goes where processes
/// copy, stays.
pub fn change_effective_user<R>(change: impl FnOnce() -> R) -> R {
    let forget = || {
        if home::is_owner() {
            group::lanes::forget_peers();
        }
    };
    forget();
    let r = change();
    forget();
    r
}

/// What a program asks of a call that takes rights away is about to hold: whether our own system
/// calls must end before, or copies between processes. `a` and `b` are the first arguments of
/// system call `call`.
pub fn leave_for(call: i64, a: usize, b: usize) {
    let rights = match call {
        libc::SYS_prctl => a as c_int == libc::PR_SET_DUMPABLE && b == 0,
        libc::SYS_unshare => a as c_int & libc::CLONE_NEWUSER != 0,
        libc::SYS_capset | libc::SYS_landlock_restrict_self => true,
        _ => false,
    };
    if rights {
        fds::go_back_from_copies();
    }
    const SET_MODE_STRICT: usize = 0;
    const SET_MODE_FILTER: usize = 1;
    let why = match call {
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => reason::SANDBOX,
        libc::SYS_seccomp if matches!(a, SET_MODE_STRICT | SET_MODE_FILTER) => reason::SANDBOX,
        libc::SYS_unshare if a as c_int & libc::CLONE_FILES != 0 => reason::OWN_TABLE,
        _ => return,
    };
    fds::stop_for_good(why.code());
}
