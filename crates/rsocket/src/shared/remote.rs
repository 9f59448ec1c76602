//! Writes into memory that the peer's application has exposed.
//!
//! Such memory is the application's own, anywhere in its address space, and it may be spinning on it
//! without a call to us. So the kernel copies across (`process_vm_writev`): no mapping, and no trust
//! beyond what the two processes already have in each other, because the kernel asks for the right to
//! debug. Both must therefore belong to one user.

use super::QueuePair;
use crate::provider::{PostError, Region, Remote};
use core::sync::atomic::Ordering;
use shm::Errno;

impl QueuePair {
    pub(super) fn expose_buffer(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        if len == 0 || ptr.is_null() || (ptr as usize).checked_add(len).is_none() {
            return Err(Errno::INVAL);
        }
        // Where Yama restricts debugging to descendants, this peer is to be let in. Elsewhere it fails.
        // SAFETY: only changes who may debug this process.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, self.peer_pid as libc::c_ulong, 0, 0, 0) };
        let key = self.next_key.fetch_add(1, Ordering::Relaxed).max(super::MEMORY_KEY + 1);
        Ok(Region { ptr, len, addr: ptr as u64, key })
    }

    pub(super) fn write_exposed(&self, pieces: &[(*const u8, usize)], to: Remote) -> Result<(), PostError> {
        // A process id may name another process once the peer is gone, and then the socket has ended.
        if self.is_ended() {
            return Err(PostError::Gone);
        }
        let mut addr = to.addr;
        for (from, len) in pieces {
            let mut done = 0;
            while done < *len {
                let local = libc::iovec { iov_base: from.wrapping_add(done) as *mut _, iov_len: len - done };
                let there = libc::iovec { iov_base: (addr as usize).wrapping_add(done) as *mut _, iov_len: len - done };
                // SAFETY: reads what the caller of `post_write` vouches for, and writes in another process,
                // or in memory that this one has exposed.
                let n = unsafe { libc::process_vm_writev(self.peer_pid, &local, 1, &there, 1, 0) };
                match usize::try_from(n) {
                    Ok(n) if n > 0 => done += n,
                    _ => return Err(PostError::Access),
                }
            }
            addr = addr.wrapping_add(*len as u64);
        }
        Ok(())
    }
}
