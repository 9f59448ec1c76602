//! What a process has of a bar: its own arenas, and those attached.
#![allow(unsafe_code)]

use super::bar::{Bar, Extent, Member};
use crate::loopback::HEADER;
use crate::loopback::arena::{Geometry, Memory, arena_of, slot_of, token};
use crate::loopback::table::{Slots, Table};
use crate::retirement::Retirement;
use crate::{AttachError, Dmb, Errno, Gid, RegisterError};
use core::sync::atomic::AtomicU32;
use shm::segment::PAGE;
use shm::{Fresh, Segment};

const ARENAS: usize = 1024;
/// Ended arenas whose addresses stay readable for late threads.
const RETIRED: usize = 256;
/// An arena takes at most one in so many bytes of the bar, unless one buffer needs more.
pub const PART: u64 = 32;
/// An arena takes at most so many bytes, unless one buffer needs more.
const SPAN: u64 = 8 << 20;

pub struct Own {
    pub extent: Extent,
    group: u32,
    peer: Gid,
    pub memory: Memory,
    pub segment: Segment,
    /// Handed out, or not yet given back by both sides.
    pub used: Slots,
    /// Registered by the owner.
    pub live: Slots,
}

pub struct Peer {
    pub extent: Extent,
    group: u32,
    pub owner: Gid,
    pub memory: Memory,
    pub segment: Segment,
    pub refs: [u8; Slots::MAX as usize],
}

/// A bar that is in use, and who we are there.
pub struct Place {
    pub bar: Bar,
    pub member: Member,
}

pub struct Tables {
    pub place: Option<Place>,
    pub own: Table<Own>,
    pub peers: Table<Peer>,
    pub dmbs: u32,
    retired: Retirement,
}

impl Fresh for Tables {
    const FRESH: Self = Self {
        place: None,
        own: Table::new(ARENAS),
        peers: Table::new(ARENAS),
        dmbs: 0,
        retired: Retirement::new(RETIRED),
    };
}

// SAFETY: pages of this process, bound to none of its threads.
unsafe impl Send for Tables {}

impl Tables {
    pub fn own(&mut self, token: u64) -> Option<&mut Own> {
        self.own.iter_mut().map(|(_, a)| a).find(|a| a.extent.name() == arena_of(token))
    }

    pub fn peer(&mut self, token: u64) -> Option<&mut Peer> {
        self.peers.iter_mut().map(|(_, a)| a).find(|a| a.extent.name() == arena_of(token))
    }

    pub fn register(&mut self, group: u32, peer: Gid, slot_len: u32, limits: [u32; 2]) -> Result<Dmb, RegisterError> {
        let [slots, max_dmbs] = limits;
        let Place { bar, member } = self.place.as_ref().ok_or(RegisterError::Os(Errno::NODEV))?;
        if self.dmbs >= max_dmbs {
            return Err(RegisterError::NoSpace);
        }
        let pooled = self
            .own
            .iter_mut()
            .filter(|(_, a)| (a.group, a.peer, a.memory.geometry.slot_len) == (group, peer, slot_len))
            .find_map(|(i, a)| Some((i, a.take()?)));
        let (index, slot) = match pooled {
            Some(found) => found,
            None => {
                let span = (bar.size() / PART).min(SPAN);
                let wanted = Geometry::new(slots.min((span / u64::from(slot_len)) as u32), slot_len);
                let (extent, blocks) = bar.take(member.id, wanted.bytes() as u64).ok_or(RegisterError::NoMemory)?;
                let made = bar.map(extent, blocks).map_err(RegisterError::from).and_then(|segment| {
                    let memory = Memory { base: segment.base(), geometry: geometry(bar.bytes(blocks), slot_len) };
                    clean(&memory);
                    let arena = Own { extent, group, peer, memory, segment, used: Slots::EMPTY, live: Slots::EMPTY };
                    self.own.insert(arena).map(|(index, _)| index).map_err(|_| RegisterError::NoSpace)
                });
                let index = made.inspect_err(|_| bar.give_up(extent))?;
                let arena = self.own.iter_mut().find(|(i, _)| *i == index).map(|(_, a)| a);
                (index, arena.and_then(Own::take).ok_or(RegisterError::NoSpace)?)
            }
        };
        let arena = self.own.iter_mut().find(|(i, _)| *i == index).map(|(_, a)| a).ok_or(RegisterError::NoSpace)?;
        self.dmbs += 1;
        Ok(Dmb {
            token: token(arena.extent.name(), slot),
            index: index as u32 * Slots::MAX + slot,
            addr: arena.memory.addr(slot),
            len: slot_len,
        })
    }

    pub fn attach(&mut self, group: u32, owner: Gid, token: u64, len: u32) -> Result<*mut u8, AttachError> {
        let Place { bar, member } = self.place.as_ref().ok_or(AttachError::Os(Errno::NODEV))?;
        let slot = slot_of(token);
        let known = self.peers.iter_mut().any(|(_, a)| a.extent.name() == arena_of(token));
        if !known {
            if owner.hi != bar.id() {
                return Err(AttachError::BadShare);
            }
            let found = bar.attach(arena_of(token), owner.lo, member.id);
            let (extent, blocks) = found.ok_or(AttachError::UnknownToken)?;
            let made = bar.map(extent, blocks).map_err(AttachError::Os).and_then(|segment| {
                if segment.len() < 2 * PAGE + len as usize {
                    return Err(AttachError::BadShare);
                }
                let memory = Memory { base: segment.base(), geometry: geometry(segment.len() as u64, len) };
                if slot >= memory.geometry.slots {
                    return Err(AttachError::BadShare);
                }
                let arena = Peer { extent, group, owner, memory, segment, refs: [0; _] };
                self.peers.insert(arena).map(drop).map_err(AttachError::Os)
            });
            made.inspect_err(|_| bar.detach(extent, member.id))?;
        }
        let arena = self.peer(token).ok_or(AttachError::UnknownToken)?;
        let fits = slot < arena.memory.geometry.slots;
        if (arena.owner, arena.group, arena.memory.geometry.slot_len) != (owner, group, len) || !fits {
            return Err(AttachError::BadShare);
        }
        let refs = &mut arena.refs[slot as usize];
        *refs = refs.checked_add(1).ok_or(AttachError::Os(Errno::OVERFLOW))?;
        Ok(arena.memory.addr(slot))
    }

    /// Whether the peer has no part in a group any more.
    pub fn is_over(&mut self, group: u32) -> bool {
        let Self { place: Some(Place { bar, .. }), peers, .. } = self else { return false };
        peers.iter_mut().any(|(_, a)| a.group == group && bar.has_left(a.extent))
    }

    pub fn drop_group(&mut self, group: u32) {
        let Self { place, own, peers, dmbs, retired } = self;
        let Some(Place { bar, member }) = place else { return };
        let mut retire = |segment: Segment| retired.add(segment.retire());
        // Out of our addresses first: others may have it after that.
        own.take_if(
            |a| a.group == group,
            |a| {
                *dmbs -= a.used.count();
                retire(a.segment);
                bar.give_up(a.extent);
            },
        );
        peers.take_if(
            |a| a.group == group,
            |a| {
                retire(a.segment);
                bar.detach(a.extent, member.id);
            },
        );
    }

    /// Address, length and count of signals of an attached buffer.
    pub fn target(&mut self, token: u64) -> Option<(*mut u8, u32, *const AtomicU32)> {
        let (slot, arena) = (slot_of(token), self.peer(token)?);
        let attached = slot < arena.memory.geometry.slots && arena.refs[slot as usize] > 0;
        attached.then(|| (arena.memory.addr(slot), arena.memory.geometry.slot_len, arena.memory.signal(slot)))
    }
}

impl Own {
    fn take(&mut self) -> Option<u32> {
        let slot = self.used.lowest_absent(self.memory.geometry.slots)?;
        self.used.add(slot);
        self.live.add(slot);
        Some(slot)
    }

    pub fn release(&mut self, slot: u32) -> bool {
        self.live.remove(slot);
        let was_used = self.used.remove(slot);
        if was_used {
            // SAFETY: a used slot lies in the arena, which is mapped as long as its segment lives.
            unsafe { self.memory.addr(slot).write_bytes(0, HEADER) };
        }
        was_used
    }
}

/// Both ends come to it from what they know for certain.
fn geometry(bytes: u64, slot_len: u32) -> Geometry {
    Geometry::new((bytes.saturating_sub(2 * PAGE as u64) / u64::from(slot_len)) as u32, slot_len)
}

/// An extent holds what its last owner left.
fn clean(memory: &Memory) {
    let g = memory.geometry;
    // SAFETY: the first page, the headers of all slots and the page of signals lie in the arena, which nobody else uses yet.
    unsafe {
        memory.base.write_bytes(0, PAGE);
        (0..g.slots).for_each(|slot| memory.addr(slot).write_bytes(0, HEADER));
        memory.signal(0).cast_mut().cast::<u8>().write_bytes(0, PAGE);
    }
}
