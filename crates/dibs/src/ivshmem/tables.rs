//! What a process has of a bar: its own arenas, and those attached.
#![allow(unsafe_code)]

use super::bar::{Bar, Extent, Member};
use crate::pool::Pool;
use crate::pool::arena::{Geometry, HEADER, Memory, Opened, Own, arena_of};
use crate::{AttachError, Dmb, Errno, Gid, RegisterError};
use shm::Fresh;
use shm::segment::PAGE;

const ARENAS: usize = 1024;
/// Ended arenas whose addresses stay readable for late threads.
const RETIRED: usize = 256;
/// An arena takes at most one in so many bytes of the bar, unless one buffer needs more.
pub const PART: u64 = 32;
/// An arena takes at most so many bytes, unless one buffer needs more.
const SPAN: u64 = 8 << 20;

/// A bar that is in use, and who we are there.
pub struct Place {
    pub bar: Bar,
    pub member: Member,
}

pub struct Tables {
    pub place: Option<Place>,
    /// Each arena in an extent of the bar.
    pub pool: Pool<Extent>,
}

impl Fresh for Tables {
    const FRESH: Self = Self { place: None, pool: Pool::new(ARENAS, RETIRED) };
}

// SAFETY: pages of this process, bound to none of its threads.
unsafe impl Send for Tables {}

impl Tables {
    pub fn register(
        &mut self,
        group: u32,
        peer: Gid,
        slot_len: u32,
        limits: [u32; 2],
    ) -> Result<Dmb, RegisterError> {
        let [slots, max_dmbs] = limits;
        let Self { place, pool } = self;
        let Place { bar, member } = place.as_ref().ok_or(RegisterError::Os(Errno::NODEV))?;
        let mut taken = None;
        let make = |_: &mut Pool<Extent>| {
            let span = (bar.size() / PART).min(SPAN);
            let wanted = Geometry::new(slots.min((span / u64::from(slot_len)) as u32), slot_len);
            let (extent, blocks) =
                bar.take(member.id, wanted.bytes() as u64).ok_or(RegisterError::NoMemory)?;
            taken = Some(extent);
            let segment = bar.map(extent, blocks)?;
            let memory =
                Memory { base: segment.base(), geometry: geometry(bar.bytes(blocks), slot_len) };
            clean(&memory);
            Ok(Own::new(extent.name(), (group, peer), memory, segment, extent))
        };
        // What is left of a bar decides how many slots an arena has.
        let registered =
            pool.register(group, peer, max_dmbs, |pooled| pooled.slot_len == slot_len, make);
        registered.inspect_err(|_| taken.into_iter().for_each(|extent| bar.give_up(extent)))
    }

    pub fn attach(
        &mut self,
        group: u32,
        owner: Gid,
        token: u64,
        len: u32,
    ) -> Result<*mut u8, AttachError> {
        let Self { place, pool } = self;
        let Place { bar, member } = place.as_ref().ok_or(AttachError::Os(Errno::NODEV))?;
        let mut found = None;
        let open = |_: &mut Pool<Extent>| {
            if owner.hi != bar.id() {
                return Err(AttachError::BadShare);
            }
            let place = bar.attach(arena_of(token), owner.lo, member.id);
            let (extent, blocks) = place.ok_or(AttachError::UnknownToken)?;
            found = Some(extent);
            let segment = bar.map(extent, blocks).map_err(AttachError::Os)?;
            if segment.len() < 2 * PAGE + len as usize {
                return Err(AttachError::BadShare);
            }
            let memory =
                Memory { base: segment.base(), geometry: geometry(segment.len() as u64, len) };
            Ok(Opened { id: extent.name(), memory, segment: Some(segment), at: extent })
        };
        let attached = pool.attach(group, owner, token, len, open);
        attached.inspect_err(|_| found.into_iter().for_each(|extent| bar.detach(extent, member.id)))
    }

    /// Whether the peer has no part in a group any more.
    pub fn is_over(&mut self, group: u32) -> bool {
        let Self { place: Some(Place { bar, .. }), pool } = self else { return false };
        pool.peers().any(|a| a.group == group && bar.has_left(a.at))
    }

    pub fn drop_group(&mut self, group: u32) {
        let Self { place: Some(Place { bar, member }), pool } = self else { return };
        pool.drop_group(group, |own| bar.give_up(own), |peer| bar.detach(peer, member.id));
    }
}

/// Both ends come to it from what they know for certain.
fn geometry(bytes: u64, slot_len: u32) -> Geometry {
    Geometry::new((bytes.saturating_sub(2 * PAGE as u64) / u64::from(slot_len)) as u32, slot_len)
}

/// An extent holds what its last owner left.
fn clean(memory: &Memory) {
    let g = memory.geometry;
    // SAFETY: the callers below name places in the arena, which nobody else uses yet.
    let zero = |at: *mut u8, len| unsafe { at.write_bytes(0, len) };
    zero(memory.base, PAGE);
    (0..g.slots).for_each(|slot| zero(memory.addr(slot), HEADER));
    zero(memory.signal(0).cast_mut().cast(), PAGE);
}
