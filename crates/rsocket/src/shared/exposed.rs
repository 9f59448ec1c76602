//! Memory of the application that the peer may write to.
//!
//! Such memory lies anywhere in the address space, and the application may be spinning on it
//! without a call to us. Where it is ordinary private memory, its whole pages are replaced in place
//! by pages of a sealed memfd with the same content, which the peer maps: a direct write is then a
//! copy and nothing else. All other memory, and the parts of pages at both ends, is written by the
//! kernel ([`super::remote`]).
//!
//! The child of a fork gets a private copy again, so that it sees what it would have seen without
//! us.
#![allow(unsafe_code)]

use super::QueuePair;
use crate::kept::Kept;
use crate::provider::{PostError, Region};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed};
use shm::{Errno, Segment};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Buffers of one connection whose pages can be shared.
pub const SLOTS: usize = 96;
/// Where the peer's entries lie in the header of a DMB.
pub const ENTRIES: usize = 1024;
/// Where it tells the keys of buffers without shared pages, and how many can be at a time. Their
/// keys end with numbers from `SLOTS` on.
const PLAIN: usize = 256;
const PLAIN_SLOTS: usize = 128;
/// How long the end of a map waits for a write of the peer's that is under way.
const LINGER: Duration = Duration::from_secs(2);

/// What the owner of a buffer tells in the header of the peer's DMB. `key` is written last.
#[repr(C)]
pub struct Entry {
    pub key: AtomicU32,
    /// The memfd, as a number of the owner's.
    pub fd: AtomicI32,
    pub start: AtomicU64,
    pub len: AtomicU64,
    /// The memfd's, since the number may have become another file.
    pub inode: AtomicU64,
}

const _: () = assert!(ENTRIES + SLOTS * size_of::<Entry>() <= super::HEADER);
const _: () = assert!(PLAIN + PLAIN_SLOTS * size_of::<u32>() <= ENTRIES);
const _: () = assert!(SLOTS + PLAIN_SLOTS <= 0x100);

/// Whole pages of ours that the peer can map. Zero is none.
#[derive(Clone, Copy, Default)]
struct Pages {
    start: usize,
    len: usize,
    inode: u64,
    fd: RawFd,
    pid: i32,
}

/// By slot; used under the lock of the stream's maps.
pub struct Exposed([UnsafeCell<Pages>; SLOTS]);

/// Pages of this process that are shared; what a fork has to undo.
type Shared = Mutex<Vec<(usize, usize, u64)>>;
static SHARED: Kept<Shared> = Kept::new();
static PID: AtomicI32 = AtomicI32::new(0);

/// This process, without asking the kernel each time.
pub fn pid() -> i32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

fn shared() -> &'static Shared {
    SHARED.get_or_make(Shared::default)
}

/// In the child of a fork.
pub fn after_fork_child() {
    PID.store(0, Ordering::Relaxed);
    let Some(known) = SHARED.get() else { return };
    match known.try_lock() {
        Ok(mut shared) => {
            shared.drain(..).for_each(|(start, len, inode)| make_private(start, len, inode));
        }
        // Another thread was inside `riomap` or `riounmap`, and is not here to leave it: its pages
        // stay shared, and the next call begins a new list.
        Err(_) => SHARED.forget(),
    }
}

impl QueuePair {
    fn entry_at(base: *mut u8, slot: usize) -> &'static Entry {
        // SAFETY: within the header of a DMB, aligned, atomics alone; mapped also after its end.
        unsafe { &*base.wrapping_add(ENTRIES + slot * size_of::<Entry>()).cast() }
    }

    fn plain_key_at(base: *mut u8, key: u32) -> Option<&'static AtomicU32> {
        let slot = ((key & 0xff) as usize).checked_sub(SLOTS).filter(|slot| *slot < PLAIN_SLOTS)?;
        // SAFETY: as for `entry_at`.
        Some(unsafe { &*base.wrapping_add(PLAIN + slot * size_of::<u32>()).cast() })
    }

    /// The word in which the exposer of the buffer with `key` says that it is exposed.
    fn live_word(base: *mut u8, key: u32) -> Option<&'static AtomicU32> {
        match slot_of(key) {
            Some(slot) => Some(&Self::entry_at(base, slot).key),
            None => Self::plain_key_at(base, key),
        }
    }

    /// Does `write` if the peer's buffer with `key` is still exposed, and has the peer wait for its
    /// end before it takes the buffer back.
    pub(super) fn while_exposed<R>(
        &self,
        key: u32,
        write: impl FnOnce() -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let live = Self::live_word(self.own, key).ok_or(PostError::Access)?;
        let writing = Self::word(self.peer, super::WRITING);
        // SYNC: writing. In front of the look at the key: either this end sees that the buffer was
        // taken back, or its owner sees this end write and waits. SYNC: exposed. The key, then the
        // rest of the entry.
        writing.store(1, Ordering::SeqCst);
        let result =
            if live.load(Ordering::SeqCst) == key { write() } else { Err(PostError::Access) };
        writing.store(0, Ordering::Release);
        result
    }

    /// What the peer tells of the buffer with `key`.
    pub(super) fn entry_of(&self, key: u32) -> Option<&'static Entry> {
        let slot = slot_of(key)?;
        Some(Self::entry_at(self.own, slot))
    }

    pub(super) fn expose_buffer(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        if len == 0 || ptr.is_null() || (ptr as usize).checked_add(len).is_none() {
            return Err(Errno::INVAL);
        }
        if !self.was_met_here() {
            // The peer would ask the kernel for our parent's memory.
            return Err(Errno::OPNOTSUPP);
        }
        // Where Yama restricts debugging to descendants, this peer is to be let in. Elsewhere it
        // fails. SAFETY: only changes who may debug this process.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, self.peer_pid as libc::c_ulong, 0, 0, 0) };
        let slots = self.tables().map_or(&[][..], |tables| &tables.exposed.0);
        // SAFETY: under the lock of the stream's maps, here and in `conceal_buffer`.
        let free = slots.iter().position(|cell| unsafe { (*cell.get()).len } == 0);
        let pages = free.and_then(|_| share_pages(ptr as usize, len));
        let slot = match (pages, free) {
            (Some(_), Some(free)) => free,
            _ => {
                let unused = |slot: &usize| {
                    let word = Self::plain_key_at(self.peer, *slot as u32);
                    // Written by this end only, under the lock of the maps.
                    word.is_some_and(|key| key.load(Ordering::Relaxed) == 0)
                };
                (SLOTS..SLOTS + PLAIN_SLOTS).find(unused).ok_or(Errno::NOMEM)?
            }
        } as u32;
        // Never 0 or MEMORY_KEY; repeats after 16 million maps.
        let key = (self.next_key.fetch_add(1, Ordering::Relaxed) % 0xff_fffe + 1) << 8 | slot;
        if let (Some(pages), Some(slot)) = (pages, slot_of(key)) {
            // SAFETY: as above.
            unsafe { *slots[slot].get() = pages };
            let entry = Self::entry_at(self.peer, slot);
            entry.fd.store(pages.fd, Ordering::Relaxed);
            entry.start.store(pages.start as u64, Ordering::Relaxed);
            entry.len.store(pages.len as u64, Ordering::Relaxed);
            entry.inode.store(pages.inode, Ordering::Relaxed);
            // SYNC: exposed. After the rest of the entry.
            entry.key.store(key, Ordering::Release);
        } else if let Some(word) = Self::plain_key_at(self.peer, key) {
            // SYNC: exposed. Such a buffer has no entry: the key alone says that it may be written.
            word.store(key, Ordering::Release);
        }
        Ok(Region { ptr, len, addr: ptr as u64, key })
    }

    pub(super) fn conceal_buffer(&self, region: &Region) {
        if let Some(live) = Self::live_word(self.peer, region.key) {
            // SYNC: writing. In front of the look at the peer: it sees the key gone, or we see it
            // write.
            live.store(0, Ordering::SeqCst);
            self.await_writer();
        }
        let (Some(slot), Some(tables)) = (slot_of(region.key), self.tables()) else { return };
        // SAFETY: under the lock of the stream's maps.
        let pages = core::mem::take(unsafe { &mut *tables.exposed.0[slot].get() });
        // A child of a fork has private pages, and no descriptor that would be ours to close.
        if pages.len == 0 || pages.pid != pid() {
            return;
        }
        let mut shared = self::shared().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.retain(|entry| *entry != (pages.start, pages.len, pages.inode));
        make_private(pages.start, pages.len, pages.inode);
        if inode(pages.fd) == Some(pages.inode) {
            // SAFETY: our own file still, by its identity, and its last use.
            unsafe { rustix::io::close(pages.fd) };
        }
    }
}

impl QueuePair {
    /// Until the peer, if it writes to memory of ours at the moment, has come to the end of that.
    fn await_writer(&self) {
        let start = Instant::now();
        let writing = Self::word(self.own, super::WRITING);
        // A peer that stands still, or lies, must not keep us for ever, nor for each of many buffers.
        while writing.load(Ordering::SeqCst) != 0
            && !self.is_ended()
            && !self.writes_for_ever.load(Ordering::Relaxed)
        {
            if start.elapsed() >= LINGER {
                self.writes_for_ever.store(true, Ordering::Relaxed);
            }
            std::thread::yield_now();
        }
    }

    /// In the process that has made the connection, and not in a child that got it by fork.
    pub fn was_met_here(&self) -> bool {
        self.met_pid == pid()
    }
}

fn slot_of(key: u32) -> Option<usize> {
    let slot = (key & 0xff) as usize;
    (key > 0xff && slot < SLOTS).then_some(slot)
}

pub fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: for one system call, which answers EBADF if it is not open.
    (fd >= 0)
        .then(|| unsafe { BorrowedFd::borrow_raw(fd) })
        .and_then(|fd| rustix::fs::fstat(fd).ok())
        .map(|s| s.st_ino)
}

/// Puts shared pages in place of the whole pages within the buffer, if those are ordinary memory.
fn share_pages(ptr: usize, len: usize) -> Option<Pages> {
    let page = shm::segment::kernel_page();
    let (start, end) = (ptr.next_multiple_of(page), (ptr + len) / page * page);
    if start >= end
        || !covered(start, end, |map| {
            map.writable && map.private && map.inode == 0 && map.is_plain()
        })
    {
        return None;
    }
    let mut shared = self::shared().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let segment = Segment::create(c"shortwire-iomap", end - start).ok()?;
    let file = segment.fd()?;
    // SAFETY: open, by `fd`. A number of its own, as the segment is given up below.
    let fd = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(file) }, file).ok()?;
    let inode = inode(file)?;
    let len = end - start;
    // SAFETY: both are mapped and `len` long. Other threads that write to the buffer meanwhile
    // break the contract of `riomap`.
    unsafe { core::ptr::copy_nonoverlapping(start as *const u8, segment.base(), len) };
    // SAFETY: moves our mapping over memory of the same content, which is the application's to
    // lend.
    unsafe { mremap_fixed(segment.base().cast(), len, len, MremapFlags::MAYMOVE, start as *mut _) }
        .ok()?;
    segment.leave();
    shared.push((start, len, inode));
    Some(Pages { start, len, inode, fd: rustix::fd::IntoRawFd::into_raw_fd(fd), pid: pid() })
}

/// The reverse: private pages of the same content, unless something else is there by now.
fn make_private(start: usize, len: usize, inode: u64) {
    if !covered(start, start + len, |map| map.inode == inode) {
        return;
    }
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let Ok(copy) = (unsafe { mmap_anonymous(core::ptr::null_mut(), len, prot, MapFlags::PRIVATE) })
    else {
        return;
    };
    // SAFETY: both are mapped and `len` long; what the peer writes meanwhile may be lost, as the
    // map has ended.
    unsafe { core::ptr::copy_nonoverlapping(start as *const u8, copy.cast::<u8>(), len) };
    // SAFETY: puts it where our own pages lie.
    let _ = unsafe { mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, start as *mut _) };
}

/// One line of /proc/self/maps.
struct Map<'a> {
    writable: bool,
    private: bool,
    inode: u64,
    name: &'a str,
}

impl Map<'_> {
    /// Neither a stack, which the kernel grows, nor one of the kernel's own.
    fn is_plain(&self) -> bool {
        self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:")
    }
}

/// Whether mappings for which `good` holds cover all of `start..end`.
fn covered(start: usize, end: usize, good: impl Fn(&Map<'_>) -> bool) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut at = start;
    for line in text.lines() {
        let Some((from, to, map)) = parse(line) else { return false };
        if to <= at {
            continue;
        }
        if from > at || !good(&map) {
            return false;
        }
        at = to;
        if at >= end {
            return true;
        }
    }
    false
}

fn parse(line: &str) -> Option<(usize, usize, Map<'_>)> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let mode = words.next()?;
    let inode = words.nth(2)?.parse().ok()?;
    let map = Map {
        writable: mode.starts_with("rw"),
        private: mode.ends_with('p'),
        inode,
        name: words.next().unwrap_or("").trim(),
    };
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::segment::kernel_page;

    #[test]
    fn pages_are_shared_in_place_and_given_back() {
        let page = kernel_page();
        let mut buffer: Vec<u8> = (0..10 * page).map(|i| (i / 7) as u8).collect();
        let before = buffer.clone();
        let (at, len) = (buffer.as_mut_ptr() as usize, buffer.len());
        let pages = share_pages(at, len).expect("plain memory");
        assert!(pages.start >= at && pages.start + pages.len <= at + len && pages.len >= 8 * page);
        assert!(buffer == before, "the same content");
        assert!(covered(pages.start, pages.start + pages.len, |map| map.inode == pages.inode
            && !map.private));
        assert!(share_pages(pages.start, pages.len).is_none(), "not twice");
        make_private(pages.start, pages.len, pages.inode + 1);
        buffer[5 * page] ^= 1;
        make_private(pages.start, pages.len, pages.inode);
        assert!(covered(pages.start, pages.start + pages.len, |map| map.inode == 0 && map.private));
        buffer[5 * page] ^= 1;
        assert!(buffer == before);
        shared().lock().unwrap().retain(|entry| entry.0 != pages.start);
    }

    #[test]
    fn other_memory_is_left_alone() {
        let page = kernel_page();
        assert!(share_pages(slot_of as *const () as usize, 10 * page).is_none(), "code");
        let small = [0u8; 100];
        assert!(share_pages(small.as_ptr() as usize, 100).is_none(), "no whole page");
        assert!(share_pages(page, 2 * page).is_none(), "nothing");
    }

    #[test]
    fn lines_of_maps() {
        let (from, to, map) =
            parse("7f00-8f00 rw-p 00000000 00:00 0                          [heap]").unwrap();
        assert_eq!(
            (from, to, map.writable, map.private, map.inode, map.name),
            (0x7f00, 0x8f00, true, true, 0, "[heap]")
        );
        let (_, _, map) = parse("7f00-8f00 r--s 00001000 fe:01 1234   /lib/a b.so").unwrap();
        assert_eq!(
            (map.writable, map.private, map.inode, map.name),
            (false, false, 1234, "/lib/a b.so")
        );
        assert!(parse("rubbish").is_none());
    }
}
