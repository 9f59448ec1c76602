//! The ism device: peers share no mapping, and data is copied across.
//!
//! It stands for partitioning hypervisors, where firmware copies into the memory of another
//! partition. Here the two partitions are processes and the kernel copies (`process_vm_writev`),
//! which it does for whoever has the rights of ptrace. A buffer is memory of its owner alone (a
//! child of a fork keeps sharing it). Where it lies is told to the peer once, as a [`Place`]; what
//! a peer writes there is bounded by the slot that it attached, and goes only to a process in which
//! the arena's [`Place::proof`] is found, so never to another one that has come by the same process
//! id.
//!
//! Buffers are pooled in arenas as those of [`Loopback`], whose tables they are kept in; see there
//! for the life of a slot. A signal is counted in the owner's memory. Whoever sleeps must be woken
//! by other means: no memory is shared that a futex could be in.
#![allow(unsafe_code)]

pub mod integrity;
#[cfg(test)]
mod tests;

use crate::loopback::random;
use crate::pool::arena::{Geometry, arena_of, slot_of};
use crate::pool::retirement::Retirement;
use crate::pool::table::{Slots, Table};
use crate::{
    AttachError, Device, Dmb, Errno, Gid, ISM_CHID, Lent, Loopback, MoveError, Peer, Reach,
    RegisterError, Told, is_dmb_len,
};
pub use ::verbs::far;
use ::verbs::far::piece;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use rustix::fd::RawFd;
use shm::segment::PAGE;
use shm::{Fresh, Guarded, Segment};

/// Bytes of memory of its own that the device's user has for each attached buffer, zeroed by each
/// attachment.
pub const WORDS: usize = 128;
/// Partitions of a machine: devices of different ones do not reach each other.
pub const PARTITIONS: u16 = 127;

/// The CHID of a partition: of the further ones from the second half of those for emulated devices,
/// up to loopback's.
pub const fn chid_of(partition: u16) -> u16 {
    match partition {
        0 => ISM_CHID,
        n => ISM_CHID + 128 + if n < PARTITIONS { n } else { PARTITIONS - 1 },
    }
}

const ARENAS: usize = 4096;
/// Ended arenas whose words stay readable for late threads.
const RETIRED: usize = 64;
/// Highest address that a peer may name, with which no sum here overflows.
const HIGHEST: u64 = 1 << 56;

/// Where an arena lies in its owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Its address there.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// What is found at `base`: random, never 0.
    pub proof: u64,
}

impl Place {
    fn tell(&self) -> Option<Told> {
        Told::new([self.base, self.len, self.proof].map(u64::to_be_bytes).as_flattened())
    }

    fn told(told: &Told) -> Option<Self> {
        let ([base, len, proof], rest) = told.words()?;
        rest.is_empty().then_some(Self { base, len, proof })
    }
}

/// A peer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// The process that owns it.
    pub pid: i32,
    /// In that process.
    pub addr: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// Of its arena.
    pub place: Place,
    /// [`WORDS`] bytes here, shared with children of a fork, readable for good.
    pub words: *mut u8,
}

struct FarArena {
    id: u64,
    group: u32,
    owner: Gid,
    pid: i32,
    place: Place,
    geometry: Geometry,
    words: Segment,
    refs: [u8; Slots::MAX as usize],
}

impl FarArena {
    fn far(&self, slot: u32) -> Far {
        Far {
            pid: self.pid,
            addr: self.place.base + u64::from(self.geometry.offset(slot)),
            len: self.geometry.slot_len,
            place: self.place,
            words: self.words.base().wrapping_add(slot as usize * WORDS),
        }
    }
}

struct Tables {
    arenas: Table<FarArena>,
    retired: Retirement,
}

impl Fresh for Tables {
    const FRESH: Self = Self { arenas: Table::new(ARENAS), retired: Retirement::new(RETIRED) };
}

// SAFETY: pages of this process, bound to none of its threads.
unsafe impl Send for Tables {}

impl Tables {
    fn arena(&mut self, token: u64) -> Option<&mut FarArena> {
        self.arenas.iter_mut().map(|(_, a)| a).find(|a| a.id == arena_of(token))
    }

    fn drop_group(&mut self, group: u32) {
        let Self { arenas, retired } = self;
        arenas.take_if(|a| a.group == group, |a| retired.add(a.words.retire()));
    }
}

/// The device. Meant to be a `static`.
pub struct Ism {
    own: Loopback,
    partition: AtomicU16,
    tables: Guarded<Tables>,
}

impl Default for Ism {
    fn default() -> Self {
        Self::new()
    }
}

impl Ism {
    /// In partition 0, without an address until it is first asked for one.
    pub const fn new() -> Self {
        Self::over(Loopback::new())
    }

    const fn over(own: Loopback) -> Self {
        Self { own, partition: AtomicU16::new(0), tables: Guarded::new() }
    }

    /// Puts it into a partition, below [`PARTITIONS`]: its CHID and its GID change.
    pub fn set_partition(&self, partition: u16) {
        self.partition.store(partition, Ordering::Relaxed);
    }

    /// Whether a GID is one of this partition.
    pub fn is_beside(&self, gid: Gid) -> bool {
        gid.hi >> 48 == u64::from(self.chid())
    }

    /// With `slots` buffers per arena and `max_dmbs` in all.
    pub const fn with_limits(slots: u32, max_dmbs: u32) -> Self {
        Self::over(Loopback::with_limits(slots, max_dmbs))
    }

    /// Where the arena of an own buffer lies.
    pub fn place(&self, token: u64) -> Option<Place> {
        let (base, len) = self.own.own_arena(token)?;
        // SAFETY: the first page of an arena, which stays mapped; only the device uses it here.
        let proof = unsafe { &*base.cast::<AtomicU64>() };
        let fresh = random::words()[0] | 1;
        let proof = proof
            .compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|p| p, |_| fresh);
        Some(Place { base: base as u64, len: len as u64, proof })
    }

    /// Makes a peer's buffer writable, which lies at `place` in the process `pid`.
    fn reach(
        &self,
        group: u32,
        owner: Gid,
        token: u64,
        len: u32,
        pid: i32,
        place: Place,
    ) -> Result<Far, AttachError> {
        if !is_dmb_len(len)
            || place.base > HIGHEST
            || !place.base.is_multiple_of(8)
            || place.proof == 0
        {
            return Err(AttachError::BadShare);
        }
        let size = usize::try_from(place.len).map_err(|_| AttachError::BadShare)?;
        let geometry = Geometry::of_segment(size, len).ok_or(AttachError::BadShare)?;
        let (id, slot) = (arena_of(token), slot_of(token));
        if slot >= geometry.slots {
            return Err(AttachError::BadShare);
        }
        far::may_write(pid).map_err(AttachError::Os)?;
        if !found(pid, place) {
            return Err(AttachError::UnknownToken);
        }
        let attach = |t: &mut Tables| {
            if t.arena(token).is_none() {
                let bytes = (geometry.slots as usize * WORDS).next_multiple_of(PAGE);
                let mut words =
                    Segment::create(c"shortwire-ism", bytes).map_err(AttachError::Os)?;
                words.close_fd();
                let arena =
                    FarArena { id, group, owner, pid, place, geometry, words, refs: [0; _] };
                t.arenas.insert(arena).map_err(AttachError::Os)?;
            }
            let a = t.arena(token).ok_or(AttachError::UnknownToken)?;
            if (a.owner, a.group, a.pid, a.place, a.geometry)
                != (owner, group, pid, place, geometry)
            {
                return Err(AttachError::BadShare);
            }
            let far = a.far(slot);
            let refs = &mut a.refs[slot as usize];
            *refs = refs.checked_add(1).ok_or(AttachError::Os(Errno::OVERFLOW))?;
            // Also where an earlier one is counted still: it was given up by a fork child, which
            // has no share in the count. SAFETY: the words of a slot that its owner has only now
            // lent to us.
            unsafe { far.words.write_bytes(0, WORDS) };
            Ok(far)
        };
        self.tables.with(attach).unwrap_or(Err(AttachError::Os(Errno::DEADLK)))
    }

    /// A buffer attached here, and where its count of signals lies.
    fn target(&self, token: u64) -> Option<(Far, u64)> {
        self.tables
            .with(|t| {
                let (a, slot) = (t.arena(token)?, slot_of(token));
                let attached = slot < a.geometry.slots && a.refs[slot as usize] > 0;
                attached
                    .then(|| (a.far(slot), a.place.base + a.geometry.signal_offset(slot) as u64))
            })
            .flatten()
    }
}

/// Whether the arena at `place` is still in the process `pid`.
pub fn found(pid: i32, place: Place) -> bool {
    let mut there = [0; 8];
    far::read(pid, place.base, &mut there).is_ok() && u64::from_ne_bytes(there) == place.proof
}

impl Device for Ism {
    fn name(&self) -> &'static str {
        "ism"
    }

    fn chid(&self) -> u16 {
        chid_of(self.partition.load(Ordering::Relaxed))
    }

    /// Random but for the first 16 bits, which are the CHID.
    fn gid(&self) -> Gid {
        let own = self.own.gid();
        Gid::new(own.hi & (u64::MAX >> 16) | u64::from(self.chid()) << 48, own.lo)
    }

    fn max_dmbs(&self) -> u32 {
        self.own.max_dmbs()
    }

    fn set_max_dmbs(&self, max_dmbs: u32) {
        self.own.set_max_dmbs(max_dmbs);
    }

    fn memory(&self) -> u64 {
        self.own.memory()
    }

    fn admit(&self, gid: Gid) {
        self.own.admit(gid);
    }

    fn query_remote_gid(&self, gid: Gid) -> bool {
        self.is_beside(gid) && (gid == self.gid() || self.own.query_remote_gid(gid))
    }

    fn register_dmb(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        let dmb = self.own.register_dmb(group, peer, len)?;
        // Nobody else ever maps it.
        self.own.close_share(dmb.token);
        Ok(dmb)
    }

    /// The [`Place`] of its arena.
    fn describe_dmb(&self, token: u64, _first: bool) -> Lent {
        Lent {
            told: self.place(token).and_then(|place| place.tell()).unwrap_or_default(),
            fd: None,
        }
    }

    fn release_dmb(&self, token: u64, used: u32) -> bool {
        self.own.release_dmb(token, used)
    }

    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        told: &Told,
        _: Option<RawFd>,
    ) -> Result<Reach, AttachError> {
        let place = Place::told(told).ok_or(AttachError::BadShare)?;
        self.reach(peer.group, peer.gid, token, len, peer.pid, place).map(Reach::Far)
    }

    fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        let detached = self.tables.with(|t| {
            let arena = t.arena(token).filter(|a| a.owner == owner);
            let refs = arena
                .and_then(|a| a.refs.get_mut(slot_of(token) as usize))
                .filter(|refs| **refs > 0);
            refs.map(|refs| *refs -= 1).is_some()
        });
        detached.unwrap_or(false)
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        self.own.unregister_dmb(token)
    }

    fn move_data(
        &self,
        token: u64,
        offset: u32,
        data: *const u8,
        len: u32,
        signal: bool,
    ) -> Result<(), MoveError> {
        let (far, _) = self.target(token).ok_or(MoveError::UnknownToken)?;
        if u64::from(offset) + u64::from(len) > u64::from(far.len) {
            return Err(MoveError::OutOfBounds);
        }
        if !found(far.pid, far.place) {
            return Err(MoveError::Os(Errno::SRCH));
        }
        let (from, to) =
            (piece(data as u64, len as usize), piece(far.addr + u64::from(offset), len as usize));
        // SAFETY: `data` is readable for `len` bytes by the contract of the trait; `to` lies in the
        // buffer that its owner registered for this device.
        let n = unsafe { far::write(far.pid, &[from], &[to]) }.map_err(MoveError::Os)?;
        if n != len as usize {
            return Err(MoveError::Os(Errno::FAULT));
        }
        if signal {
            self.signal_event(token);
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        let Some((far, at)) = self.target(token).filter(|(far, _)| found(far.pid, far.place))
        else {
            return;
        };
        let mut count = [0; 4];
        if far::read(far.pid, at, &mut count).is_ok() {
            let next = u32::from_ne_bytes(count).wrapping_add(1);
            // SAFETY: a local, and a word of the arena that is there for this. A peer that is gone
            // hears nothing.
            let _ = unsafe {
                far::write(far.pid, &[piece(&raw const next as u64, 4)], &[piece(at, 4)])
            };
        }
    }

    fn signals(&self, token: u64) -> Option<u32> {
        self.own.signals(token)
    }

    fn drop_group(&self, group: u32) {
        self.own.drop_group(group);
        self.tables.with(|t| t.drop_group(group));
    }

    fn after_fork_child(&self) {
        self.own.after_fork_child();
        // SAFETY: the child of a fork has one thread, which is here. What the parent had attached
        // stays mapped for connections that both hold.
        unsafe { self.tables.forget() };
    }
}
