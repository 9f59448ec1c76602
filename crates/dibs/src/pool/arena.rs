//! Arenas: the pooled buffers between two processes, in one segment.
//!
//! ```text
//! | front | control page | slot 0 | slot 1 | ... | slot n-1 | signal page |
//! ```
//!
//! The front and the control page belong to the device's user on both sides. The signal page is the
//! device's: one counter per slot, on which the owner can sleep. The segment is sparse, so that a
//! slot costs memory only once it is used.
#![allow(unsafe_code)]

use super::table::Slots;
use crate::Gid;
use core::sync::atomic::AtomicU32;
use shm::Segment;
use shm::segment::PAGE;

/// What a slot begins with and a new user of it must find zeroed: the cursors of a connection.
pub const HEADER: usize = 128;
/// Bytes of the front, which an arena in a bar does not have.
pub const FRONT: usize = 9 * PAGE;
/// The most that the slots of an arena take together.
const SPAN: u64 = 1 << 30;
/// Slots of large buffers are few.
const LARGE_SPAN: u32 = 256 << 20;
const SLOT_BITS: u32 = 24;
const ID_BITS: u32 = 40;
const _: () = assert!(Slots::MAX as usize * size_of::<AtomicU32>() <= PAGE);

/// Token of a buffer: 40 random bits that name the arena, and the slot.
pub const fn token(arena: u64, slot: u32) -> u64 {
    arena << SLOT_BITS | slot as u64
}

/// The random bits of a `token`, in the lowest 40 bits.
pub const fn arena_of(token: u64) -> u64 {
    token >> SLOT_BITS
}

/// The slot of a `token`, unchecked: a peer's token names any.
pub const fn slot_of(token: u64) -> u32 {
    token as u32 & ((1 << SLOT_BITS) - 1)
}

/// An arena id from random bits; never 0.
pub const fn arena_id(random: u64) -> u64 {
    let id = random >> (64 - ID_BITS);
    if id == 0 { 1 } else { id }
}

/// How the memory of an arena is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    pub slots: u32,
    pub slot_len: u32,
}

impl Geometry {
    pub fn new(slots: u32, slot_len: u32) -> Self {
        let fit = (SPAN / u64::from(slot_len)) as u32;
        Self { slots: slots.min(Slots::MAX).min(fit).max(1), slot_len }
    }

    /// For an arena that is about to be made.
    pub fn trimmed(self) -> Self {
        let most = if self.slot_len > LARGE_SPAN / Slots::MAX {
            (LARGE_SPAN / self.slot_len).max(4)
        } else {
            Slots::MAX
        };
        Self { slots: self.slots.min(most), ..self }
    }

    /// Without the front. At most [`SPAN`] and two pages.
    pub fn bytes(self) -> usize {
        2 * PAGE + self.slots as usize * self.slot_len as usize
    }

    /// From the real size of a peer's arena, without the front, or None when it is not made of such
    /// slots.
    pub fn of_segment(len: usize, slot_len: u32) -> Option<Self> {
        let slots = u32::try_from(len.checked_sub(2 * PAGE)? / slot_len as usize).ok()?;
        let geometry = Self::new(slots, slot_len);
        (geometry.slots == slots && geometry.bytes() == len).then_some(geometry)
    }

    /// Of a slot in the arena; fits, because of [`SPAN`].
    pub fn offset(self, slot: u32) -> u32 {
        PAGE as u32 + slot * self.slot_len
    }

    pub fn signal_offset(self, slot: u32) -> usize {
        self.bytes() - PAGE + slot as usize * size_of::<AtomicU32>()
    }
}

/// The memory of an arena, own or attached.
#[derive(Clone, Copy)]
pub struct Memory {
    pub base: *mut u8,
    pub geometry: Geometry,
}

impl Memory {
    /// `slot` is below the geometry's `slots`, here and below.
    pub fn addr(&self, slot: u32) -> *mut u8 {
        self.base.wrapping_add(self.geometry.offset(slot) as usize)
    }

    pub fn signal(&self, slot: u32) -> *const AtomicU32 {
        self.base.wrapping_add(self.geometry.signal_offset(slot)).cast()
    }
}

/// An arena of ours.
pub struct Own<X> {
    pub id: u64,
    pub group: u32,
    pub peer: Gid,
    pub memory: Memory,
    pub segment: Segment,
    /// Handed out, or not yet given back by both sides.
    pub used: Slots,
    /// Registered by the owner.
    pub live: Slots,
    /// Where its device has it.
    pub at: X,
}

impl<X> Own<X> {
    /// With all slots free.
    pub fn new(
        id: u64,
        (group, peer): (u32, Gid),
        memory: Memory,
        segment: Segment,
        at: X,
    ) -> Self {
        Self { id, group, peer, memory, segment, used: Slots::EMPTY, live: Slots::EMPTY, at }
    }

    pub fn take(&mut self) -> Option<u32> {
        let slot = self.used.lowest_absent(self.memory.geometry.slots)?;
        self.used.add(slot);
        self.live.add(slot);
        Some(slot)
    }

    /// Whether it was in use; then its next user finds a zeroed header. `discard` may zero all of
    /// it.
    pub fn release(&mut self, slot: u32, discard: impl FnOnce(&mut Self, u32) -> bool) -> bool {
        self.live.remove(slot);
        if !self.used.remove(slot) {
            return false;
        }
        if !discard(self, slot) {
            // SAFETY: a used slot lies in the arena, whose mapping lives as long as `segment`.
            unsafe { self.memory.addr(slot).write_bytes(0, HEADER) };
        }
        true
    }
}

/// What a device has mapped of a peer's arena. Without the counts of [`Attached`], which are a
/// thousand bytes: each hand that this went through would take them from a stack that may be small.
pub struct Opened<X> {
    pub id: u64,
    pub memory: Memory,
    /// None for one of our own arenas, where both ends of a connection are in this process.
    pub segment: Option<Segment>,
    /// Where its device has it.
    pub at: X,
}

/// A peer's arena.
pub struct Attached<X> {
    pub id: u64,
    pub group: u32,
    pub owner: Gid,
    pub memory: Memory,
    /// As in [`Opened`].
    pub segment: Option<Segment>,
    /// How often each slot is attached.
    refs: [u8; Slots::MAX as usize],
    /// As in [`Opened`].
    pub at: X,
}

impl<X> Attached<X> {
    /// With no slot attached yet.
    pub fn new((group, owner): (u32, Gid), Opened { id, memory, segment, at }: Opened<X>) -> Self {
        Self { id, group, owner, memory, segment, refs: [0; _], at }
    }

    /// How often a slot is attached; None if the arena has no such slot.
    pub fn refs(&mut self, slot: u32) -> Option<&mut u8> {
        self.refs.get_mut(slot as usize).filter(|_| slot < self.memory.geometry.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_both_parts() {
        let t = token((1 << 40) - 1, 1023);
        assert_eq!((arena_of(t), slot_of(t)), ((1 << 40) - 1, 1023));
        assert_eq!((arena_id(0), arena_id(u64::MAX)), (1, (1 << 40) - 1));
    }

    #[test]
    fn geometry_is_recovered_from_the_size() {
        for code in 14..=29 {
            for slots in [1, 2, 40, 1024] {
                let g = Geometry::new(slots, 1 << code);
                assert_eq!(Geometry::of_segment(g.bytes(), g.slot_len), Some(g));
                assert_eq!(Geometry::of_segment(g.bytes() - PAGE, g.slot_len), None);
                assert_eq!(Geometry::of_segment(g.bytes() + PAGE, g.slot_len), None);
                assert!(g.offset(g.slots - 1) as usize + g.slot_len as usize + PAGE == g.bytes());
            }
        }
        assert_eq!(Geometry::of_segment(0, 1 << 14), None);
        assert_eq!(Geometry::of_segment(2 * PAGE, 1 << 14), None);
        assert_eq!(Geometry::of_segment(2 * PAGE + 1025 * (1 << 14), 1 << 14), None);
    }
}
