//! A system call of the program, as the kernel makes it.

use sites::Call;
use smc::sys;

pub fn plain(call: &Call) -> isize {
    // SAFETY: the program's own call.
    unsafe { sys::by_list(call.number(), call.arguments()) }
}
