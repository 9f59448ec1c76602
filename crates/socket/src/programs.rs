//! Programs that this one starts: those that load no library are started through the artefact that
//! maps them, where that is asked for, and all are told what this one was told.
//!
//! Everything happens in memory of the caller's: it may be the child of a vfork, which has its
//! parent's heap and would leave there what it has taken from it.
#![allow(unsafe_code)]

mod environment;
mod file;

use core::ffi::{CStr, c_char};
use core::ptr::null;
use core::sync::atomic::Ordering::Relaxed;

use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use smc::config::CONFIG;
use smc::{log, sys};

use crate::faulty;
use environment::Variables;
use file::{File, Line};

pub use environment::{hide_library, keep};

/// Pointers to strings, up to a null pointer.
pub type Strings = *const *const c_char;

/// More arguments than this are not led there.
const MOST: usize = 1024;
/// Scripts whose interpreters are scripts: the kernel goes no deeper.
const SCRIPTS: usize = 4;

/// What a program is started by: null for its own name, or the path of the artefact; arguments and
/// environment. 0 if that has been done, if it returns at all.
pub type Begin<'a> = &'a dyn Fn(*const c_char, Strings, Strings) -> isize;

/// Whether programs are led anywhere at all.
pub fn are_followed() -> bool {
    CONFIG.raw.load(Relaxed)
}

/// Starts a program through the artefact at `artefact`, if it is one that loads no library; as ever
/// where the artefact cannot be started: this process may have another root by now, or fewer rights.
/// With a null `artefact` or a null `path` the program is started as ever.
///
/// # Safety
/// As for execve.
pub unsafe fn start(
    artefact: *const c_char,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    begin: Begin<'_>,
) -> isize {
    if !are_followed() {
        return begin(null(), arguments, environment);
    }
    let mut variables = Variables::new();
    // SAFETY: the caller's array.
    let environment = unsafe { variables.with_ours(environment) };
    if !artefact.is_null() && !faulty(path) && !faulty(arguments) {
        let mut lines = [const { Line::new() }; SCRIPTS];
        let mut list = [null(); MOST + 2 * SCRIPTS + 3];
        // SAFETY: the caller's string and array.
        let is_led = unsafe { list_through(path, arguments, &mut lines, &mut list) }.is_some();
        // A debugger expects the file that it has read, where that file says.
        if is_led && !is_traced() {
            let result = begin(artefact, list.as_ptr(), environment);
            if result == 0 {
                return result;
            }
        }
    }
    begin(null(), arguments, environment)
}

/// Whether another process traces this one.
fn is_traced() -> bool {
    const NAME: &[u8] = b"\nTracerPid:\t";
    let file = sys::open(c"/proc/self/status", libc::O_RDONLY, 0);
    if file < 0 {
        return false;
    }
    let mut text = [0; 512];
    let n = usize::try_from(sys::read(file, &mut text)).unwrap_or(0);
    sys::close(file);
    let mut rest = text[..n].windows(NAME.len() + 1);
    rest.find_map(|part| part.strip_prefix(NAME)).is_some_and(|digit| digit != b"0")
}

/// execve or execveat by number, with its arguments; it has failed if it comes back. A program that
/// is asked for by a path of `own`'s is at that one.
///
/// # Safety
/// As for the system call; `own` is null or a string.
pub unsafe fn exec(
    artefact: *const c_char,
    number: i64,
    given: [usize; 5],
    own: *const c_char,
) -> isize {
    let [folder, name, ..] = given;
    let is_by_folder = number == libc::SYS_execveat;
    let [asked, arguments, environment] =
        if is_by_folder { [name, given[2], given[3]] } else { [folder, name, given[2]] };
    let mut room = [0; 4096];
    let path = if !own.is_null() {
        own
    } else if is_by_folder && are_followed() {
        // SAFETY: forwarded.
        unsafe { path_at(folder as i32, asked as *const c_char, given[4] as i32, &mut room) }
    } else {
        asked as *const c_char
    };
    let begin = |other: *const c_char, arguments: Strings, environment: Strings| {
        let (arguments, environment) = (arguments as usize, environment as usize);
        let other = if other.is_null() { own } else { other };
        let words = match (other.is_null(), is_by_folder) {
            (true, true) => [folder, asked, arguments, environment, given[4]],
            (true, false) => [asked, arguments, environment, 0, 0],
            (false, _) => [other as usize, arguments, environment, 0, 0],
        };
        let number = if other.is_null() { number } else { libc::SYS_execve };
        let [a, b, c, d, e] = words;
        // SAFETY: the caller's call, or the same by way of the artefact.
        unsafe { sys::by_number(number, a, b, c, d, e, 0) }
    };
    // SAFETY: forwarded.
    unsafe { start(artefact, path, arguments as Strings, environment as Strings, &begin) }
}

/// Fills in what the artefact is to be told: its name, the program's path, and all that this is
/// started with. None if the program is to be started as ever.
///
/// # Safety
/// As for execve.
unsafe fn list_through(
    path: *const c_char,
    arguments: Strings,
    lines: &mut [Line; SCRIPTS],
    list: &mut [*const c_char],
) -> Option<()> {
    // SAFETY: the caller's array.
    let own = unsafe { *arguments };
    if own.is_null() {
        // Without its own name a program is not what it is meant to be.
        return None;
    }
    let mut n = 0;
    let mut last = path;
    loop {
        // SAFETY: the caller's string, or one of `lines`.
        match file::look(unsafe { CStr::from_ptr(last) }, lines.get_mut(n)) {
            File::Alone => break,
            File::Script => {
                last = lines[n].interpreter()?;
                n += 1;
            }
            File::Refused(why) => {
                // SAFETY: as above.
                log::say_program(unsafe { CStr::from_ptr(last) }, why);
                return None;
            }
            File::Other => return None,
        }
    }
    let mut places = list.iter_mut();
    let mut put = |word: *const c_char| places.next().map(|place| *place = word);
    put(c"shortwire-raw".as_ptr())?;
    put(last)?;
    for line in lines[..n].iter().rev() {
        put(line.interpreter()?)?;
        line.argument().map_or(Some(()), &mut put)?;
    }
    put(if n == 0 { own } else { path })?;
    for i in 1.. {
        // SAFETY: as above; it ends in a null pointer.
        let argument = unsafe { *arguments.wrapping_add(i) };
        put(argument)?;
        if argument.is_null() {
            break;
        }
    }
    Some(())
}

/// The path of what execveat would start, put into `room`; null if there is none by which it could be
/// opened later. Its own path if that says it. None for a file that is asked for by its descriptor:
/// whoever has looked at what it holds must get just that, and not what has its name by then.
///
/// # Safety
/// `path` must be a string or a faulty address.
pub unsafe fn path_at(
    folder: i32,
    path: *const c_char,
    flags: i32,
    room: &mut [u8; 4096],
) -> *const c_char {
    if faulty(path) || flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return null();
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(path) };
    if name.is_empty() {
        return null();
    }
    let found = |path: &CStr, flags| sys::stat_path(path, flags).map(|s| (s.st_dev, s.st_ino));
    let target = if name.to_bytes().starts_with(b"/") || folder == AT_FDCWD {
        let may = flags & AT_SYMLINK_NOFOLLOW == 0 || {
            let link = sys::stat_path(name, AT_SYMLINK_NOFOLLOW);
            link.is_some_and(|link| link.st_mode & libc::S_IFMT != libc::S_IFLNK)
        };
        return if may { path } else { null() };
    } else {
        sys::stat_at(folder, name, flags & AT_SYMLINK_NOFOLLOW)
            .filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
            .map(|stat| (stat.st_dev, stat.st_ino))
    };
    let joined = target.is_some() && join(folder, name, room).is_some();
    let whole = CStr::from_bytes_until_nul(room).ok().filter(|_| joined);
    // A folder that was moved or belongs to another root has another path than that.
    match whole {
        Some(whole) if found(whole, 0) == target => whole.as_ptr(),
        _ => null(),
    }
}

/// The path of a folder, and a name in it, NUL-terminated in `room`. None if they have none.
pub fn join(folder: i32, name: &CStr, room: &mut [u8; 4096]) -> Option<()> {
    let link = sys::link_of_descriptor(folder);
    let len = sys::readlink(CStr::from_bytes_until_nul(&link).ok()?, room)?.len();
    let name = name.to_bytes();
    let rest = room.get_mut(len..len + name.len() + 2)?;
    rest[0] = b'/';
    rest[1..1 + name.len()].copy_from_slice(name);
    rest[1 + name.len()] = 0;
    room.starts_with(b"/").then_some(())
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A folder of this test's, which goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("shortwire-{name}-{}", std::process::id());
            let path = std::env::temp_dir().canonicalize().unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn listed(path: &CStr, arguments: &[&CStr]) -> Option<Vec<String>> {
        let arguments: Vec<_> =
            arguments.iter().map(|word| word.as_ptr()).chain([null()]).collect();
        let mut lines = [const { Line::new() }; SCRIPTS];
        let mut list = [null(); MOST + 2 * SCRIPTS + 3];
        // SAFETY: strings and an array of this test's.
        unsafe { list_through(path.as_ptr(), arguments.as_ptr(), &mut lines, &mut list) }?;
        let word = |at: &*const c_char| {
            // SAFETY: a string of this test's.
            unsafe { CStr::from_ptr(*at) }.to_string_lossy().into_owned()
        };
        Some(list.iter().take_while(|at| !at.is_null()).map(word).collect())
    }

    #[test]
    fn what_has_a_loader_of_glibc_is_left_alone() {
        let _turn = crate::tests::serial();
        for path in [c"/proc/self/exe", c"/etc/passwd", c"/dev/null", c"/none"] {
            assert_eq!(listed(path, &[c"name"]), None, "{path:?}");
        }
        let own = std::env::current_exe().unwrap();
        assert_eq!(listed(&CString::new(own.to_str().unwrap()).unwrap(), &[c"name"]), None);
    }

    #[test]
    fn scripts_are_told_as_the_kernel_tells_them() {
        let _turn = crate::tests::serial();
        let folder = Folder::new("scripts");
        let put = |name: &str, content: &[u8]| {
            let path = folder.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let mut image = b"\x7fELF\x02\x01\x01".to_vec();
        image.resize(16, 0);
        image.extend([2, file::MACHINE].map(u16::to_le_bytes).concat());
        image.resize(64, 0);
        let program = put("program", &image);
        let inner = put("inner", format!("#! {program} \t-x y \nrest").as_bytes());
        let outer = put("outer", format!("#!{inner}").as_bytes());
        let path = |name: &str| CString::new(name).unwrap();
        let raw = "shortwire-raw";
        assert_eq!(listed(&path(&program), &[c"me", c"a"]).unwrap(), [raw, &program, "me", "a"]);
        assert_eq!(
            listed(&path(&inner), &[c"me", c"a"]).unwrap(),
            [raw, &program, &program, "-x y", &inner, "a"]
        );
        assert_eq!(
            listed(&path(&outer), &[c"me"]).unwrap(),
            [raw, &program, &program, "-x y", &inner, &outer]
        );
        assert_eq!(listed(&path(&program), &[]), None, "no name");
        let endless = put("endless", format!("#!{}/endless", folder.0.display()).as_bytes());
        assert_eq!(listed(&path(&endless), &[c"me"]), None);
        let relative = put("relative", b"#!program\n");
        assert_eq!(listed(&path(&relative), &[c"me"]), None);
        let many = vec![c"a"; MOST + 2 * SCRIPTS + 3];
        assert_eq!(listed(&path(&program), &many), None);
    }

    #[test]
    fn paths_of_descriptors() {
        let _turn = crate::tests::serial();
        let folder = Folder::new("paths");
        fs::write(folder.0.join("file"), b"").unwrap();
        std::os::unix::fs::symlink("file", folder.0.join("link")).unwrap();
        let open = fs::File::open(&folder.0).unwrap();
        let file = fs::File::open(folder.0.join("file")).unwrap();
        let at = |fd: i32, name: &CStr, flags| {
            let mut room = [0; 4096];
            // SAFETY: a string.
            let path = unsafe { path_at(fd, name.as_ptr(), flags, &mut room) };
            // SAFETY: null, or a string.
            (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_str().unwrap().to_owned())
        };
        let inside = |name: &str| Some(folder.0.join(name).to_str().unwrap().to_owned());
        assert_eq!(at(open.as_raw_fd(), c"file", 0), inside("file"));
        assert_eq!(at(open.as_raw_fd(), c"link", 0), inside("link"));
        assert_eq!(at(open.as_raw_fd(), c"link", AT_SYMLINK_NOFOLLOW), None);
        assert_eq!(at(open.as_raw_fd(), c"none", 0), None);
        assert_eq!(at(file.as_raw_fd(), c"", AT_EMPTY_PATH), None, "just that file");
        assert_eq!(at(file.as_raw_fd(), c"", 0), None);
        assert_eq!(at(-1, c"/bin/sh", 0), Some("/bin/sh".into()));
        assert_eq!(at(AT_FDCWD, c"a", 0), Some("a".into()));
    }
}
