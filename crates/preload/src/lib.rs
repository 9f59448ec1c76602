//! libshortwire.so: the libc entry points that `shortwire run` puts in front of a program.
//!
//! The application's descriptor stays the kernel's TCP socket; these hooks only short-circuit what an upgraded
//! connection has in shared memory. Nothing here allocates from the application's heap, panics, or keeps a lock across
//! a wait. doc/preload.md lists the entry points and their limits.
#![allow(unsafe_code)]

mod alloc;
mod calls;
mod libc_kernel;
mod musl;
mod next;

use core::ffi::{CStr, c_char, c_int};

use socket::fds;

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn fini() {
    fds::before_exit();
}

extern "C" fn init(_: c_int, _: *const *const c_char, envp: *const *const c_char) {
    next::find_all();
    socket::kernel::set(&libc_kernel::LIBC);
    // SAFETY: a look into the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than whoever started it, into which only /etc/ld.so.preload can have brought us: its
        // environment is not to be trusted, nor a table among its descriptors.
        smc::config::CONFIG.disable();
        return;
    }
    let mut at = envp;
    let mut refused = false;
    // SAFETY: the loader passes a NULL-terminated array of strings to every constructor.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let var = CStr::from_ptr(*at).to_bytes();
            if let Some(rest) = var.strip_prefix(b"SHORTWIRE_")
                && let Some(eq) = rest.iter().position(|b| *b == b'=')
            {
                match smc::setting::check(&rest[..eq], &rest[eq + 1..]) {
                    Ok(()) => smc::setting::set(&rest[..eq], &rest[eq + 1..]),
                    Err(expected) => {
                        tell_refused(var, expected);
                        refused = true;
                    }
                }
            }
            at = at.add(1);
        }
    }
    if refused {
        smc::config::CONFIG.disable();
    }
    if smc::config::CONFIG.policy() == smc::config::PeerPolicy::Off {
        return;
    }
    fds::init();
    fds::inherit();
    calls::process::init();
}

/// A setting was not understood: it may have been there to keep programs apart, so memory is shared with nobody.
#[cold]
fn tell_refused(variable: &[u8], expected: &str) {
    let parts: [&[u8]; 5] = [
        b"shortwire: ",
        variable,
        b" is not understood: give ",
        expected.as_bytes(),
        b"; connections of this process stay TCP\n",
    ];
    // A program without stderr is told nothing.
    smc::sys::write(2, &parts.concat());
}

/// gcc's AddressSanitizer refuses to start where another library stands before it, unless it is told not to look. It asks this
/// function, of which a program that has its own uses that.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// errno of this thread.
fn errno() -> c_int {
    // SAFETY: always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(e: c_int) {
    // SAFETY: always valid.
    unsafe { *libc::__errno_location() = e };
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
