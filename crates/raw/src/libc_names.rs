//! The few names that the compiler and the crates below expect of libc, without libc: by system calls
//! and instructions, without the program's thread pointer, without the upper halves of vector registers. Those for memory
//! are in `memory.rs` of each machine.
//!
//! SAFETY, of all that is exported here: the obligations are those of the C functions.

use core::ffi::{c_int, c_long, c_ulong};

use libc::{iovec, sigset_t, timespec};
use smc::sys;

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, to: *mut timespec) -> c_int {
    // SAFETY: forwarded, here and below.
    unsafe {
        sys::by_number(libc::SYS_clock_gettime, clock as usize, to as usize, 0, 0, 0, 0) as c_int
    }
}

/// errno of this thread: a place in its block.
#[unsafe(no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    crate::entry::errno()
}

/// A result as C has it.
fn tell(r: isize) -> isize {
    if r < 0 {
        // SAFETY: this thread's.
        unsafe { *crate::entry::errno() = -r as c_int };
        return -1;
    }
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: forwarded.
    tell(unsafe { sys::by_number(n, a, b, c, d, e, f) }) as c_long
}

#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_readv(
    pid: c_int,
    here: *const iovec,
    n: c_ulong,
    there: *const iovec,
    m: c_ulong,
    flags: c_ulong,
) -> isize {
    let (here, there) = (here as usize, there as usize);
    let call = libc::SYS_process_vm_readv;
    // SAFETY: forwarded.
    tell(unsafe {
        sys::by_number(call, pid as usize, here, n as usize, there, m as usize, flags as usize)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_writev(
    pid: c_int,
    here: *const iovec,
    n: c_ulong,
    there: *const iovec,
    m: c_ulong,
    flags: c_ulong,
) -> isize {
    let (here, there) = (here as usize, there as usize);
    let call = libc::SYS_process_vm_writev;
    // SAFETY: forwarded.
    tell(unsafe {
        sys::by_number(call, pid as usize, here, n as usize, there, m as usize, flags as usize)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigfillset(set: *mut sigset_t) -> c_int {
    // SAFETY: forwarded.
    unsafe { core::ptr::write_bytes(set.cast::<u8>(), 0xff, size_of::<sigset_t>()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    let call = libc::SYS_rt_sigprocmask;
    // SAFETY: forwarded.
    -unsafe { sys::by_number(call, how as usize, new as usize, old as usize, 8, 0, 0) } as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: forwarded.
    tell(unsafe { sys::by_number(libc::SYS_sigaltstack, new as usize, old as usize, 0, 0, 0, 0) })
        as c_int
}

/// A panic has nowhere to go: the program ends, as it does in the library that is loaded into others.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    use core::fmt::Write;
    struct Stderr;
    impl Write for Stderr {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            sys::write(2, text.as_bytes());
            Ok(())
        }
    }
    let _ = writeln!(Stderr, "shortwire: {info}");
    crate::arch::trap()
}

/// What the compiled core library names for unwinding, which does not happen here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// See `rust_eh_personality`.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing unwinds here")
}

#[unsafe(no_mangle)]
extern "C" fn getauxval(kind: c_ulong) -> c_ulong {
    crate::begin::auxiliary(kind)
}
