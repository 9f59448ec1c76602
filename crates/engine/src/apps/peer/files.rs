//! Descriptors that a peer hands to a port that takes none: see [`super`] for what their close does.
//!
//! The kernel refuses them where it can, so that none comes. Elsewhere there is room for all that may
//! come with a message, as it closes what has none in the receiver's thread.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// SO_PASSRIGHTS (Linux 6.16), which whoever connects to a listening socket finds there, too.
const PASS_RIGHTS: libc::c_int = 83;

/// SCM_MAX_FD of the kernel: most descriptors of a message.
pub(in crate::apps) const MOST: usize = 253;

/// Has the kernel refuse messages with descriptors to this socket. An older kernel refuses that.
pub(in crate::apps) fn refuse(socket: BorrowedFd) {
    let off: libc::c_int = 0;
    // SAFETY: the kernel reads the four bytes of `off`.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PASS_RIGHTS,
            (&raw const off).cast(),
            size_of_val(&off) as u32,
        );
    }
}

/// Room for what comes with a message of a socket that has no option set by which anything but
/// descriptors may.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::apps) struct Control {
    header: libc::cmsghdr,
    files: [RawFd; MOST],
}

impl Control {
    pub fn new() -> Control {
        // SAFETY: integers; all zeros is a valid value.
        unsafe { std::mem::zeroed() }
    }

    /// What has come, of the length that the kernel says: to be taken once.
    ///
    /// # Safety
    /// The kernel has filled it in and not been given it again since, and this was not called since.
    pub unsafe fn take(&self, length: usize) -> impl Iterator<Item = OwnedFd> {
        let header = size_of::<libc::cmsghdr>();
        let are_files = length >= header
            && self.header.cmsg_level == libc::SOL_SOCKET
            && self.header.cmsg_type == libc::SCM_RIGHTS;
        let bytes = if are_files { self.header.cmsg_len } else { 0 };
        let count = bytes.saturating_sub(header) / size_of::<RawFd>();
        // SAFETY: by the contract they are descriptors which the kernel has made for us, and nobody
        // else owns.
        self.files.iter().take(count).map(|file| unsafe { OwnedFd::from_raw_fd(*file) })
    }
}
