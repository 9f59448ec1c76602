//! What the device knows: its own arenas, those attached, and whom it has met.
#![allow(unsafe_code)]

use super::arena::{FRONT, Geometry, OwnArena, PeerArena, arena_id, arena_of, slot_of, token};
use super::random;
use super::table::{Slots, Table};
use crate::retirement::Retirement;
use crate::{AttachError, Dmb, Gid, RegisterError};
use core::sync::atomic::AtomicU32;
use rustix::fd::RawFd;
use shm::{Errno, Fresh, Handle, Segment};

const ARENAS: usize = 4096;
/// Ended arenas whose addresses are kept.
const RETIRED: usize = 1024;
/// When it is full, the oldest acquaintance has to introduce itself again.
const ADMITTED: usize = 1024;

pub struct Tables {
    pub own: Table<OwnArena>,
    pub peers: Table<PeerArena>,
    /// With the time of admission, in admissions.
    admitted: Table<(u64, Gid)>,
    admissions: u64,
    dmbs: u32,
    retired: Retirement,
}

/// A buffer of a peer, as a sender reaches it.
pub struct Target {
    pub addr: *mut u8,
    pub len: u32,
    pub signal: *const AtomicU32,
}

impl Fresh for Tables {
    const FRESH: Self = Self {
        own: Table::new(ARENAS),
        peers: Table::new(ARENAS),
        admitted: Table::new(ADMITTED),
        admissions: 0,
        dmbs: 0,
        retired: Retirement::new(RETIRED),
    };
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

    pub fn own(&mut self, token: u64) -> Option<&mut OwnArena> {
        self.own.iter_mut().map(|(_, a)| a).find(|a| a.id == arena_of(token))
    }

    /// Ids are unique among the attached arenas, whoever their owners are; see `attach`.
    pub fn peer(&mut self, token: u64) -> Option<&mut PeerArena> {
        self.peers.iter_mut().map(|(_, a)| a).find(|a| a.id == arena_of(token))
    }

    pub fn register(&mut self, group: u32, peer: Gid, geometry: Geometry, max_dmbs: u32) -> Result<Dmb, RegisterError> {
        let geometry = geometry.trimmed();
        if self.dmbs >= max_dmbs {
            return Err(RegisterError::NoSpace);
        }
        let pooled = self
            .own
            .iter_mut()
            .filter(|(_, a)| (a.group, a.peer, a.memory.geometry) == (group, peer, geometry))
            .find_map(|(i, a)| Some((i, a.id, a.memory, a.take()?)));
        let (index, id, memory, slot) = match pooled {
            Some(found) => found,
            None => {
                let mut arena = OwnArena::create(self.fresh_id(), group, peer, geometry)?;
                self.retired.settle(&mut arena.segment);
                arena.memory.base = arena.segment.base().wrapping_add(FRONT);
                let (index, arena) = self.own.insert(arena).map_err(|e| match e {
                    Errno::NOSPC => RegisterError::NoSpace,
                    e => e.into(),
                })?;
                (index, arena.id, arena.memory, arena.take().ok_or(RegisterError::NoSpace)?)
            }
        };
        self.dmbs += 1;
        Ok(Dmb {
            token: token(id, slot),
            index: index as u32 * Slots::MAX + slot,
            addr: memory.addr(slot),
            len: geometry.slot_len,
        })
    }

    fn fresh_id(&mut self) -> u64 {
        loop {
            let id = arena_id(random::words()[0]);
            if self.own(token(id, 0)).is_none() && self.peer(token(id, 0)).is_none() {
                return id;
            }
        }
    }

    pub fn release(&mut self, token: u64, used: u32, pinned: bool) -> bool {
        let released = self.own(token).is_some_and(|a| a.release(slot_of(token), used, pinned));
        self.dmbs -= u32::from(released);
        released
    }

    pub fn lend(&mut self, token: u64) -> Option<Handle> {
        self.own(token).filter(|arena| arena.used.has(slot_of(token)))?.segment.handle()
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
        let slot = slot_of(token);
        if here && !self.own(token).is_some_and(|a| a.used.has(slot)) {
            return Err(AttachError::UnknownToken);
        }
        if self.peer(token).is_none() {
            let mut arena = if here {
                let own = self.own(token).ok_or(AttachError::UnknownToken)?;
                PeerArena::alias(own, group, owner)
            } else {
                let fd = share.ok_or(AttachError::UnknownToken)?;
                let (arena, mut segment) = PeerArena::open(arena_of(token), group, owner, fd, len)?;
                self.retired.settle(&mut segment);
                arena.over(segment)
            };
            if arena.refs(slot).is_none() {
                return Err(AttachError::BadShare);
            }
            self.peers.insert(arena).map_err(AttachError::Os)?;
        }
        let arena = self.peer(token).ok_or(AttachError::UnknownToken)?;
        // A second peer that uses an id which is taken, by chance or to get at what is meant for the
        // first, is turned away. So a token alone always names one buffer.
        if (arena.owner, arena.group, arena.memory.geometry.slot_len) != (owner, group, len) {
            return Err(AttachError::BadShare);
        }
        let refs = arena.refs(slot).ok_or(AttachError::BadShare)?;
        *refs = refs.checked_add(1).ok_or(AttachError::Os(Errno::OVERFLOW))?;
        Ok(arena.memory.addr(slot))
    }

    pub fn detach(&mut self, owner: Gid, token: u64) -> bool {
        let arena = self.peer(token).filter(|a| a.owner == owner);
        let refs = arena.and_then(|a| a.refs(slot_of(token))).filter(|refs| **refs > 0);
        refs.map(|refs| *refs -= 1).is_some()
    }

    /// The buffer that `token` names among those attached here.
    pub fn target(&mut self, token: u64) -> Option<Target> {
        let (arena, slot) = (self.peer(token)?, slot_of(token));
        arena.refs(slot).filter(|refs| **refs > 0)?;
        let memory = arena.memory;
        Some(Target { addr: memory.addr(slot), len: memory.geometry.slot_len, signal: memory.signal(slot) })
    }

    pub fn drop_group(&mut self, group: u32) {
        let Self { own, peers, dmbs, retired, .. } = self;
        let mut retire = |segment: Segment| retired.add(segment.retire());
        own.take_if(
            |a| a.group == group,
            |a| {
                *dmbs -= a.used.count();
                peers.take_if(|p| p.segment.is_none() && p.id == a.id, drop);
                retire(a.segment);
            },
        );
        peers.take_if(|p| p.group == group, |p| p.segment.into_iter().for_each(&mut retire));
    }

    /// Forgets everything, and leaves mapped what is.
    pub fn leave(&mut self) {
        self.own.take_if(|_| true, |a| a.segment.leave());
        self.peers.take_if(
            |_| true,
            |p| {
                if let Some(segment) = p.segment {
                    segment.leave();
                }
            },
        );
        *self = Self::FRESH;
    }
}
