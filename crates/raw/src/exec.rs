//! Programs that this one starts.

use core::ffi::CStr;

use sites::Call;
use socket::programs;

use crate::itself;

/// This artefact, whatever its path. The kernel takes it for the program that runs.
pub const OWN: &CStr = c"/proc/self/exe";

/// A call of execve or execveat, and its result: it has failed.
pub fn exec(call: &Call) -> isize {
    let [given @ .., _] = call.given;
    // By its own name the program would start this artefact.
    let own = itself::to_execute(call);
    // SAFETY: the program's own call.
    unsafe { programs::exec(OWN.as_ptr(), call.number(), given, own) }
}
