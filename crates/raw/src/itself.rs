//! The program's own file, as the program finds it by /proc/self/exe. The kernel takes the artefact for
//! it, so what is asked by that name is answered by what the name would have led to.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sites::Call;
use smc::sys;
use socket::{faulty, programs};

use crate::arch::{SYS_access, SYS_creat, SYS_open, SYS_stat};

/// The path of the program, NUL-terminated.
struct Name(UnsafeCell<[u8; 4096]>);
// SAFETY: written once, before the program runs.
unsafe impl Sync for Name {}
static NAME: Name = Name(UnsafeCell::new([0; 4096]));

/// What the file is known by, apart from its name.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Keeps the name of an open file as the program's. Not a descriptor: it would have to be a high one,
/// for which each fork copies a table.
pub fn keep(file: i32) {
    let link = sys::link_of_descriptor(file);
    let Ok(link) = CStr::from_bytes_until_nul(&link) else { return };
    let mut name = [0u8; 4095];
    if let Some(found) = sys::readlink(link, &mut name) {
        // SAFETY: nobody reads it yet.
        unsafe { (&mut *NAME.0.get())[..found.len()].copy_from_slice(found) };
    }
    if let Some(stat) = sys::stat(file) {
        DEVICE.store(stat.st_dev, Relaxed);
        INODE.store(stat.st_ino, Relaxed);
    }
}

/// The path that it had at its start.
fn name() -> &'static CStr {
    // SAFETY: no longer written to.
    CStr::from_bytes_until_nul(unsafe { &*NAME.0.get() }).unwrap_or_default()
}

/// Whether it has that path still.
fn has_its_name() -> bool {
    let own = (DEVICE.load(Relaxed), INODE.load(Relaxed));
    sys::stat_path(name(), 0).is_some_and(|stat| (stat.st_dev, stat.st_ino) == own)
}

/// The path of a file of this name in /proc, if it is that of this process.
fn is_own(path: &CStr) -> bool {
    let Some(of) = path.to_bytes().strip_prefix(b"/proc/").and_then(|of| of.strip_suffix(b"/exe"))
    else {
        return false;
    };
    let number = core::str::from_utf8(of).ok().and_then(|of| of.parse().ok());
    matches!(of, b"self" | b"thread-self") || number == Some(sys::getpid())
}

/// The program's string at an address of its own, if it begins so.
fn begins(at: usize, with: &[u8]) -> Option<&'static CStr> {
    let at = at as *const u8;
    // Byte by byte: behind its end there may be no memory.
    // SAFETY: the program's string, up to where it differs.
    let is_so = |(i, byte): (usize, &u8)| unsafe { *at.wrapping_add(i) } == *byte;
    let is_one = !faulty(at) && with.iter().enumerate().all(is_so);
    // SAFETY: as above.
    is_one.then(|| unsafe { CStr::from_ptr(at.cast()) })
}

/// Whether a path that counts from `folder` is by which a program finds its own file.
fn is_asked(folder: c_int, at: usize) -> bool {
    if name().is_empty() {
        return false;
    }
    if let Some(path) = begins(at, b"/proc/") {
        return is_own(path);
    }
    if folder < 0 || begins(at, b"/").is_some() {
        return false;
    }
    let Some(name) = begins(at, b"").filter(|name| name.to_bytes().ends_with(b"exe")) else {
        return false;
    };
    let mut room = [0; 4096];
    let is_joined = programs::join(folder, name, &mut room).is_some();
    is_joined && CStr::from_bytes_until_nul(&room).is_ok_and(is_own)
}

/// The answer to readlink or readlinkat if it asks for the program's own name.
pub fn read_name(call: &Call) -> Option<isize> {
    let (folder, at, to, room) = match call.number() {
        libc::SYS_readlinkat => {
            (call.given[0] as c_int, call.given[1], call.given[2], call.given[3])
        }
        _ => (libc::AT_FDCWD, call.given[0], call.given[1], call.given[2]),
    };
    if !is_asked(folder, at) || faulty(to as *const u8) || (room as i32) <= 0 {
        return None;
    }
    // As the kernel says it.
    let end: &[u8] = if has_its_name() { b"" } else { b" (deleted)" };
    let all = name().to_bytes().iter().chain(end).take(room as i32 as usize);
    let mut len = 0;
    for byte in all {
        // SAFETY: the program's buffer, of that length.
        unsafe { *(to as *mut u8).wrapping_add(len) = *byte };
        len += 1;
    }
    Some(len as isize)
}

/// The program's own call, of another path.
fn with_path(call: &Call, is_by_folder: bool, path: &CStr) -> isize {
    let mut arguments = call.arguments();
    arguments[usize::from(is_by_folder)] = path.as_ptr() as usize;
    // SAFETY: what the program has asked for, of a path that is there.
    unsafe { sys::by_list(call.number(), arguments) }
}

/// The path that is to be executed in the place of what a call asks for; null for that itself. What has
/// the program's name by then is executed: a program that is to be replaced does so by this.
pub fn to_execute(call: &Call) -> *const c_char {
    let (folder, at, flags) = match call.number() {
        libc::SYS_execveat => (call.given[0] as c_int, call.given[1], call.given[4] as c_int),
        _ => (libc::AT_FDCWD, call.given[0], 0),
    };
    let is_led = flags & libc::AT_SYMLINK_NOFOLLOW == 0 && is_asked(folder, at);
    if is_led { name().as_ptr() } else { null() }
}

/// The answer to a call that names a file to look at or to open, if it is the program's own.
pub fn look(call: &Call) -> Option<isize> {
    let number = call.number();
    let is_by_folder = !matches!(number, SYS_open | SYS_creat | SYS_stat | SYS_access);
    let (folder, at) = match is_by_folder {
        true => (call.given[0] as c_int, call.given[1]),
        false => (libc::AT_FDCWD, call.given[0]),
    };
    let flags = match number {
        libc::SYS_newfstatat | libc::SYS_faccessat2 => call.given[3],
        libc::SYS_statx => call.given[2],
        _ => 0,
    };
    if flags as c_int & libc::AT_SYMLINK_NOFOLLOW != 0 || !is_asked(folder, at) {
        return None;
    }
    // The artefact would be a lie.
    if !has_its_name() {
        return Some(-(libc::ENOENT as isize));
    }
    match number {
        SYS_open => open(call, is_by_folder, call.given[1]),
        libc::SYS_openat => open(call, is_by_folder, call.given[2]),
        SYS_creat => {
            let how = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            open(call, is_by_folder, how as usize)
        }
        libc::SYS_openat2 => {
            let (how, len) = (call.given[2] as *const [u64; 3], call.given[3]);
            if faulty(how) || len < size_of::<[u64; 3]>() {
                return None;
            }
            // SAFETY: the program's structure.
            let [flags, _, limits] = unsafe { *how };
            // Whatever limits the way refuses such a link.
            (limits == 0).then(|| open(call, is_by_folder, flags as usize))?
        }
        _ => Some(with_path(call, is_by_folder, name())),
    }
}

/// Opens it as a call asks with these flags. A program that runs is not written to, and the kernel
/// takes only the artefact for one.
fn open(call: &Call, is_by_folder: bool, flags: usize) -> Option<isize> {
    const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
    let flags = flags as c_int;
    let is_place = flags & libc::O_PATH != 0;
    // What does not follow the link, or wants something else there, gets the kernel's own answer.
    if flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY) != 0 || flags & NEW == NEW && !is_place {
        return None;
    }
    if is_place || flags & (libc::O_ACCMODE | libc::O_TRUNC) == 0 {
        return Some(with_path(call, is_by_folder, name()));
    }
    // Whoever may not write to it is told so, and not that it runs.
    let how = libc::O_RDWR | libc::O_NONBLOCK;
    let fd = sys::open(name(), how, 0);
    if fd < 0 {
        return Some(fd as isize);
    }
    sys::close(fd);
    Some(-(libc::ETXTBSY as isize))
}
