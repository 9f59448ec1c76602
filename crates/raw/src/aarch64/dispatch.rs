//! The net under calls that cannot be told needs Syscall User Dispatch, which kernels for arm64 do not have: such a
//! program is started as ever.

use alloc::vec::Vec;

use sites::Call;

use crate::candidates::Candidate;
use crate::patch::Code;

/// Whether the kernel may have one.
pub const IS_THERE: bool = false;

/// Whether the net is there.
pub fn is_on() -> bool {
    false
}

/// Where a program with a net is to lie: anywhere.
pub fn low_place() -> usize {
    0
}

/// Whether it could be put under a program.
pub fn put_under<'a>(_code: impl Iterator<Item = (Code, &'a Vec<Candidate>)>, _end: usize) -> bool {
    false
}

/// In the child of a fork.
pub fn after_fork_child() {}

/// Where a call that makes a process is made.
pub fn for_child(plain: usize) -> usize {
    plain
}

/// The result of a call that could end it; None: there is none.
pub fn answer(_call: &Call, _is_child: bool) -> Option<isize> {
    None
}
