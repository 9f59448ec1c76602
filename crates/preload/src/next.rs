//! The next definitions of the functions that the hooks go on to: libc's, or another preloaded
//! library's.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    aiocb, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, sigevent,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

macro_rules! next {
    ($($name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod table {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());)*
        }
        $(
            #[inline(always)]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                let mut p = table::$name.load(Relaxed);
                if p.is_null() {
                    p = find(&table::$name, concat!(stringify!($name), "\0"));
                }
                // SAFETY: the name's C signature is the one given here.
                let next = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(p) };
                // SAFETY: forwarded.
                unsafe { next($($arg),*) }
            }
        )*
        /// Looks all names up: dlsym takes locks and may allocate, so not in the middle of a hook.
        pub fn find_all() {
            $(find(&table::$name, concat!(stringify!($name), "\0"));)*
        }
    };
}

/// Where libc, from glibc 2.35 on, has an rseq(2) area for each thread, counted from the thread's
/// pointer.
pub fn rseq() -> Option<isize> {
    let look = |name: &core::ffi::CStr| {
        // SAFETY: a NUL-terminated name.
        let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!p.is_null()).then_some(p)
    };
    // SAFETY: an unsigned int of libc's, which is set before any constructor runs: 0 if the kernel
    // has refused the registration, or somebody else does it.
    let size = unsafe { look(c"__rseq_size")?.cast::<u32>().read() };
    // SAFETY: a ptrdiff_t of libc's, likewise.
    let offset = unsafe { look(c"__rseq_offset")?.cast::<isize>().read() };
    (size > 0).then_some(offset)
}

/// libc's own clock: what stands under its name may be a library's that tells programs another time.
pub fn clock() -> Option<smc::sys::Clock> {
    // SAFETY: a NUL-terminated name, of a library that is loaded already.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if libc.is_null() {
        return None;
    }
    // SAFETY: the handle is live, and the name is NUL-terminated.
    let p = unsafe { libc::dlsym(libc, c"clock_gettime".as_ptr()) };
    // SAFETY: null, or the function with that signature; libc stays loaded.
    unsafe { core::mem::transmute::<*mut c_void, Option<smc::sys::Clock>>(p) }
}

extern "C" fn missing() -> c_long {
    crate::set_errno(libc::ENOSYS);
    -1
}

#[cold]
fn find(slot: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    // SAFETY: a NUL-terminated name.
    let mut p = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
    if p.is_null() {
        p = missing as *mut c_void;
    }
    slot.store(p, Relaxed);
    p
}

/// Functions that return an errno and that most programs have no use for, nor older libcs: they are
/// looked up when somebody calls them.
macro_rules! late {
    ($($name:ident ( $($arg:ident : $ty:ty),* );)*) => {
        $(pub unsafe fn $name($($arg: $ty),*) -> c_int {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            let mut p = FOUND.load(Relaxed);
            if p.is_null() {
                p = find(&FOUND, concat!(stringify!($name), "\0"));
            }
            if core::ptr::eq(p, missing as *const c_void) {
                return libc::ENOSYS;
            }
            // SAFETY: the name's C signature is the one given here.
            let next = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> c_int>(p) };
            // SAFETY: forwarded.
            unsafe { next($($arg),*) }
        })*
    };
}

late! {
    pidfd_spawn(pidfd: *mut c_int, path: *const c_char, fa: *const c_void, attr: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char);
    pidfd_spawnp(pidfd: *mut c_int, path: *const c_char, fa: *const c_void, attr: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char);
}

next! {
    aio_read(cb: *mut aiocb) -> c_int;
    aio_write(cb: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, sig: *mut sigevent) -> c_int;
    read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    preadv2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, a: *mut sockaddr, l: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, v: *mut mmsghdr, n: libc::c_uint, flags: c_int, t: *mut timespec) -> c_int;
    write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    pwritev2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, a: *const sockaddr, l: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, v: *mut mmsghdr, n: libc::c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, off: *mut off_t, n: size_t) -> ssize_t;
    splice(i: c_int, io: *mut i64, o: c_int, oo: *mut i64, n: size_t, flags: libc::c_uint) -> ssize_t;
    socket(domain: c_int, kind: c_int, proto: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, proto: c_int, pair: *mut c_int) -> c_int;
    pipe(pair: *mut c_int) -> c_int;
    pipe2(pair: *mut c_int, flags: c_int) -> c_int;
    eventfd(initial: libc::c_uint, flags: c_int) -> c_int;
    connect(fd: c_int, a: *const sockaddr, l: socklen_t) -> c_int;
    accept(fd: c_int, a: *mut sockaddr, l: *mut socklen_t) -> c_int;
    accept4(fd: c_int, a: *mut sockaddr, l: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, v: *const c_void, l: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, v: *mut c_void, l: *mut socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: libc::c_uint, last: libc::c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int;
    ioctl(fd: c_int, req: libc::c_ulong, arg: usize) -> c_int;
    pthread_testcancel() -> ();
    pthread_cancel(thread: libc::pthread_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fclose(f: *mut libc::FILE) -> c_int;
    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, n: nfds_t, t: *const timespec, mask: *const sigset_t) -> c_int;
    sigaction(sig: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    unshare(flags: c_int) -> c_int;
    __sysv_signal(sig: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, t: *mut timeval) -> c_int;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, t: *const timespec, m: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(ep: c_int, op: c_int, fd: c_int, ev: *mut epoll_event) -> c_int;
    epoll_wait(ep: c_int, evs: *mut epoll_event, n: c_int, timeout: c_int) -> c_int;
    epoll_pwait(ep: c_int, evs: *mut epoll_event, n: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(ep: c_int, evs: *mut epoll_event, n: c_int, t: *const timespec, mask: *const sigset_t) -> c_int;
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    system(cmd: *const c_char) -> c_int;
    popen(cmd: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn(pid: *mut pid_t, path: *const c_char, fa: *const c_void, attr: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut pid_t, path: *const c_char, fa: *const c_void, attr: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    posix_spawn_file_actions_adddup2(fa: *mut c_void, fd: c_int, new: c_int) -> c_int;
    fork() -> pid_t;
    daemon(keeps_folder: c_int, keeps_stdio: c_int) -> c_int;
    setuid(uid: libc::uid_t) -> c_int;
    capset(header: *mut c_void, data: *const c_void) -> c_int;
    seteuid(uid: libc::uid_t) -> c_int;
    setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    __libc_start_main(main: *const c_void, argc: c_int, argv: *const *const c_char, init: *const c_void, fini: *const c_void, rtld_fini: *const c_void, stack_end: *const c_void) -> c_int;
    syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}
