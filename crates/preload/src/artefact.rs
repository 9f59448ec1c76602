//! Where shortwire-raw is, through which programs are started that load no library: beside this one.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering::*};

use smc::config::CONFIG;

static PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Looks for it, where it is asked for, and keeps what children are to be told.
///
/// # Safety
/// The environment that the loader passes to constructors.
pub unsafe fn find(environment: *const *const c_char) {
    if !CONFIG.raw.load(Relaxed) {
        return;
    }
    // SAFETY: forwarded.
    unsafe { socket::programs::keep(environment) };
    // SAFETY: zero is a valid value of every field.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: an address in this library, and a place for the answer.
    let known = unsafe { libc::dladdr(find as *const _, &raw mut info) } != 0;
    if !known || info.dli_fname.is_null() {
        return;
    }
    // SAFETY: the loader's string.
    let own = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    if !own.starts_with(b"/") {
        // It would be looked for in whatever folder the process is in by then.
        return;
    }
    let Some(end) = own.iter().rposition(|byte| *byte == b'/') else { return };
    let name = [&own[..=end], b"shortwire-raw\0"].concat();
    let path = Box::leak(name.into_boxed_slice()).as_mut_ptr().cast::<c_char>();
    // SAFETY: NUL-terminated.
    if smc::sys::stat_path(unsafe { CStr::from_ptr(path) }, 0).is_some() {
        PATH.store(path, Release);
    }
}

/// Its path; null if programs are to be started as ever.
pub fn path() -> *const c_char {
    PATH.load(Acquire)
}
