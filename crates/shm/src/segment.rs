//! Memory that two processes share: a sealed memfd and its mapping.
//!
//! The seals are what makes another process's memory safe to touch: a file that can neither shrink
//! nor grow cannot raise SIGBUS under a reader. Files that cannot be sealed are refused. What
//! remains possible to the peer is to write, or to punch holes, which reads as zeros.
//!
//! Limit: where overcommit is forbidden (`vm.overcommit_memory=2`), the kernel may still answer the
//! first touch of a page with SIGBUS when it has no memory left to promise.
#![allow(unsafe_code)]

use crate::address;
use alloc::sync::Arc;
use core::ffi::CStr;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed};
use rustix::process::{Resource, getrlimit};

/// Lengths are multiples of it, also where the kernel's pages are larger.
pub const PAGE: usize = 4096;

/// The kernel's pages: 4096 bytes on x86-64, and 4, 16 or 64 KiB on arm64. Only places and lengths
/// that the kernel is told have to do with it; the layout of what is shared never has.
#[inline]
pub fn kernel_page() -> usize {
    if cfg!(target_arch = "x86_64") {
        return PAGE;
    }
    // Without libc this name is the front's own, and needs neither /proc nor memory.
    // SAFETY: a look into what the kernel has told the program.
    #[cfg(shortwire_raw)]
    return unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
    #[cfg(not(shortwire_raw))]
    rustix::param::page_size()
}

const NOT_RESIZABLE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// The file system behind memfds. The other one with seals, hugetlbfs, can raise SIGBUS.
const TMPFS_MAGIC: u32 = 0x0102_1994;
/// Where our descriptors go, if the limit on open files allows: beyond those that applications
/// count on, and low enough that the kernel's table of descriptors stays small.
const PARKING: u64 = 768;

/// Why a file from another process was not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// Not a memfd in ordinary memory.
    NotMemfd,
    /// It could still be resized.
    NotSealed,
    /// Its size is outside of the bounds asked for, or not whole pages.
    BadSize(u64),
    /// Asking for its seals or its size failed, or mapping it.
    Os(Errno),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotMemfd => f.write_str("not a memfd"),
            Self::NotSealed => f.write_str("memfd without seals against resizing"),
            Self::BadSize(n) => write!(f, "memfd of unexpected size {n}"),
            Self::Os(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<Errno> for OpenError {
    fn from(e: Errno) -> Self {
        Self::Os(e)
    }
}

/// A mapped memfd. Unmapped, and its descriptor closed, on drop.
#[derive(Debug)]
pub struct Segment {
    base: *mut u8,
    len: usize,
    /// Bytes that are mapped in front of it, for where a part of a file begins in the middle of a page.
    front: usize,
    fd: Option<Arc<Fd>>,
}

/// The addresses of a segment that is gone; they read as zeros.
#[derive(Debug)]
pub struct Retired {
    base: *mut u8,
    len: usize,
    /// As that of the segment.
    front: usize,
}

impl Retired {
    /// Where the segment was mapped.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes of address space.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives up the addresses too. No thread may be on its way out of them any more.
    pub fn unmap(self) {
        // SAFETY: our own mapping, of which the caller says that nobody uses it.
        unsafe { address::unmap(self.base.wrapping_sub(self.front).cast(), self.len + self.front) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only handed out as a raw
// pointer.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// A descriptor among those of an unsuspecting application, which may close it (`closefrom`) and
/// get the number back for something else. So it is only used while it still is the same file.
#[derive(Debug)]
struct Fd {
    raw: RawFd,
    file: (u64, u64),
}

/// The descriptor of a segment.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Fd>);

impl Handle {
    /// The number of the descriptor; open as long as this handle lives, unless the application
    /// closes it.
    pub fn raw(&self) -> RawFd {
        self.0.raw
    }
}

impl Fd {
    fn new(raw: RawFd) -> Result<Self, Errno> {
        match identity(raw) {
            Ok(file) => Ok(Self { raw, file }),
            Err(e) => {
                // SAFETY: the caller gave `raw` away.
                unsafe { rustix::io::close(raw) };
                Err(e)
            }
        }
    }

    fn is_intact(&self) -> bool {
        identity(self.raw) == Ok(self.file)
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        borrow(self.raw)
    }

    /// Moves it out of the way of the application, which expects the lowest numbers for itself.
    fn park(&mut self) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let floor = limit.map_or(PARKING, |n| (n / 4 * 3).min(PARKING));
        if let Ok(high) = rustix::io::fcntl_dupfd_cloexec(self.borrow(), floor as RawFd) {
            // SAFETY: the low number is ours since `new`, and now replaced.
            unsafe { rustix::io::close(self.raw) };
            self.raw = high.into_raw_fd();
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let ours = match identity(self.raw) {
            Ok(file) => file == self.file,
            Err(Errno::BADF) => false,
            // No memory for the answer, or a sandbox that has none: whatever else has the number is
            // not sealed like this.
            Err(_) => fcntl_get_seals(self.borrow())
                .is_ok_and(|s| s.contains(NOT_RESIZABLE | SealFlags::SEAL)),
        };
        if ours {
            // SAFETY: still our own file, and no longer used.
            unsafe { rustix::io::close(self.raw) };
        }
    }
}

fn borrow<'a>(raw: RawFd) -> BorrowedFd<'a> {
    // SAFETY: used for one system call; a closed number is answered with EBADF. Never -1, as `open`
    // refuses it and everything else comes from the kernel.
    unsafe { BorrowedFd::borrow_raw(raw) }
}

fn identity(raw: RawFd) -> Result<(u64, u64), Errno> {
    fstat(borrow(raw)).map(|s| (s.st_dev, s.st_ino))
}

impl Segment {
    /// New zeroed memory of `len` bytes, a multiple of [`PAGE`], that can never change its size.
    /// Pages come into being when they are first touched.
    pub fn create(name: &CStr, len: usize) -> Result<Self, Errno> {
        let mut fd = memfd(name, len)?;
        fcntl_add_seals(fd.borrow(), NOT_RESIZABLE | SealFlags::SEAL)?;
        let base = map(fd.raw, len, ProtFlags::READ | ProtFlags::WRITE)?;
        fd.park();
        Ok(Self { base, len, front: 0, fd: Some(Arc::new(fd)) })
    }

    /// As [`Self::create`], but whoever else maps it gets to read only.
    pub fn create_sealed_for_readers(name: &CStr, len: usize) -> Result<Self, Errno> {
        let mut fd = memfd(name, len)?;
        // FUTURE_WRITE spares mappings that exist: ours must come first.
        let base = map(fd.raw, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut segment = Self { base, len, front: 0, fd: None };
        fcntl_add_seals(fd.borrow(), NOT_RESIZABLE | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        fd.park();
        segment.fd = Some(Arc::new(fd));
        Ok(segment)
    }

    /// Maps memory that another process created, for reading and writing. `fd` stays the caller's,
    /// and may be closed at once.
    pub fn open(fd: RawFd, min_len: usize, max_len: usize) -> Result<Self, OpenError> {
        Self::open_with(fd, min_len, max_len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`Self::open`], for a segment that was sealed for readers.
    pub fn open_readonly(fd: RawFd, min_len: usize, max_len: usize) -> Result<Self, OpenError> {
        Self::open_with(fd, min_len, max_len, ProtFlags::READ)
    }

    fn open_with(fd: RawFd, min: usize, max: usize, prot: ProtFlags) -> Result<Self, OpenError> {
        if fd < 0 {
            return Err(OpenError::Os(Errno::BADF));
        }
        let file = borrow(fd);
        let seals = match fcntl_get_seals(file) {
            Err(Errno::INVAL) => return Err(OpenError::NotMemfd),
            other => other?,
        };
        // Seals first: from here on the size cannot change any more.
        if !seals.contains(NOT_RESIZABLE) {
            return Err(OpenError::NotSealed);
        }
        let stat = fstat(file)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || fstatfs(file)?.f_type as u32 != TMPFS_MAGIC {
            return Err(OpenError::NotMemfd);
        }
        let size = stat.st_size as u64;
        let bad = OpenError::BadSize(size);
        let len = usize::try_from(size).map_err(|_| bad)?;
        if len == 0 || len < min || len > max || !len.is_multiple_of(PAGE) {
            return Err(bad);
        }
        Ok(Self { base: map(fd, len, prot)?, len, front: 0, fd: None })
    }

    /// Maps `len` bytes at `offset` of memory that is no memfd: a bar of a PCI device. That it
    /// cannot shrink, and has so many bytes, is for the caller to know; `fd` stays the caller's.
    pub fn of_part(fd: RawFd, offset: u64, len: usize) -> Result<Self, Errno> {
        if fd < 0 || len == 0 || !len.is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE as u64) {
            return Err(Errno::INVAL);
        }
        let front = (offset % kernel_page() as u64) as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = map_at(fd, offset - front as u64, len + front, prot)?;
        Ok(Self { base: mapped.wrapping_add(front), len, front, fd: None })
    }

    /// Where the segment is mapped.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes of the mapping.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives back the pages of a part of it, for every process that maps it: they read as zeros
    /// from now on. Where it begins or ends in the middle of a page of the kernel's, that much is
    /// written over with zeros: the kernel would round up and take what lies behind the part. False,
    /// and nothing changed, if the kernel refuses, or no page lies within.
    pub fn discard(&self, offset: usize, len: usize) -> bool {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        let page = kernel_page();
        let (begin, end) = (self.base.addr() + offset, self.base.addr() + offset + len);
        let (first, last) = (begin.next_multiple_of(page), end / page * page);
        if first >= last {
            return false;
        }
        let at = |addr: usize| self.base.with_addr(addr);
        // SAFETY: pages of our own mapping, to which only raw pointers exist.
        let given = unsafe { madvise(at(first).cast(), last - first, Advice::LinuxRemove) }.is_ok();
        if given {
            // SAFETY: in front of the pages and within the part, which the caller gives up.
            unsafe { at(begin).write_bytes(0, first - begin) };
            // SAFETY: behind them, likewise.
            unsafe { at(last).write_bytes(0, end - last) };
        }
        given
    }

    /// The descriptor to hand to a peer, if there is one and nobody closed it behind our back.
    pub fn fd(&self) -> Option<RawFd> {
        self.fd.as_ref().filter(|fd| fd.is_intact()).map(|fd| fd.raw)
    }

    /// The descriptor to hand to a peer, in a handle that keeps it open until it is dropped,
    /// whatever becomes of the segment.
    pub fn handle(&self) -> Option<Handle> {
        self.fd.as_ref().filter(|fd| fd.is_intact()).map(|fd| Handle(fd.clone()))
    }

    /// Once all peers have it, the descriptor is of no use any more.
    pub fn close_fd(&mut self) {
        self.fd = None;
    }

    /// Gives the memory back, but leaves its addresses valid: zeros of this process (and the children that
    /// it forks) take their place, so that a thread which is late finds an empty ring and no fault.
    pub fn retire(self) -> Retired {
        let mut this = core::mem::ManuallyDrop::new(self);
        let (base, len) = (this.base.wrapping_sub(this.front), this.len + this.front);
        if !(promises::are_kept() && Self::zeros_of_a_file(base, len)) {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: replaces exactly our own mapping, to which only raw pointers exist. If it
            // fails, the mapping stays, which is as safe.
            let _ = unsafe { mmap_anonymous(base.cast(), len, prot, flags) };
        }
        this.fd = None;
        Retired { base: this.base, len: this.len, front: this.front }
    }

    /// Puts a file in place of our mapping, of which only pages count that somebody touches.
    fn zeros_of_a_file(base: *mut u8, len: usize) -> bool {
        let Ok(file) = memfd(c"shortwire-retired", len) else { return false };
        // SAFETY: exactly our own mapping, to which only raw pointers exist.
        unsafe { address::map_over(base.cast(), len, Some((file.raw, 0))) }
    }

    /// Moves to the addresses of a segment that was retired long enough ago, so that they are not
    /// used up. Pointers into this segment that were taken before are not valid any more. Does
    /// nothing if the lengths differ, or one of the two begins within a page.
    pub fn settle_on(&mut self, place: Retired) {
        if place.len != self.len || place.front + self.front != 0 {
            return;
        }
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: both are our own mappings of the same length. What a late thread finds at the
        // place is zeros before and this segment after, never a hole: faults wait for the call to
        // end.
        let moved =
            unsafe { mremap_fixed(self.base.cast(), self.len, self.len, flags, place.base.cast()) };
        if let Ok(base) = moved {
            self.base = base.cast();
        }
    }

    /// Forgets the segment but leaves it mapped: for the child of a fork, where it is the parent's
    /// to end.
    pub fn leave(self) {
        core::mem::ManuallyDrop::new(self).fd = None;
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever still has a raw pointer was to `retire` it.
        unsafe { address::unmap(self.base.wrapping_sub(self.front).cast(), self.len + self.front) };
    }
}

fn memfd(name: &CStr, len: usize) -> Result<Fd, Errno> {
    if len == 0 || !len.is_multiple_of(PAGE) {
        return Err(Errno::INVAL);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems insist on NOEXEC_SEAL, and kernels before 6.3 do not know it.
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    let fd = Fd::new(file.into_raw_fd())?;
    // Beyond it ftruncate would kill the program by SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
        return Err(Errno::FBIG);
    }
    ftruncate(fd.borrow(), len as u64)?;
    Ok(fd)
}

/// Whether the kernel keeps what it promises (`vm.overcommit_memory=2`, which PostgreSQL's manual advises):
/// there each byte of a private mapping that may be written counts, touched or not, and programs that
/// have nothing to do with it get no memory.
mod promises {
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
    use rustix::fs::{Mode, OFlags, open};

    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KEPT: AtomicU8 = AtomicU8::new(UNKNOWN);

    pub fn are_kept() -> bool {
        KEPT.load(Relaxed) == YES
    }

    /// Asks the kernel, once: a sandbox that is entered later may not allow it.
    pub fn ask() {
        if KEPT.load(Relaxed) != UNKNOWN {
            return;
        }
        let mut mode = [0];
        let file = open(c"/proc/sys/vm/overcommit_memory", OFlags::CLOEXEC, Mode::empty());
        let is_strict = file.is_ok_and(|file| {
            rustix::io::read(&file, &mut mode).is_ok_and(|n| n == 1) && mode == *b"2"
        });
        KEPT.store(if is_strict { YES } else { NO }, Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub fn set(kept: bool) {
        KEPT.store(if kept { YES } else { NO }, Relaxed);
    }
}

fn map(fd: RawFd, len: usize, prot: ProtFlags) -> Result<*mut u8, Errno> {
    map_at(fd, 0, len, prot)
}

fn map_at(fd: RawFd, offset: u64, len: usize, prot: ProtFlags) -> Result<*mut u8, Errno> {
    promises::ask();
    let base = address::map(len, prot, MapFlags::SHARED, Some((fd, offset)))?;
    // SAFETY: the mapping just made. Core dumps have no use for it, so that a failure does not
    // matter.
    let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
    Ok(base.cast())
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;

    fn mapping(at: *mut u8) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = std::format!("{:x}-", at.addr());
        maps.lines().find(|line| line.starts_with(&at)).expect("a mapping").into()
    }

    #[test]
    fn where_promises_are_kept_ended_memory_is_a_file() {
        for kept in [true, false] {
            let segment = Segment::create(c"shm-test-promises", 2 * PAGE).unwrap();
            // SAFETY: our own memory.
            unsafe { segment.base().write(7) };
            promises::set(kept);
            let retired = segment.retire();
            let (base, len) = (retired.base(), retired.len());
            assert_eq!(mapping(base).contains("shortwire-retired"), kept);
            // SAFETY: it stays mapped, and nobody else uses it.
            let bytes = unsafe { core::slice::from_raw_parts_mut(base, len) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(1);
        }
    }
}
