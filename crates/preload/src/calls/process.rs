//! fork, the user, and signals' restart rule.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use smc::reason;
use socket::fds;
use socket::kernel;
use socket::rights::{change_effective_user, change_user, leave_for};

use super::fd::dup2;
use crate::libc_kernel::ONE_SHOT;
use crate::{alloc, next};

/// Whether `prepare` took the heap's lock, which a fork in a signal handler that interrupted its
/// holder does not.
static HEAP_HELD: AtomicBool = AtomicBool::new(false);

/// Registers the fork handlers.
pub fn init() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: extern "C" fn(),
            parent: extern "C" fn(),
            child: extern "C" fn(),
        ) -> c_int;
    }
    // SAFETY: three functions that stay loaded (the library is linked nodelete).
    unsafe { pthread_atfork(prepare, parent, child) };
}

extern "C" fn prepare() {
    socket::fork::prepare();
    // Held over the fork so that the child finds the heap whole.
    if !fds::has_stopped() && alloc::HEAP.lock.lock().map(core::mem::forget).is_ok() {
        HEAP_HELD.store(true, Relaxed);
    }
}

extern "C" fn parent() {
    if HEAP_HELD.swap(false, Relaxed) {
        // SAFETY: taken in `prepare` by this thread.
        unsafe { alloc::HEAP.lock.force_unlock() };
    }
    socket::fork::parent();
}

extern "C" fn child() {
    HEAP_HELD.store(false, Relaxed);
    // SAFETY: the only thread of the child.
    unsafe { alloc::HEAP.lock.reset() };
    socket::fork::child();
}

/// libc tells its fork handlers nothing of a fork that has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let before = fds::forks();
    // SAFETY: forwarded.
    let r = unsafe { next::fork() };
    // Whoever is between us and libc may refuse without a call of the handlers: the last fork that was
    // counted then has a child.
    if r < 0 && fds::forks() != before {
        let e = crate::errno();
        socket::fork::failed();
        crate::set_errno(e);
    }
    r
}

/// A fork by number, of which libc tells nobody: sandboxes are made so, in namespaces of their own.
pub fn fork_by(fork: impl FnOnce() -> c_long) -> c_long {
    prepare();
    let r = fork();
    let e = crate::errno();
    match r {
        0 => child(),
        ..0 => {
            parent();
            socket::fork::failed();
        }
        _ => parent(),
    }
    crate::set_errno(e);
    r
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    sig: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
    unsafe {
        if !socket::faulty(new)
            && (*new).sa_flags & (libc::SA_RESETHAND | libc::SA_RESTART) == libc::SA_RESETHAND
        {
            ONE_SHOT.store(true, Relaxed);
        }
        let r = next::sigaction(sig, new, old);
        kernel::handlers_changed();
        r
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(
    sig: c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    ONE_SHOT.store(true, Relaxed);
    let before = unsafe { next::__sysv_signal(sig, handler) };
    kernel::handlers_changed();
    before
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(
    sig: c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    unsafe { __sysv_signal(sig, handler) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    kernel::will_cancel();
    unsafe { next::pthread_cancel(thread) }
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
    change_effective_user(|| unsafe { next::seteuid(uid) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    fds::go_back_from_copies();
    unsafe { next::capset(header, data) }
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

/// Names that are jumped to with stack and arguments untouched: variadic ones, whatever they are
/// passed, and those that return twice.
macro_rules! variadic {
    ($prepare:ident: $($name:ident)*) => {
        $(#[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // Keeps the argument registers over the call that prepares, then jumps: the stack is as
            // the caller left it.
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                // Floating-point arguments travel in vector registers; 128 bytes keep the stack
                // aligned.
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "mov rsi, rdi",
                "lea rdi, [rip + {called}]",
                "call {prepare}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                called = sym $name::CALLED,
                prepare = sym $prepare,
            )
        }
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // Keeps the argument registers over the call that prepares, then jumps: the stack is as
            // the caller left it. x16 may be lost at any call, as linkage tables jump by it, too.
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-224]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "stp q0, q1, [sp, #96]", "stp q2, q3, [sp, #128]", "stp q4, q5, [sp, #160]", "stp q6, q7, [sp, #192]",
                "mov x1, x0",
                "adrp x0, {called}",
                "add x0, x0, :lo12:{called}",
                "bl {prepare}",
                "mov x16, x0",
                "ldp q0, q1, [sp, #96]", "ldp q2, q3, [sp, #128]", "ldp q4, q5, [sp, #160]", "ldp q6, q7, [sp, #192]",
                "ldr x8, [sp, #80]",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #224",
                "br x16",
                called = sym $name::CALLED,
                prepare = sym $prepare,
            )
        })*
        $(mod $name {
            pub static CALLED: super::Called =
                super::Called::new(concat!(stringify!($name), "\0"));
        })*
    };
}
variadic! { prepare_shared: vfork __vfork clone __clone }
variadic! { prepare_print: dprintf __dprintf_chk vdprintf __vdprintf_chk }

/// A name, and its next definition once that was looked up.
struct Called {
    name: &'static str,
    next: AtomicPtr<c_void>,
}

impl Called {
    const fn new(name: &'static str) -> Self {
        Self { name, next: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn next(&self) -> *mut c_void {
        let next = self.next.load(Relaxed);
        if next.is_null() { self.find() } else { next }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a NUL-terminated name.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.next.store(next, Relaxed);
        next
    }
}

/// Looks the names up: the loader's lock, which dlsym takes, is held over constructors, and one of these
/// may wait for the very thread that forks.
pub(crate) fn find_all() {
    for called in [
        &vfork::CALLED,
        &__vfork::CALLED,
        &clone::CALLED,
        &__clone::CALLED,
        &dprintf::CALLED,
        &__dprintf_chk::CALLED,
        &vdprintf::CALLED,
        &__vdprintf_chk::CALLED,
    ] {
        called.find();
    }
}

/// The child may run in our memory.
extern "C" fn prepare_shared(called: &Called, _: usize) -> *mut c_void {
    socket::fork::before_vfork();
    called.next()
}

/// stdio's formatted output to a descriptor writes past every hook.
extern "C" fn prepare_print(called: &Called, fd: usize) -> *mut c_void {
    let fd = fd as c_int;
    if let Some(port) = fds::port(fd) {
        fds::go_back_for_others(port, reason::STDIO.code());
    }
    called.next()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    socket::fork::exit(status)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    unsafe { _exit(status) }
}

/// To the background, as glibc goes there, by our own hooks: its function ends the parent, and puts /dev/null
/// over the first three numbers, past them. The child would share with nobody what the parent had opened, and
/// a connection at one of these numbers would stand for /dev/null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn daemon(keeps_folder: c_int, keeps_stdio: c_int) -> c_int {
    if !fds::has_begun() {
        return unsafe { next::daemon(keeps_folder, keeps_stdio) };
    }
    match unsafe { fork() } {
        -1 => return -1,
        0 => {}
        _ => unsafe { _exit(0) },
    }
    if unsafe { libc::setsid() } < 0 {
        return -1;
    }
    if keeps_folder == 0 {
        unsafe { libc::chdir(c"/".as_ptr()) };
    }
    if keeps_stdio == 0 { unsafe { leave_stdio() } } else { 0 }
}

/// Puts /dev/null over stdin, stdout and stderr, if it is what it should be.
unsafe fn leave_stdio() -> c_int {
    let null = smc::sys::open(c"/dev/null", libc::O_RDWR, 0);
    let is_null = |st: libc::stat| {
        st.st_mode & libc::S_IFMT == libc::S_IFCHR && st.st_rdev == libc::makedev(1, 3)
    };
    if !smc::sys::stat(null).is_some_and(is_null) {
        crate::set_errno(if null < 0 { -null } else { libc::ENODEV });
        smc::sys::close(null);
        return -1;
    }
    for fd in 0..=2 {
        if fd == null {
            // It was opened for this process alone.
            smc::sys::fcntl(fd, libc::F_SETFD, 0);
        } else {
            unsafe { dup2(null, fd) };
        }
    }
    if null > 2 {
        smc::sys::close(null);
    }
    0
}
