//! The memory of all packets of this process: one mapping, cut into slots of equal size.
//!
//! One mapping serves all threads and all ports, so that it can be registered once as the UMEM of
//! AF_XDP sockets (chunk size [`SLOT`], aligned) and a packet goes from port to port and from
//! thread to thread without being copied. Free slots are alike: a thread may free what another one
//! allocated.
//!
//! ```text
//! slot:  | control 64 | headroom .. | data .. | tailroom |
//!        0            64            ^ Packet::data       SLOT
//! ```
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::depot::Depot;

/// Bytes of a slot, and its alignment.
pub const SLOT: usize = 2048;
/// Bytes at the start of a slot that never hold packet data. A script's view of a packet lies
/// there.
pub const CONTROL: usize = 64;
/// Longest packet.
pub const MAX_LENGTH: usize = SLOT - CONTROL;
/// Slots that change hands between a thread and the depot at once.
pub const CHUNK: usize = 128;
/// Slots of a process that says nothing else: 128 MiB of address space, memory only for what is
/// touched.
pub const DEFAULT_SLOTS: usize = 65536;

const HUGE: usize = 2 << 20;

static ARENA: OnceLock<Arena> = OnceLock::new();

/// The mapping. It lives as long as the process.
pub struct Arena {
    base: NonNull<u8>,
    slots: usize,
    /// Slots that were never used, from here on. Memory is touched only when it is needed.
    fresh: AtomicU32,
    depot: Depot,
    /// What the pages are: [`ORDINARY`], [`PINNED`] or [`HUGE_PAGES`].
    kind: AtomicU32,
}

const ORDINARY: u32 = 0;
const PINNED: u32 = 1;
const HUGE_PAGES: u32 = 2;

// SAFETY: the pointer only names the mapping; slots are handed out to one owner at a time by the
// depot.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The packet memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// With so many slots; their number cannot change any more.
    #[error("packet memory of {0} packets exists already; set its size before the first packet")]
    Exists(usize),
    /// For so many packets, and the system's answer.
    #[error("cannot map memory for {0} packets: {1}")]
    Map(usize, rustix::io::Errno),
}

/// The packet memory could not be put on huge pages.
#[derive(Debug, thiserror::Error)]
pub enum HugeError {
    /// They cannot be moved.
    #[error("packets exist already, on ordinary pages")]
    InUse,
    /// The system's answer; `vm.nr_hugepages` is how many there are.
    #[error("the kernel has not enough huge pages: {0}")]
    Refused(rustix::io::Errno),
}

/// The process's arena, made with the default size at first use.
///
/// # Panics
/// If the system refuses the mapping.
pub fn arena() -> &'static Arena {
    ARENA.get_or_init(|| Arena::map(DEFAULT_SLOTS).expect("memory for packets"))
}

/// Sets how many packets can exist. Only before the first packet; a repeated call with the same
/// number is fine.
pub fn set_slots(slots: usize) -> Result<(), ArenaError> {
    let slots = slots.max(1).next_multiple_of(HUGE / SLOT);
    let arena = match ARENA.get() {
        Some(arena) => arena,
        None => {
            let new = Arena::map(slots)?;
            ARENA.get_or_init(|| new)
        }
    };
    if arena.slots == slots { Ok(()) } else { Err(ArenaError::Exists(arena.slots)) }
}

impl Arena {
    fn map(slots: usize) -> Result<Self, ArenaError> {
        let slots = slots.next_multiple_of(HUGE / SLOT);
        let length = slots * SLOT;
        let refused = |error| ArenaError::Map(slots, error);
        // SAFETY: a new private mapping.
        let raw = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length + HUGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(refused)?;
        let skip = raw.addr().next_multiple_of(HUGE) - raw.addr();
        let base = raw.cast::<u8>().wrapping_add(skip);
        if skip != 0 {
            // SAFETY: the part of our own mapping before the first whole huge page, not used by
            // anyone.
            let _ = unsafe { munmap(raw, skip) };
        }
        if skip != HUGE {
            // SAFETY: the part after the last slot.
            let _ = unsafe { munmap(base.wrapping_add(length).cast(), HUGE - skip) };
        }
        // With larger pages a huge one is 32 or 512 MiB, all of which the first packet would take.
        if rustix::param::page_size() == 4096 {
            // A refusal costs speed only: ordinary pages serve as well.
            // SAFETY: the advice covers exactly our mapping and changes no content.
            let _ = unsafe { madvise(base.cast(), length, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base).ok_or(ArenaError::Map(slots, rustix::io::Errno::NOMEM))?;
        Ok(Self {
            base,
            slots,
            fresh: AtomicU32::new(0),
            depot: Depot::new(slots),
            kind: AtomicU32::new(ORDINARY),
        })
    }

    /// First byte of the first slot, on a boundary of 2 MiB.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of the mapping: `slots() * SLOT`.
    pub fn length(&self) -> usize {
        self.slots * SLOT
    }

    /// Puts the memory on huge pages of 2 MiB, which do not move, for devices that know physical
    /// addresses only. They are shared with forked processes. Only before the first packet; a
    /// repeated call is fine.
    pub fn use_huge_pages(&self) -> Result<(), HugeError> {
        if self.kind.load(Ordering::Acquire) == HUGE_PAGES {
            return Ok(());
        }
        // All slots are taken while the pages change: who asks meanwhile finds the arena empty.
        let all = self.slots as u32;
        let fresh = &self.fresh;
        fresh
            .compare_exchange(0, all, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| HugeError::InUse)?;
        let claimed =
            self.kind.compare_exchange(ORDINARY, HUGE_PAGES, Ordering::AcqRel, Ordering::Relaxed);
        let result = claimed.map_err(|_| HugeError::InUse).and_then(|_| self.remap());
        if matches!(result, Err(HugeError::Refused(_))) {
            self.kind.store(ORDINARY, Ordering::Release);
        }
        // SYNC: fresh. Behind the change of pages.
        fresh.fetch_sub(all, Ordering::Release);
        result
    }

    /// From now on the pages stay as they are, because the kernel was told of them.
    pub fn pin(&self) -> &Self {
        let _ = self.kind.compare_exchange(ORDINARY, PINNED, Ordering::AcqRel, Ordering::Relaxed);
        self
    }

    fn remap(&self) -> Result<(), HugeError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let huge = MapFlags::SHARED
            | MapFlags::HUGETLB
            | MapFlags::HUGE_2MB
            | MapFlags::POPULATE
            | MapFlags::FIXED;
        let plain = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: replaces our own mapping, in which no slot was ever used.
        let map = |flags| unsafe {
            mmap_anonymous(self.base.as_ptr().cast(), self.length(), protection, flags)
        };
        if let Err(errno) = map(huge) {
            // The refusal may have left a hole.
            map(plain).expect("memory for packets");
            return Err(HugeError::Refused(errno));
        }
        Ok(())
    }

    /// Fills `into` with up to [`CHUNK`] free slots and returns how many; 0 when all packets are in
    /// use.
    ///
    /// # Safety
    /// `into` is valid for writes of [`CHUNK`] pointers.
    pub(crate) unsafe fn take(&self, into: *mut *mut u8) -> usize {
        if let Some(first) = self.depot.pop() {
            let slot = self.slot(first);
            // SAFETY: the slot is ours now, and `give` wrote the number of slots at its start.
            let count = unsafe { slot.cast::<u64>().read() } as usize;
            let list = slot.wrapping_add(8).cast::<*mut u8>();
            // SAFETY: `give` wrote that many pointers behind it, at most `CHUNK`.
            unsafe { into.copy_from_nonoverlapping(list, count) };
            return count;
        }
        // SYNC: fresh. Pages that were changed are those that the caller touches; pairs with
        // `use_huge_pages`.
        let first = self.fresh.fetch_add(CHUNK as u32, Ordering::Acquire) as usize;
        if first >= self.slots {
            // Undone, so that the counter cannot wrap however often an empty arena is asked.
            self.fresh.fetch_sub(CHUNK as u32, Ordering::Relaxed);
            return 0;
        }
        for i in 0..CHUNK {
            // SAFETY: `into` has room for `CHUNK` pointers; slots come in multiples of it.
            unsafe { into.add(i).write(self.slot((first + i) as u32)) };
        }
        CHUNK
    }

    /// Takes back `count` free slots, 1 to [`CHUNK`].
    ///
    /// # Safety
    /// `from` is valid for reads of `count` pointers, each the first byte of a slot that the caller
    /// owns and gives up.
    pub(crate) unsafe fn give(&self, from: *const *mut u8, count: usize) {
        // SAFETY: at least one pointer is there.
        let first = unsafe { from.read() };
        let list = first.wrapping_add(8).cast::<*mut u8>();
        // SAFETY: the first slot is free and the caller's; a slot holds the number and `CHUNK`
        // pointers.
        unsafe { first.cast::<u64>().write(count as u64) };
        // SAFETY: as above; the caller's list lies outside of the arena.
        unsafe { list.copy_from_nonoverlapping(from, count) };
        self.depot.push(((first.addr() - self.base.as_ptr().addr()) / SLOT) as u32);
    }

    fn slot(&self, index: u32) -> *mut u8 {
        self.base.as_ptr().wrapping_add(index as usize * SLOT)
    }
}

const _: () = assert!(CHUNK * 8 + 8 <= SLOT && (HUGE / SLOT).is_multiple_of(CHUNK));
