//! Memory that the two ends of a memif share: the client's, which hands its descriptor over.
//!
//! The peer writes it at any time. Nothing here is a reference into it: bytes are copied out before
//! anybody looks at them, words are loaded once. A file that could be cut off is refused, as the
//! access behind its end would be a SIGBUS.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use shm::Segment;

use crate::apps::peer::{Broken, is_safe_to_map};

const UNSEALED: &str = "can be cut off under us, or is of huge pages, and either could kill this engine: have it share a sealed \
     memory file (VPP, DPDK: without zero-copy)";
/// What places of 32 bits, and lengths of as many from there on, can reach.
const REACH: u64 = 1 << 33;

pub enum Region {
    /// Ours, as a client.
    Own(Segment),
    Peer(Mapping),
}

pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process; it is unmapped once, by its owner.
unsafe impl Send for Mapping {}

impl Region {
    /// New memory of at least so many bytes, zeros.
    pub fn create(length: usize) -> Result<Region, Broken> {
        let whole = length.next_multiple_of(shm::segment::PAGE);
        Segment::create(c"memif", whole).map(Region::Own).map_err(Broken::Map)
    }

    /// The first `size` bytes of a peer's file, of which no more is mapped than can be reached.
    pub fn map(file: impl AsFd + Copy, size: u64, unsealed: bool) -> Result<Region, Broken> {
        let length = usize::try_from(size)
            .ok()
            .filter(|length| (1..=isize::MAX as usize).contains(length))
            .ok_or(Broken::Protocol("a region of impossible size"))?;
        if !unsealed && !is_safe_to_map(file.as_fd()) {
            return Err(Broken::Unsealed(UNSEALED));
        }
        // Behind the look at the seals: from there on the file gets no shorter.
        let stat = fstat(file).map_err(Broken::Map)?;
        if u64::try_from(stat.st_size).is_ok_and(|there| there < size) {
            return Err(Broken::Protocol("a region that is longer than its file"));
        }
        let length = length.min(REACH as usize);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping, which replaces none.
        let base = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
        };
        let base = NonNull::new(base.map_err(Broken::Map)?.cast())
            .ok_or(Broken::Protocol("no mapping"))?;
        Ok(Region::Peer(Mapping { base, length }))
    }

    pub fn length(&self) -> usize {
        match self {
            Region::Own(segment) => segment.len(),
            Region::Peer(mapping) => mapping.length,
        }
    }

    /// What a client hands over.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        let Region::Own(segment) = self else { return None };
        // SAFETY: the segment keeps it open, and is borrowed as long.
        segment.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// `length` bytes at `offset`, if they lie in it whole.
    #[inline]
    pub fn at(&self, offset: u32, length: u32) -> Option<NonNull<u8>> {
        let (base, all) = match self {
            Region::Own(segment) => (NonNull::new(segment.base())?, segment.len()),
            Region::Peer(mapping) => (mapping.base, mapping.length),
        };
        if offset as usize + length as usize > all {
            return None;
        }
        // SAFETY: within the mapping, as just checked.
        Some(unsafe { base.add(offset as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, by `Region::map`. What was found in it is used only while the region
        // lives. If the kernel refuses, the mapping stays, which hurts nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    fn file(size: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create(c"peer", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, size).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn a_file_that_its_owner_could_cut_off_is_refused() {
        let open = file(0x3000, SealFlags::GROW);
        assert_eq!(Region::map(&open, 0x3000, false).err(), Some(Broken::Unsealed(UNSEALED)));
        assert!(Region::map(&open, 0x3000, true).is_ok());
        let disk: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert_eq!(Region::map(&disk, 0x1000, false).err(), Some(Broken::Unsealed(UNSEALED)));
        let large = file(REACH + 0x1000, SealFlags::SHRINK);
        assert_eq!(Region::map(&large, REACH + 0x1000, false).unwrap().length() as u64, REACH);
        let sealed = file(0x3000, SealFlags::SHRINK);
        let region = Region::map(&sealed, 0x2001, false).unwrap();
        assert!(ftruncate(&sealed, 0x1000).is_err());
        for size in [0, 0x3001, u64::MAX] {
            let broken = Region::map(&sealed, size, false).err();
            assert!(matches!(broken, Some(Broken::Protocol(_))), "{size:x}: {broken:?}");
        }
        assert!(region.at(0x2000, 1).is_some() && region.at(0, 0x2001).is_some());
        for (offset, length) in [(0x2001, 1), (0x2000, 2), (u32::MAX, u32::MAX)] {
            assert!(region.at(offset, length).is_none(), "{offset:x} {length:x}");
        }
    }
}
