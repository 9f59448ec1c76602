//! Pools of buffers: arenas that are ours and arenas of peers that were attached, each for one peer
//! and group, and the slots of both. Where an arena lies is its device's affair: a memfd of its
//! own, or a part of a bar. `X` is what the device needs in order to give it back there.
//!
//! A buffer is a slot of an arena: registering takes the lowest free one, releasing it makes it
//! free.
#![allow(unsafe_code)]

pub mod arena;
pub mod retirement;
pub mod table;

use crate::{AttachError, Dmb, Gid, MoveError, RegisterError};
use arena::{Attached, Geometry, Opened, Own, arena_of, slot_of, token};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};
use retirement::Retirement;
use shm::{Errno, Segment};
use table::{Slots, Table};

/// See the module documentation.
pub struct Pool<X> {
    own: Table<Own<X>>,
    peers: Table<Attached<X>>,
    dmbs: u32,
    /// Addresses of arenas that have ended.
    pub retired: Retirement,
}

/// A buffer of a peer, as a sender reaches it.
pub struct Target {
    addr: *mut u8,
    len: u32,
    signal: *const AtomicU32,
}

impl<X> Pool<X> {
    /// Of up to `arenas` arenas on either side, with the addresses of `retired` ended ones kept
    /// readable.
    pub const fn new(arenas: usize, retired: usize) -> Self {
        Self {
            own: Table::new(arenas),
            peers: Table::new(arenas),
            dmbs: 0,
            retired: Retirement::new(retired),
        }
    }

    /// Our arena in which `token` is.
    pub fn own(&mut self, token: u64) -> Option<&mut Own<X>> {
        self.own.iter_mut().map(|(_, a)| a).find(|a| a.id == arena_of(token))
    }

    /// The attached arena in which `token` is. Ids are unique among the attached arenas, whoever
    /// their owners are; see `attach`.
    pub fn peer(&mut self, token: u64) -> Option<&mut Attached<X>> {
        self.peers.iter_mut().map(|(_, a)| a).find(|a| a.id == arena_of(token))
    }

    /// The attached arenas.
    pub fn peers(&mut self) -> impl Iterator<Item = &mut Attached<X>> {
        self.peers.iter_mut().map(|(_, a)| a)
    }

    /// Whether there are arenas, own or attached.
    pub fn is_used(&mut self) -> bool {
        self.own.iter_mut().count() + self.peers.iter_mut().count() > 0
    }

    /// Bytes of own buffers that are handed out or not yet given back by both sides.
    pub fn bytes(&mut self) -> u64 {
        let of = |a: &mut Own<X>| u64::from(a.used.count()) * u64::from(a.memory.geometry.slot_len);
        self.own.iter_mut().map(|(_, a)| of(a)).sum()
    }

    /// A buffer for `peer` in an arena of the group's that `fits`, or else in one that is made;
    /// `max_dmbs` buffers are the most.
    pub fn register(
        &mut self,
        group: u32,
        peer: Gid,
        max_dmbs: u32,
        fits: impl Fn(Geometry) -> bool,
        make: impl FnOnce(&mut Self) -> Result<Own<X>, RegisterError>,
    ) -> Result<Dmb, RegisterError> {
        if self.dmbs >= max_dmbs {
            return Err(RegisterError::NoSpace);
        }
        let pooled = self
            .own
            .iter_mut()
            .filter(|(_, a)| (a.group, a.peer) == (group, peer) && fits(a.memory.geometry))
            .find_map(|(i, a)| Some((i, a.id, a.memory, a.take()?)));
        let (index, id, memory, slot) = match pooled {
            Some(found) => found,
            None => {
                let arena = make(self)?;
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
            len: memory.geometry.slot_len,
        })
    }

    /// Its owner is done with a buffer of ours.
    pub fn unregister(&mut self, token: u64) -> bool {
        self.own(token).is_some_and(|a| a.live.remove(slot_of(token)))
    }

    /// Both sides are done with a buffer of ours. `discard` may give its pages back, which zeroes
    /// it; else its header is zeroed.
    pub fn release(&mut self, token: u64, discard: impl FnOnce(&mut Own<X>, u32) -> bool) -> bool {
        let released = self.own(token).is_some_and(|a| a.release(slot_of(token), discard));
        self.dmbs -= u32::from(released);
        released
    }

    /// Attaches a peer's buffer, whose arena `open` maps if it is not yet: its first byte.
    pub fn attach(
        &mut self,
        group: u32,
        owner: Gid,
        token: u64,
        len: u32,
        open: impl FnOnce(&mut Self) -> Result<Opened<X>, AttachError>,
    ) -> Result<*mut u8, AttachError> {
        let slot = slot_of(token);
        if self.peer(token).is_none() {
            let arena = open(self)?;
            if slot >= arena.memory.geometry.slots {
                return Err(AttachError::BadShare);
            }
            self.peers.insert(Attached::new((group, owner), arena)).map_err(AttachError::Os)?;
        }
        let arena = self.peer(token).ok_or(AttachError::UnknownToken)?;
        // A second peer that uses an id which is taken, by chance or to get at what is meant for
        // the first, is turned away. So a token alone always names one buffer.
        if (arena.owner, arena.group, arena.memory.geometry.slot_len) != (owner, group, len) {
            return Err(AttachError::BadShare);
        }
        let refs = arena.refs(slot).ok_or(AttachError::BadShare)?;
        *refs = refs.checked_add(1).ok_or(AttachError::Os(Errno::OVERFLOW))?;
        Ok(arena.memory.addr(slot))
    }

    /// Ends an attachment; false when there was none.
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
        Some(Target {
            addr: memory.addr(slot),
            len: memory.geometry.slot_len,
            signal: memory.signal(slot),
        })
    }

    /// The control page of our arena in which `token` is; null if there is none.
    pub fn page(&mut self, token: u64) -> *mut u8 {
        self.own(token).map_or(null_mut(), |a| a.memory.base)
    }

    /// The control page of the owner's arena in which `token` is; null if it is not attached.
    pub fn peer_page(&mut self, owner: Gid, token: u64) -> *mut u8 {
        self.peer(token).filter(|a| a.owner == owner).map_or(null_mut(), |a| a.memory.base)
    }

    /// The count of signals of a buffer of ours.
    pub fn signal(&mut self, token: u64) -> Option<*const AtomicU32> {
        let slot = slot_of(token);
        self.own(token).filter(|a| a.used.has(slot)).map(|a| a.memory.signal(slot))
    }

    /// Ends all arenas of a group. Each is out of our addresses when it is told to `own_ended` or
    /// `peer_ended`: others may have it after that.
    pub fn drop_group(&mut self, group: u32, own_ended: impl Fn(X), peer_ended: impl Fn(X)) {
        let Self { own, peers, dmbs, retired } = self;
        let mut retire = |segment: Segment| retired.add(segment.retire());
        own.take_if(
            |a| a.group == group,
            |a| {
                *dmbs -= a.used.count();
                peers.take_if(|p| p.segment.is_none() && p.id == a.id, drop);
                retire(a.segment);
                own_ended(a.at);
            },
        );
        peers.take_if(
            |p| p.group == group,
            |p| {
                p.segment.into_iter().for_each(&mut retire);
                peer_ended(p.at);
            },
        );
    }

    /// Forgets all arenas, and leaves them mapped.
    pub fn leave(&mut self) {
        self.own.take_if(|_| true, |a| a.segment.leave());
        self.peers.take_if(|_| true, |p| p.segment.into_iter().for_each(Segment::leave));
    }
}

impl Target {
    /// Copies `len` bytes to `offset` in the buffer.
    ///
    /// # Safety
    /// `data` is readable for `len` bytes and lies outside of all buffers.
    pub unsafe fn put(&self, offset: u32, data: *const u8, len: u32) -> Result<(), MoveError> {
        if u64::from(offset) + u64::from(len) > u64::from(self.len) {
            return Err(MoveError::OutOfBounds);
        }
        // SAFETY: within the buffer, whose address stays mapped whatever other threads do; `data`
        // by contract.
        unsafe { shm::copy(data, self.addr.wrapping_add(offset as usize), len as usize) };
        Ok(())
    }

    /// Counts a signal to the buffer's owner: the count, for who wakes the owner besides.
    pub fn count(&self) -> &AtomicU32 {
        // SAFETY: a word of an arena's signal page, which stays mapped, also after `drop_group`.
        let word = unsafe { &*self.signal };
        // SYNC: signal. After the data that it tells of.
        word.fetch_add(1, Ordering::Release);
        word
    }
}
