//! The verbs device: SMC-R's place. A buffer is a registered memory region, and moving data is an
//! RDMA write.
//!
//! Over hardware, or the kernel's emulation of it, through libibverbs, which is opened at run time;
//! where there is none, over a provider in software between processes of one machine
//! ([`::verbs::software`]).
//!
//! A link group has one *link*, a reliable connected queue pair (`link`). What either end must know
//! of it is an [`End`], of a buffer a [`Place`]; both are told beside the messages of the
//! handshake. Writes are not with immediate data: for that the receiver has to post receives and to
//! look at a completion queue, and a library in somebody else's process has no thread that would.
//! Signals are counted in a word of the owner's, which the sender alone writes; sleepers are woken
//! by other means.
//!
//! Buffers are pooled in arenas as those of [`Loopback`], each of them a region of its own from its
//! first use on.
#![allow(unsafe_code)]

mod adapter;
mod device;
mod link;
#[cfg(test)]
mod tests;
mod told;

pub use crate::ism::WORDS;
pub use adapter::{Provider, Unavailable};

pub use link::STAGE;
pub use told::{End, Place};

use crate::pool::retirement::Retirement;
use crate::pool::table::Table;
use crate::{
    AttachError, Device, Dmb, Errno, Gid, Lent, Loopback, MoveError, Peer, Reach, RegisterError,
    Told, is_dmb_len,
};
use ::verbs::abi::{Ibv, Mr};
use ::verbs::far::{Piece, piece};
use adapter::Adapter;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use link::Inner;
use rustix::fd::RawFd;
use shm::{Fresh, Guarded};

const LINKS: usize = 256;
const BUFFERS: usize = 16384;
/// Bytes of the smallest buffer that is made where memory for a larger one cannot be had: what
/// hardware writes to is bounded (RLIMIT_MEMLOCK).
const LEAST: u32 = 64 << 10;
/// Ended links whose memory stays readable for late threads.
const RETIRED: usize = 64;
/// Highest address that a peer may name, with which no sum here overflows.
const HIGHEST: u64 = 1 << 56;

/// A peer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// For [`Verbs::write`].
    pub link: u32,
    /// Where it lies in the peer's memory.
    pub place: Place,
    /// Bytes of the buffer.
    pub len: u32,
    /// [`WORDS`] bytes here that the peer may read, readable for good.
    pub words: *mut u8,
}

/// A region, registered until `Self::end`.
#[derive(Clone, Copy)]
pub struct Memory {
    api: &'static Ibv,
    mr: *mut Mr,
    lkey: u32,
    rkey: u32,
}

impl Memory {
    fn end(self) {
        // SAFETY: ours, and its last use.
        unsafe { (self.api.ibv_dereg_mr)(self.mr) };
    }
}

/// An own buffer, from its first use to the end of its group.
struct Own {
    token: u64,
    group: u32,
    memory: Memory,
    signal: *mut u8,
}

struct Attached {
    token: u64,
    owner: Gid,
    group: u32,
    refs: u8,
    remote: Remote,
}

struct Tables {
    adapter: Option<Adapter>,
    own: Table<Own>,
    attached: Table<Attached>,
    retired: Retirement,
}

impl Fresh for Tables {
    const FRESH: Self = Self {
        adapter: None,
        own: Table::new(BUFFERS),
        attached: Table::new(BUFFERS),
        retired: Retirement::new(RETIRED),
    };
}

// SAFETY: memory of this process and objects of its library, bound to none of its threads.
unsafe impl Send for Tables {}

impl Tables {
    fn own(&mut self, token: u64) -> Option<&mut Own> {
        self.own.iter_mut().map(|(_, own)| own).find(|own| own.token == token)
    }

    fn attached(&mut self, token: u64) -> Option<&mut Attached> {
        self.attached.iter_mut().map(|(_, a)| a).find(|a| a.token == token)
    }
}

/// What a link is made of.
struct Link(Option<Inner>);

impl Fresh for Link {
    const FRESH: Self = Self(None);
}

// SAFETY: memory of this process and objects of its library, bound to none of its threads.
unsafe impl Send for Link {}

/// A place for a link. Its number changes with each use.
struct Slot {
    number: AtomicU32,
    group: AtomicU32,
    link: Guarded<Link>,
}

impl Slot {
    #[expect(clippy::declare_interior_mutable_const, reason = "copied for each slot")]
    const FREE: Self =
        Self { number: AtomicU32::new(0), group: AtomicU32::new(0), link: Guarded::new() };
}

/// The device. Meant to be a `static`.
pub struct Verbs {
    own: Loopback,
    /// What moves a descriptor of the library's out of the application's way.
    park: fn(i32) -> i32,
    /// What is open: 0 nothing yet, 1 hardware, 2 software.
    provider: AtomicU32,
    tables: Guarded<Tables>,
    links: [Slot; LINKS],
    turn: AtomicU32,
}

impl Default for Verbs {
    fn default() -> Self {
        Self::new()
    }
}

/// No signal handler runs on this thread until it is dropped.
struct Masked(libc::sigset_t);

impl Masked {
    fn new() -> Self {
        // SAFETY: plain data, any of which is a set of signals.
        let (mut all, mut before) =
            unsafe { core::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
        // SAFETY: a set of our own.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: this thread's own mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) };
        Self(before)
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: what was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, core::ptr::null_mut()) };
    }
}

impl Verbs {
    /// With 1024 buffers per arena and 16,384 in all.
    pub const fn new() -> Self {
        Self::with_limits(1024, BUFFERS as u32)
    }

    /// With `slots` buffers per arena and `max_dmbs` in all.
    pub const fn with_limits(slots: u32, max_dmbs: u32) -> Self {
        Self {
            own: Loopback::pinned(slots, max_dmbs),
            park: |fd| fd,
            provider: AtomicU32::new(0),
            tables: Guarded::new(),
            links: [const { Slot::FREE }; LINKS],
            turn: AtomicU32::new(1),
        }
    }

    /// The library opens two descriptors. `park` tells the number to which it has moved one.
    pub const fn parking(mut self, park: fn(i32) -> i32) -> Self {
        self.park = park;
        self
    }

    /// A descriptor of the library's has another number besides; back when nobody uses the old one
    /// any more.
    pub fn moved_fd(&self, old: i32, new: i32) {
        self.with(|t| t.adapter.inspect(|adapter| adapter.moved_fd(old, new)));
        for slot in &self.links {
            let _masked = Masked::new();
            slot.link.with_kept(|_| ());
        }
    }

    /// Opens a device, unless one is open: the software provider where there is no other, if that
    /// is wanted.
    pub fn open(&self, software: bool) -> Result<Provider, Unavailable> {
        if let Some(known) = self.provider() {
            return Ok(known);
        }
        let opened = self.with(|t| {
            if t.adapter.is_none() {
                let hardware = Adapter::hardware().inspect(|adapter| adapter.park(self.park));
                t.adapter = Some(if software {
                    hardware.or_else(|_| Adapter::software())?
                } else {
                    hardware?
                });
            }
            t.adapter.ok_or(Unavailable::NoDevice)
        });
        let provider = opened.unwrap_or(Err(Unavailable::Os(Errno::DEADLK)))?.provider;
        self.provider.store(if provider == Provider::Hardware { 1 } else { 2 }, Ordering::Release);
        Ok(provider)
    }

    /// What is open.
    pub fn provider(&self) -> Option<Provider> {
        match self.provider.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Provider::Hardware),
            _ => Some(Provider::Software),
        }
    }

    /// A buffer of `len` bytes, and no fewer.
    fn register(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        self.open(true).map_err(|_| RegisterError::Os(Errno::NODEV))?;
        let link = self.link_of(group)?;
        let dmb = self.own.register_dmb(group, peer, len)?;
        // Nobody else ever maps it.
        self.own.close_share(dmb.token);
        let registered = self.with(|t| {
            if t.own(dmb.token).is_some() {
                return Ok(());
            }
            let adapter =
                t.adapter.filter(Adapter::is_permitted).ok_or(RegisterError::Os(Errno::NODEV))?;
            let signal =
                self.at(link, Inner::take_signal).unwrap_or(Err(RegisterError::NoMemory))?;
            let memory = adapter
                .register(dmb.addr, dmb.len as usize, adapter.writable())
                .map_err(RegisterError::from);
            let made = memory.and_then(|memory| {
                let own = Own { token: dmb.token, group, memory, signal };
                t.own.insert(own).map(drop).map_err(|_| {
                    memory.end();
                    RegisterError::NoSpace
                })
            });
            if made.is_err() {
                self.at(link, |inner| inner.drop_signal(signal));
            }
            made
        });
        match registered.unwrap_or(Err(RegisterError::NoMemory)) {
            Ok(()) => Ok(dmb),
            Err(e) => {
                self.own.unregister_dmb(dmb.token);
                self.own.release_dmb(dmb.token, 0);
                Err(e)
            }
        }
    }

    /// Where an own buffer lies.
    pub fn place(&self, token: u64) -> Option<Place> {
        let (base, len) = self.own.own_arena(token)?;
        let found = self.with(|t| t.own(token).map(|own| (own.signal as u64, own.memory)))??;
        // SAFETY: a region of ours, which lasts as long as its group.
        let addr = unsafe { (*found.1.mr).addr } as u64;
        let within = (base as u64..base as u64 + len as u64).contains(&addr);
        within.then_some(Place { addr, signal: found.0, rkey: found.1.rkey })
    }

    /// Our end of a group's link.
    pub fn end(&self, group: u32) -> Option<End> {
        self.at(self.number_of(group)?, |inner| inner.own_end())
    }

    /// Connects a group's link to the peer's end, in the process `pid`; once.
    pub fn connect(&self, group: u32, end: End, pid: i32) -> Result<(), Errno> {
        let link = self.number_of(group).ok_or(Errno::NOTCONN)?;
        self.at(link, |inner| inner.connect(end, pid)).unwrap_or(Err(Errno::NOTCONN))
    }

    /// The peer has connected its end of a link, as what it wrote shows: now we may write. Before
    /// that requests fail with [`Errno::AGAIN`].
    pub fn meet(&self, link: u32) {
        self.at(link, Inner::meet);
    }

    /// Whether a group's link, of which both ends are connected, leads to the peer and back.
    pub fn probe(&self, group: u32) -> Result<(), Errno> {
        let link = self.number_of(group).ok_or(Errno::NOTCONN)?;
        self.at(link, Inner::probe).unwrap_or(Err(Errno::NOTCONN))
    }

    /// Whether a request of a group's link has failed: then all others do.
    fn is_broken(&self, group: u32) -> bool {
        self.number_of(group)
            .and_then(|link| self.at(link, |inner| inner.is_broken()))
            .unwrap_or(true)
    }

    /// Makes a peer's buffer writable over the group's link, which is connected.
    fn reach(
        &self,
        group: u32,
        owner: Gid,
        token: u64,
        len: u32,
        place: Place,
    ) -> Result<Remote, AttachError> {
        let aligned = place.addr.is_multiple_of(8) && place.signal.is_multiple_of(8);
        if !is_dmb_len(len) || !aligned || place.addr > HIGHEST || place.rkey == 0 {
            return Err(AttachError::BadShare);
        }
        let link = self.number_of(group).ok_or(AttachError::UnknownToken)?;
        let attach = |t: &mut Tables| {
            if t.attached(token).is_none() {
                let words = self.at(link, |inner| inner.peer.and_then(|_| inner.take_image()));
                let words = words.flatten().ok_or(AttachError::Os(Errno::NOTCONN))?;
                let remote = Remote { link, place, len, words };
                t.attached.insert(Attached { token, owner, group, refs: 0, remote }).map_err(
                    |e| {
                        self.at(link, |inner| inner.drop_image(words));
                        AttachError::Os(e)
                    },
                )?;
            }
            let a = t.attached(token).ok_or(AttachError::UnknownToken)?;
            if (a.owner, a.group, a.remote.place, a.remote.len) != (owner, group, place, len) {
                return Err(AttachError::BadShare);
            }
            a.refs = a.refs.checked_add(1).ok_or(AttachError::Os(Errno::OVERFLOW))?;
            Ok(a.remote)
        };
        self.with(attach).unwrap_or(Err(AttachError::Os(Errno::DEADLK)))
    }

    /// Gathers `here`, of at most [`STAGE`] bytes, and writes it to the pieces there, in order:
    /// what completed is in the peer's memory.
    ///
    /// # Safety
    /// `here` is readable.
    pub unsafe fn write(
        &self,
        link: u32,
        key: u32,
        here: &[Piece],
        there: &[Piece],
    ) -> Result<usize, Errno> {
        // SAFETY: by the contract.
        self.at(link, |inner| unsafe { inner.write(key, here, there) })
            .unwrap_or(Err(Errno::NOTCONN))
    }

    /// Fills `to` from a peer's buffer, or whatever else `key` opens.
    pub fn read(&self, link: u32, key: u32, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.at(link, |inner| inner.read(key, addr, to)).unwrap_or(Err(Errno::NOTCONN))
    }

    /// Fills `to` from the peer's image of a header of ours.
    pub fn read_image(&self, link: u32, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
        let read = |inner: &mut Inner| {
            let peer = inner.peer.ok_or(Errno::NOTCONN)?;
            // The address may be anything, and a request that is refused there would end the link.
            let offset = addr.checked_sub(peer.images_at).ok_or(Errno::FAULT)?;
            if offset > (link::IMAGES - to.len().min(link::IMAGES)) as u64 {
                return Err(Errno::FAULT);
            }
            inner.read(peer.images, addr, to)
        };
        self.at(link, read).unwrap_or(Err(Errno::NOTCONN))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Tables) -> R) -> Option<R> {
        let _masked = Masked::new();
        self.tables.with(|t| {
            // Tables that begin anew know of no device that is open.
            if t.adapter.is_none() {
                self.provider.store(0, Ordering::Release);
            }
            f(t)
        })
    }

    fn slot(&self, link: u32) -> &Slot {
        &self.links[link as usize % LINKS]
    }

    /// Runs `f` on a link, if it is still that one.
    fn at<R>(&self, link: u32, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        let slot = self.slot(link);
        let _masked = Masked::new();
        let of_it = |Link(inner): &mut Link| match slot.number.load(Ordering::Relaxed) == link {
            true => inner.as_mut().map(f),
            false => None,
        };
        slot.link.with_kept(of_it).flatten()
    }

    fn take(&self, link: u32) -> Option<Inner> {
        let slot = self.slot(link);
        let _masked = Masked::new();
        slot.link
            .with_kept(|Link(inner)| {
                slot.number.store(0, Ordering::Relaxed);
                inner.take()
            })
            .flatten()
    }

    fn number_of(&self, group: u32) -> Option<u32> {
        self.links.iter().find_map(|slot| {
            let number = slot.number.load(Ordering::Acquire);
            // SYNC: link. Between two looks at the number: of a slot that was emptied and taken again
            // meanwhile, the group would be another link's. Pairs with `link_of`.
            let is_its = number != 0 && slot.group.load(Ordering::Acquire) == group;
            (is_its && slot.number.load(Ordering::Relaxed) == number).then_some(number)
        })
    }

    /// The group's link, made if there is none.
    fn link_of(&self, group: u32) -> Result<u32, RegisterError> {
        if let Some(known) = self.number_of(group) {
            return Ok(known);
        }
        let adapter = self.with(|t| t.adapter).flatten().ok_or(RegisterError::Os(Errno::NODEV))?;
        let mut inner = Some(Inner::create(adapter).map_err(RegisterError::from)?);
        for (i, slot) in self.links.iter().enumerate() {
            let _masked = Masked::new();
            let settled = slot.link.with_kept(|Link(place)| {
                if slot.number.load(Ordering::Relaxed) != 0 {
                    return None;
                }
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
                let number = turn.max(1) * LINKS as u32 + i as u32;
                *place = inner.take();
                // SYNC: link. Behind the emptying of the slot, and in front of its number.
                slot.group.store(group, Ordering::Release);
                slot.number.store(number, Ordering::Release);
                Some(number)
            });
            if let Some(number) = settled.flatten() {
                return Ok(number);
            }
        }
        inner.into_iter().for_each(|inner| inner.end().unmap());
        Err(RegisterError::NoSpace)
    }

    fn target(&self, token: u64) -> Option<Remote> {
        self.with(|t| t.attached(token).map(|a| a.remote)).flatten()
    }
}
