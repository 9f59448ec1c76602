//! System calls made by instruction, never through libc names.
//!
//! Inside the preloaded library `libc::recv` binds to our own hook, so everything here issues the `syscall`
//! instruction itself and returns a negative errno instead of touching `errno`.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use rustix::mm::{MapFlags, ProtFlags};

/// A Linux error number.
pub type Errno = i32;

/// Issues system call `n`.
///
/// # Safety
/// The arguments must be valid for that call, as for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn syscall(n: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the arguments; rcx and r11 are what the instruction clobbers.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") n as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

/// Issues system call `n`.
///
/// # Safety
/// The arguments must be valid for that call, as for `syscall(2)`.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn syscall(n: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") n,
            inlateout("x0") a as isize => ret,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    ret
}

/// `recvfrom(fd, buf, len, flags, NULL, NULL)`.
///
/// # Safety
/// `buf` must be writable for `len` bytes.
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> isize {
    // SAFETY: forwarded from the caller.
    unsafe { syscall(libc::SYS_recvfrom, fd as usize, buf as usize, len, flags as usize, 0, 0) }
}

/// `sendto(fd, buf, len, flags, NULL, 0)`.
///
/// # Safety
/// `buf` must be readable for `len` bytes.
#[inline]
pub unsafe fn send(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> isize {
    // SAFETY: forwarded from the caller.
    unsafe { syscall(libc::SYS_sendto, fd as usize, buf as usize, len, flags as usize, 0, 0) }
}

/// `close(fd)`.
pub fn close(fd: c_int) -> isize {
    // SAFETY: closing a number has no memory effects.
    unsafe { syscall(libc::SYS_close, fd as usize, 0, 0, 0, 0, 0) }
}

/// `getpid()`, never cached: a vfork child shares our memory but not our pid.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as u32 }
}

/// `fcntl(fd, cmd, arg)` with an integer argument.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> isize {
    // SAFETY: only called with commands that take integers.
    unsafe { syscall(libc::SYS_fcntl, fd as usize, cmd as usize, arg, 0, 0, 0) }
}

/// Whether the open file description is in nonblocking mode.
pub fn is_nonblocking(fd: c_int) -> bool {
    let flags = fcntl(fd, libc::F_GETFL, 0);
    flags >= 0 && flags as c_int & libc::O_NONBLOCK != 0
}

/// `shutdown(fd, how)`.
pub fn shutdown(fd: c_int, how: c_int) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_shutdown, fd as usize, how as usize, 0, 0, 0, 0) }
}

/// One above the highest descriptor that can be open: the size of the kernel's table, of which it tells in /proc.
pub fn descriptor_table_size() -> c_int {
    const USUAL: c_int = 1024;
    let Ok(file) = rustix::fs::open(c"/proc/self/status", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
    else {
        return USUAL;
    };
    let mut text = [0u8; 2048];
    let n = rustix::io::read(&file, &mut text).unwrap_or(0);
    let lines = text[..n].split(|&b| b == b'\n');
    let size = lines.filter_map(|line| line.strip_prefix(b"FDSize:")).next().map(<[u8]>::trim_ascii);
    size.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(USUAL)
}

/// The position of a file after it was moved; an errno where that fails.
pub fn lseek(fd: c_int, by: i64, whence: c_int) -> Result<i64, i32> {
    // SAFETY: integers only.
    let r = unsafe { syscall(libc::SYS_lseek, fd as usize, by as usize, whence as usize, 0, 0, 0) };
    if r < 0 { Err(-r as i32) } else { Ok(r as i64) }
}

/// Polls one descriptor without waiting; `revents`, or 0 on error.
pub fn poll_now(fd: c_int, events: i16) -> i16 {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut zero = [0i64; 2];
    // SAFETY: both pointers are to live locals.
    let n = unsafe { syscall(libc::SYS_ppoll, &raw mut p as usize, 1, zero.as_mut_ptr() as usize, 0, 0, 0) };
    if n > 0 { p.revents } else { 0 }
}

/// Whether nothing can be mapped at `p`: below the kernel's mmap_min_addr, or not in a process's half of the addresses.
#[inline(always)]
pub fn faulty(p: *const u8) -> bool {
    const LOWEST: usize = 1 << 16;
    const END: usize = (1 << 47) - 4096;
    !(LOWEST..END).contains(&(p as usize))
}

/// `getsockopt` into a plain value; the number of bytes filled, or a negative errno.
pub fn getsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, out: &mut T) -> isize {
    let mut len = size_of::<T>() as u32;
    // SAFETY: `out` is a live value of `len` bytes; every T used here is plain data.
    let r = unsafe {
        syscall(
            libc::SYS_getsockopt,
            fd as usize,
            level as usize,
            name as usize,
            out as *mut T as usize,
            &raw mut len as usize,
            0,
        )
    };
    if r < 0 { r } else { len as isize }
}

/// `setsockopt` from a plain value.
pub fn setsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> isize {
    // SAFETY: `value` is live and of the size given.
    unsafe {
        syscall(
            libc::SYS_setsockopt,
            fd as usize,
            level as usize,
            name as usize,
            value as *const T as usize,
            size_of::<T>(),
            0,
        )
    }
}

/// `ioctl(fd, req)` that yields one int.
pub fn ioctl_int(fd: c_int, req: u64) -> Result<c_int, Errno> {
    let mut v: c_int = 0;
    // SAFETY: the requests used write one int.
    let r = unsafe { syscall(libc::SYS_ioctl, fd as usize, req as usize, &raw mut v as usize, 0, 0, 0) };
    if r < 0 { Err(-r as Errno) } else { Ok(v) }
}

/// The processor this thread runs on, plus one (0 where it cannot be told cheaply), and the time in `ticks`.
#[inline]
pub fn cpu_and_ticks() -> (u32, u64) {
    #[cfg(target_arch = "x86_64")]
    {
        let (aux, low, high): (u32, u32, u32);
        // SAFETY: rdtscp reads the time stamp and IA32_TSC_AUX, in which Linux keeps the processor number.
        unsafe { core::arch::asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") aux, options(nomem, nostack)) };
        ((aux & 0xfff) + 1, u64::from(high) << 32 | u64::from(low))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        (0, ticks())
    }
}

/// The processor, see `cpu_and_ticks`.
#[inline]
pub fn cpu() -> u32 {
    cpu_and_ticks().0
}

/// Sleeps for a millisecond.
pub fn nap() {
    sleep_ns(1_000_000);
}

/// Sleeps for less than a second.
pub fn sleep_ns(ns: u32) {
    let t = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: `t` is live.
    unsafe { syscall(libc::SYS_nanosleep, &raw const t as usize, 0, 0, 0, 0, 0) };
}

/// Leaves the processor to others that want it.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_sched_yield, 0, 0, 0, 0, 0, 0) };
}

/// A clock that costs next to nothing, of which `TICKS` are 8 to 30 milliseconds.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the time stamp.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    coarse_ns()
}

/// What `ticks` counts in 8 to 30 milliseconds.
pub const TICKS: u64 = if cfg!(target_arch = "x86_64") { 1 << 25 } else { 1 << 24 };

/// Monotonic nanoseconds, by the vDSO through libc: a name that we do not export.
#[inline]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Monotonic nanoseconds as of the kernel's last tick: a few milliseconds late, and cheaper than `now_ns`.
pub fn coarse_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Inode of a socket, as `ss` and /proc show it; None for anything else.
pub fn socket_inode(fd: i32) -> Option<u32> {
    socket_of(fd).map(|(inode, _)| inode)
}

/// Inode and owner of a socket.
pub(crate) fn socket_of(fd: i32) -> Option<(u32, u32)> {
    // SAFETY: all-zero is a valid stat.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is live.
    let r = unsafe { syscall(libc::SYS_fstat, fd as usize, &raw mut st as usize, 0, 0, 0, 0) };
    (r == 0 && st.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some((st.st_ino as u32, st.st_uid))
}

/// A new descriptor for the socket with this inode, if this process has one. Looks at one number after the other: for rare
/// events.
pub fn another_descriptor_of(inode: u32) -> Option<c_int> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live rlimit.
    let r = unsafe { syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE as usize, 0, &raw mut limit as usize, 0, 0) };
    let end = if r == 0 { limit.rlim_cur.min(1 << 20) as c_int } else { 1024 };
    let is = |fd| socket_inode(fd) == Some(inode);
    (0..end).filter(|&fd| is(fd)).find_map(|fd| {
        let own = fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) as c_int;
        if own < 0 || is(own) {
            return (own >= 0).then_some(own);
        }
        // The application closed that number meanwhile, and has something else there.
        close(own);
        None
    })
}

/// The time of day: seconds and nanoseconds.
pub fn realtime() -> (u64, u32) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut ts) };
    (ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// Memory from the kernel, zeroed, reserved only; null when there is none.
pub fn reserve(len: usize, shared: bool) -> *mut c_void {
    let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    shm::address::map(len, ProtFlags::READ | ProtFlags::WRITE, kind, None).unwrap_or(core::ptr::null_mut())
}

/// Gives back what `reserve` gave.
///
/// # Safety
/// `len` is that of the call, and nobody uses the memory any more.
pub unsafe fn give_back(memory: *mut c_void, len: usize) {
    // SAFETY: forwarded.
    unsafe { shm::address::unmap(memory, len) };
}

/// Until dropped the calling thread takes no signals but those of its own faults.
pub struct SignalsHeld {
    before: u64,
}

impl SignalsHeld {
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        let own = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let mask = own.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        let mut held = Self { before: 0 };
        set_signal_mask(&mask, &raw mut held.before);
        held
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        set_signal_mask(&self.before, core::ptr::null_mut());
    }
}

fn set_signal_mask(mask: &u64, before: *mut u64) {
    let (how, mask) = (libc::SIG_SETMASK as usize, core::ptr::from_ref(mask) as usize);
    // SAFETY: live words of the kernel's size of a mask.
    unsafe { syscall(libc::SYS_rt_sigprocmask, how, mask, before as usize, size_of::<u64>(), 0, 0) };
}
