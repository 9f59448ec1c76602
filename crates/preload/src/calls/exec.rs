//! exec and spawn. Programs that load no library are started through the artefact that maps them, and
//! those that have lost what this one was told get it back, where that is asked for.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;

use libc::{FILE, pid_t};
use smc::{reason, sys};
use socket::fds;
use socket::programs::{self, Strings};

use crate::{artefact, errno, fail, next, set_errno};

unsafe extern "C" {
    static environ: Strings;
}

/// The environment of this program.
fn own() -> Strings {
    // SAFETY: libc's word.
    unsafe { environ }
}

/// Room for a path.
type Room = [u8; 4096];

/// An exec with all that belongs to it, which has failed if it comes back. `path` tells what would be
/// started; `plain` gets arguments and environment.
///
/// # Safety
/// As for execve.
unsafe fn exec(
    path: impl FnOnce(&mut Room) -> *const c_char,
    arguments: Strings,
    environment: Strings,
    plain: impl Fn(Strings, Strings) -> c_int,
) -> c_int {
    fds::before_exec();
    let r = if programs::are_followed() {
        // SAFETY: forwarded.
        unsafe { lead(path, arguments, environment, plain) }
    } else {
        plain(arguments, environment)
    };
    let e = errno();
    fds::undo_exec();
    set_errno(e);
    r
}

/// Needs more stack than a child of clone may have: for those alone who ask for it.
#[inline(never)]
unsafe fn lead(
    path: impl FnOnce(&mut Room) -> *const c_char,
    arguments: Strings,
    environment: Strings,
    plain: impl Fn(Strings, Strings) -> c_int,
) -> c_int {
    let begin = |other: *const c_char, arguments: Strings, environment: Strings| {
        if other.is_null() {
            return plain(arguments, environment) as isize;
        }
        unsafe { next::execve(other, arguments, environment) as isize }
    };
    let path = path(&mut [0; _]);
    // SAFETY: forwarded.
    (unsafe { programs::start(artefact::path(), path, arguments, environment, &begin) }) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    unsafe { exec(|_| path, argv, envp, |argv, envp| next::execve(path, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    unsafe { execve(path, argv, own()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    let path = |room: &mut Room| search(file, room, |_| true);
    unsafe { exec(path, argv, envp, |argv, envp| next::execvpe(file, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    unsafe { execvpe(file, argv, own()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let path = |_: &mut Room| null();
    unsafe { exec(path, argv, envp, |argv, envp| next::fexecve(fd, argv, envp)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    name: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // A libc before 2.34 has no function for it.
    let plain = |argv: Strings, envp: Strings| {
        let (number, folder, name) = (libc::SYS_execveat, folder as usize, name as usize);
        let (argv, envp) = (argv as usize, envp as usize);
        let r = unsafe { sys::by_number(number, folder, name, argv, envp, flags as usize, 0) };
        fail(-r as c_int) as c_int
    };
    let path = |room: &mut Room| unsafe { programs::path_at(folder, name, flags, room) };
    unsafe { exec(path, argv, envp, plain) }
}

/// The file that libc will find for a name, put into `room`; null if there is none, or `may` says no
/// to a path on the way there.
fn search(file: *const c_char, room: &mut Room, may: impl Fn(&[u8]) -> bool) -> *const c_char {
    if socket::faulty(file) {
        return null();
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        return if may(name) { file } else { null() };
    }
    let listed = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let listed: &[u8] = if listed.is_null() {
        b"/bin:/usr/bin"
    } else {
        // SAFETY: libc's string.
        unsafe { CStr::from_ptr(listed) }.to_bytes()
    };
    for folder in listed.split(|byte| *byte == b':') {
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let mut len = 0;
        for part in [folder, slash, name, b"\0"] {
            let Some(place) = room.get_mut(len..len + part.len()) else { return null() };
            place.copy_from_slice(part);
            len += part.len();
        }
        if name.is_empty() || !may(&room[..len - 1]) {
            return null();
        }
        let Ok(path) = CStr::from_bytes_until_nul(room) else { return null() };
        let is_file = sys::stat_path(path, 0)
            .is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG);
        if is_file && unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0 {
            return path.as_ptr();
        }
    }
    null()
}

/// The functions with as many arguments as the program likes: they are put together from where the
/// caller has left them, six or eight in registers and the others on its stack.
macro_rules! listed {
    ($($name:ident: $taken:ident;)*) => {
        $(#[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                "mov rdi, rsp",
                "sub rsp, 8",
                "call {taken}",
                "add rsp, 56",
                "ret",
                taken = sym $taken,
            )
        }
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            // The registers come to lie right below the words that the caller has put on its stack.
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x0, sp, #16",
                "bl {taken}",
                "ldp x29, x30, [sp], #80",
                "ret",
                taken = sym $taken,
            )
        })*
    };
}
listed! {
    execl: taken_path;
    execlp: taken_file;
    execle: taken_environment;
}

/// Arguments of such a function, as words behind one another but for the address of return that
/// x86-64 has on the stack.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Taken(*const usize);

impl Taken {
    fn get(self, i: usize) -> usize {
        const IN_REGISTERS: usize = 6;
        let is_behind_it = cfg!(target_arch = "x86_64") && i >= IN_REGISTERS;
        let at = if is_behind_it { i + 1 } else { i };
        // SAFETY: the caller has put a null pointer behind them, and nobody reads further.
        unsafe { *self.0.add(at) }
    }

    /// Calls with the list of arguments, and what stands behind that. A short list takes little of a
    /// stack that may be a small one.
    fn with_list(self, then: impl FnOnce(Strings, usize) -> c_int) -> c_int {
        let n = 1 + (1..).take_while(|i| self.get(*i) != 0).count();
        match n {
            0..64 => self.put_together::<64>(n, then),
            64..2048 => self.put_together::<2048>(n, then),
            _ => fail(libc::E2BIG) as c_int,
        }
    }

    #[inline(never)]
    fn put_together<const MOST: usize>(
        self,
        n: usize,
        then: impl FnOnce(Strings, usize) -> c_int,
    ) -> c_int {
        let mut list = [null(); MOST];
        for (i, place) in list[..n].iter_mut().enumerate() {
            *place = self.get(1 + i) as *const c_char;
        }
        then(list.as_ptr(), 1 + n)
    }
}

extern "C" fn taken_path(taken: Taken) -> c_int {
    let path = taken.get(0) as *const c_char;
    taken.with_list(|list, _| unsafe { execv(path, list) })
}

extern "C" fn taken_file(taken: Taken) -> c_int {
    let file = taken.get(0) as *const c_char;
    taken.with_list(|list, _| unsafe { execvp(file, list) })
}

extern "C" fn taken_environment(taken: Taken) -> c_int {
    let path = taken.get(0) as *const c_char;
    taken.with_list(|list, behind| unsafe { execve(path, list, taken.get(behind) as Strings) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(cmd: *const c_char) -> c_int {
    let _kept = fds::go_back_for_spawn();
    unsafe { next::system(cmd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(cmd: *const c_char, mode: *const c_char) -> *mut FILE {
    let _kept = fds::go_back_for_spawn();
    unsafe { next::popen(cmd, mode) }
}

/// The two functions that spawn.
type Spawn = unsafe fn(
    *mut pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

/// A program's arguments for one of them.
struct Spawned {
    pid: *mut pid_t,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    /// The function that is given a path.
    by_path: Spawn,
}

impl Spawned {
    /// Whether a path may be looked at: an action may change the folder that it counts from, and then
    /// it would not be what is started.
    fn may(&self, path: &[u8]) -> bool {
        self.actions.is_null() || path.starts_with(b"/")
    }

    #[inline(never)]
    unsafe fn lead(
        &self,
        path: impl FnOnce(&mut Room) -> *const c_char,
        argv: *const *mut c_char,
        envp: *const *mut c_char,
        plain: Spawn,
    ) -> c_int {
        let begin = |other: *const c_char, argv: Strings, envp: Strings| {
            let (argv, envp) = (argv.cast(), envp.cast());
            let (how, name): (Spawn, _) =
                if other.is_null() { (plain, self.name) } else { (self.by_path, other) };
            unsafe { how(self.pid, name, self.actions, self.attributes, argv, envp) as isize }
        };
        let path = path(&mut [0; _]);
        let (argv, envp) = (argv.cast(), envp.cast());
        // SAFETY: forwarded.
        (unsafe { programs::start(artefact::path(), path, argv, envp, &begin) }) as c_int
    }
}

/// A program by its path.
unsafe fn spawn(
    how: Spawn,
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    let spawned = Spawned { pid, name: path, actions, attributes, by_path: how };
    let _kept = fds::go_back_for_spawn();
    if !programs::are_followed() {
        return unsafe { how(pid, path, actions, attributes, argv, envp) };
    }
    let is_seen = !socket::faulty(path) && spawned.may(unsafe { CStr::from_ptr(path) }.to_bytes());
    let seen = if is_seen { path } else { null() };
    unsafe { spawned.lead(|_| seen, argv, envp, how) }
}

/// A program that is looked for; `by_path` is the function for one that was found.
unsafe fn spawn_found(
    [how, by_path]: [Spawn; 2],
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    let spawned = Spawned { pid, name: file, actions, attributes, by_path };
    let _kept = fds::go_back_for_spawn();
    if !programs::are_followed() {
        return unsafe { how(pid, file, actions, attributes, argv, envp) };
    }
    let path = |room: &mut Room| search(file, room, |path| spawned.may(path));
    unsafe { spawned.lead(path, argv, envp, how) }
}

/// What spawns, under the name of one of libc's functions.
macro_rules! spawns {
    ($($name:ident = $spawn:ident($how:expr);)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut pid_t,
            name: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: *const *mut c_char,
            envp: *const *mut c_char,
        ) -> c_int {
            unsafe { $spawn($how, pid, name, actions, attributes, argv, envp) }
        })*
    };
}
spawns! {
    posix_spawn = spawn(next::posix_spawn);
    posix_spawnp = spawn_found([next::posix_spawnp, next::posix_spawn]);
    // These put a descriptor of the process where the others put its number: an int, too.
    pidfd_spawn = spawn(next::pidfd_spawn);
    pidfd_spawnp = spawn_found([next::pidfd_spawnp, next::pidfd_spawn]);
}

/// A socket that a spawned program will find under another number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    new: c_int,
) -> c_int {
    // Also one that has carried nothing yet: when the program is spawned it may be on a ring.
    if let Some(port) = fds::port(fd) {
        fds::go_back_for_others(port, reason::INHERITED.code());
    }
    unsafe { next::posix_spawn_file_actions_adddup2(actions, fd, new) }
}
