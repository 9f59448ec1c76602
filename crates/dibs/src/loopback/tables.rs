//! What the device knows: its own arenas, those attached, and whom it has met.
#![allow(unsafe_code)]

use super::random;
use crate::pool::Pool;
use crate::pool::arena::{
    FRONT, Geometry, Memory, Opened, Own, arena_id, arena_of, slot_of, token,
};
use crate::pool::table::{Slots, Table};
use crate::{AttachError, Dmb, Gid, RegisterError};
use rustix::fd::RawFd;
use shm::segment::PAGE;
use shm::{Fresh, Handle, OpenError, Segment};

const ARENAS: usize = 4096;
/// Ended arenas whose addresses are kept.
const RETIRED: usize = 1024;
/// What ends here of an arena are free slots that keep the memory they have come to, for the next
/// connection; others give it back, which costs the next one as many page faults.
const WARM: u32 = PAGE as u32 + (4 << 20);
/// Those that end here keep it too if it is no more than `LITTLE`.
const TEPID: u32 = PAGE as u32 + (64 << 20);
const LITTLE: u32 = 16 << 10;
/// When it is full, the oldest acquaintance has to introduce itself again.
const ADMITTED: usize = 1024;

pub struct Tables {
    /// Each arena in a memfd of its own.
    pub pool: Pool<()>,
    /// With the time of admission, in admissions.
    admitted: Table<(u64, Gid)>,
    admissions: u64,
}

impl Fresh for Tables {
    const FRESH: Self =
        Self { pool: Pool::new(ARENAS, RETIRED), admitted: Table::new(ADMITTED), admissions: 0 };
}

// SAFETY: pages of this process, bound to none of its threads.
unsafe impl Send for Tables {}

impl Tables {
    pub fn admit(&mut self, gid: Gid) {
        if self.is_admitted(gid) {
            return;
        }
        let entry = (self.admissions, gid);
        self.admissions += 1;
        if self.admitted.insert(entry).is_err() {
            let oldest = self.admitted.iter_mut().map(|(_, e)| e.0).min();
            self.admitted.take_if(|e| Some(e.0) == oldest, drop);
            // Only without memory for the table it fails again, and then nobody is met here at all.
            let _ = self.admitted.insert(entry);
        }
    }

    pub fn expel(&mut self, gid: Gid) {
        self.admitted.take_if(|e| e.1 == gid, drop);
    }

    pub fn is_admitted(&mut self, gid: Gid) -> bool {
        self.admitted.iter_mut().any(|(_, e)| e.1 == gid)
    }

    pub fn register(
        &mut self,
        group: u32,
        peer: Gid,
        geometry: Geometry,
        max_dmbs: u32,
    ) -> Result<Dmb, RegisterError> {
        let geometry = geometry.trimmed();
        self.pool.register(
            group,
            peer,
            max_dmbs,
            |pooled| pooled == geometry,
            |pool| {
                let mut segment = Segment::create(c"shortwire-arena", FRONT + geometry.bytes())?;
                pool.retired.settle(&mut segment);
                let memory = Memory { base: segment.base().wrapping_add(FRONT), geometry };
                Ok(Own::new(fresh_id(pool), (group, peer), memory, segment, ()))
            },
        )
    }

    /// Nothing was written behind the first `used` bytes, as far as is known. The buffer's pages
    /// stay if they are `pinned`.
    pub fn release(&mut self, token: u64, used: u32, pinned: bool) -> bool {
        self.pool.release(token, |arena, slot| {
            let g = arena.memory.geometry;
            let end = g.offset(slot) + g.slot_len;
            let keep = pinned || end <= WARM || end <= TEPID && used <= LITTLE;
            !keep && arena.segment.discard(FRONT + g.offset(slot) as usize, g.slot_len as usize)
        })
    }

    pub fn lend(&mut self, token: u64) -> Option<Handle> {
        self.pool.own(token).filter(|arena| arena.used.has(slot_of(token)))?.segment.handle()
    }

    /// `here` when the owner is this very device, whose arenas are in place already.
    pub fn attach(
        &mut self,
        group: u32,
        (owner, here): (Gid, bool),
        token: u64,
        len: u32,
        share: Option<RawFd>,
    ) -> Result<*mut u8, AttachError> {
        if here && !self.pool.own(token).is_some_and(|a| a.used.has(slot_of(token))) {
            return Err(AttachError::UnknownToken);
        }
        self.pool.attach(group, owner, token, len, |pool| {
            if here {
                let own = pool.own(token).ok_or(AttachError::UnknownToken)?;
                return Ok(Opened { id: own.id, memory: own.memory, segment: None, at: () });
            }
            let (mut segment, geometry) = open(share.ok_or(AttachError::UnknownToken)?, len)?;
            pool.retired.settle(&mut segment);
            let memory = Memory { base: segment.base().wrapping_add(FRONT), geometry };
            Ok(Opened { id: arena_of(token), memory, segment: Some(segment), at: () })
        })
    }

    pub fn drop_group(&mut self, group: u32) {
        self.pool.drop_group(group, drop, drop);
    }

    /// Forgets everything, and leaves mapped what is.
    pub fn leave(&mut self) {
        self.pool.leave();
        *self = Self::FRESH;
    }
}

fn fresh_id(pool: &mut Pool<()>) -> u64 {
    loop {
        let id = arena_id(random::words()[0]);
        if pool.own(token(id, 0)).is_none() && pool.peer(token(id, 0)).is_none() {
            return id;
        }
    }
}

/// Maps what a peer sent, if it is an arena of slots of `slot_len` bytes.
fn open(fd: RawFd, slot_len: u32) -> Result<(Segment, Geometry), OpenError> {
    let largest = Geometry::new(Slots::MAX, slot_len).bytes();
    let segment = Segment::open(fd, FRONT + 2 * PAGE, FRONT + largest)?;
    let geometry = Geometry::of_segment(segment.len() - FRONT, slot_len);
    let geometry = geometry.ok_or(OpenError::BadSize(segment.len() as u64))?;
    Ok((segment, geometry))
}
