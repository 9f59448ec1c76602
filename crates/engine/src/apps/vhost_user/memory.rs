//! Memory of a virtual machine, mapped as its emulator says.
//!
//! The guest and the emulator write it at any time. Nothing here is a reference into it: bytes are
//! copied out before anybody looks at them, words are loaded once. Addresses are checked against
//! the regions at each use.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::apps::peer::{Broken, is_safe_to_map};

const UNSEALED: &str = "can be cut off under us, or is of huge pages, and either could kill this engine: share it as a sealed memory \
     file of ordinary pages (QEMU: `-object memory-backend-memfd,share=on`)";

/// What `SET_MEM_TABLE` says of a region.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Address in the guest.
    pub guest: u64,
    pub size: u64,
    /// Address in the emulator.
    pub user: u64,
    /// Of the region in its file.
    pub offset: u64,
}

struct Region {
    place: Place,
    mapping: NonNull<u8>,
    length: usize,
}

/// Bytes that all regions map at most: room for addresses is the engine's, too.
const MOST: u64 = 1 << 42;

/// All regions.
#[derive(Default)]
pub struct Memory(Vec<Region>);

// SAFETY: a mapping belongs to the process; it is unmapped once, by its owner.
unsafe impl Send for Region {}

impl Memory {
    pub fn map(places: &[(Place, BorrowedFd)], unsealed: bool) -> Result<Memory, Broken> {
        let sizes = places.iter().map(|(place, _)| place.offset.saturating_add(place.size));
        if sizes.fold(0, u64::saturating_add) > MOST {
            return Err(Broken::Protocol("more memory than four tebibytes"));
        }
        let regions = places.iter().map(|(place, file)| Region::map(*place, *file, unsealed));
        Ok(Memory(regions.collect::<Result<_, _>>()?))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `length` bytes at an address of the guest.
    #[inline]
    pub fn guest(&self, address: u64, length: usize) -> Option<NonNull<u8>> {
        self.0.iter().find_map(|region| region.at(address.checked_sub(region.place.guest)?, length))
    }

    /// `length` bytes at an address of the emulator.
    pub fn user(&self, address: u64, length: usize) -> Option<NonNull<u8>> {
        self.0.iter().find_map(|region| region.at(address.checked_sub(region.place.user)?, length))
    }
}

impl Region {
    fn map(place: Place, file: BorrowedFd, unsealed: bool) -> Result<Region, Broken> {
        let end = place
            .offset
            .checked_add(place.size)
            .filter(|end| *end <= isize::MAX as u64 && place.size > 0);
        let end = end.ok_or(Broken::Protocol("a region of impossible size"))?;
        place
            .guest
            .checked_add(place.size)
            .ok_or(Broken::Protocol("a region behind the end of memory"))?;
        place
            .user
            .checked_add(place.size)
            .ok_or(Broken::Protocol("a region behind the end of memory"))?;
        if !unsealed && !is_safe_to_map(file) {
            return Err(Broken::Unsealed(UNSEALED));
        }
        if fstat(file).map_err(Broken::Map)?.st_size < end as i64 {
            return Err(Broken::Protocol("a region that is longer than its file"));
        }
        // From the start of the file: huge pages can be mapped at their own bounds only.
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping, which replaces none.
        let mapping = unsafe {
            mmap(ptr::null_mut(), end as usize, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
        };
        let mapping = NonNull::new(mapping.map_err(Broken::Map)?.cast())
            .ok_or(Broken::Protocol("no mapping"))?;
        Ok(Region { place, mapping, length: end as usize })
    }

    #[inline]
    fn at(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(length as u64)? > self.place.size {
            return None;
        }
        // SAFETY: within the mapping, which has `place.offset + place.size` bytes.
        Some(unsafe { self.mapping.add((self.place.offset + offset) as usize) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped once, by `map`. What was found in it is used only while the region lives.
        // If the kernel refuses, the mapping stays, which hurts nobody.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn file(size: u64, sealed: bool) -> OwnedFd {
        let file = memfd_create(c"guest", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, size).unwrap();
        if sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        file
    }

    const PLACE: Place = Place { guest: 0x1000, size: 0x2000, user: 0x7000_0000, offset: 0x1000 };

    #[test]
    fn addresses_outside_of_all_regions_are_nowhere() {
        let memory = Memory::map(&[(PLACE, file(0x3000, true).as_fd())], false).unwrap();
        let start = memory.guest(0x1000, 0x2000).unwrap();
        assert_eq!(memory.user(0x7000_0000, 1), Some(start));
        assert_eq!(
            memory.guest(0x2fff, 1).unwrap().as_ptr() as usize - start.as_ptr() as usize,
            0x1fff
        );
        for (address, length) in
            [(0xfff, 1), (0x3000, 1), (0x2fff, 2), (0x1000, 0x2001), (u64::MAX, 2)]
        {
            assert_eq!(memory.guest(address, length), None, "{address:x} {length}");
        }
    }

    #[test]
    fn memory_that_can_vanish_is_refused() {
        assert_eq!(
            Memory::map(&[(PLACE, file(0x3000, false).as_fd())], false).err(),
            Some(Broken::Unsealed(UNSEALED))
        );
        assert!(Memory::map(&[(PLACE, file(0x3000, false).as_fd())], true).is_ok());
        let short = Memory::map(&[(PLACE, file(0x2fff, true).as_fd())], false);
        assert!(matches!(
            short.err(),
            Some(Broken::Protocol("a region that is longer than its file"))
        ));
        let large = file(MOST / 2, true);
        let half = Place { size: MOST / 2, offset: 0, ..PLACE };
        let places = |count| vec![(half, large.as_fd()); count];
        assert!(Memory::map(&places(2), false).is_ok());
        assert!(matches!(Memory::map(&places(3), false).err(), Some(Broken::Protocol(_))));
        for place in [
            Place { size: 0, ..PLACE },
            Place { size: u64::MAX, ..PLACE },
            Place { guest: u64::MAX - 1, ..PLACE },
            Place { offset: u64::MAX, ..PLACE },
        ] {
            let region = Memory::map(&[(place, file(0x3000, true).as_fd())], false);
            assert!(matches!(region.err(), Some(Broken::Protocol(_))), "{place:?}");
        }
    }
}
