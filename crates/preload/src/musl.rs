//! Programs of another C library, musl: this one is of no use to them, and its loader would end
//! them for what it lacks here.
//!
//! musl takes a library that defines both `__libc_start_main` and `stdin` for a C library, its own,
//! and uses what it has already in its place. So we define both. With glibc the first calls on, and
//! the second points to where its own does.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};

use crate::next;

/// What `_start` gives it: main and its argument count and vector, three functions that run before
/// and after, the end of the stack.
///
/// # Safety
/// For `_start` to call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_start_main(
    main: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
    init: *const c_void,
    fini: *const c_void,
    rtld_fini: *const c_void,
    stack_end: *const c_void,
) -> c_int {
    // SAFETY: forwarded.
    unsafe { next::__libc_start_main(main, argc, argv, init, fini, rtld_fini, stack_end) }
}

#[repr(transparent)]
pub struct Stream(*const c_void);
// SAFETY: an address; what is there is libc's to guard.
unsafe impl Sync for Stream {}

unsafe extern "C" {
    static _IO_2_1_stdin_: c_void;
}

#[allow(non_upper_case_globals, reason = "it is libc's name")]
#[unsafe(no_mangle)]
pub static mut stdin: Stream = Stream(&raw const _IO_2_1_stdin_);
