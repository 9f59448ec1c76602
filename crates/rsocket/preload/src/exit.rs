//! Ends of a process that run no destructors, as those of Python's workers. Peers would take them for
//! kills.

use core::ffi::c_int;
use shortwire_rsocket::sockets;

#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    sockets::before_exit();
    loop {
        // By number: a look for the next library's function takes the loader's lock, which in a fork
        // child may be held by a thread that exists only in the parent.
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}
