//! One end of a TCP connection under observation, and its data path once it is upgraded.
//!
//! A `Conn` lives in the family's shared table: fork children use the same cursors and locks. It is made of parts: whose it is
//! (`identity`), where each direction is (`phase`), what each direction has (`receiver`, `sender`), and what is known of its end
//! (`ending`). Private cursors (`Rx::cons`, `Tx::prod`) are the authority; what the peer publishes in our DMB's `header` is copied
//! once, checked by `Cursor::follow`, and never used unchecked.
#![allow(unsafe_code)]

pub mod bells;
mod bounds;
mod calm;
mod carry;
mod close;
mod ending;
pub mod header;
pub mod identity;
pub mod image;
mod inflight;
mod intact;
mod locked;
mod mapped;
mod options;
pub mod phase;
mod place;
mod reach;
mod ready;
mod recall;
mod receiver;
mod recv;
pub mod rest;
mod revert;
mod send;
mod sender;
pub mod sleepers;
mod switch;
pub mod upgrade;
pub mod verdict;
pub mod wakeups;
mod window;

pub use calm::Calm;
pub use header::*;
pub use ready::{ERR, HUP, IN, OUT, RDHUP};
pub use receiver::{Receiver, Rx};
pub use recv::Got;
pub use send::{Pieces, Sent};
pub use sender::{Sender, Tx};
pub use upgrade::Upgrade;

use ending::Ending;
use identity::Identity;
use locked::Held;
use phase::{self as p, Phase, Receives, Sends};
use reach::{Reach, each};
use window::{Window, header};

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use dibs::ism::Far;
use dibs::verbs::Remote;
use shm::lock::{FastLock, Reentered};

use crate::kind::Kind;
use crate::stats::Wakeups;
use crate::table;
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
}

/// One connection, in parts. The first cache line has what every call looks at; each direction begins one of its own.
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
    identity: Identity,
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

/// A connection's own words are those of its identity.
impl core::ops::Deref for Conn {
    type Target = Identity;
    #[inline(always)]
    fn deref(&self) -> &Identity {
        &self.identity
    }
}

/// What an upgrade found, handed to `Conn::attach`.
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
        self.phase.set(marks)
    }

    pub(crate) fn clear(&self, marks: u32) {
        self.phase.clear(marks);
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
        self.gen_.fetch_add(1, Release);
    }

    /// Exposes our DMB: from here on the peer may switch, and receives look for it.
    pub fn expose(&self, e: &Ends) {
        // SAFETY: before the exposure nobody else looks at `rx`.
        unsafe { self.rx.state.alone().size = e.my_len - HEADER_LEN };
        self.my_token.store(e.my_token, Relaxed);
        self.path.store(path::of(e.kind, false), Relaxed);
        let w = self.window();
        self.forget_image();
        w.tail.store(0, Relaxed);
        w.my_size.store(e.my_len - HEADER_LEN, Relaxed);
        w.my_waits.store(e.my_waits, Relaxed);
        w.bells.store(e.bells.cast_mut(), Relaxed);
        w.my.store(e.my, Release);
        // Written in the peer's stead: it starts armed, because whoever sleeps there sleeps in the kernel, and it may not
        // have attached yet when our first bytes go out.
        self.my().rx_arm.store(1, Release);
        self.phase.turn_receives(|_| Receives::Ready);
    }

    /// Names the peer's DMB, for `commit` to use.
    pub fn attach(&self, peer: Reached, len: u32, token: u64, copy: bool) {
        // SAFETY: before `commit` nobody else looks at `tx`.
        unsafe { self.tx.state.alone().size = len - HEADER_LEN };
        self.peer_token.store(token, Relaxed);
        let w = self.window();
        let Reached { kind, buffer, checked } = peer;
        let (peer, waits) = match buffer {
            Buffer::Mapped(header, waits) => (header, waits),
            Buffer::Far(far) => (self.attach_far(&far), core::ptr::null_mut()),
            Buffer::Linked(remote) => (self.attach_linked(&remote), core::ptr::null_mut()),
        };
        self.path.store(path::of(kind, copy), Relaxed);
        w.peer_size.store(len - HEADER_LEN, Relaxed);
        if checked {
            self.keep_records();
        }
        w.peer_waits.store(waits, Relaxed);
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

    /// Takes the lock of the sending side.
    #[inline(always)]
    fn lock_tx(&self) -> Result<Held<'_, Tx>, Reentered> {
        Ok(self.tx.state.lock(|| self.window().peer_size.load(Relaxed))?.0)
    }

    /// Whether the peer has attached our DMB.
    pub(crate) fn peer_attached(&self) -> bool {
        // SYNC: kind.
        self.my().kind.load(Acquire) & image::KIND_TYPE == 0xfe
    }

    /// Both sides have attached: our sends may switch.
    pub(crate) fn commit(&self) {
        let _held = self.lock_rx();
        // SAFETY: the lock is held, or our own thread holds it further up the stack (signal handler).
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

    /// Whether the peer said that it closed or aborted.
    pub fn peer_gone(&self) -> bool {
        let ph = self.phase();
        ph.has(p::DEAD) || (ph.is_exposed() && self.my().cons.load(Acquire) & (CLOSED | ABORT) != 0)
    }

    /// What is about to be sent goes to the kernel because the ring is no more: to a peer that is gone it makes TCP's reset.
    pub fn sends_past_ring(&self) {
        if self.peer_gone() {
            self.set(p::SENT_TO_GONE);
        }
    }

    /// The device that an upgraded connection goes through.
    pub fn kind(&self) -> Kind {
        match self.path.load(Relaxed) {
            path::ISM => Kind::Ism,
            path::IVSHMEM => Kind::Ivshmem,
            path::VERBS => Kind::Verbs,
            _ => Kind::Loopback,
        }
    }

    /// Whether it uses, or is about to use, what a fork child cannot have: its end of a link of the verbs device.
    pub fn cannot_be_forked(&self) -> bool {
        let own = self.pid.load(Relaxed) == crate::sys::getpid();
        self.is_exposed() && own && self.kind() == Kind::Verbs
    }

    /// Whether it uses, or is about to use, copies that the kernel allows by the rights of ptrace.
    pub fn goes_by_rights(&self) -> bool {
        let ph = self.phase();
        // An upgrade that another process of the family has begun is its own affair until it stands.
        let concerns = ph.is_committed() || self.pid.load(Relaxed) == crate::sys::getpid();
        ph.is_exposed() && concerns && self.kind() == Kind::Ism
    }

    /// Whether it is upgraded, and not back on TCP in both directions.
    pub fn needs_device(&self) -> bool {
        let ph = self.phase();
        ph.is_committed() && !(ph.sends_go_back() && ph.receives_are_back())
    }

    /// Whether the device was taken away; then all its connections have ended.
    #[cold]
    pub(crate) fn has_no_device(&self) -> bool {
        let kind = self.kind();
        if !self.needs_device() || !table::is_removed(kind) {
            return false;
        }
        if !self.phase().has(p::BROKEN) {
            verdict::end_device(kind);
            if !self.phase().has(p::BROKEN) {
                // The process that we were forked from has upgraded it.
                self.break_now(true);
            }
        }
        true
    }

    /// Breaks it, wherever it is used, also at the peer if that is to be told.
    pub(crate) fn break_now(&self, tell: bool) {
        // Its number is the application's and noted nowhere below it.
        if let Some(fd) = crate::sys::another_descriptor_of(self.inode.load(Relaxed)) {
            if tell {
                self.tell_gone(fd);
            }
            self.broken(fd);
            crate::sys::close(fd);
        }
    }

    /// The peer broke the protocol: this connection ends with ECONNRESET, others don't notice. Where the device reaches the
    /// peer no more, all connections of the link group end with it.
    #[cold]
    pub(crate) fn broken(&self, fd: i32) -> i32 {
        if !self.set(p::BROKEN).has(p::BROKEN) {
            if self.cut_off() {
                verdict::end_group(self.group.load(Relaxed));
            }
            let damaged = self.phase().has(p::DAMAGED);
            let removed = table::is_removed(self.kind());
            let why = match (damaged, removed) {
                (true, _) => crate::reason::DAMAGED,
                (_, true) => crate::reason::REMOVED,
                _ => crate::reason::VIOLATION,
            };
            self.reason.store(why.code(), Relaxed);
            if let Some(t) = table::get().filter(|_| damaged || !removed) {
                if damaged { &t.stats.damaged } else { &t.stats.violations }.fetch_add(1, Relaxed);
            }
            crate::sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1i32, 0]);
            // A peer that was told and woken is not to have a FIN, which would pass for an orderly end.
            let told = self.ending.said() & GONE != 0 && self.sends_on_ring();
            crate::sys::shutdown(fd, if told { libc::SHUT_RD } else { libc::SHUT_RDWR });
        }
        libc::ECONNRESET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{MaybeUninit, offset_of};
    use locked::Locked;

    /// A slot in which every byte is `byte`.
    fn slot(byte: u8) -> Conn {
        let mut slot = MaybeUninit::<Conn>::uninit();
        // SAFETY: writable, and any pattern that is a bool is a valid connection.
        unsafe {
            slot.as_mut_ptr().write_bytes(byte, 1);
            slot.assume_init()
        }
    }

    /// All that is in it, but what belongs to the table and the words of locks, which outlive connections.
    fn describe(conn: &Conn) -> String {
        conn.gen_.store(0, Relaxed);
        conn.next_free.store(0, Relaxed);
        let all = format!("{conn:?} {:?} {:?}", conn.rx.snapshot(), conn.tx.snapshot());
        let names = conn.names().map(|addr| addr.key());
        let lock = all.find("FastLock").map(|at| &all[at..at + all[at..].find('}').expect("a struct") + 1]);
        all.replace(lock.expect("two locks"), "") + &format!(" {names:?}")
    }

    #[test]
    fn a_slot_remembers_nothing_of_its_last_connection() {
        let (fresh, used) = (slot(0), slot(1));
        assert_ne!(describe(&fresh), describe(&used));
        fresh.reset();
        used.reset();
        assert_eq!(describe(&fresh), describe(&used));
        assert_eq!((fresh.refs.load(Relaxed), fresh.rx.snapshot().tcp_read), (1, receiver::UNKNOWN));
    }

    #[test]
    fn what_every_call_looks_at_shares_a_cache_line_and_directions_do_not() {
        const LINE: usize = 64;
        let identity = offset_of!(Conn, identity);
        assert_eq!(offset_of!(Conn, phase), 0);
        assert!(offset_of!(Conn, ending) + size_of::<Ending>() <= LINE);
        assert!(
            identity + offset_of!(Identity, bounds) < LINE && identity + offset_of!(Identity, user_rcvlowat) < LINE
        );
        assert!(identity + offset_of!(Identity, pid) < 2 * LINE);
        for (at, cursors) in [
            (offset_of!(Conn, rx), offset_of!(Receiver, state) + Locked::<Rx>::STATE_AT + offset_of!(Rx, published)),
            (offset_of!(Conn, tx), offset_of!(Sender, state) + Locked::<Tx>::STATE_AT + offset_of!(Tx, word)),
        ] {
            assert_eq!((at % LINE, cursors), (0, LINE));
        }
    }
}
