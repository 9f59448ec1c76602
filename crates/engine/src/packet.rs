//! A packet: the only handle of a slot of the [arena](crate::arena), with the place of its bytes in
//! it.
//!
//! The handle is 16 bytes and carries the length, so that links, counters and most apps never touch
//! packet memory. Dropping it frees the slot. Bytes before and behind the data give room to grow
//! without moving them.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::arena::{CONTROL, MAX_LENGTH, SLOT};
use crate::pool;

/// Room before the data of a new packet, at least. AF_XDP receives at the same offset.
pub const HEADROOM: usize = 256 - CONTROL;

/// An owned packet. The layout is fixed: scripts and rings hold it as these 16 bytes.
///
/// ```c
/// struct packet {
///     uint8_t *data;
///     uint16_t length, flags, checksum_start, checksum_offset;
/// };
/// ```
///
/// The slot is the 2048 bytes around `data` that start at a multiple of 2048; its first 64 bytes
/// are free for the use of whoever owns the packet.
#[repr(C)]
#[derive(Debug)]
pub struct Packet {
    data: NonNull<u8>,
    length: u16,
    /// Bits of [`Packet::flags`].
    pub flags: u16,
    /// With [`NEEDS_CHECKSUM`]: where the checksummed part starts, from the first byte.
    pub checksum_start: u16,
    /// With [`NEEDS_CHECKSUM`]: where the checksum goes, from `checksum_start`.
    pub checksum_offset: u16,
}

/// The checksum at `checksum_start + checksum_offset` holds the pseudo header's sum only; see
/// virtio 1.2, 5.1.6.2.
pub const NEEDS_CHECKSUM: u16 = 1;
/// The transport checksum was verified by whoever received the packet.
pub const CHECKSUM_VALID: u16 = 2;

// SAFETY: the handle is the only way to its slot, and a slot may be freed on any thread.
unsafe impl Send for Packet {}

impl Packet {
    /// An empty packet; None when all packets are in use.
    #[inline]
    pub fn allocate() -> Option<Self> {
        pool::with(|pool| {
            if pool.ready(1) == 0 {
                return None;
            }
            // SAFETY: one is ready.
            let slot = unsafe { pool.take() };
            Some(Self::in_slot(slot, 0))
        })?
    }

    /// A packet with these bytes; None when all packets are in use or the bytes do not fit in
    /// [`MAX_LENGTH`].
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut packet = Self::allocate()?;
        packet.append(bytes).then_some(packet)
    }

    /// A second packet with the same bytes and marks; None when all packets are in use.
    #[inline]
    pub fn duplicate(&self) -> Option<Self> {
        pool::with(|pool| {
            if pool.ready(1) == 0 {
                return None;
            }
            // SAFETY: one is ready.
            let slot = unsafe { pool.take() };
            // SAFETY: a slot just taken.
            Some(unsafe { self.copy_to(slot) })
        })?
    }

    /// The handle of an empty slot.
    #[inline]
    pub(crate) fn in_slot(slot: *mut u8, length: u16) -> Self {
        let data = slot.wrapping_add(offset_of_new(slot));
        // SAFETY: a slot is not at address 0.
        let data = unsafe { NonNull::new_unchecked(data) };
        Self { data, length, flags: 0, checksum_start: 0, checksum_offset: 0 }
    }

    /// A copy of this packet in `slot`.
    ///
    /// # Safety
    /// `slot` is the first byte of a slot that the caller owns and gives up to the new packet.
    #[inline(always)]
    pub(crate) unsafe fn copy_to(&self, slot: *mut u8) -> Self {
        let (from, new) = (self.offset(), offset_of_new(slot));
        let length = self.length as usize;
        // A packet too long for the usual place stands where the original does.
        let to = if length <= SLOT - new { new } else { from };
        let data = slot.wrapping_add(to);
        if length <= LINE && from <= SLOT - LINE {
            // The smallest packets are most of those that come fast: one line, no loop. New packets
            // start far enough from the end. SAFETY: a whole line of each slot; the slots differ,
            // each having its owner.
            unsafe {
                data.cast::<[u8; LINE]>().copy_from_nonoverlapping(self.data.as_ptr().cast(), 1)
            };
        } else if length <= SMALL && length.next_multiple_of(LINE) <= SLOT - to.max(from) {
            for line in 0..length.div_ceil(LINE) {
                let source = self.data.as_ptr().wrapping_add(line * LINE);
                let target = data.wrapping_add(line * LINE).cast::<[u8; LINE]>();
                // SAFETY: whole lines of both slots: their ends were compared just now. The slots
                // differ.
                unsafe { target.copy_from_nonoverlapping(source.cast(), 1) };
            }
        } else {
            // SAFETY: `length` bytes lie in the source, and fit behind `to`.
            unsafe { data.copy_from_nonoverlapping(self.data.as_ptr(), length) };
        }
        Self {
            // SAFETY: inside of a slot, so not null.
            data: unsafe { NonNull::new_unchecked(data) },
            length: self.length,
            flags: self.flags,
            checksum_start: self.checksum_start,
            checksum_offset: self.checksum_offset,
        }
    }

    /// A packet whose bytes somebody else wrote: the kernel into a registered arena, or a script.
    ///
    /// # Safety
    /// `slot + offset .. + length` lies behind the control bytes of one slot of the arena, and the
    /// caller owns that slot and gives it up.
    #[inline]
    pub unsafe fn from_slot(slot: NonNull<u8>, offset: usize, length: usize) -> Self {
        debug_assert!((CONTROL..SLOT).contains(&offset) && length <= SLOT - offset);
        // SAFETY: inside of the slot.
        let data = unsafe { slot.add(offset) };
        Self { data, length: length as u16, flags: 0, checksum_start: 0, checksum_offset: 0 }
    }

    /// The first byte of the slot. The caller owns it now: it comes back through
    /// [`Self::from_slot`].
    #[inline]
    pub fn into_slot(self) -> NonNull<u8> {
        let slot = self.slot();
        std::mem::forget(self);
        slot
    }

    /// Length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// Bytes before the data that [`Self::prepend`] takes without moving anything.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.offset() - CONTROL
    }

    /// Bytes behind the data that [`Self::append`] takes without moving anything.
    #[inline]
    pub fn tailroom(&self) -> usize {
        SLOT - self.offset() - self.length as usize
    }

    /// Adds bytes at the end. False, and nothing changed, if the packet would exceed
    /// [`MAX_LENGTH`].
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.tailroom() && !self.move_for(0, bytes.len()) {
            return false;
        }
        let end = self.length as usize;
        self.length += bytes.len() as u16;
        self[end..].copy_from_slice(bytes);
        true
    }

    /// Adds bytes at the front. False, and nothing changed, if the packet would exceed
    /// [`MAX_LENGTH`].
    #[inline]
    pub fn prepend(&mut self, bytes: &[u8]) -> bool {
        if !self.grow_front(bytes.len()) {
            return false;
        }
        self[..bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Opens `count` bytes at the front; they hold old memory. False if the packet would exceed
    /// [`MAX_LENGTH`].
    #[inline]
    pub fn grow_front(&mut self, count: usize) -> bool {
        if count > self.headroom() && !self.move_for(count, 0) {
            return false;
        }
        // SAFETY: `count` bytes of headroom lie before the data.
        self.data = unsafe { self.data.sub(count) };
        self.length += count as u16;
        true
    }

    /// Removes `count` bytes at the front. False, and nothing changed, if there are fewer.
    #[inline]
    pub fn shrink_front(&mut self, count: usize) -> bool {
        if count > self.length as usize {
            return false;
        }
        self.length -= count as u16;
        if self.offset() + count == SLOT {
            // Empty at the very end: the next address would be another slot's.
            let slot = self.slot();
            // SAFETY: inside of the slot.
            self.data = unsafe { slot.add(offset_of_new(slot.as_ptr())) };
        } else {
            // SAFETY: still inside of the slot.
            self.data = unsafe { self.data.add(count) };
        }
        true
    }

    /// Makes the packet `length` bytes long, filling with zeros. False if that exceeds
    /// [`MAX_LENGTH`].
    #[inline]
    pub fn resize(&mut self, length: usize) -> bool {
        let old = self.length as usize;
        if length > old {
            if length - old > self.tailroom() && !self.move_for(0, length - old) {
                return false;
            }
            self.length = length as u16;
            self[old..].fill(0);
        }
        self.length = length as u16;
        true
    }

    /// Cuts the packet off after `length` bytes, if it is longer.
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length.min(MAX_LENGTH) as u16);
    }

    /// Moves the data so that `front` and `back` bytes fit before and behind it.
    #[cold]
    fn move_for(&mut self, front: usize, back: usize) -> bool {
        let length = self.length as usize;
        let Some(spare) = MAX_LENGTH
            .checked_sub(length)
            .and_then(|rest| rest.checked_sub(front.checked_add(back)?))
        else {
            return false;
        };
        let slot = self.slot();
        let offset = CONTROL + front + spare / 2;
        // SAFETY: inside of the slot, or at its end if all of it is wanted in front; then the
        // caller moves back at once.
        let to = unsafe { slot.add(offset) };
        // SAFETY: both ranges lie in this slot; they may overlap.
        unsafe { to.copy_from(self.data, length) };
        self.data = to;
        true
    }

    #[inline(always)]
    fn offset(&self) -> usize {
        self.data.as_ptr().addr() & (SLOT - 1)
    }

    #[inline(always)]
    fn slot(&self) -> NonNull<u8> {
        // SAFETY: the offset is the distance from the start of the slot.
        unsafe { self.data.sub(self.offset()) }
    }
}

const LINE: usize = 64;
/// Longest copy done line by line; beyond, the library's copy with its wider moves wins over the
/// cost of the call.
const SMALL: usize = 256;

/// New packets of slots that would meet in the same sets of the first-level cache start at
/// different lines.
#[inline(always)]
pub(crate) fn offset_of_new(slot: *mut u8) -> usize {
    CONTROL + HEADROOM + ((slot.addr() >> 12) & 3) * LINE
}

/// Bytes that fit behind every such place.
pub(crate) const ROOM_OF_NEW: usize = SLOT - CONTROL - HEADROOM - 3 * LINE;

impl Deref for Packet {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the handle owns the slot, and `length` bytes from `data` on lie in it. Fresh
        // mappings are zeros, so that every byte was written.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.length as usize) }
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for reading; the handle is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.length as usize) }
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        pool::free(self.slot().as_ptr(), self.length as usize);
    }
}

const _: () = assert!(
    size_of::<Packet>() == 16
        && size_of::<Option<Packet>>() == 16
        && std::mem::offset_of!(Packet, length) == 8
        && std::mem::offset_of!(Packet, checksum_offset) == 14
);
