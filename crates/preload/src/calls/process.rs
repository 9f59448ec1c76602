//! fork, exec, spawn, signals' restart rule, and io_uring.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

use libc::{FILE, pid_t};
use smc::{group, reason, sys};

use crate::fds::{self, Kind};
use crate::{alloc, epoll, ledger, next};

/// Locks that `prepare` took. A fork in a signal handler that interrupted their holder does not take them, and must not let go
/// of them either.
static HELD: AtomicU8 = AtomicU8::new(0);
const TABLES: u8 = 1;
const HEAP: u8 = 2;
const FORK: u8 = 4;

static FORKING: shm::FastLock<false> = shm::FastLock::new();

/// Registers the fork handlers.
pub fn init() {
    unsafe extern "C" {
        fn pthread_atfork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> c_int;
    }
    // SAFETY: three functions that stay loaded (the library is linked nodelete).
    unsafe { pthread_atfork(prepare, parent, child) };
}

extern "C" fn prepare() {
    if fds::has_left() {
        return;
    }
    // Of a fork in a signal handler that interrupted this very place, the guards are its thread's already.
    let hold = |lock: Result<_, _>, bit| {
        if lock.map(core::mem::forget::<shm::FastGuard<'_, false>>).is_ok() {
            HELD.fetch_or(bit, Relaxed);
        }
    };
    // One fork at a time: each counts the descriptors for its child.
    hold(FORKING.lock(), FORK);
    fds::before_fork();
    epoll::before_fork();
    // Held over the fork so that the child finds the tables and the heap whole.
    hold(epoll::table_lock().lock(), TABLES);
    hold(alloc::HEAP.lock.lock(), HEAP);
    ledger::before_fork();
}

extern "C" fn parent() {
    if fds::has_left() {
        return;
    }
    ledger::after_fork_parent();
    let held = HELD.swap(0, Relaxed);
    // SAFETY: taken in `prepare` by this thread.
    unsafe {
        if held & HEAP != 0 {
            alloc::HEAP.lock.force_unlock();
        }
        if held & TABLES != 0 {
            epoll::table_lock().force_unlock();
        }
        if held & FORK != 0 {
            FORKING.force_unlock();
        }
    }
}

extern "C" fn child() {
    HELD.store(0, Relaxed);
    if fds::has_left() {
        shm::thread::forget_thread_id();
        return;
    }
    shm::thread::refresh_thread_id();
    // SAFETY: the only thread of the child.
    unsafe {
        alloc::HEAP.lock.reset();
        epoll::table_lock().reset();
        FORKING.reset();
    }
    fds::after_fork_child();
    smc::after_fork_child();
    epoll::after_fork_child();
}

/// What clone3 is told, as far as we look at it.
#[repr(C)]
struct CloneArgs {
    flags: u64,
    _ids: [u64; 3],
    _exit_signal: u64,
    stack: u64,
}

/// Whether a system call that makes a process is a fork: a copy of this memory, and on the same stack, so that it returns
/// through the frame that asked for it. What else clone makes is left alone.
///
/// # Safety
/// `a` and `b` must be the first arguments of system call `n`.
pub unsafe fn is_fork(n: c_long, a: usize, b: usize) -> bool {
    // A shared table of descriptors would be changed by both.
    const SHARED: u64 = (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_VFORK) as u64;
    match n {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => a as u64 & SHARED == 0 && b == 0,
        libc::SYS_clone3 if b >= size_of::<CloneArgs>() && !crate::faulty(a as *const CloneArgs) => {
            // SAFETY: the caller passes its clone_args, of `b` bytes.
            let args = unsafe { &*(a as *const CloneArgs) };
            args.flags & SHARED == 0 && args.stack == 0
        }
        _ => false,
    }
}

/// A fork by number, of which libc tells nobody: sandboxes are made so, in namespaces of their own.
pub fn fork_by(fork: impl FnOnce() -> c_long) -> c_long {
    prepare();
    let r = fork();
    let e = crate::errno();
    if r == 0 {
        child()
    } else {
        parent()
    }
    crate::set_errno(e);
    r
}

/// A handler that interrupts and is taken out by its signal was ever installed: afterwards nobody sees that it was there.
static ONE_SHOT: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(sig: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    unsafe {
        if !crate::faulty(new) && (*new).sa_flags & (libc::SA_RESETHAND | libc::SA_RESTART) == libc::SA_RESETHAND {
            ONE_SHOT.store(true, Relaxed);
        }
        next::sigaction(sig, new, old)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(sig: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    ONE_SHOT.store(true, Relaxed);
    unsafe { next::__sysv_signal(sig, handler) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(sig: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    unsafe { __sysv_signal(sig, handler) }
}

/// Whether a wait that a signal ended would have been restarted in the call that it stands for. Which signal it was nobody
/// knows: so only if the handlers of all of them ask for it.
#[cold]
pub fn restarts() -> bool {
    /// As the kernel has it.
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: usize,
        restorer: usize,
        mask: u64,
    }
    /// Those that libc keeps for itself.
    const INTERNAL: [usize; 2] = [32, 33];
    !ONE_SHOT.load(Relaxed)
        && (1..=64).filter(|signal| !INTERNAL.contains(signal)).all(|signal| {
            let mut action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
            // SAFETY: a live action to fill in, of the kernel's layout and size of mask.
            let r = unsafe { sys::syscall(libc::SYS_rt_sigaction, signal, 0, &raw mut action as usize, 8, 0, 0) };
            r < 0
                || matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN)
                || action.flags & libc::SA_RESTART as usize != 0
        })
}

/// Changes the user of this process. Peers are left before, so that none takes us for the old one a moment longer, and once
/// more afterwards, for another thread's handshake may have come in between. A vfork child has a user of its own, and its
/// parent's memory.
pub fn change_user<R>(change: impl FnOnce() -> R) -> R {
    fds::go_back_from_copies();
    forget_around(change)
}

fn forget_around<R>(change: impl FnOnce() -> R) -> R {
    let forget = || {
        if fds::owner() {
            group::lanes::forget_peers();
        }
    };
    forget();
    let r = change();
    forget();
    r
}

macro_rules! user {
    ($($name:ident ( $($a:ident),* );)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: libc::uid_t),*) -> c_int {
            change_user(|| unsafe { next::$name($($a),*) })
        })*
    };
}
user! {
    setuid(uid);
    setreuid(real, effective);
    setresuid(real, effective, saved);
}

/// Leaves the real user, by whom the kernel goes where processes copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seteuid(uid: libc::uid_t) -> c_int {
    forget_around(|| unsafe { next::seteuid(uid) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    fds::go_back_from_copies();
    unsafe { next::capset(header, data) }
}

/// What a program asks of a call that takes rights away is about to hold: whether our own system calls must end before, or
/// copies between processes.
pub fn leave_for(call: c_long, a: usize, b: usize) {
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
    fds::leave_for_good(why.code());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    leave_for(libc::SYS_prctl, option as usize, a);
    unsafe { next::prctl(option, a, b, c, d) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    leave_for(libc::SYS_unshare, flags as usize, 0);
    unsafe { next::unshare(flags) }
}

/// A program with an io_uring may use any descriptor past us: everything stays, or goes back to, TCP.
pub fn leave_for_io_uring() {
    smc::config::CONFIG.disable();
    fds::each(|fd, k| {
        if let Kind::Conn(i) = k {
            fds::give_up(i, fds::conn(i), fd, reason::IO_URING.code());
        }
    });
}

macro_rules! uring {
    ($($name:ident ( $($a:ident : $t:ty),* );)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            if smc::config::CONFIG.deny_io_uring.load(Relaxed) {
                return -libc::ENOSYS;
            }
            leave_for_io_uring();
            unsafe { next::$name($($a),*) }
        })*
    };
}
uring! {
    io_uring_queue_init(n: libc::c_uint, ring: *mut c_void, flags: libc::c_uint);
    io_uring_queue_init_params(n: libc::c_uint, ring: *mut c_void, p: *mut c_void);
}

macro_rules! exec {
    ($($name:ident ( $($a:ident : $t:ty),* );)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            fds::before_exec();
            let r = unsafe { next::$name($($a),*) };
            let e = crate::errno();
            fds::undo_exec();
            crate::set_errno(e);
            r
        })*
    };
}
exec! {
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char);
    execv(path: *const c_char, argv: *const *const c_char);
    execvp(file: *const c_char, argv: *const *const c_char);
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char);
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char);
}

/// Names that are jumped to with stack and arguments untouched: variadic ones, whatever they are passed, and those that
/// return twice.
macro_rules! variadic {
    ($prepare:ident: $($name:ident)*) => {
        $(#[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // Keeps the argument registers over the call that prepares, then jumps: the stack is as the caller left it.
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                // Floating-point arguments travel in vector registers; 128 bytes keep the stack aligned.
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "mov rsi, rdi",
                "lea rdi, [rip + {name}]",
                "call {prepare}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                name = sym $name::NAME,
                prepare = sym $prepare,
            )
        })*
        $(mod $name {
            pub static NAME: [u8; 16] = {
                let mut out = [0u8; 16];
                let text = stringify!($name).as_bytes();
                let mut i = 0;
                while i < text.len() {
                    out[i] = text[i];
                    i += 1;
                }
                out
            };
        })*
    };
}
variadic! { prepare_exec: execl execlp execle }
variadic! { prepare_shared: vfork __vfork clone __clone }
variadic! { prepare_print: dprintf __dprintf_chk vdprintf __vdprintf_chk }

extern "C" fn prepare_exec(name: *const c_char, _: usize) -> *mut c_void {
    fds::before_exec();
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name) }
}

/// The child may run in our memory.
extern "C" fn prepare_shared(name: *const c_char, _: usize) -> *mut c_void {
    fds::SHARED.store(true, Relaxed);
    fds::before_vfork();
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name) }
}

/// stdio's formatted output to a descriptor writes past every hook.
extern "C" fn prepare_print(name: *const c_char, fd: usize) -> *mut c_void {
    let fd = fd as c_int;
    if let Some((index, c)) = fds::conn_of(fd) {
        fds::give_up(index, c, fd, reason::STDIO.code());
    }
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    fds::before_exit();
    loop {
        // SAFETY: ends the process.
        unsafe { smc::sys::syscall(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(cmd: *const c_char) -> c_int {
    let _kept = fds::revert_for_spawn();
    unsafe { next::system(cmd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(cmd: *const c_char, mode: *const c_char) -> *mut FILE {
    let _kept = fds::revert_for_spawn();
    unsafe { next::popen(cmd, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    fa: *const c_void,
    attr: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    let _kept = fds::revert_for_spawn();
    unsafe { next::posix_spawn(pid, path, fa, attr, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    fa: *const c_void,
    attr: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    let _kept = fds::revert_for_spawn();
    unsafe { next::posix_spawnp(pid, file, fa, attr, argv, envp) }
}

/// A socket that a spawned program will find under another number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(fa: *mut c_void, fd: c_int, new: c_int) -> c_int {
    if let Some((index, c)) = fds::existing(fd) {
        fds::give_up(index, c, fd, reason::INHERITED.code());
    }
    unsafe { next::posix_spawn_file_actions_adddup2(fa, fd, new) }
}
