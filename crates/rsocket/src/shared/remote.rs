//! Writes into memory that the peer's application has exposed.
//!
//! Pages that the peer shares are mapped here and written with a copy. Everything else the kernel
//! copies across (`process_vm_writev`): no mapping, and no trust beyond what the two processes
//! already have in each other, because the kernel asks for the right to debug, as it does before it
//! hands out the descriptor of the shared pages (`pidfd_getfd`). Both must therefore belong to one
//! user.
#![allow(unsafe_code)]

use super::exposed::{SLOTS, inode, pid};
use super::{Ordering, QueuePair};
use crate::provider::{PostError, Remote};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use rustix::fd::AsRawFd;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use shm::Segment;

/// Pages of the peer that are mapped here; `base` is null where that was not to be had.
#[derive(Clone, Copy)]
struct Window {
    key: u32,
    /// The process that has mapped it: a fork shares this structure, and the other end of it has
    /// not.
    pid: i32,
    base: *mut u8,
    start: u64,
    len: usize,
}

/// Of a buffer as long as can be exposed, in whole pages, whatever their size.
const LONGEST: usize = u32::MAX as usize + (1 << 21);

/// By slot; used by the poster of the stream lane.
pub struct Windows([UnsafeCell<Window>; SLOTS]);

impl QueuePair {
    pub(super) fn write_exposed(
        &self,
        pieces: &[(*const u8, usize)],
        to: Remote,
    ) -> Result<(), PostError> {
        // The kernel would let root write to anybody, and to whatever the peer's process has become
        // since it met us: a program that runs as another user, or one with the id of one that died.
        if !self.same_user {
            return Err(PostError::Access);
        }
        self.while_exposed(to.key, || self.write_now(pieces, to))
    }

    fn write_now(&self, pieces: &[(*const u8, usize)], to: Remote) -> Result<(), PostError> {
        let window = self.window(to.key);
        let mut addr = to.addr;
        for (from, len) in pieces {
            // Before, within and behind the pages.
            let (first, last) =
                window.map_or((u64::MAX, u64::MAX), |w| (w.start, w.start + w.len as u64));
            let end = addr.checked_add(*len as u64).ok_or(PostError::Access)?;
            let (a, b) = (first.clamp(addr, end), last.clamp(addr, end));
            self.write_by_kernel(*from, addr, (a - addr) as usize)?;
            if let (Some(w), true) = (window, a < b) {
                let at = w.base.wrapping_add((a - w.start) as usize);
                // SAFETY: readable by the contract of `post_write`; the target lies in the window,
                // whose pages cannot go away. The peer may race: its own bytes.
                unsafe { shm::copy(from.wrapping_add((a - addr) as usize), at, (b - a) as usize) };
            }
            self.write_by_kernel(from.wrapping_add((b - addr) as usize), b, (end - b) as usize)?;
            addr = end;
        }
        Ok(())
    }

    fn window(&self, key: u32) -> Option<Window> {
        let entry = self.entry_of(key)?;
        // SAFETY: the caller is the only poster of the lane.
        let window = unsafe { &mut *self.tables()?.windows.0[(key & 0xff) as usize].get() };
        if (window.key, window.pid) != (key, pid()) {
            // Another process has the mapping: the kernel knows what is allowed.
            if window.pid != pid() && !window.base.is_null() {
                return None;
            }
            // Words of the peer's, behind the look at the key in `while_exposed`: each is loaded once
            // and then checked.
            window.unmap();
            let (start, len) =
                (entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed) as usize);
            let fd = entry.fd.load(Ordering::Relaxed);
            // A peer that tells of more than it may expose would fill our address space.
            let fits = len <= LONGEST && start.checked_add(len as u64).is_some();
            let base = fits
                .then(|| self.map_pages(fd, entry.inode.load(Ordering::Relaxed), len))
                .flatten();
            *window = Window { key, pid: pid(), base: base.unwrap_or(null_mut()), start, len };
        }
        (!window.base.is_null()).then_some(*window)
    }

    /// Maps a memfd of the peer's, if the kernel lets us have it and it is the one that was told.
    fn map_pages(&self, number: i32, file: u64, len: usize) -> Option<*mut u8> {
        // A process id may name another process once the peer is gone, and then the socket has
        // ended, unless a child of the peer's has it: the file is compared below.
        if number < 0 || self.is_ended() {
            return None;
        }
        let process = pidfd_open(Pid::from_raw(self.peer_pid)?, PidfdFlags::empty()).ok()?;
        let fd = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        let segment = Segment::open(fd.as_raw_fd(), len, len)
            .ok()
            .filter(|_| inode(fd.as_raw_fd()) == Some(file))?;
        let base = segment.base();
        segment.leave();
        Some(base)
    }

    fn write_by_kernel(&self, from: *const u8, addr: u64, len: usize) -> Result<(), PostError> {
        if len == 0 {
            return Ok(());
        }
        // As above.
        if self.is_ended() {
            return Err(PostError::Gone);
        }
        let mut done = 0;
        while done < len {
            let local =
                libc::iovec { iov_base: from.wrapping_add(done) as *mut _, iov_len: len - done };
            let there = libc::iovec {
                iov_base: (addr as usize).wrapping_add(done) as *mut _,
                iov_len: len - done,
            };
            // SAFETY: reads what the caller of `post_write` vouches for, and writes in another
            // process, or in memory that this one has exposed.
            let n = unsafe { libc::process_vm_writev(self.peer_pid, &local, 1, &there, 1, 0) };
            match usize::try_from(n) {
                Ok(n) if n > 0 => done += n,
                _ => return Err(PostError::Access),
            }
        }
        Ok(())
    }

    /// Under no call any more: gives back this process's mappings.
    pub(super) fn close_windows(&self) {
        let Some(tables) = self.tables() else { return };
        // SAFETY: nobody posts any more.
        tables.windows.0.iter().for_each(|cell| unsafe { &mut *cell.get() }.unmap());
    }
}

impl Window {
    fn unmap(&mut self) {
        if !self.base.is_null() && self.pid == pid() {
            // SAFETY: our own mapping, not used any more.
            let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
            self.base = null_mut();
        }
    }
}
