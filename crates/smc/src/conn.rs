//! One end of a TCP connection under observation, and its data path once it is upgraded.
//!
//! A `Conn` lives in the family's shared table: fork children use the same cursors and locks. Private cursors
//! (`Rx::cons`, `Tx::prod`) are the authority; what the peer publishes in our DMB's header is copied once, checked
//! by `Cursor::follow`, and never used unchecked.
//!
//! Every word of a `DmbHeader` is written by the peer and read by the owner of the DMB, so each of its cache lines
//! travels one way. The exceptions are the two REVOKED bits, by which an owner takes its ring back (`revert.rs`).
#![allow(unsafe_code)]

mod bounds;
mod carry;
mod close;
pub mod far;
mod intact;
mod options;
pub mod phase;
mod ready;
mod recall;
mod recv;
pub mod rest;
mod revert;
mod send;
pub mod sleepers;
mod switch;
pub mod upgrade;
pub mod verdict;
pub mod wakeups;
mod window;

pub use ready::{ERR, HUP, IN, OUT, RDHUP};
pub use recv::Got;
pub use send::{Pieces, Sent};
pub use upgrade::Upgrade;

use core::cell::UnsafeCell;
use phase::{self as p, Phase, Receives, Sends};
use window::{Window, header};

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use dibs::ism::Far;
use dibs::ism::integrity::Sum;
use dibs::verbs::Remote;
use shm::cursor::Cursor;
use shm::lock::{FastGuard, FastLock, Reentered};

use crate::inet::Addr;
use crate::kind::Kind;
use crate::stats::{Counts, Wakeups};
use crate::table;

/// Start of every DMB: the SMC-D CDC words and, in its reserved tail and behind it, Shortwire's doorbell words.
#[repr(C, align(64))]
pub struct DmbHeader {
    /// CDC type, 0xFE. Over ism the other bytes tell where the peer keeps its image of this header.
    pub kind: AtomicU64,
    /// The peer's producer cursor in this DMB, with `REVERTED` and `REVOKED`.
    pub prod: AtomicU64,
    /// The peer's consumer cursor in the DMB that we write, with its state flags.
    pub cons: AtomicU64,
    /// `N << 1 | 1` once the peer's sends have left TCP after N bytes.
    pub switch: AtomicU64,
    /// Changes when the peer wants a doorbell for data that we publish.
    pub rx_arm: AtomicU32,
    /// Changes when the peer wants a doorbell for space that we free.
    pub tx_arm: AtomicU32,
    /// Number of the peer's wait that covers this connection (0: none).
    pub cover: AtomicU32,
    /// Processor on which the peer last sent or made room, plus one; above it how much it lets be under way (`bounds`).
    pub cpu: AtomicU32,
    /// Doorbell bytes the peer has put on the TCP stream; bit 31 set by the owner: no more of them.
    pub rung: AtomicU32,
    /// Over ism: process of the peer that can be written to besides the first; bit 31: the peer wants its ring back.
    pub kin: AtomicU32,
    /// `P << 1 | 1`: the peer wants the bytes from P on sent again over TCP.
    pub takeback: AtomicU64,
}

/// Bytes of a DMB that are not ring.
pub const HEADER_LEN: u32 = 64;
const _: () = assert!(size_of::<DmbHeader>() == HEADER_LEN as usize);

impl DmbHeader {
    /// Bytes of the DMB that the peer has written to, if it is honest.
    pub fn used(&self) -> u32 {
        match self.prod.load(Relaxed) & shm::cursor::CURSOR_MASK {
            word if word as u16 == 0 => HEADER_LEN.saturating_add((word >> 16) as u32),
            _ => u32::MAX,
        }
    }
}

/// In `prod`: the writer has returned to TCP, nothing follows in this ring.
pub const REVERTED: u64 = 1 << 48;
/// In `prod`: the owner of the ring takes no more; the writer's next publication fails.
pub const REVOKED: u64 = 1 << 49;
/// In `rung`: no further doorbell may be sent.
pub const RUNG_REVOKED: u32 = 1 << 31;
/// No position in a stream.
const UNKNOWN: u64 = u64::MAX;
/// More doorbells on the stream than an honest peer ever leaves there, one for each sleep of ours.
const FLOOD: u32 = 1 << 20;
/// CDC state flag in `cons`: the peer is done writing.
pub const DONE: u64 = 0x80 << 56;
/// CDC state flag in `cons`: the peer has closed the connection.
pub const CLOSED: u64 = 0x40 << 56;
/// CDC state flag in `cons`: the peer has aborted the connection.
pub const ABORT: u64 = 0x20 << 56;
/// Beside them, and after everything else: this end has given up its object and writes here no more.
pub const LEFT: u64 = 0x10 << 56;
/// Beside `ABORT`: the device went away, and the kernel's connection may stand a while longer.
pub const GONE: u64 = 0x08 << 56;
/// Any of the three ends the peer's stream.
pub const ENDS: u64 = DONE | CLOSED | ABORT;

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

/// Receiving side; guarded by `rx_lock`.
#[repr(C)]
#[derive(Default)]
pub struct Rx {
    /// How far we have read in our ring.
    pub cons: Cursor,
    /// How far the peer is known to have written.
    pub prod: Cursor,
    /// Position up to which the peer was told, by any store.
    pub published: u64,
    /// Position up to which the peer was told with a full fence behind it.
    pub fenced: u64,
    /// Payload bytes still to come over TCP before the ring begins.
    pub tcp_left: u64,
    /// From the exposure to the switch: stream bytes read from the socket, `UNKNOWN` if nobody could tell.
    pub tcp_read: u64,
    /// Doorbell bytes taken from the TCP stream.
    pub drained: u32,
    /// Usable bytes of our ring, for `ss`; the data path goes by `Window`.
    pub size: u32,
    /// Peer's last end flags.
    pub ends: u64,
    /// The `cpu` word last told to the peer.
    pub cpu: u32,
    /// Up to `prod`, where a checksum was agreed on.
    pub sum: Sum,
}

/// Sending side; guarded by `tx_lock`.
#[repr(C)]
#[derive(Default)]
pub struct Tx {
    /// How far we have written in the peer's ring.
    pub prod: Cursor,
    /// How far the peer is known to have read.
    pub cons: Cursor,
    /// The producer word last published.
    pub word: u64,
    /// Usable bytes of the peer's ring, for `ss`; the data path goes by `Window`.
    pub size: u32,
    /// The `cpu` word last told to the peer.
    pub cpu: u32,
    /// Bytes of the ring to send again over TCP after a recall: from here up to `prod`.
    pub resend: u64,
    /// Position at which the ring's memory was last given back.
    pub rested: u64,
    /// A send ended in the middle.
    pub left: bool,
    /// The kernel holds a doorbell back, see `ring_or_hold`.
    pub held: bool,
    /// As in `Rx`.
    pub sum: Sum,
    /// Records written.
    pub records: u64,
}

/// See the module documentation.
#[repr(C, align(64))]
pub struct Conn {
    /// Bumped when the slot is taken and when it is given back: odd means in use.
    pub gen_: AtomicU32,
    /// Descriptors of all processes of the family that name this connection.
    pub refs: AtomicU32,
    /// Those of them that travel over a Unix socket: whoever receives one takes it off.
    pub travelling: AtomicU32,
    phase: phase::Word,
    /// Why it is TCP: the code of a `Reason`.
    pub reason: AtomicU32,
    /// Sends plus receives so far.
    pub ops: AtomicU32,
    /// Threads inside a kernel receive.
    pub rx_inflight: AtomicU32,
    /// Threads inside a kernel send.
    pub tx_inflight: AtomicU32,
    /// The first thread inside a kernel receive, while it is there; a cancelled one never leaves.
    rx_inside: AtomicU32,
    /// The first thread inside a kernel send, while it is there.
    tx_inside: AtomicU32,
    /// SO_RCVLOWAT as the application set it (0: it never did); the kernel's is 1 so that a doorbell wakes.
    pub user_rcvlowat: AtomicU32,
    /// Number of operations at which the upgrade is looked at again; u32::MAX: never.
    pub next_try: AtomicU32,
    /// What the application has set of the two buffers, see `bounds`.
    bounds: AtomicU32,
    /// Bytes moved over TCP before the upgrade.
    pub tcp_bytes: AtomicU64,

    /// Guards `rx`.
    pub rx_lock: FastLock<true>,
    rung_tx: AtomicU32,
    /// Wire word of `rx.cons`, for readiness checks without the lock.
    rx_word: AtomicU64,
    rx: UnsafeCell<Rx>,

    /// Guards `tx`.
    pub tx_lock: FastLock<true>,
    rung_rx: AtomicU32,
    /// Wire word of `tx.prod`, for readiness checks without the lock.
    tx_word: AtomicU64,
    /// `sys::ticks` when the kernel was last asked for the peer's end.
    looked: AtomicU64,
    /// How far a peer that has ended its half had read by then; above it, how many such looks found it there.
    stalled: AtomicU64,
    tx: UnsafeCell<Tx>,

    /// State flags that we publish (`DONE`, `CLOSED`, `ABORT`).
    ends: AtomicU64,
    /// Token of our DMB.
    pub my_token: AtomicU64,
    /// Token of the peer's DMB.
    pub peer_token: AtomicU64,
    /// How far its upgrade has come.
    pub upgrade: Upgrade,
    /// Link group it belongs to.
    pub group: AtomicU32,
    /// Empty looks by nonblocking receives.
    pub idle_looks: AtomicU32,
    /// Process at the other end, 0 if not known.
    pub peer_pid: AtomicU32,
    /// `path`: for `ss`, and to choose between the ways of loopback.
    pub path: AtomicU32,

    pub(crate) next_free: AtomicU32,
    /// TCP_NODELAY (bit 0) and TCP_CORK (bit 1) as the application set them; bits 2 and 3: it did set them.
    pub user_nodelay: AtomicU32,
    /// TCP_INQ as the application set it.
    pub user_inq: AtomicU32,
    /// How well spinning has paid on it, 0..=16.
    pub spin: AtomicU32,
    /// Process that upgraded it.
    pub pid: AtomicU32,
    /// Since when the last of `travelling` does, in seconds.
    pub departed: AtomicU32,
    /// Process that keeps its descriptors over an exec: the new program takes them on.
    pub heir: AtomicU32,
    /// Owner of the socket, for `ss`.
    pub uid: AtomicU32,
    /// Inode of the socket, for `ss`.
    pub inode: AtomicU32,
    /// The two ends.
    names: UnsafeCell<[Addr; 2]>,
    /// Received through shared memory.
    pub rx_counts: Counts,
    /// Sent through shared memory.
    pub tx_counts: Counts,
    /// By doorbells of the peer.
    pub wakeups: Wakeups,
    /// Threads that wait.
    pub sleepers: sleepers::Sleepers,
}

// SAFETY: the cells are guarded by the locks beside them, the rest is atomics.
unsafe impl Sync for Conn {}

/// A control page: wait words written by one process, looked at by the other.
#[repr(C)]
pub struct Waits {
    /// Odd: the wait with this number sleeps. Changes with every sleep.
    pub armed: [AtomicU32; table::WAITS],
    /// What the process that rings last rang for; private to it by custom (lying harms only the liar).
    pub rung: [AtomicU32; table::WAITS],
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
        for w in [
            &self.reason,
            &self.ops,
            &self.rx_inflight,
            &self.tx_inflight,
            &self.rx_inside,
            &self.tx_inside,
            &self.rung_tx,
            &self.rung_rx,
            &self.group,
            &self.path,
            &self.bounds,
            &self.pid,
            &self.uid,
            &self.inode,
            &self.user_nodelay,
            &self.user_rcvlowat,
            &self.user_inq,
            &self.heir,
            &self.travelling,
            &self.departed,
            &self.peer_pid,
        ] {
            w.store(0, Relaxed);
        }
        self.phase.reset();
        self.spin.store(8, Relaxed);
        self.upgrade.reset();
        self.next_try.store(0, Relaxed);
        for w in [
            &self.tcp_bytes,
            &self.rx_word,
            &self.tx_word,
            &self.ends,
            &self.my_token,
            &self.peer_token,
            &self.looked,
            &self.stalled,
        ] {
            w.store(0, Relaxed);
        }
        self.wakeups.clear();
        self.sleepers.clear();
        for c in [&self.rx_counts, &self.tx_counts] {
            c.bytes.store(0, Relaxed);
            c.calls.store(0, Relaxed);
            c.full.store(0, Relaxed);
            c.doorbells.store(0, Relaxed);
            c.sizes.iter().for_each(|s| s.store(0, Relaxed));
        }
        // SAFETY: the slot is not in use, nobody holds its locks.
        unsafe {
            *self.rx.get() = Rx { tcp_read: UNKNOWN, ..Rx::default() };
            *self.tx.get() = Tx::default();
            *self.names.get() = [Addr::default(); 2];
        }
        self.reason.store(crate::reason::NOT_YET.code(), Relaxed);
        self.refs.store(1, Relaxed);
        self.gen_.fetch_add(1, Release);
    }

    /// The local and the peer's address; zero before they were looked up.
    pub fn names(&self) -> [Addr; 2] {
        // SAFETY: plain bytes, written once by the upgrade; a reader of `ss` may see a torn value and prints it once.
        unsafe { self.names.get().read_volatile() }
    }

    pub(crate) fn set_names(&self, names: [Addr; 2]) {
        // SAFETY: written by the one thread that holds the upgrade stage.
        unsafe { self.names.get().write_volatile(names) }
    }

    /// Snapshot of the receiving side for `ss`.
    pub fn rx_snapshot(&self) -> Rx {
        // SAFETY: plain words; a torn snapshot is only displayed.
        unsafe { self.rx.get().read_volatile() }
    }

    /// Snapshot of the sending side for `ss`.
    pub fn tx_snapshot(&self) -> Tx {
        // SAFETY: plain words; a torn snapshot is only displayed.
        unsafe { self.tx.get().read_volatile() }
    }

    /// Exposes our DMB: from here on the peer may switch, and receives look for it.
    pub fn expose(&self, e: &Ends) {
        // SAFETY: before the exposure nobody else looks at `rx`.
        unsafe { (*self.rx.get()).size = e.my_len - HEADER_LEN };
        self.my_token.store(e.my_token, Relaxed);
        self.path.store(path::of(e.kind, false), Relaxed);
        let w = self.window();
        self.detach_far();
        w.tail.store(0, Relaxed);
        w.my_size.store(e.my_len - HEADER_LEN, Relaxed);
        w.my_waits.store(e.my_waits, Relaxed);
        w.my.store(e.my, Release);
        // Written in the peer's stead: it starts armed, because whoever sleeps there sleeps in the kernel, and it may not
        // have attached yet when our first bytes go out.
        self.my().rx_arm.store(1, Release);
        self.phase.turn_receives(|_| Receives::Ready);
    }

    /// Names the peer's DMB, for `commit` to use.
    pub fn attach(&self, peer: Reached, len: u32, token: u64, copy: bool) {
        // SAFETY: before `commit` nobody else looks at `tx`.
        unsafe { (*self.tx.get()).size = len - HEADER_LEN };
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
        self.peer().cpu.store(self.with_bounds(0), Relaxed);
        // SYNC: kind. Behind the attachment; pairs with `peer_attached`.
        self.peer().kind.store(self.kind_word(), Release);
        if !self.is_linked() {
            self.tell(&[far::CPU, far::KIND]);
        }
    }

    /// Takes the lock of the receiving side. Who was in there before may have left by a jump, or by a signal that killed.
    #[inline(always)]
    fn lock_rx(&self) -> Result<FastGuard<'_, true>, Reentered> {
        let (guard, left) = self.rx_lock.lock_recovering()?;
        if left {
            // SAFETY: the rx lock is held.
            let rx = unsafe { &mut *self.rx.get() };
            let size = self.window().my_size.load(Relaxed);
            rx.cons = Cursor::at(rx.cons.pos, size);
            rx.prod = Cursor::at(rx.prod.pos, size);
            self.rx_word.store(rx.cons.wire(), Relaxed);
        }
        Ok(guard)
    }

    /// Takes the lock of the sending side. Who was in there before may have left by a jump, or by a signal that killed: the next send
    /// publishes what that one placed and did not publish.
    #[inline(always)]
    fn lock_tx(&self) -> Result<FastGuard<'_, true>, Reentered> {
        let (guard, left) = self.tx_lock.lock_recovering()?;
        if left {
            // SAFETY: the tx lock is held.
            let tx = unsafe { &mut *self.tx.get() };
            let size = self.window().peer_size.load(Relaxed);
            tx.prod = Cursor::at(tx.prod.pos, size);
            tx.cons = Cursor::at(tx.cons.pos, size);
            tx.left = true;
        }
        Ok(guard)
    }

    /// Whether the peer has attached our DMB.
    pub(crate) fn peer_attached(&self) -> bool {
        // SYNC: kind.
        self.my().kind.load(Acquire) & far::KIND_TYPE == 0xfe
    }

    /// Both sides have attached: our sends may switch.
    pub(crate) fn commit(&self) {
        let _guard = self.lock_rx();
        // SAFETY: the rx lock is held.
        let rx = unsafe { &mut *self.rx.get() };
        // What was read before now has not been told.
        rx.published = rx.cons.pos;
        // SYNC: cons.
        self.peer().cons.store(rx.cons.wire() | self.ends.load(Relaxed), Release);
        // Before this the other end of a link may not be connected yet.
        self.tell(if self.is_linked() { &[far::CPU, far::KIND, far::CONS] } else { &[far::CONS] });
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
            verdict::withdraw(kind);
            if !self.phase().has(p::BROKEN) {
                // The process that we were forked from has upgraded it.
                self.end_now(true);
            }
        }
        true
    }

    /// Ends it with ECONNRESET, wherever it is used, also at the peer if that is to be told.
    pub(crate) fn end_now(&self, tell: bool) {
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
                verdict::terminate(self.group.load(Relaxed));
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
            let told = self.ends.load(Relaxed) & GONE != 0 && self.sends_on_ring();
            crate::sys::shutdown(fd, if told { libc::SHUT_RD } else { libc::SHUT_RDWR });
        }
        libc::ECONNRESET
    }
}
