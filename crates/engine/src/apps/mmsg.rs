//! Many packets per system call: sendmmsg(2) and recvmmsg(2).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::arena::CONTROL;
use crate::batch::{BATCH, Batch};
use crate::packet::Packet;

/// The kernel's arrays, kept so that a call only fills in addresses and lengths.
pub(super) struct Mmsg {
    vectors: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    /// Packets to receive into, made when they are first needed.
    spare: Batch,
}

// SAFETY: the pointers in the arrays are only used within one call.
unsafe impl Send for Mmsg {}

impl Mmsg {
    pub fn new() -> Mmsg {
        // SAFETY: pointers and integers; all zeros is a valid value.
        let vectors: libc::iovec = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Mmsg {
            vectors: Box::new([vectors; BATCH]),
            headers: Box::new([header; BATCH]),
            spare: Batch::new(),
        }
    }

    fn point(&mut self, at: usize, base: *mut u8, length: usize) {
        self.vectors[at] = libc::iovec { iov_base: base.cast(), iov_len: length };
        let header = &mut self.headers[at].msg_hdr;
        header.msg_iov = &raw mut self.vectors[at];
        header.msg_iovlen = 1;
        header.msg_flags = 0;
    }

    /// Sends a message per packet without waiting and tells how many the kernel took. An error is
    /// about the first one.
    pub fn send(&mut self, socket: BorrowedFd, packets: &[Packet]) -> Result<usize, Errno> {
        let count = packets.len().min(BATCH);
        for (at, packet) in packets[..count].iter().enumerate() {
            self.point(at, packet.as_ptr().cast_mut(), packet.length());
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `count` headers, each with a vector over a packet that is borrowed; the kernel
        // only reads them.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count as u32, flags)
        };
        if sent < 0 { Err(last_errno()) } else { Ok(sent as usize) }
    }

    /// Receives up to `most` messages without waiting, a packet each, and tells how many were too
    /// long for one and are lost. Messages of no bytes are kept: what they mean is up to the
    /// socket.
    pub fn receive(
        &mut self,
        socket: BorrowedFd,
        most: usize,
        batch: &mut Batch,
    ) -> Result<usize, Errno> {
        let wanted = most.min(batch.room()).min(BATCH);
        self.stock(wanted);
        let count = self.spare.len().min(wanted);
        if count == 0 {
            return Ok(0);
        }
        // Taken from the end, as `pop` gives them.
        for at in 0..count {
            let index = self.spare.len() - 1 - at;
            let base = self.spare[index].as_mut_ptr();
            self.point(at, base, self.spare[index].tailroom());
        }
        // SAFETY: `count` headers, each with a vector over the free room of an empty packet that is
        // ours.
        let got = unsafe {
            let no_timeout = std::ptr::null_mut();
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT,
                no_timeout,
            )
        };
        if got < 0 {
            return Err(last_errno());
        }
        let mut lost = 0;
        for at in 0..got as usize {
            let Some(packet) = self.spare.pop() else { break };
            if self.headers[at].msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                lost += 1;
                continue;
            }
            let offset = packet.headroom() + CONTROL;
            let length = self.headers[at].msg_len as usize;
            // SAFETY: the kernel wrote `length` bytes there, within the room that it was given.
            batch.push(unsafe { Packet::from_slot(packet.into_slot(), offset, length) });
        }
        Ok(lost)
    }

    fn stock(&mut self, wanted: usize) {
        while self.spare.len() < wanted {
            let Some(packet) = Packet::allocate() else { break };
            self.spare.push(packet);
        }
    }
}

/// Frees the first `count` packets, which were sent.
#[inline]
pub(super) fn drop_front(batch: &mut Batch, count: usize) {
    if count == batch.len() {
        return batch.clear();
    }
    let mut position = 0;
    batch.retain(|_| {
        position += 1;
        position > count
    });
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
