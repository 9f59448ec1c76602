//! Memory as the model reaches it: every address is checked, as an IOMMU would.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::arena;
use crate::nic::dma::{Buffer, DmaError, Memory, PAGE, PacketMap};

/// First address of the packet memory. Pages lie there in reverse, so that a driver that computes
/// beyond a page fails.
const PACKETS: u64 = 0x12_0000_0000;
/// First address of rings.
const BUFFERS: u64 = 0x34_0000_0000;

/// What one model can reach.
pub(super) struct Reach {
    base: NonNull<u8>,
    length: u64,
    buffers: Vec<Buffer>,
    next: u64,
}

// SAFETY: the pointer only names the arena; who may use a slot is told by descriptors.
unsafe impl Send for Reach {}

/// What the model calls packet memory.
pub(super) fn packet_map() -> PacketMap {
    let pages = arena().length() / PAGE;
    PacketMap::scattered(
        (0..pages).map(|page| PACKETS + ((pages - 1 - page) * PAGE) as u64).collect(),
    )
}

impl Reach {
    pub fn new() -> Self {
        let arena = arena();
        Self {
            base: arena.base(),
            length: arena.length() as u64,
            buffers: Vec::new(),
            next: BUFFERS,
        }
    }

    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer, DmaError> {
        let memory = Arc::new(Memory::anonymous(bytes)?);
        // A hole behind each, so that running over the end is noticed.
        let address = self.next;
        self.next += (memory.length() as u64).next_multiple_of(PAGE as u64) + PAGE as u64;
        let buffer = Buffer::new(memory, 0, bytes, address);
        self.buffers.push(buffer.clone());
        Ok(buffer)
    }

    pub fn forget(&mut self) {
        self.buffers.clear();
    }

    /// The buffer in which a ring lies, if all of it does.
    pub fn ring(&self, address: u64, length: u64) -> Option<Buffer> {
        let fits =
            |buffer: &&Buffer| buffer.address() == address && length <= buffer.length() as u64;
        self.buffers.iter().find(fits).cloned()
    }

    /// Where `length` bytes of packet memory are.
    #[inline]
    pub fn packet(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        let offset = address.wrapping_sub(PACKETS);
        let (page, within) = (offset / PAGE as u64, offset % PAGE as u64);
        if offset >= self.length || within + length > PAGE as u64 {
            return None;
        }
        let offset = self.length - (page + 1) * PAGE as u64 + within;
        // SAFETY: inside of the arena, as was checked.
        Some(unsafe { self.base.add(offset as usize) })
    }
}

/// Moves a frame from one packet's memory to another's, as DMA does. Zeros fill it up to `padded`
/// bytes.
///
/// # Safety
/// Both places came from [`Reach::packet`] for at least `padded` bytes of target and `length` of
/// source, and the descriptors that named them belong to the model.
#[inline]
pub(super) unsafe fn copy(from: NonNull<u8>, length: usize, to: NonNull<u8>, padded: usize) {
    // SAFETY: the caller's; different slots, because each has one owner.
    unsafe { to.copy_from_nonoverlapping(from, length) };
    if padded > length {
        // SAFETY: the caller's.
        unsafe { to.add(length).write_bytes(0, padded - length) };
    }
}

/// The bytes of a frame, to look at its headers.
///
/// # Safety
/// As for [`copy`]; the frame is not changed while the slice is used.
pub(super) unsafe fn bytes<'a>(from: NonNull<u8>, length: usize) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(from.as_ptr(), length) }
}
