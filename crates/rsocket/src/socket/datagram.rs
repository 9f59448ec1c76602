//! Datagrams: the kernel's UDP socket under our number.
//!
//! librdmacm's datagram rsockets begin as UDP too, and move to a UD queue pair once the peer's is
//! known. On one machine the kernel's loopback delivers what that would, with the same loss when a
//! receiver is slow.
#![allow(unsafe_code)]

use super::Socket;
use super::lifecycle::last_error;
use crate::kernel;
use shm::Errno;

/// A datagram over a UD queue pair is one packet.
const LARGEST: usize = 65507;

/// # Safety
/// Each buffer is readable, and so is the address.
pub unsafe fn send(
    socket: &Socket,
    bufs: &[(*const u8, usize)],
    flags: i32,
    to: Option<(*const libc::sockaddr, u32)>,
) -> Result<usize, Errno> {
    if bufs.iter().map(|b| b.1).sum::<usize>() > LARGEST {
        return Err(Errno::MSGSIZE);
    }
    let mut iov: Vec<libc::iovec> = bufs
        .iter()
        .map(|(ptr, len)| libc::iovec { iov_base: *ptr as *mut _, iov_len: *len })
        .collect();
    // SAFETY: all of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.as_mut_ptr(), iov.len());
    if let Some((addr, len)) = to {
        (message.msg_name, message.msg_namelen) = (addr as *mut _, len);
    }
    // SAFETY: by the contract; a message that is too long, or no address, is the kernel's to
    // refuse.
    let n = unsafe { kernel::sendmsg(socket.raw(), &message, flags | libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| last_error())
}

/// The length, and the flags of the message.
///
/// # Safety
/// Each buffer is writable; `addr` is null, or writable for `*len` bytes.
pub unsafe fn recv(
    socket: &Socket,
    bufs: &[(*mut u8, usize)],
    flags: i32,
    addr: *mut libc::sockaddr,
    len: *mut u32,
) -> Result<(usize, i32), Errno> {
    let mut iov: Vec<libc::iovec> =
        bufs.iter().map(|(ptr, len)| libc::iovec { iov_base: ptr.cast(), iov_len: *len }).collect();
    // SAFETY: all of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.as_mut_ptr(), iov.len());
    let named = !addr.is_null() && !len.is_null();
    if named {
        // SAFETY: by the contract.
        (message.msg_name, message.msg_namelen) = (addr.cast(), unsafe { len.read() });
    }
    // SAFETY: by the contract.
    let n = unsafe { kernel::recvmsg(socket.raw(), &mut message, flags) };
    if n >= 0 && named {
        // SAFETY: by the contract.
        unsafe { len.write(message.msg_namelen) };
    }
    usize::try_from(n).map(|n| (n, message.msg_flags)).map_err(|_| last_error())
}
