//! Many packets per system call: sendmmsg(2) and recvmmsg(2).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::apps::peer::Peer;
use crate::apps::peer::files::Control;
use crate::arena::CONTROL;
use crate::batch::{BATCH, Batch};
use crate::packet::Packet;

/// The kernel's arrays, kept so that a call only fills in addresses and lengths.
pub(super) struct Mmsg {
    vectors: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    /// Packets to receive into, made when they are first needed.
    spare: Batch,
    /// For the descriptors that may come with each, made likewise.
    controls: Vec<Control>,
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
            controls: Vec::new(),
        }
    }

    fn point(&mut self, at: usize, base: *mut u8, length: usize) {
        self.vectors[at] = libc::iovec { iov_base: base.cast(), iov_len: length };
        let header = &mut self.headers[at].msg_hdr;
        header.msg_iov = &raw mut self.vectors[at];
        header.msg_iovlen = 1;
        header.msg_control = std::ptr::null_mut();
        header.msg_controllen = 0;
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
    /// socket. Descriptors that come with them are closed elsewhere.
    pub fn receive(
        &mut self,
        socket: &Peer,
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
            let header = &mut self.headers[at].msg_hdr;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = size_of::<Control>();
        }
        // SAFETY: `count` headers, each with a vector over the free room of an empty packet that is
        // ours, and a control of its own.
        let got = unsafe {
            let no_timeout = std::ptr::null_mut();
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
                no_timeout,
            )
        };
        if got < 0 {
            return Err(last_errno());
        }
        self.close_files(got as usize, socket);
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

    /// What came with the first `got` messages.
    fn close_files(&self, got: usize, socket: &Peer) {
        let messages = self.headers[..got].iter().zip(&self.controls);
        let files = messages.flat_map(|(header, control)| {
            // SAFETY: the kernel has just filled it in, and this is called once behind it.
            unsafe { control.take(header.msg_hdr.msg_controllen) }
        });
        let files: Vec<OwnedFd> = files.collect();
        if !files.is_empty() {
            socket.leaving().drop(files);
        }
    }

    fn stock(&mut self, wanted: usize) {
        self.controls.resize_with(wanted.max(self.controls.len()), Control::new);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::peer::Leaving;
    use crate::apps::peer::tests::{hand, lingering};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// As on a kernel that does not refuse it. If it could hold who reads, this would not end.
    #[test]
    fn sockets_that_linger_come_with_messages() {
        for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (theirs, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
            let leaving = Leaving::default();
            let ours = Peer::new(ours, &leaving, false);
            let ends = [(); 2].map(|()| {
                let (file, other_end) = lingering();
                hand(&theirs, b"none", &[]);
                hand(&theirs, b"some", &[file.as_fd(); 3]);
                other_end
            });
            let (mut messages, mut batch) = (Mmsg::new(), Batch::new());
            assert_eq!(messages.receive(&ours, 9, &mut batch), Ok(0));
            assert_eq!((batch.len(), leaving.count()), (4, 1), "{kind:?}");
            // What has come once does not come again.
            hand(&theirs, b"none", &[]);
            assert_eq!(messages.receive(&ours, 9, &mut batch), Ok(0));
            assert_eq!((batch.len(), leaving.count()), (5, 1), "{kind:?}");
            drop(ends);
        }
    }
}
