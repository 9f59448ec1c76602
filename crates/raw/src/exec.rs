//! The program's own name, and programs that it starts.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::ptr::null;

use sites::Call;
use smc::sys;
use socket::programs;

/// This artefact, whatever its path. The kernel takes it for the program that runs.
pub const OWN: &CStr = c"/proc/self/exe";

/// The path of the program, NUL-terminated.
struct Name(UnsafeCell<[u8; 4096]>);
// SAFETY: written once, before the program runs.
unsafe impl Sync for Name {}
static NAME: Name = Name(UnsafeCell::new([0; 4096]));

/// Keeps the path of an open file as the program's.
pub fn keep_name(file: i32) {
    let at = sys::link_of_descriptor(file);
    let Ok(at) = CStr::from_bytes_until_nul(&at) else { return };
    let mut name = [0u8; 4095];
    if let Some(found) = sys::readlink(at, &mut name) {
        // SAFETY: nobody reads it yet.
        unsafe { (&mut *NAME.0.get())[..found.len()].copy_from_slice(found) };
    }
}

fn name() -> &'static CStr {
    // SAFETY: no longer written to.
    CStr::from_bytes_until_nul(unsafe { &*NAME.0.get() }).unwrap_or_default()
}

/// Whether a path is by which a program finds its own file.
fn is_own(path: *const c_char) -> bool {
    if socket::faulty(path) || name().is_empty() {
        return false;
    }
    // SAFETY: the program's string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(of) = path.strip_prefix(b"/proc/").and_then(|rest| rest.strip_suffix(b"/exe")) else {
        return false;
    };
    let number = core::str::from_utf8(of).ok().and_then(|of| of.parse().ok());
    matches!(of, b"self" | b"thread-self") || number == Some(sys::getpid())
}

/// The answer to readlink or readlinkat if it asks for the program's own name.
pub fn read_name(path: usize, to: usize, room: usize) -> Option<isize> {
    if !is_own(path as *const c_char) || socket::faulty(to as *const u8) || (room as i32) <= 0 {
        return None;
    }
    let name = name().to_bytes();
    let len = name.len().min(room);
    // SAFETY: the program's buffer, of that length.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), to as *mut u8, len) };
    Some(len as isize)
}

/// A call of execve or execveat, and its result: it has failed.
pub fn exec(call: &Call) -> isize {
    let given = [call.rdi, call.rsi, call.rdx, call.r10, call.r8];
    let path = if call.number() == libc::SYS_execveat { call.rsi } else { call.rdi };
    // By its own name the program would start this artefact.
    let own = if is_own(path as *const c_char) { name().as_ptr() } else { null() };
    // SAFETY: the program's own call.
    unsafe { programs::exec(OWN.as_ptr(), call.number(), given, own) }
}
