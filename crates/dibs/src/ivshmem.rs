//! The ivshmem device: buffers in memory that virtual machines share, a bar of a PCI device
//! (1af4:1110). No copy between sender and receiver, as with [`Loopback`](crate::Loopback), whose
//! arenas these are: each lies in an *extent* of the bar (`bar`) in place of a memfd, and is found
//! by its token alone.
//!
//! A process maps the arenas that it needs one by one, so that one which has ended can be taken
//! from under a late thread. There are no futexes between guests: a signal is counted, and whoever
//! sleeps must be woken by other means.
#![allow(unsafe_code)]

mod bar;
mod tables;
#[cfg(test)]
mod tests;

use crate::pool::Target;
use crate::pool::table::Slots;
use crate::{
    AttachError, Device, Dmb, Errno, Gid, IVSHMEM_CHID, MoveError, Peer, Reach, RegisterError, Told,
};
pub use bar::{Bar, GUESTS, MEMBERS, Member};
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::RawFd;
use shm::Guarded;
use tables::{PART, Place, Tables};

const DEFAULT_DMBS: u32 = 65536;
/// Bytes of the smallest buffer that is made where there is no room for a larger one.
const LEAST: u32 = 64 << 10;

/// Why a bar cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarError {
    /// The system refused to look at it or to map it.
    Os(Errno),
    /// A directory, a pipe.
    NotMemory,
    /// A file that others may cut short.
    Unsafe,
    /// Not a power of two from 1 MiB on.
    Size(u64),
    /// All zeros: no broker has used it yet.
    New,
    /// It holds something else, or was damaged.
    Foreign,
    /// Whoever used it first saw another size.
    OtherSize {
        /// Bytes, by the header in the bar.
        told: u64,
        /// Bytes that it has now.
        len: u64,
    },
}

impl fmt::Display for BarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(e) => e.fmt(f),
            Self::NotMemory => f.write_str("not a bar, and not a file"),
            Self::Unsafe => f.write_str("a file that another user may cut short"),
            Self::Size(len) => {
                write!(f, "its size of {len} bytes is not a power of two from 1 MiB on")
            }
            Self::New => f.write_str("no broker has used it yet"),
            Self::Foreign => f.write_str("it holds something else, or was damaged"),
            Self::OtherSize { told, len } => write!(f, "made for {told} bytes, and it has {len}"),
        }
    }
}

impl core::error::Error for BarError {}

/// The device. Meant to be a `static`; it is nothing until [`Self::open`].
pub struct Ivshmem {
    slots: u32,
    max_dmbs: AtomicU32,
    /// Called before a buffer is made or attached.
    used: fn(),
    /// Called where the bar has no room: frees what the dead have left there.
    reclaim: fn(),
    tables: Guarded<Tables>,
}

impl Default for Ivshmem {
    fn default() -> Self {
        Self::new()
    }
}

impl Ivshmem {
    /// Without a bar, and with room for 65,536 buffers.
    pub const fn new() -> Self {
        Self::with_limits(Slots::MAX, DEFAULT_DMBS)
    }

    /// With `slots` buffers per arena (fewer for large ones and small bars) and `max_dmbs` in all.
    pub const fn with_limits(slots: u32, max_dmbs: u32) -> Self {
        Self {
            slots,
            max_dmbs: AtomicU32::new(max_dmbs),
            used: || (),
            reclaim: || (),
            tables: Guarded::new(),
        }
    }

    /// Calls `used` before a buffer is made or attached, and `reclaim` where the bar has no room:
    /// that shall free what the dead have left there.
    pub const fn calling(mut self, used: fn(), reclaim: fn()) -> Self {
        self.used = used;
        self.reclaim = reclaim;
        self
    }

    /// Begins to use a bar. False if it has one.
    pub fn open(&self, bar: Bar, member: Member) -> bool {
        self.tables
            .with(|t| {
                let is_new = t.place.is_none();
                if is_new {
                    t.place = Some(Place { bar, member });
                }
                is_new
            })
            .unwrap_or(false)
    }

    /// Whether it has a bar.
    pub fn is_open(&self) -> bool {
        self.tables.with(|t| t.place.is_some()).unwrap_or(false)
    }

    /// The bar, for what concerns all of its members.
    pub fn with_bar<R>(&self, f: impl FnOnce(&Bar, Member) -> R) -> Option<R> {
        self.tables.with(|t| t.place.as_ref().map(|place| f(&place.bar, place.member))).flatten()
    }

    /// Whether arenas are mapped, own or attached.
    pub fn is_used(&self) -> bool {
        self.tables.with(|t| t.pool.is_used()).unwrap_or(true)
    }

    /// The largest buffer that makes sense in this bar.
    pub fn largest(&self) -> u32 {
        let part = self.with_bar(|bar, _| bar.size() / PART).unwrap_or(0);
        part.clamp(1 << 14, 1 << 24) as u32
    }

    /// Of `len` bytes, and no fewer.
    fn register(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        let limits = [self.slots, self.max_dmbs()];
        self.tables
            .with(|t| t.register(group, peer, len, limits))
            .unwrap_or(Err(RegisterError::NoMemory))
    }

    /// [`Device::attach_dmb`] for a group: the buffer's first byte.
    pub fn map_dmb(
        &self,
        group: u32,
        owner: Gid,
        token: u64,
        len: u32,
    ) -> Result<*mut u8, AttachError> {
        if !crate::is_dmb_len(len) {
            return Err(AttachError::BadShare);
        }
        (self.used)();
        self.tables
            .with(|t| t.attach(group, owner, token, len))
            .unwrap_or(Err(AttachError::Os(Errno::DEADLK)))
    }

    /// The first page of the attached arena in which `token` is; null if there is none.
    pub fn peer_control_page(&self, owner: Gid, token: u64) -> *mut u8 {
        self.tables.with(|t| t.pool.peer_page(owner, token)).unwrap_or(core::ptr::null_mut())
    }

    fn target(&self, token: u64) -> Option<Target> {
        self.tables.with(|t| t.pool.target(token)).flatten()
    }
}

impl Device for Ivshmem {
    fn name(&self) -> &'static str {
        "ivshmem"
    }

    fn chid(&self) -> u16 {
        IVSHMEM_CHID
    }

    /// The bar's id and the process's number in it; zeros without a bar.
    fn gid(&self) -> Gid {
        self.with_bar(|bar, member| Gid::new(bar.id(), member.gid)).unwrap_or_default()
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

    fn query_remote_gid(&self, gid: Gid) -> bool {
        self.with_bar(|bar, _| gid.hi == bar.id() && bar.knows(gid.lo)).unwrap_or(false)
    }

    /// A bar is small, and what is in it may be the dead's: these go first, then the buffer gets
    /// smaller.
    fn register_dmb(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        if !crate::is_dmb_len(len) {
            return Err(RegisterError::Os(Errno::INVAL));
        }
        (self.used)();
        let mut len = len.min(self.largest());
        let mut reclaimed = false;
        loop {
            match self.register(group, peer, len) {
                Err(RegisterError::NoMemory) if !reclaimed => {
                    (self.reclaim)();
                    reclaimed = true;
                }
                Err(RegisterError::NoMemory) if len > LEAST => len /= 2,
                done => return done,
            }
        }
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        self.tables.with(|t| t.pool.unregister(token)).unwrap_or(false)
    }

    fn release_dmb(&self, token: u64, _used: u32) -> bool {
        // A bar's pages cannot be given back one by one.
        self.tables.with(|t| t.pool.release(token, |_, _| false)).unwrap_or(false)
    }

    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        _: &Told,
        _: Option<RawFd>,
    ) -> Result<Reach, AttachError> {
        let addr = self.map_dmb(peer.group, peer.gid, token, len)?;
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
            target.count();
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        if let Some(target) = self.target(token) {
            target.count();
        }
    }

    fn signals(&self, token: u64) -> Option<u32> {
        let word = self.tables.with(|t| t.pool.signal(token))??;
        // SAFETY: the address stays mapped, also after `drop_group`, and an atomic may be shared.
        // SYNC: signal. Data that was moved before a counted signal is visible.
        Some(unsafe { &*word }.load(Ordering::Acquire))
    }

    /// The first page of the own arena in which `token` is.
    fn control_page(&self, token: u64) -> *mut u8 {
        self.tables.with(|t| t.pool.page(token)).unwrap_or(core::ptr::null_mut())
    }

    /// The peer has dropped the group, or is dead: its own buffers are given up.
    fn is_over(&self, group: u32) -> bool {
        self.tables.with(|t| t.is_over(group)).unwrap_or(false)
    }

    fn is_short(&self) -> bool {
        self.with_bar(|bar, _| bar.is_short()).unwrap_or(false)
    }

    fn drop_group(&self, group: u32) {
        self.tables.with(|t| t.drop_group(group));
    }

    /// The child has no bar yet.
    fn after_fork_child(&self) {
        // SAFETY: the child of a fork has one thread, which is here.
        unsafe { self.tables.forget() };
    }
}
