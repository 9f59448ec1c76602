//! Programs that this one starts: those that can only be followed from here are started through
//! this artefact again.

use core::ffi::{CStr, c_char};

use alloc::vec::Vec;
use smc::sys;

use crate::entry::Call;
use crate::load::Headers;

/// This artefact, whatever its path.
pub const OWN: &CStr = c"/proc/self/exe";

/// Whether a program is one that the library cannot be loaded into, and that gets no rights by being
/// started.
fn is_for_us(path: &CStr) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let file = sys::open(path, flags, 0);
    if file < 0 {
        return false;
    }
    let may = sys::stat(file).is_some_and(|stat| stat.st_mode & 0o6111 & !0o111 == 0)
        && has_no_capabilities(file)
        && may_execute(path);
    let headers = Headers::read(file).filter(|_| may);
    let name = headers.and_then(|headers| headers.loader(file));
    sys::close(file);
    name.is_some_and(|name| name[0] == 0)
}

fn has_no_capabilities(file: i32) -> bool {
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: a name, and no room for the value: only its length is asked for.
    (unsafe { sys::by_number(libc::SYS_fgetxattr, file as usize, name, 0, 0, 0, 0) }) < 0
}

fn may_execute(path: &CStr) -> bool {
    let (folder, at) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
    let (how, effective) = (libc::X_OK as usize, libc::AT_EACCESS as usize);
    // SAFETY: a path.
    (unsafe { sys::by_number(libc::SYS_faccessat2, folder, at, how, effective, 0, 0) }) == 0
}

/// A call of execve or execveat, and its result: it has failed.
pub fn exec(call: &Call) -> isize {
    if call.number() == libc::SYS_execve {
        let path = call.rdi as *const c_char;
        let arguments = call.rsi as *const *const c_char;
        if !socket::faulty(path) && !socket::faulty(arguments) {
            // SAFETY: the program's own arguments.
            let path = unsafe { CStr::from_ptr(path) };
            if is_for_us(path) {
                through_us(path, arguments, call.rdx);
            }
        }
    }
    call.plain()
}

/// Starts a program through this artefact. Returns if that fails.
fn through_us(path: &CStr, arguments: *const *const c_char, environment: usize) {
    let mut list: Vec<*const c_char> = alloc::vec![c"shortwire-raw".as_ptr(), path.as_ptr()];
    let mut at = arguments;
    loop {
        // SAFETY: an array that ends in a null pointer.
        let argument = unsafe { *at };
        list.push(argument);
        if argument.is_null() {
            break;
        }
        at = at.wrapping_add(1);
    }
    let (own, list) = (OWN.as_ptr() as usize, list.as_ptr() as usize);
    // SAFETY: a path, and arrays of strings.
    unsafe { sys::by_number(libc::SYS_execve, own, list, environment, 0, 0, 0) };
}
