//! Memory that a device reads and writes by itself, and what it is called on the bus.
//!
//! Packets need no buffers of their own: the [arena](crate::arena) as a whole is made reachable,
//! and [`PacketMap`] turns the address of a packet's byte into the device's. Descriptor rings live
//! in [`Buffer`]s.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::arena::arena;

/// Size of the pages that [`PacketMap`] translates by. The arena starts on such a boundary and is a
/// multiple of it.
pub const PAGE: usize = 2 << 20;

/// The part of a bus that a device can reach.
pub trait DmaSpace {
    /// What the packet memory is called there.
    fn packets(&self) -> &PacketMap;

    /// Zeroed memory, contiguous for the device, aligned to 4096 bytes. It stays reachable until
    /// the space is dropped, which must not happen before the device is quiet.
    fn buffer(&mut self, bytes: usize) -> Result<Buffer, DmaError>;
}

/// Memory could not be made reachable for a device.
#[derive(Debug, thiserror::Error)]
pub enum DmaError {
    /// So many bytes, and the system's answer.
    #[error("cannot map {0} bytes of memory for a device: {1}")]
    Memory(usize, Errno),
    /// The IOMMU's mapping was refused (VFIO_IOMMU_MAP_DMA).
    #[error("the kernel does not let the device reach {bytes} bytes of memory: {errno}{hint}")]
    Refused {
        /// Bytes that were to be reachable.
        bytes: usize,
        /// The system's answer.
        errno: Errno,
        /// What helps, as the end of the sentence.
        hint: &'static str,
    },
    /// There are too few huge pages, or the packet memory cannot move to them: a sentence for
    /// people.
    #[error("{0}")]
    Huge(String),
}

/// Device addresses of the packet memory.
#[derive(Debug, Clone)]
pub struct PacketMap {
    base: usize,
    /// The device's address of each page of the arena.
    pages: Box<[u64]>,
}

impl PacketMap {
    /// The arena at contiguous addresses from `first` on, a multiple of [`PAGE`]: what an IOMMU
    /// makes possible.
    pub fn linear(first: u64) -> Self {
        Self::scattered(
            (0..arena().length() / PAGE).map(|page| first + (page * PAGE) as u64).collect(),
        )
    }

    /// One address per page of the arena.
    pub fn scattered(pages: Vec<u64>) -> Self {
        assert_eq!(pages.len(), arena().length() / PAGE);
        Self { base: arena().base().as_ptr().addr(), pages: pages.into() }
    }

    /// The device's address of a byte of the arena.
    ///
    /// # Panics
    /// If the byte lies elsewhere.
    #[inline(always)]
    pub fn address(&self, byte: *const u8) -> u64 {
        let offset = byte.addr().wrapping_sub(self.base);
        self.pages[offset / PAGE] + (offset % PAGE) as u64
    }

    /// The device's addresses, page by page.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }
}

/// An atomic integer: what driver and device may both touch at any time.
///
/// # Safety
/// Any bits are a valid value, and all access is atomic.
pub unsafe trait Cell {}
// SAFETY: an atomic integer.
unsafe impl Cell for AtomicU8 {}
// SAFETY: an atomic integer.
unsafe impl Cell for AtomicU16 {}
// SAFETY: an atomic integer.
unsafe impl Cell for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Cell for AtomicU64 {}

/// Memory shared with a device.
#[derive(Debug, Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
    offset: usize,
    length: usize,
    address: u64,
}

impl Buffer {
    /// `length` bytes of a mapping, from `offset` on, which the device knows as `address`.
    pub fn new(memory: Arc<Memory>, offset: usize, length: usize, address: u64) -> Self {
        assert!(offset.is_multiple_of(8) && offset + length <= memory.length);
        Self { memory, offset, length, address }
    }

    /// The device's address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The content as atomic integers, for a device changes it at any time. Descriptors are taken
    /// with `Acquire`, so that the packet is read after the mark that it is complete.
    #[inline(always)]
    pub fn cells<T: Cell>(&self) -> &[T] {
        let first = self.memory.base.as_ptr().wrapping_add(self.offset).cast::<T>();
        // SAFETY: inside of the mapping, aligned, initialised with zeros by the kernel, and only
        // touched as atomics.
        unsafe { std::slice::from_raw_parts(first, self.length / size_of::<T>()) }
    }
}

/// A mapping of this process.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pointer only names the mapping; its content is reached as atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Ordinary zeroed memory: enough where an IOMMU, or a model, puts it at any address.
    pub fn anonymous(bytes: usize) -> Result<Self, DmaError> {
        // An IOMMU maps whole pages.
        let whole = bytes.next_multiple_of(rustix::param::page_size());
        Self::map(whole, MapFlags::PRIVATE | MapFlags::POPULATE)
    }

    /// A huge page of 2 MiB, which does not move and is contiguous on the bus.
    pub fn huge() -> Result<Self, DmaError> {
        Self::map(
            PAGE,
            MapFlags::SHARED | MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE,
        )
    }

    fn map(length: usize, flags: MapFlags) -> Result<Self, DmaError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let base = base.map_err(|errno| DmaError::Memory(length, errno))?;
        let base = NonNull::new(base.cast()).ok_or(DmaError::Memory(length, Errno::NOMEM))?;
        Ok(Self { base, length })
    }

    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
