//! libshortwire.so: the libc entry points that `shortwire run` puts in front of a program.
//!
//! The application's descriptor stays the kernel's TCP socket; these hooks only short-circuit what
//! an upgraded connection has in shared memory. Nothing here allocates from the application's heap,
//! panics, or keeps a lock across a wait. doc/preload.md lists the entry points and their limits.
#![allow(unsafe_code)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

mod alloc;
mod artefact;
// All unsafe operations of a hook have one obligation, libc's caller's, which is forwarded: a block
// for each would say the same several times, and a closure in a call cannot stand in a block of its
// own beside it.
#[allow(clippy::multiple_unsafe_ops_per_block)]
mod calls;
#[cfg(target_arch = "x86_64")]
mod go;
mod libc_kernel;
mod musl;
mod next;
mod start;

use core::ffi::{c_char, c_int};

use socket::fds;

/// What this library is built from, for whoever reads its file.
#[used]
static BUILD: &str = concat!("shortwire build: ", env!("SHORTWIRE_BUILD"));

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn fini() {
    fds::before_exit();
}

extern "C" fn init(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    next::find_all();
    calls::process::find_all();
    if let Some(offset) = next::rseq() {
        smc::sys::has_rseq_at(offset);
    }
    if let Some(clock) = next::clock() {
        smc::sys::time_is_told_by(clock);
    }
    smc::release::built_from(env!("SHORTWIRE_BUILD"));
    socket::kernel::set(&libc_kernel::LIBC);
    // SAFETY: a look into the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than whoever started it, into which only /etc/ld.so.preload
        // can have brought us: its environment is not to be trusted, nor a table among its
        // descriptors.
        smc::config::CONFIG.disable();
        return;
    }
    if start::refuses(c"/proc/self/exe", argc, argv, envp) {
        smc::config::CONFIG.disable();
    }
    if smc::config::CONFIG.policy() == smc::config::PeerPolicy::Off {
        return;
    }
    fds::init();
    fds::inherit();
    // SAFETY: as the loader has it.
    unsafe { artefact::find(envp) };
    calls::process::init();
    #[cfg(target_arch = "x86_64")]
    go::follow();
}

/// gcc's AddressSanitizer refuses to start where another library stands before it, unless it is
/// told not to look. It asks this function, of which a program that has its own uses that.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// errno of this thread.
fn errno() -> c_int {
    // SAFETY: no arguments.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: valid as long as the thread.
    unsafe { *at }
}

fn set_errno(e: c_int) {
    // SAFETY: no arguments.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: valid as long as the thread.
    unsafe { *at = e };
}

/// What libc's function returned, as the socket library has it: a count, or a negative errno.
#[inline(always)]
fn told(r: isize) -> isize {
    if r < 0 { -(errno() as isize) } else { r }
}

/// What the socket library returned, as libc has it.
#[inline(always)]
fn tell(r: isize) -> isize {
    if r < 0 { fail(-r as c_int) } else { r }
}

/// The C way of failing.
#[cold]
fn fail(e: c_int) -> isize {
    set_errno(e);
    -1
}
