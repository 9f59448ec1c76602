//! The verbs device: SMC-R's place. A buffer is a registered memory region, and moving data is an RDMA write.
//!
//! Over hardware, or the kernel's emulation of it, through libibverbs, which is opened at run time; where there is none,
//! over a provider in software between processes of one machine ([`::verbs::software`]).
//!
//! A link group has one *link*, a reliable connected queue pair ([`link`]). What either end must know of it is an [`End`], of
//! a buffer a [`Place`]; both are told beside the messages of the handshake. Writes are not with immediate data: for that the
//! receiver has to post receives and to look at a completion queue, and a library in somebody else's process has no thread
//! that would. Signals are counted in a word of the owner's, which the sender alone writes; sleepers are woken by other means.
//!
//! Buffers are pooled in arenas as those of [`Loopback`], each of them a region of its own from its first use on.

mod adapter;
mod link;
#[cfg(test)]
mod tests;

pub use crate::ism::WORDS;
pub use adapter::{Provider, Unavailable};

pub use link::STAGE;

use crate::loopback::table::Table;
use crate::{AttachError, Device, Dmb, Errno, Gid, Loopback, MoveError, NoCopy, RegisterError, is_dmb_len};
use ::verbs::abi::{Ibv, Mr};
use ::verbs::far::{Piece, piece};
use adapter::Adapter;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use link::Inner;
use shm::{FastLock, Retired};

const LINKS: usize = 256;
const BUFFERS: usize = 16384;
/// Ended links whose memory stays readable for late threads.
const RETIRED: usize = 64;
/// Highest address that a peer may name, with which no sum here overflows.
const HIGHEST: u64 = 1 << 56;

/// One end of a link, as the other one must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct End {
    pub gid: [u8; 16],
    pub qpn: u32,
    pub psn: u32,
    pub lid: u16,
    /// As verbs count it.
    pub mtu: u16,
    /// Where the images of headers lie, which the peer may read, and their key.
    pub images_at: u64,
    /// See `images_at`.
    pub images: u32,
    /// Key of the counts of signals.
    pub signals: u32,
}

impl End {
    pub const BYTES: usize = 44;

    /// In the byte order of networks.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..16].copy_from_slice(&self.gid);
        for (at, word) in [(16, self.qpn), (20, self.psn), (28, self.images), (32, self.signals)] {
            out[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        out[24..26].copy_from_slice(&self.lid.to_be_bytes());
        out[26..28].copy_from_slice(&self.mtu.to_be_bytes());
        out[36..].copy_from_slice(&self.images_at.to_be_bytes());
        out
    }

    pub fn decode(raw: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&raw[..16]);
        let half = |at: usize| u16::from_be_bytes([raw[at], raw[at + 1]]);
        let (qpn, psn, images, signals) = (word(16), word(20), word(28), word(32));
        let images_at = u64::from(word(36)) << 32 | u64::from(word(40));
        Self { gid, qpn, psn, lid: half(24), mtu: half(26), images_at, images, signals }
    }
}

/// Where a buffer lies in its owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    pub addr: u64,
    /// Of its count of signals.
    pub signal: u64,
    pub rkey: u32,
}

/// A peer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// For [`Verbs::write`].
    pub link: u32,
    pub place: Place,
    pub len: u32,
    /// [`WORDS`] bytes here that the peer may read, readable for good.
    pub words: *mut u8,
}

/// A region, registered until [`Self::end`].
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
    retired: Table<(u64, Retired)>,
    retirements: u64,
}

impl Tables {
    const fn new() -> Self {
        Self {
            adapter: None,
            own: Table::new(BUFFERS),
            attached: Table::new(BUFFERS),
            retired: Table::new(RETIRED),
            retirements: 0,
        }
    }

    fn own(&mut self, token: u64) -> Option<&mut Own> {
        self.own.iter_mut().map(|(_, own)| own).find(|own| own.token == token)
    }

    fn attached(&mut self, token: u64) -> Option<&mut Attached> {
        self.attached.iter_mut().map(|(_, a)| a).find(|a| a.token == token)
    }
}

/// A link, and who is at it. Its number changes with each use.
struct Slot {
    lock: FastLock<false>,
    number: AtomicU32,
    group: AtomicU32,
    inner: UnsafeCell<Option<Inner>>,
}

impl Slot {
    #[expect(clippy::declare_interior_mutable_const, reason = "copied for each slot")]
    const FREE: Self = Self {
        lock: FastLock::new(),
        number: AtomicU32::new(0),
        group: AtomicU32::new(0),
        inner: UnsafeCell::new(None),
    };
}

/// The device. Meant to be a `static`.
pub struct Verbs {
    own: Loopback,
    /// What moves a descriptor of the library's out of the application's way.
    park: fn(i32) -> i32,
    /// What is open: 0 nothing yet, 1 hardware, 2 software.
    provider: AtomicU32,
    lock: FastLock<false>,
    tables: UnsafeCell<Tables>,
    links: [Slot; LINKS],
    turn: AtomicU32,
}

// SAFETY: cells are only reached through their locks.
unsafe impl Sync for Verbs {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for Verbs {}

impl Default for Verbs {
    fn default() -> Self {
        Self::new()
    }
}

/// No signal handler runs on this thread until it is dropped.
struct Masked(libc::sigset_t);

impl Masked {
    fn new() -> Self {
        // SAFETY: plain data that the calls fill in; this thread's own mask.
        unsafe {
            let (mut all, mut before) = core::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            Self(before)
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: what was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, core::ptr::null_mut()) };
    }
}

impl Verbs {
    pub const fn new() -> Self {
        Self::with_limits(1024, BUFFERS as u32)
    }

    /// With `slots` buffers per arena and `max_dmbs` in all.
    pub const fn with_limits(slots: u32, max_dmbs: u32) -> Self {
        Self {
            own: Loopback::pinned(slots, max_dmbs),
            park: |fd| fd,
            provider: AtomicU32::new(0),
            lock: FastLock::new(),
            tables: UnsafeCell::new(Tables::new()),
            links: [const { Slot::FREE }; LINKS],
            turn: AtomicU32::new(1),
        }
    }

    /// The library opens two descriptors. `park` tells the number to which it has moved one.
    pub const fn parking(mut self, park: fn(i32) -> i32) -> Self {
        self.park = park;
        self
    }

    /// A descriptor of the library's has another number besides; back when nobody uses the old one any more.
    pub fn moved_fd(&self, old: i32, new: i32) {
        self.with(|t| t.adapter.inspect(|adapter| adapter.moved_fd(old, new)));
        for slot in &self.links {
            let _masked = Masked::new();
            drop(slot.lock.lock());
        }
    }

    /// Opens a device, unless one is open: the software provider where there is no other, if that is wanted.
    pub fn open(&self, software: bool) -> Result<Provider, Unavailable> {
        if let Some(known) = self.provider() {
            return Ok(known);
        }
        let opened = self.with(|t| {
            if t.adapter.is_none() {
                let hardware = Adapter::hardware().inspect(|adapter| adapter.park(self.park));
                t.adapter = Some(if software { hardware.or_else(|_| Adapter::software())? } else { hardware? });
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

    /// Changes the limit; buffers beyond a lower one stay.
    pub fn set_max_dmbs(&self, max_dmbs: u32) {
        self.own.set_max_dmbs(max_dmbs.min(BUFFERS as u32));
    }

    /// As [`Loopback::memory`].
    pub fn memory(&self) -> u64 {
        self.own.memory()
    }

    /// As [`Loopback::after_fork_child`]. Objects of the library are the parent's: the child opens the device anew.
    pub fn after_fork_child(&self) {
        self.own.after_fork_child();
        // SAFETY: the child of a fork has one thread, which is here. Nothing is dropped: what is mapped stays, and another
        // thread may have been changing it.
        unsafe {
            self.lock.reset();
            core::mem::forget(core::mem::replace(&mut *self.tables.get(), Tables::new()));
            for link in &self.links {
                link.lock.reset();
                link.number.store(0, Ordering::Relaxed);
                core::mem::forget((*link.inner.get()).take());
            }
        }
        self.provider.store(0, Ordering::Relaxed);
    }

    /// `gid` is a device on this host, says the rendezvous.
    pub fn admit(&self, gid: Gid) {
        self.own.admit(gid);
    }

    /// A buffer for `peer`, pooled with the others of `group`, whose link it makes if it is the first.
    pub fn register_in(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        self.open(true).map_err(|_| RegisterError::Os(Errno::NODEV))?;
        let link = self.link_of(group)?;
        let dmb = self.own.register_in(group, peer, len)?;
        // Nobody else ever maps it.
        self.own.close_share(dmb.token);
        let registered = self.with(|t| {
            if t.own(dmb.token).is_some() {
                return Ok(());
            }
            let adapter = t.adapter.filter(Adapter::is_permitted).ok_or(RegisterError::Os(Errno::NODEV))?;
            let signal = self.at(link, Inner::take_signal).unwrap_or(Err(RegisterError::NoMemory))?;
            let memory = adapter.register(dmb.addr, dmb.len as usize, adapter.writable()).map_err(RegisterError::from);
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

    /// Both sides are done with the buffer: its header is zeroed and it may be used again.
    pub fn release_dmb(&self, token: u64, used: u32) -> bool {
        self.own.release_dmb(token, used)
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

    /// The peer has connected its end of a link, as what it wrote shows: now we may write. Before that requests fail with
    /// [`Errno::AGAIN`].
    pub fn meet(&self, link: u32) {
        self.at(link, Inner::meet);
    }

    /// Whether a group's link, of which both ends are connected, leads to the peer and back.
    pub fn probe(&self, group: u32) -> Result<(), Errno> {
        let link = self.number_of(group).ok_or(Errno::NOTCONN)?;
        self.at(link, Inner::probe).unwrap_or(Err(Errno::NOTCONN))
    }

    /// Whether a request of a group's link has failed: then all others do.
    pub fn is_broken(&self, group: u32) -> bool {
        self.number_of(group).and_then(|link| self.at(link, |inner| inner.is_broken())).unwrap_or(true)
    }

    /// Makes a peer's buffer writable over the group's link, which is connected.
    pub fn attach_in(&self, group: u32, owner: Gid, token: u64, len: u32, place: Place) -> Result<Remote, AttachError> {
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
                t.attached.insert(Attached { token, owner, group, refs: 0, remote }).map_err(|e| {
                    self.at(link, |inner| inner.drop_image(words));
                    AttachError::Os(e)
                })?;
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

    /// Each attachment asks for its own. False when it was not attached.
    pub fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        self.with(|t| {
            let Some(a) = t.attached(token).filter(|a| a.owner == owner) else { return false };
            a.refs = a.refs.saturating_sub(1);
            t.attached.take_if(
                |a| a.token == token && a.refs == 0,
                |a| _ = self.at(a.remote.link, |inner| inner.drop_image(a.remote.words)),
            );
            true
        })
        .unwrap_or(false)
    }

    /// Ends all buffers of a group, own and attached, and its link. Addresses stay readable, as zeros.
    pub fn drop_group(&self, group: u32) {
        let ended = self.number_of(group).and_then(|link| self.take(link));
        self.with(|t| {
            t.own.take_if(|own| own.group == group, |own| own.memory.end());
            t.attached.take_if(|a| a.group == group, drop);
            if let Some(inner) = ended {
                t.retirements += 1;
                let oldest = t.retirements.saturating_sub(RETIRED as u64);
                t.retired.take_if(|e| e.0 <= oldest, |(_, place)| place.unmap());
                let _ = t.retired.insert((t.retirements, inner.end()));
            }
        });
        self.own.drop_group(group);
    }

    /// Gathers `here`, of at most [`STAGE`] bytes, and writes it to the pieces there, in order: what completed is in the
    /// peer's memory.
    ///
    /// # Safety
    /// `here` is readable.
    pub unsafe fn write(&self, link: u32, key: u32, here: &[Piece], there: &[Piece]) -> Result<usize, Errno> {
        // SAFETY: by the contract.
        self.at(link, |inner| unsafe { inner.write(key, here, there) }).unwrap_or(Err(Errno::NOTCONN))
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

    /// How often the owner of `token` was signalled, modulo 2^32.
    pub fn signals(&self, token: u64) -> Option<u32> {
        let word = self.with(|t| t.own(token).map(|own| own.signal.cast::<AtomicU64>()))??;
        // SAFETY: a word of the link's segment, readable for good; the peer alone writes it.
        Some(unsafe { &*word }.load(Ordering::Acquire) as u32)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Tables) -> R) -> Option<R> {
        let _masked = Masked::new();
        let (_guard, recovered) = self.lock.lock_recovering().ok()?;
        let tables = self.tables.get();
        if recovered {
            // SAFETY: the guard makes it exclusive. Half changed tables are not dropped.
            unsafe { tables.write(Tables::new()) };
            self.provider.store(0, Ordering::Release);
        }
        // SAFETY: the guard makes it exclusive, and no reference leaves `f`.
        Some(f(unsafe { &mut *tables }))
    }

    fn slot(&self, link: u32) -> &Slot {
        &self.links[link as usize % LINKS]
    }

    /// Runs `f` on a link, if it is still that one.
    fn at<R>(&self, link: u32, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        let slot = self.slot(link);
        let _masked = Masked::new();
        let _guard = slot.lock.lock().ok()?;
        if slot.number.load(Ordering::Relaxed) != link {
            return None;
        }
        // SAFETY: the lock is held.
        unsafe { (*slot.inner.get()).as_mut() }.map(f)
    }

    fn take(&self, link: u32) -> Option<Inner> {
        let slot = self.slot(link);
        let _masked = Masked::new();
        let _guard = slot.lock.lock().ok()?;
        slot.number.store(0, Ordering::Relaxed);
        // SAFETY: the lock is held.
        unsafe { (*slot.inner.get()).take() }
    }

    fn number_of(&self, group: u32) -> Option<u32> {
        let of = |slot: &&Slot| slot.number.load(Ordering::Acquire) != 0 && slot.group.load(Ordering::Relaxed) == group;
        self.links.iter().find(of).map(|slot| slot.number.load(Ordering::Relaxed)).filter(|n| *n != 0)
    }

    /// The group's link, made if there is none.
    fn link_of(&self, group: u32) -> Result<u32, RegisterError> {
        if let Some(known) = self.number_of(group) {
            return Ok(known);
        }
        let adapter = self.with(|t| t.adapter).flatten().ok_or(RegisterError::Os(Errno::NODEV))?;
        let inner = Inner::create(adapter).map_err(RegisterError::from)?;
        for (i, slot) in self.links.iter().enumerate() {
            let _masked = Masked::new();
            let Ok(_guard) = slot.lock.lock() else { continue };
            if slot.number.load(Ordering::Relaxed) == 0 {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
                let number = turn.max(1) * LINKS as u32 + i as u32;
                // SAFETY: the lock is held.
                unsafe { *slot.inner.get() = Some(inner) };
                slot.group.store(group, Ordering::Relaxed);
                slot.number.store(number, Ordering::Release);
                return Ok(number);
            }
        }
        inner.end().unmap();
        Err(RegisterError::NoSpace)
    }

    fn target(&self, token: u64) -> Option<Remote> {
        self.with(|t| t.attached(token).map(|a| a.remote)).flatten()
    }
}

impl Device for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn chid(&self) -> u16 {
        match self.provider() {
            Some(Provider::Software) => crate::VERBS_SOFTWARE_CHID,
            _ => crate::VERBS_CHID,
        }
    }

    fn gid(&self) -> Gid {
        self.own.gid()
    }

    fn max_dmbs(&self) -> u32 {
        self.own.max_dmbs()
    }

    fn query_remote_gid(&self, gid: Gid) -> bool {
        self.own.query_remote_gid(gid)
    }

    fn register_dmb(&self, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        self.register_in(0, peer, len)
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        self.own.unregister_dmb(token)
    }

    fn move_data(&self, token: u64, offset: u32, data: *const u8, len: u32, signal: bool) -> Result<(), MoveError> {
        let remote = self.target(token).ok_or(MoveError::UnknownToken)?;
        if u64::from(offset) + u64::from(len) > u64::from(remote.len) {
            return Err(MoveError::OutOfBounds);
        }
        let mut at = 0;
        while at < len as usize {
            let n = (len as usize - at).min(STAGE);
            let here = piece(data.wrapping_add(at) as u64, n);
            let there = piece(remote.place.addr + u64::from(offset) + at as u64, n);
            // SAFETY: `data` is readable for `len` bytes by the contract of the trait.
            unsafe { self.write(remote.link, remote.place.rkey, &[here], &[there]) }.map_err(MoveError::Os)?;
            at += n;
        }
        if signal {
            self.signal_event(token);
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        let Some(remote) = self.target(token) else { return };
        self.at(remote.link, |inner| {
            let Some(key) = inner.peer.map(|peer| peer.signals) else { return };
            let mut count = [0; 8];
            if inner.read(key, remote.place.signal, &mut count).is_ok() {
                let next = u64::from_ne_bytes(count).wrapping_add(1).to_ne_bytes();
                let (here, there) = (piece(next.as_ptr() as u64, 8), piece(remote.place.signal, 8));
                // SAFETY: a local. A peer that is gone hears nothing.
                let _ = unsafe { inner.write(key, &[here], &[there]) };
            }
        });
    }

    fn no_copy(&self) -> Option<&dyn NoCopy> {
        None
    }
}
