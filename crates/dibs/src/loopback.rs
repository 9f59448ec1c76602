//! The loopback device: two processes of one host, no copy between sender and receiver.
//!
//! A process has one, and its identity lasts as long as the process. Buffers for one peer and group
//! share an *arena*: the first connection between two processes costs a memfd and two mappings,
//! later ones a bit in a table. What remains of the trust in a peer is that it may write into any
//! slot of the arenas that were made for it.
//!
//! Every table is behind one lock. A signal handler that interrupted its holder is refused, never
//! blocked.
#![allow(unsafe_code)]

pub(crate) mod random;
mod tables;
#[cfg(test)]
mod tests;

use crate::pool::Target;
use crate::pool::arena::Geometry;
pub use crate::pool::arena::{FRONT, HEADER, arena_of, slot_of};
use crate::pool::table::Slots;
use crate::{
    AttachError, Device, Dmb, Gid, LOOPBACK_CHID, Lent, MoveError, Peer, Reach, RegisterError,
    Told, is_dmb_len,
};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use rustix::fd::RawFd;
use shm::{Errno, Guarded, Handle};
use tables::Tables;

const DEFAULT_DMBS: u32 = 65536;

/// The device. Meant to be a `static`.
pub struct Loopback {
    gid: [AtomicU64; 2],
    slots: u32,
    /// Pages of free slots are kept: hardware knows them.
    pinned: bool,
    max_dmbs: AtomicU32,
    tables: Guarded<Tables>,
}

impl Default for Loopback {
    fn default() -> Self {
        Self::new()
    }
}

impl Loopback {
    /// With room for 65,536 buffers, and without an address until it is first asked for one.
    pub const fn new() -> Self {
        Self::with_limits(Slots::MAX, DEFAULT_DMBS)
    }

    /// With `slots` buffers per arena (fewer for large ones) and `max_dmbs` in all.
    pub const fn with_limits(slots: u32, max_dmbs: u32) -> Self {
        Self {
            gid: [const { AtomicU64::new(0) }; 2],
            slots,
            pinned: false,
            max_dmbs: AtomicU32::new(max_dmbs),
            tables: Guarded::new(),
        }
    }

    /// [`Self::with_limits`], for memory that a device of hardware writes to.
    pub(crate) const fn pinned(slots: u32, max_dmbs: u32) -> Self {
        let mut this = Self::with_limits(slots, max_dmbs);
        this.pinned = true;
        this
    }

    /// Gives the device its identity, unless it has one. The first call of `gid` does it too.
    pub fn init(&self) {
        let [hi, lo] = uuid();
        // Each half is whosever came first, so that nobody has to wait for anybody here.
        // SYNC: gid. The first half is set last and read first.
        let _ = self.gid[1].compare_exchange(0, lo, Ordering::Release, Ordering::Relaxed);
        let _ = self.gid[0].compare_exchange(0, hi, Ordering::Release, Ordering::Relaxed);
    }

    /// A new identity, as a new process must have. Not while other threads use the device.
    pub fn renew_gid(&self) {
        let [hi, lo] = uuid();
        // SYNC: gid.
        self.gid[1].store(lo, Ordering::Release);
        self.gid[0].store(hi, Ordering::Release);
    }

    /// Takes [`Self::admit`] back.
    pub fn expel(&self, gid: Gid) {
        self.tables.with(|t| t.expel(gid));
    }

    /// [`Device::attach_dmb`] for a group: the buffer's first byte. The arena's descriptor is
    /// needed for its first buffer only.
    pub fn map_dmb(
        &self,
        group: u32,
        owner: Gid,
        token: u64,
        len: u32,
        arena: Option<RawFd>,
    ) -> Result<*mut u8, AttachError> {
        if !is_dmb_len(len) {
            return Err(AttachError::BadShare);
        }
        let here = owner == self.gid();
        let mapped = self.tables.with(|t| t.attach(group, (owner, here), token, len, arena));
        mapped.unwrap_or(Err(AttachError::Os(Errno::DEADLK)))
    }

    /// Whether the buffer's arena is mapped already, so that no share is needed to attach it.
    pub fn has_arena(&self, owner: Gid, token: u64) -> bool {
        self.tables.with(|t| t.pool.peer(token).is_some_and(|a| a.owner == owner)).unwrap_or(false)
    }

    /// The descriptor of the buffer's arena, to be passed to the peer. A handle, because another
    /// thread may close the device's own meanwhile, and its number would be another file's.
    pub fn lend(&self, token: u64) -> Option<Handle> {
        self.tables.with(|t| t.lend(token)).flatten()
    }

    /// Closes the descriptor of the buffer's arena, which is only needed until its peer attached
    /// once.
    pub fn close_share(&self, token: u64) -> bool {
        self.tables
            .with(|t| t.pool.own(token).map(|a| a.segment.close_fd()).is_some())
            .unwrap_or(false)
    }

    /// Base and length of the own arena in which `token` is, without the front.
    pub(crate) fn own_arena(&self, token: u64) -> Option<(*mut u8, usize)> {
        self.tables
            .with(|t| t.pool.own(token).map(|a| (a.memory.base, a.memory.geometry.bytes())))
            .flatten()
    }

    /// The control page of the attached arena in which `token` is; null if there is none.
    pub fn peer_control_page(&self, owner: Gid, token: u64) -> *mut u8 {
        self.tables.with(|t| t.pool.peer_page(owner, token)).unwrap_or(null_mut())
    }

    /// Sleeps until [`Device::signals`] is no longer `seen`, or something else woke the thread.
    pub fn wait_signal(&self, token: u64, seen: u32, timeout: Option<Duration>) -> Option<u32> {
        let word = self.own_signal(token)?;
        // SAFETY: as in `signals`.
        shm::futex::wait(unsafe { &*word }, seen, true, timeout);
        self.signals(token)
    }

    fn target(&self, token: u64) -> Option<Target> {
        self.tables.with(|t| t.pool.target(token)).flatten()
    }

    fn own_signal(&self, token: u64) -> Option<*const AtomicU32> {
        self.tables.with(|t| t.pool.signal(token))?
    }
}

/// Random, in the form of a version 4 UUID, so that neither half is ever 0.
fn uuid() -> [u64; 2] {
    let [hi, lo] = random::words();
    [hi & !0xf000 | 0x4000, lo & !(3 << 62) | 2 << 62]
}

impl Device for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn chid(&self) -> u16 {
        LOOPBACK_CHID
    }

    fn gid(&self) -> Gid {
        // SYNC: gid. Whoever sees the first half sees the second.
        if self.gid[0].load(Ordering::Acquire) == 0 {
            self.init();
        }
        let half = |i: usize| self.gid[i].load(Ordering::Acquire);
        Gid::new(half(0), half(1))
    }

    fn max_dmbs(&self) -> u32 {
        self.max_dmbs.load(Ordering::Relaxed)
    }

    fn set_max_dmbs(&self, max_dmbs: u32) {
        self.max_dmbs.store(max_dmbs, Ordering::Relaxed);
    }

    fn memory(&self) -> u64 {
        self.tables.with(|t| t.pool.bytes()).unwrap_or(0)
    }

    fn admit(&self, gid: Gid) {
        self.tables.with(|t| t.admit(gid));
    }

    fn query_remote_gid(&self, gid: Gid) -> bool {
        gid == self.gid() || self.tables.with(|t| t.is_admitted(gid)).unwrap_or(false)
    }

    fn register_dmb(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        if !is_dmb_len(len) {
            return Err(RegisterError::Os(Errno::INVAL));
        }
        let registered = self
            .tables
            .with(|t| t.register(group, peer, Geometry::new(self.slots, len), self.max_dmbs()));
        registered.unwrap_or(Err(RegisterError::NoMemory))
    }

    /// The arena's descriptor, until the peer has it.
    fn describe_dmb(&self, token: u64, _first: bool) -> Lent {
        Lent { told: Told::default(), fd: self.lend(token) }
    }

    fn delivered(&self, token: u64) {
        self.close_share(token);
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        self.tables.with(|t| t.pool.unregister(token)).unwrap_or(false)
    }

    fn release_dmb(&self, token: u64, used: u32) -> bool {
        self.tables.with(|t| t.release(token, used, self.pinned)).unwrap_or(false)
    }

    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        _: &Told,
        fd: Option<RawFd>,
    ) -> Result<Reach, AttachError> {
        let addr = self.map_dmb(peer.group, peer.gid, token, len, fd)?;
        let page = self.peer_control_page(peer.gid, token);
        // Another thread has dropped the group meanwhile.
        if page.is_null() {
            Err(AttachError::UnknownToken)
        } else {
            Ok(Reach::Mapped { addr, page })
        }
    }

    fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        self.tables.with(|t| t.pool.detach(owner, token)).unwrap_or(false)
    }

    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the trait states the obligation")]
    fn move_data(
        &self,
        token: u64,
        offset: u32,
        data: *const u8,
        len: u32,
        signal: bool,
    ) -> Result<(), MoveError> {
        let target = self.target(token).ok_or(MoveError::UnknownToken)?;
        // SAFETY: the contract of the trait.
        unsafe { target.put(offset, data, len) }?;
        if signal {
            notify(&target);
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        if let Some(target) = self.target(token) {
            notify(&target);
        }
    }

    fn signals(&self, token: u64) -> Option<u32> {
        let word = self.own_signal(token)?;
        // SAFETY: the address stays mapped, also after `drop_group`, and an atomic may be shared.
        // SYNC: signal. Data that was moved before a counted signal is visible.
        Some(unsafe { &*word }.load(Ordering::Acquire))
    }

    /// [`FRONT`] bytes behind the beginning of the arena.
    fn control_page(&self, token: u64) -> *mut u8 {
        self.tables.with(|t| t.pool.page(token)).unwrap_or(null_mut())
    }

    fn drop_group(&self, group: u32) {
        self.tables.with(|t| t.drop_group(group));
    }

    fn after_fork_child(&self) {
        shm::refresh_thread_id();
        // SAFETY: the child of a fork has one thread, which is here and not within `with`.
        unsafe { self.tables.after_fork_child() };
        self.tables.with(Tables::leave);
        self.renew_gid();
    }
}

fn notify(target: &Target) {
    shm::futex::wake(target.count(), u32::MAX >> 1, true);
}
