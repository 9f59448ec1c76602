//! One end of a TCP connection under observation, and its data path once it is upgraded.
//!
//! A `Conn` lives in memory that fork children share: they use the same cursors and locks. It is
//! made of parts: whose it is (`identity`), where each direction is (`phase`), what each direction
//! has (`receiver`, `sender`), and what is known of its end (`ending`). Private cursors
//! (`Rx::cons`, `Tx::prod`) are the authority; what the peer publishes in our DMB's `header` is
//! copied once, checked by `Cursor::follow`, and never used unchecked.
#![allow(unsafe_code)]

pub mod announce;
#[allow(clippy::multiple_unsafe_ops_per_block)]
pub mod bells;
mod bounds;
mod broken;
mod calm;
mod carry;
mod close;
mod doorbells;
mod ending;
pub mod header;
pub mod identity;
pub mod image;
mod inflight;
mod intact;
mod locked;
mod mapped;
mod options;
mod overtaken;
mod patience;
pub mod phase;
mod pieces;
mod place;
mod quick;
mod reach;
mod ready;
mod recall;
mod receiver;
mod recv;
pub mod rest;
mod revert;
mod ringing;
mod send;
mod sender;
pub mod sleepers;
mod steps;
mod switch;
mod takeback;
#[cfg(test)]
mod together;
pub mod upgrade;
pub mod verdict;
pub mod wakeups;
mod window;

pub use calm::Calm;
pub use header::*;
pub use patience::{any_is_stuck, take_stuck};
pub use pieces::Pieces;
pub use ready::{ERR, HUP, IN, OUT, RDHUP};
pub use receiver::{Receiver, Rx};
pub use recv::{Got, RecvError};
pub use revert::Flushed;
pub use send::{SendError, Sent};
pub use sender::{Sender, Tx};
pub use upgrade::Upgrade;

use ending::Ending;
use identity::Identity;
use locked::Held;
use phase::{self as p, Phase, Receives, Sends};
use reach::{Reach, each};
use window::{Window, header};

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use dibs::ism::Far;
use dibs::loopback::slot_of;
use dibs::verbs::Remote;
use shm::lock::{FastLock, Reentered};

use crate::kind::Kind;
use crate::log;
use crate::reason::{self, Reason};
use crate::release::Releases;
use crate::stats::Wakeups;
use crate::table::{self, Own};
use bells::Bells;

/// More doorbells on the stream than an honest peer ever leaves there, one for each sleep of ours.
const FLOOD: u32 = 1 << 20;

/// How the bytes of a connection reach the peer.
pub mod path {
    /// Stored in its mapped buffer.
    pub const DIRECT: u32 = 0;
    /// By loopback's move_data.
    pub const COPY: u32 = 1;
    /// By the ism device.
    pub const ISM: u32 = 2;
    /// Stored in its buffer in a bar.
    pub const IVSHMEM: u32 = 3;
    /// By RDMA.
    pub const VERBS: u32 = 4;

    /// That of a device; `copy` where loopback shall copy.
    pub fn of(kind: crate::kind::Kind, copy: bool) -> u32 {
        use crate::kind::Kind;
        match kind {
            Kind::Loopback if copy => COPY,
            Kind::Loopback => DIRECT,
            Kind::Ism => ISM,
            Kind::Ivshmem => IVSHMEM,
            Kind::Verbs => VERBS,
        }
    }

    /// The device that a connection with this path goes by.
    pub fn kind(path: u32) -> crate::kind::Kind {
        use crate::kind::Kind;
        match path {
            ISM => Kind::Ism,
            IVSHMEM => Kind::Ivshmem,
            VERBS => Kind::Verbs,
            _ => Kind::Loopback,
        }
    }
}

/// One connection, in parts. The first cache line has what every call looks at; each direction
/// begins one of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Conn {
    phase: phase::Word,
    /// Sends plus receives so far.
    pub ops: AtomicU32,
    /// Bytes moved over TCP before the upgrade.
    pub tcp_bytes: AtomicU64,
    /// Number of operations at which the upgrade is looked at again; u32::MAX: never.
    pub next_try: AtomicU32,
    pub(crate) next_free: AtomicU32,
    ending: Ending,
    /// Whose it is.
    pub identity: Identity,
    /// Our receives.
    pub rx: Receiver,
    /// Our sends.
    pub tx: Sender,
    /// How far its upgrade has come.
    pub upgrade: Upgrade,
    /// By doorbells of the peer.
    pub wakeups: Wakeups,
    /// Threads that wait.
    pub sleepers: sleepers::Sleepers,
}

/// What an upgrade found, handed to `Conn::expose`.
pub struct Ends {
    /// Our DMB, header first.
    pub my: *mut DmbHeader,
    /// Its length in bytes.
    pub my_len: u32,
    /// Its token.
    pub my_token: u64,
    /// Our control page.
    pub my_waits: *mut Waits,
    /// Bells of the waits in it; null if there are none.
    pub bells: *const Bells,
    /// The device that has it.
    pub kind: Kind,
}

/// Where a peer's buffer is.
pub enum Buffer {
    /// Mapped here: its header, and the control page beside it.
    Mapped(*mut DmbHeader, *mut Waits),
    /// In the memory of another process.
    Far(Far),
    /// At the other end of a link.
    Linked(Remote),
}

/// A peer's buffer within reach.
pub struct Reached {
    /// By which device.
    pub kind: Kind,
    /// Where it is.
    pub buffer: Buffer,
    /// Whether a checksum goes along.
    pub checked: bool,
}

impl Conn {
    /// Where it is, and what has become of it.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase.now()
    }

    /// Sets marks; what was before.
    pub(crate) fn set(&self, marks: u32) -> Phase {
        let was = self.phase.set(marks);
        self.stir();
        was
    }

    pub(crate) fn clear(&self, marks: u32) {
        self.phase.clear(marks);
        self.stir();
    }

    /// As [`phase::Word::turn_sends`].
    fn turn_sends(&self, next: impl Fn(Sends) -> Sends) -> Sends {
        let was = self.phase.turn_sends(next);
        self.stir();
        was
    }

    /// As [`phase::Word::turn_receives`].
    fn turn_receives(&self, next: impl Fn(Receives) -> Receives) -> Receives {
        let was = self.phase.turn_receives(next);
        self.stir();
        was
    }

    /// What this process notes of it for itself.
    #[inline]
    pub fn own(&self) -> &'static Own {
        table::own_at(core::ptr::from_ref(self).cast())
    }

    /// It is to belong to this link group.
    pub(crate) fn join(&self, group: u32) {
        self.own().group.store(group, Relaxed);
        self.identity.group.store(group, Relaxed);
    }

    /// The link group it belongs to.
    pub fn link_group(&self) -> u32 {
        self.own().group.load(Relaxed)
    }

    /// Tokens of our DMB and of the peer's, 0: there is none.
    pub fn tokens(&self) -> [u64; 2] {
        let own = self.own();
        [&own.my_token, &own.peer_token].map(|token| token.load(Relaxed))
    }

    /// It is not to be upgraded (again).
    pub fn freeze(&self) {
        self.set(p::FROZEN);
    }

    #[inline]
    fn window(&self) -> &'static Window {
        window::of(self)
    }

    /// Whether what an upgrade maps can be noted.
    pub(crate) fn can_map(&self) -> bool {
        window::ready(self)
    }

    #[inline]
    fn my(&self) -> &DmbHeader {
        header(&self.window().my)
    }

    #[inline]
    fn peer(&self) -> &DmbHeader {
        header(&self.window().peer)
    }

    /// Our wait words, in the peer's control page; null before there is one.
    pub fn peer_waits(&self) -> *const Waits {
        self.window().peer_waits.load(Relaxed)
    }

    /// Makes a fresh slot ready for a new socket.
    pub fn reset(&self) {
        self.phase.reset();
        for word in [&self.ops, &self.next_try] {
            word.store(0, Relaxed);
        }
        self.tcp_bytes.store(0, Relaxed);
        self.upgrade.reset();
        self.ending.reset();
        self.rx.reset();
        self.tx.reset();
        self.wakeups.clear();
        self.sleepers.clear();
        self.identity.reset();
        // Nobody else changes it: the slot was free, and lies in no other process's file.
        let generation = self.identity.gen_.load(Relaxed).wrapping_add(1);
        self.identity.gen_.store(generation, Release);
    }

    /// It stays TCP, goes back to it, or is reset: who keeps a log is told.
    pub fn tell(&self, why: Reason) {
        if log::is_on()
            && let Some(table) = table::get()
        {
            let was_reset = self.phase().is_broken();
            log::say(&table.log, &log::Note { names: self.identity.names(), was_reset, why });
        }
    }

    /// What it has counted stands elsewhere now, and it counts on from zero.
    pub fn counted(&self) {
        self.rx.counts.reset();
        self.tx.counts.reset();
        self.wakeups.clear();
    }

    /// Exposes our DMB: from here on the peer may switch, and receives look for it.
    pub fn expose(&self, e: &Ends) {
        // SAFETY: before the exposure nobody else looks at `rx`.
        unsafe { self.rx.state.alone().size = e.my_len - HEADER_LEN };
        self.own().my_token.store(e.my_token, Relaxed);
        self.identity.my_token.store(e.my_token, Relaxed);
        self.identity.path.store(path::of(e.kind, false), Relaxed);
        let w = self.window();
        self.forget_image();
        w.tail.store(0, Relaxed);
        w.my_size.store(e.my_len - HEADER_LEN, Relaxed);
        w.my_waits.store(e.my_waits, Relaxed);
        w.bells.store(e.bells.cast_mut(), Relaxed);
        w.announced_in(null_mut(), 0);
        w.my.store(e.my, Release);
        // Written in the peer's stead: it starts armed, because whoever sleeps there sleeps in the
        // kernel, and it may not have attached yet when our first bytes go out.
        self.my().rx_arm.store(1, Release);
        self.phase.turn_receives(|_| Receives::Ready);
    }

    /// Names the peer's DMB, for `commit` to use; `theirs` are the releases that the peer speaks.
    pub fn attach(
        &self,
        peer: Reached,
        len: u32,
        token: u64,
        copy: bool,
        theirs: Option<Releases>,
    ) {
        // SAFETY: before `commit` nobody else looks at `tx`.
        unsafe { self.tx.state.alone().size = len - HEADER_LEN };
        self.own().peer_token.store(token, Relaxed);
        self.identity.peer_token.store(token, Relaxed);
        let w = self.window();
        let Reached { kind, buffer, checked } = peer;
        let (peer, waits) = match buffer {
            Buffer::Mapped(header, waits) => (header, waits),
            Buffer::Far(far) => (self.attach_far(&far), null_mut()),
            Buffer::Linked(remote) => (self.attach_linked(&remote), null_mut()),
        };
        self.identity.path.store(path::of(kind, copy), Relaxed);
        w.peer_size.store(len - HEADER_LEN, Relaxed);
        if checked {
            self.keep_records();
        }
        w.peer_waits.store(waits, Relaxed);
        // Other devices have no place for bits.
        let bits = |page, releases: Option<Releases>| match kind == Kind::Loopback
            && releases.is_some_and(Releases::announces)
        {
            true => announce::in_front_of(page),
            false => null_mut(),
        };
        w.announces_in(bits(waits, Some(Releases::ours())), slot_of(token));
        let my_token = self.own().my_token.load(Relaxed);
        w.announced_in(bits(w.my_waits.load(Relaxed), theirs), slot_of(my_token));
        w.peer.store(peer, Release);
        each!(self.reach(), reach => reach.introduce(self.with_bounds(0)));
    }

    /// Takes the lock of the receiving side.
    #[inline(always)]
    fn lock_rx(&self) -> Result<Held<'_, Rx>, Reentered> {
        let (held, left) = self.rx.state.lock(|| self.window().my_size.load(Relaxed))?;
        if left {
            self.rx.word.store(held.cons.wire(), Relaxed);
        }
        Ok(held)
    }

    /// Takes the lock of the receiving side if nobody is inside who lives.
    fn try_lock_rx(&self) -> Option<Held<'_, Rx>> {
        let size = || self.window().my_size.load(Relaxed);
        let (held, left) = self.rx.state.try_lock_recovering(size)?;
        if left {
            self.rx.word.store(held.cons.wire(), Relaxed);
        }
        Some(held)
    }

    /// Takes the lock of the sending side.
    #[inline(always)]
    fn lock_tx(&self) -> Result<Held<'_, Tx>, Reentered> {
        Ok(self.tx.state.lock(|| self.window().peer_size.load(Relaxed))?.0)
    }

    /// Whether the peer has attached our DMB.
    pub(crate) fn peer_attached(&self) -> bool {
        self.my().is_attached()
    }

    /// Both sides have attached: our sends may switch.
    pub(crate) fn commit(&self) {
        let _held = self.lock_rx();
        // SAFETY: the lock is held, or our own thread holds it further up the stack (signal
        // handler).
        let rx = unsafe { self.rx.state.alone() };
        // What was read before now has not been told.
        rx.published = rx.cons.pos;
        each!(self.reach(), reach => reach.open(rx.cons.wire() | self.ending.said()));
        self.phase.turn_sends(Sends::committed);
    }

    /// The peer will never learn of our half: nothing may switch.
    pub(crate) fn withdraw(&self) {
        self.phase.turn_sends(Sends::withdrawn);
        self.phase.turn_receives(Receives::withdrawn);
        self.freeze();
    }

    /// Nobody was told of our buffer who will use it: receives are as before it was exposed.
    pub(crate) fn hide(&self) {
        self.phase.turn_receives(Receives::withdrawn);
        if let Ok(mut rx) = self.lock_rx() {
            // What is read from now on is not counted.
            rx.tcp_read = receiver::UNKNOWN;
        }
    }

    /// Whether the peer said that it closed or aborted.
    pub fn peer_gone(&self) -> bool {
        let ph = self.phase();
        ph.has(p::DEAD) || (ph.is_exposed() && self.my().cons.load(Acquire) & (CLOSED | ABORT) != 0)
    }

    /// What is about to be sent goes to the kernel because the ring is no more: to a peer that is
    /// gone it makes TCP's reset.
    pub fn sends_past_ring(&self) {
        if self.peer_gone() {
            self.set(p::SENT_TO_GONE);
        }
    }

    /// The device that an upgraded connection goes through.
    pub fn kind(&self) -> Kind {
        path::kind(self.identity.path.load(Relaxed))
    }

    /// Whether it uses, or is about to use, what a fork child cannot have: its end of a link of the
    /// verbs device.
    pub fn cannot_be_forked(&self) -> bool {
        let own = self.identity.pid.load(Relaxed) == crate::sys::getpid();
        self.is_exposed() && own && self.kind() == Kind::Verbs
    }

    /// Whether it uses, or is about to use, copies that the kernel allows by the rights of ptrace.
    pub fn goes_by_rights(&self) -> bool {
        let ph = self.phase();
        // An upgrade that another process of the family has begun is its own affair until it
        // stands.
        let concerns = ph.is_committed() || self.identity.pid.load(Relaxed) == crate::sys::getpid();
        ph.is_exposed() && concerns && self.kind() == Kind::Ism
    }

    /// Whether both directions are back on TCP, or it has ended: nothing more is to be done for
    /// that.
    pub fn is_back(&self) -> bool {
        let ph = self.phase();
        // Receives that were taken back before the peer had switched stay where they were.
        let receives = ph.receives_are_back() || ph.has(p::RECALLED) && !ph.receives_on_ring();
        ph.has(p::BROKEN | p::DEAD | p::CLOSED) || ph.sends_go_back() && receives
    }
}

/// In a fork child, of the connections that it has inherited.
pub(crate) fn after_fork_child() {
    if !table::exists() {
        return;
    }
    let Some(table) = table::get() else { return };
    for (_, conn) in table.here() {
        // The numbers of waits in that page are the parent's: here each connection is waited for by
        // itself.
        conn.window().peer_waits.store(null_mut(), Relaxed);
        image::after_fork_child(conn);
    }
}

#[cfg(test)]
mod tests;
