//! Linux's own asynchronous input and output (io_submit): the kernel reads, writes and waits past
//! every hook. POSIX's (`aio_read`) is threads of libc, and the front's affair.
#![allow(unsafe_code)]

use smc::reason;

use crate::fds;
use crate::uring::give_for;

/// A `struct iocb` of the kernel's, as far as it matters here.
#[repr(C)]
pub struct Request {
    /// Data for the program, and flags.
    _before: [u32; 5],
    /// The descriptor.
    fd: i32,
}

/// In front of io_submit: the connections that are named go to TCP, for good, and of a set that is
/// waited for the kernel alone must know what is ready.
///
/// # Safety
/// `list` must be what the application gives to io_submit, of `n` requests.
pub unsafe fn before_submit(n: isize, list: *const *const Request) {
    if !fds::has_begun() || n <= 0 || crate::faulty(list) {
        return;
    }
    for i in 0..n as usize {
        // SAFETY: the caller's obligation.
        let request = unsafe { *list.wrapping_add(i) };
        // The kernel stops at the first that it cannot read.
        if crate::faulty(request) {
            return;
        }
        // SAFETY: as above.
        give_for(unsafe { (*request).fd }, reason::ASYNC_IO.code());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{port, recv, send, serial, upgraded};

    #[test]
    fn what_is_submitted_is_tcps() {
        let _turn = serial();
        let pair = upgraded();
        let request = Request { _before: [0; 5], fd: pair.1 };
        let list = [&raw const request, core::ptr::null(), &raw const request];
        // SAFETY: a live list.
        unsafe { before_submit(3, list.as_ptr()) };
        assert_eq!(
            port(pair.1).conn.identity.reason.load(core::sync::atomic::Ordering::Relaxed),
            reason::ASYNC_IO.code()
        );
        assert_eq!(send(pair.1, b"on", 0), 2);
        assert_eq!(recv(pair.0, 2, 0), Ok(b"on".to_vec()));
        assert!(!port(pair.1).conn.switched());
    }
}
