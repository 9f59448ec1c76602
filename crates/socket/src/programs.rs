//! Programs that this one starts: those that load no library are started through the artefact that
//! maps them, where that is asked for.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::ptr::null;
use core::sync::atomic::Ordering::Relaxed;

use libc::{Elf64_Ehdr, Elf64_Phdr};
use smc::config::CONFIG;
use smc::sys;

use crate::faulty;

/// More arguments than this are not led there: the child of a vfork has its parent's heap, and would
/// leave there what it has taken from it.
const MOST: usize = 1024;

/// What is started in the place of a program, by a path of the front's: `list`, without the program
/// being told.
pub struct Through {
    list: [*const c_char; MOST + 3],
}

impl Through {
    /// The arguments for the artefact, up to a null pointer.
    pub fn arguments(&self) -> *const *const c_char {
        self.list.as_ptr()
    }

    /// None if the program is to be started as ever.
    ///
    /// # Safety
    /// As for execve.
    pub unsafe fn of(path: *const c_char, arguments: *const *const c_char) -> Option<Through> {
        if !CONFIG.raw.load(Relaxed) || faulty(path) || faulty(arguments) {
            return None;
        }
        // SAFETY: the caller's string.
        if !is_for_raw(unsafe { CStr::from_ptr(path) }) {
            return None;
        }
        let mut through = Through { list: [null(); MOST + 3] };
        (through.list[0], through.list[1]) = (c"shortwire-raw".as_ptr(), path);
        for i in 0..MOST {
            // SAFETY: the caller's array, which ends in a null pointer.
            let argument = unsafe { *arguments.wrapping_add(i) };
            through.list[2 + i] = argument;
            if argument.is_null() {
                // Without its own name a program is not what it is meant to be.
                return (i > 0).then_some(through);
            }
        }
        None
    }
}

/// Whether it is a program that no library can be loaded into, and that may be started by whoever
/// reads it, with no other rights than he has.
fn is_for_raw(path: &CStr) -> bool {
    // Such a name may mean something else, or nothing, when the artefact has been executed and
    // opens it.
    if [&b"/proc/"[..], b"/dev/fd/"].iter().any(|folder| path.to_bytes().starts_with(folder)) {
        return false;
    }
    let file = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0);
    if file < 0 {
        return false;
    }
    const REGULAR: u32 = libc::S_IFREG | 0o777;
    let is_plain = sys::stat(file).is_some_and(|stat| stat.st_mode & !REGULAR == 0);
    let is_one = is_plain && has_no_capabilities(file) && may_execute(path) && is_alone(file);
    sys::close(file);
    is_one
}

fn has_no_capabilities(file: i32) -> bool {
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: a name, and no room for the value: only its length is asked for.
    (unsafe { sys::by_number(libc::SYS_fgetxattr, file as usize, name, 0, 0, 0, 0) }) < 0
}

fn may_execute(path: &CStr) -> bool {
    let (folder, at) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
    // SAFETY: a path. By the real user, who is the effective one in nearly all programs: faccessat2
    // is not to be had everywhere.
    (unsafe { sys::by_number(libc::SYS_faccessat, folder, at, libc::X_OK as usize, 0, 0, 0) }) == 0
}

/// Whether an open file is a program of x86-64 that names no loader, or musl's.
fn is_alone(file: i32) -> bool {
    // SAFETY: zeros are a valid header.
    let mut head: Elf64_Ehdr = unsafe { core::mem::zeroed() };
    let read = |to: *mut u8, len: usize, at: u64| {
        // SAFETY: the room of a live value.
        unsafe { sys::read_into(file, to, len, Some(at as i64)) == len as isize }
    };
    if !read((&raw mut head).cast(), size_of::<Elf64_Ehdr>(), 0)
        || head.e_ident[..6] != *b"\x7fELF\x02\x01"
        || head.e_machine != 62
        || !matches!(head.e_type, 2 | 3)
    {
        return false;
    }
    for i in 0..u64::from(head.e_phnum) {
        // SAFETY: as above.
        let mut segment: Elf64_Phdr = unsafe { core::mem::zeroed() };
        let len = size_of::<Elf64_Phdr>();
        if !read((&raw mut segment).cast(), len, head.e_phoff + i * len as u64) {
            return false;
        }
        if segment.p_type == libc::PT_INTERP {
            let mut name = [0; 64];
            let len = name.len().min(segment.p_filesz as usize);
            return read(name.as_mut_ptr(), len, segment.p_offset)
                && name.windows(8).any(|eight| eight == b"/ld-musl");
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_loader_of_glibc_is_left_alone() {
        assert!(!is_for_raw(c"/proc/self/exe"), "this test");
        assert!(!is_for_raw(c"/etc/passwd") && !is_for_raw(c"/dev/null") && !is_for_raw(c"/none"));
    }
}
