//! The queue pair in shared memory: two processes of one machine, joined by a loopback device.
//!
//! Each end owns one buffer (DMB) that the other has attached, and into which only the other
//! writes:
//!
//! ```text
//! | header 4 KiB | stream queue | control queue | memory: target SGL, iomap, receive buffer |
//! ```
//!
//! A write is a copy into the peer's memory; immediate data is a slot in one of its queues, with
//! the sequence number that the reader expects there next. So a reader looks at one cache line, and
//! no index is shared. A write is complete when it is posted. A reader that sleeps has armed the
//! peer's doorbell (`shm::doorbell`), which is a byte on the Unix socket that joins the two; its
//! end is the peer's end.
//!
//! All of it is plain data and pointers into mappings, so that the child of a fork finds the same.
#![allow(unsafe_code)]

mod exposed;
pub(crate) mod meet;
mod remote;
#[cfg(test)]
pub(crate) mod tests;

pub use exposed::after_fork_child;

use crate::hidden;
use crate::provider::{Completion, Endpoint, Lane, PostError, Region, Remote, TABLES};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use dibs::{Device as _, Dmb, Loopback};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::net::{RecvFlags, SendFlags};
use shm::Errno;
use shm::rsockets::Row;

/// The device of this process. One slot per arena: memory ends with its connection.
pub static DEVICE: Loopback = Loopback::with_limits(1, 65536);

/// Key of the memory made for the connection; all others are of exposed memory.
pub const MEMORY_KEY: u32 = 1;

/// No descriptor has this number: the kernel answers with EBADF.
const CLOSED: RawFd = RawFd::MAX;
const HEADER: usize = 4096;
const ARM: usize = 0;
/// Beside it: the processor on which the peer asked for its doorbell, plus one. A hint.
const SLEPT_ON: usize = 4;
const POSTED: [usize; 2] = [64, 68];
/// Set by a peer that has closed in order while others still held its end.
const LEFT: usize = 128;
/// Set while the writer of this header writes into memory that the reader has exposed.
const WRITING: usize = 132;
/// On the socket, by an acceptor that closes in order before it knows this end's memory, where it
/// would have to say so. Doorbells are zeros.
const GOODBYE: u8 = 1;
const LINE: usize = 64;
/// Cache lines between what is written and what is fetched, which the peer has read last and so
/// holds.
const AHEAD: usize = 2;
/// Room for what goes beyond the peer's credits: credit updates, and the end.
const CONTROL_SLOTS: u32 = 16;

/// How a DMB is divided; the peer is told the one number that is not constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Slots of the stream queue: a power of two.
    pub stream_slots: u32,
    /// Bytes of memory that the peer may write.
    pub memory: u32,
}

impl Layout {
    /// For `receives` at a time and `memory` bytes; None where that is more than a DMB can hold.
    pub fn new(receives: u16, memory: usize) -> Option<Self> {
        let layout = Self {
            stream_slots: (u32::from(receives) + 16).next_power_of_two(),
            memory: u32::try_from(memory).ok()?,
        };
        layout.dmb_len().map(|_| layout)
    }

    /// From what a peer says of its DMB of `dmb_len` bytes.
    pub fn of_peer(stream_slots: u32, memory: u32, dmb_len: u32) -> Option<Self> {
        let layout = Self { stream_slots, memory };
        let fits = stream_slots.is_power_of_two()
            && stream_slots <= 1 << 17
            && layout.memory_at() + memory as usize <= dmb_len as usize;
        fits.then_some(layout)
    }

    fn queue_at(&self, lane: Lane) -> usize {
        HEADER + if lane == Lane::Stream { 0 } else { self.stream_slots as usize * 8 }
    }

    fn slots(&self, lane: Lane) -> u32 {
        if lane == Lane::Stream { self.stream_slots } else { CONTROL_SLOTS }
    }

    /// Where the memory begins, in bytes from the start of the DMB.
    pub fn memory_at(&self) -> usize {
        HEADER + (self.stream_slots + CONTROL_SLOTS) as usize * 8
    }

    /// Length of a DMB that holds it; None where that is more than one can be.
    pub fn dmb_len(&self) -> Option<u32> {
        let len = (self.memory_at() + self.memory as usize).max(1 << 14).next_power_of_two();
        u32::try_from(len).ok().filter(|len| dibs::is_dmb_len(*len))
    }
}

/// One direction of one lane, as its only user keeps it.
#[derive(Default)]
struct Position {
    /// Slots used since the start; the next one gets this number plus one.
    count: UnsafeCell<u32>,
    /// Poster: the peer's receives, as last read.
    posted: UnsafeCell<u32>,
}

/// Asks for a cache line before it is written; where there is no such instruction, nothing.
#[inline]
fn prefetch_for_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which touches no memory, whatever the address; processors without it take it
    // for a NOP. By hand, since the intrinsic asks for no ownership unless the whole program is
    // built for such processors.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

pub(crate) struct QueuePair {
    own: *mut u8,
    own_layout: Layout,
    peer: *mut u8,
    peer_layout: Layout,
    group: u32,
    socket: AtomicI32,
    /// Whoever shares the socket of this end has had it since before they met.
    since_accept: bool,
    peer_pid: i32,
    /// Whether the peer runs as this process's user, and so may debug it.
    same_user: bool,
    /// The process that the peer takes for this end: it met, and a child that it forked may have
    /// gone on.
    met_pid: i32,
    gone: AtomicBool,
    /// The peer has said for too long that it was writing into a buffer.
    writes_for_ever: AtomicBool,
    rung: AtomicU32,
    /// Between `hold_events` and `release_events`, and whether a doorbell is due.
    holds: AtomicBool,
    held: AtomicBool,
    /// Where doorbells are counted; null: nowhere.
    row: AtomicPtr<Row>,
    next_key: AtomicU32,
    /// Null until they are lent.
    tables: AtomicPtr<Tables>,
    send: [Position; 2],
    recv: [Position; 2],
}

/// Zeroed, it is empty.
#[repr(C)]
struct Tables {
    exposed: exposed::Exposed,
    windows: remote::Windows,
}

const _: () = assert!(size_of::<Tables>() <= TABLES && align_of::<Tables>() <= 8);

// SAFETY: positions are only used under the locks that the trait names, and all else is constant or
// atomic.
unsafe impl Sync for QueuePair {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Both ends have attached each other's buffer. Takes the socket. `pids` are those that the
    /// ends have met by, ours first.
    pub fn new(
        own: (Dmb, Layout),
        peer: (*mut u8, Layout),
        group: u32,
        socket: RawFd,
        pids: [i32; 2],
    ) -> Self {
        Self {
            own: own.0.addr,
            own_layout: own.1,
            peer: peer.0,
            peer_layout: peer.1,
            group,
            socket: AtomicI32::new(socket),
            since_accept: false,
            same_user: true,
            met_pid: pids[0],
            peer_pid: pids[1],
            gone: AtomicBool::new(false),
            writes_for_ever: AtomicBool::new(false),
            rung: AtomicU32::new(0),
            holds: AtomicBool::new(false),
            held: AtomicBool::new(false),
            row: AtomicPtr::default(),
            next_key: AtomicU32::new(0),
            tables: AtomicPtr::default(),
            send: Default::default(),
            recv: Default::default(),
        }
    }

    /// Lets go of this process's descriptor and mappings, in which nobody may be. Unless it is the
    /// last, other processes go on: what they see of it stays as it is.
    pub fn close(&self, last: bool) {
        self.close_windows();
        if !last {
            // Who else has it may never close it in order: the child of a fork that runs another
            // program.
            self.announce_end();
        }
        let socket = self.socket.load(Ordering::Relaxed);
        if last {
            self.socket.store(CLOSED, Ordering::Relaxed);
        }
        if socket != CLOSED {
            // Ours since `new`, and closed once by each process, which has taken it from its table.
            hidden::close(socket);
        }
        DEVICE.drop_group(self.group);
    }

    /// From now on the end of the socket is one in order, and no death.
    pub fn announce_end(&self) {
        // SYNC: left. Before the socket ends, which is what makes the peer look.
        Self::word(self.peer, LEFT).store(1, Ordering::Release);
    }

    /// Lets go of what is here of a connection that another process has made, after the fork that
    /// gave its socket to both. What a caller opened while it waited for an answer stays open.
    pub fn leave(&self) {
        let socket = self.socket.load(Ordering::Relaxed);
        if self.since_accept && socket != CLOSED {
            hidden::close(socket);
        }
        DEVICE.drop_group(self.group);
    }

    /// The peer was here and has closed in order, before it had anything of ours to say so in.
    pub fn note_end(&self) {
        Self::word(self.own, LEFT).store(1, Ordering::Relaxed);
        self.gone.store(true, Ordering::Release);
    }

    fn word(base: *mut u8, at: usize) -> &'static AtomicU32 {
        // SAFETY: an aligned word in the header of a DMB, whose address stays mapped also after its
        // end.
        unsafe { &*base.wrapping_add(at).cast() }
    }

    /// The slot of `lane` with number `count` in the queue that lies at `base`.
    fn slot(base: *mut u8, layout: &Layout, lane: Lane, count: u32) -> &'static AtomicU64 {
        let index = count & (layout.slots(lane) - 1);
        // SAFETY: aligned and within the queue, because the number of slots is a power of two that
        // was checked against the length; mapped as above.
        unsafe { &*base.wrapping_add(layout.queue_at(lane) + index as usize * 8).cast() }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: open until `close`, which nobody may call while others are inside.
        unsafe { BorrowedFd::borrow_raw(self.socket.load(Ordering::Relaxed)) }
    }

    fn tables(&self) -> Option<&Tables> {
        // SAFETY: null, or memory that lives as long as this, in whose zeros both tables are empty.
        unsafe { self.tables.load(Ordering::Relaxed).as_ref() }
    }

    pub fn peer_pid(&self) -> i32 {
        self.peer_pid
    }

    pub fn note(&self, row: &'static Row) {
        self.row.store(core::ptr::from_ref(row).cast_mut(), Ordering::Relaxed);
    }

    fn ring(&self) {
        // SAFETY: null, or a row that is never unmapped.
        if let Some(row) = unsafe { self.row.load(Ordering::Relaxed).as_ref() } {
            row.tx.doorbells.add(1);
        }
        // A full socket holds a doorbell already; a broken one is found by whoever waits on it.
        let _ = rustix::net::send(self.socket(), &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Free receives of the peer on `lane`, for its poster.
    fn room(&self, lane: Lane) -> bool {
        let at = &self.send[lane as usize];
        let slots = self.peer_layout.slots(lane);
        // SAFETY: the caller is the only poster of the lane.
        let count = unsafe { *at.count.get() };
        // SAFETY: as above.
        let posted = unsafe { &mut *at.posted.get() };
        if count.wrapping_sub(*posted) < slots {
            return true;
        }
        // SYNC: posted. A slot is written again only when the peer has read it. The word is the
        // peer's to lie about: it would overwrite its own queue.
        *posted = Self::word(self.own, POSTED[lane as usize]).load(Ordering::Acquire);
        count.wrapping_sub(*posted) < slots
    }

    /// Copies into the memory of the connection, if it lies within.
    #[inline(always)]
    fn copy(&self, pieces: &[(*const u8, usize)], addr: u64) -> Result<(), PostError> {
        let total: usize = pieces.iter().map(|p| p.1).sum();
        let memory = self.peer_layout.memory as usize;
        let at = usize::try_from(addr)
            .ok()
            .filter(|at| *at <= memory && total <= memory - at)
            .ok_or(PostError::Access)?;
        let mut to = self.peer.wrapping_add(self.peer_layout.memory_at() + at);
        if total < LINE && (to as usize % LINE) + total >= LINE {
            prefetch_for_write(to.wrapping_add(AHEAD * LINE));
        }
        for (from, len) in pieces {
            // SAFETY: readable by the contract of `post_write`; the target was checked to be within
            // the peer's attached DMB, which no local object overlaps. The peer may race: its own
            // bytes.
            unsafe { shm::copy(*from, to, *len) };
            to = to.wrapping_add(*len);
        }
        Ok(())
    }

    #[inline(always)]
    fn publish(&self, lane: Lane, imm: u32) {
        // SAFETY: the caller is the only poster of the lane.
        let count = unsafe { &mut *self.send[lane as usize].count.get() };
        let slot = Self::slot(self.peer, &self.peer_layout, lane, *count);
        if (*count as usize).is_multiple_of(LINE / size_of::<u64>()) {
            let later = count.wrapping_add((AHEAD * LINE / size_of::<u64>()) as u32);
            prefetch_for_write(
                core::ptr::from_ref(Self::slot(self.peer, &self.peer_layout, lane, later)).cast(),
            );
        }
        *count = count.wrapping_add(1);
        // SYNC: slot. After the bytes that it tells of; SeqCst, because the arm word is read next
        // (doorbell).
        slot.swap(u64::from(*count) << 32 | u64::from(imm), Ordering::SeqCst);
        if shm::must_ring(Self::word(self.own, ARM), &self.rung) {
            self.ring_or_hold(lane);
        }
    }

    #[cold]
    fn ring_or_hold(&self, lane: Lane) {
        if lane == Lane::Stream && self.holds.load(Ordering::Relaxed) {
            self.held.store(true, Ordering::Relaxed);
        } else {
            self.ring();
        }
    }

    /// What the peer has sent on the socket: doorbells, or its last word.
    fn hear(&self, bytes: &[u8]) {
        if bytes.contains(&GOODBYE) {
            Self::word(self.own, LEFT).store(1, Ordering::Relaxed);
        }
    }

    /// Asks the kernel whether the peer has let go of its socket, also behind unread doorbells.
    fn is_ended(&self) -> bool {
        if self.gone.load(Ordering::Acquire) {
            return true;
        }
        let socket = self.socket();
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let ended = matches!(polled, Ok(1..));
        if ended {
            self.gone.store(true, Ordering::Release);
        }
        ended
    }

    fn next(&self, lane: Lane) -> Option<u32> {
        // SAFETY: under the lock of the completion queue, by the contract of `poll_cq`.
        let count = unsafe { &mut *self.recv[lane as usize].count.get() };
        // SYNC: slot. Loaded once; what it says is checked by the stream.
        let word = Self::slot(self.own, &self.own_layout, lane, *count).load(Ordering::Acquire);
        if (word >> 32) as u32 != count.wrapping_add(1) {
            return None;
        }
        *count = count.wrapping_add(1);
        Some(word as u32)
    }
}

impl Endpoint for QueuePair {
    fn lend_tables(&self, at: *mut u8) {
        self.tables.store(at.cast(), Ordering::Relaxed);
    }

    #[inline]
    fn inline_limit(&self) -> usize {
        usize::MAX
    }

    #[inline]
    fn synchronous(&self) -> bool {
        true
    }

    fn memory(&self) -> Region {
        let ptr = self.own.wrapping_add(self.own_layout.memory_at());
        Region { ptr, len: self.own_layout.memory as usize, addr: 0, key: MEMORY_KEY }
    }

    #[inline]
    fn post_recv(&self, _count: u32) {
        for lane in [Lane::Stream, Lane::Control] {
            // SAFETY: under the lock of the completion queue.
            let count = unsafe { *self.recv[lane as usize].count.get() };
            let word = Self::word(self.peer, POSTED[lane as usize]);
            // SYNC: posted. After the slots were read.
            word.store(count, Ordering::Release);
        }
    }

    // A small message is posted in some ten nanoseconds; calls between here and the copy are a
    // third of that.
    #[inline(always)]
    unsafe fn post_write(
        &self,
        lane: Lane,
        pieces: &[(*const u8, usize)],
        to: Remote,
        imm: Option<u32>,
        _id: u32,
    ) -> Result<(), PostError> {
        if imm.is_some() && !self.room(lane) {
            return Err(if self.is_gone() { PostError::Gone } else { PostError::Full });
        }
        match to.key {
            MEMORY_KEY => self.copy(pieces, to.addr)?,
            _ if pieces.iter().all(|p| p.1 == 0) => {}
            // The peer says where its entries are: none is in a buffer of the application's, and
            // what this end knows of those is used by the stream lane alone.
            _ if lane == Lane::Control => return Err(PostError::Access),
            _ => self.write_exposed(pieces, to)?,
        }
        if let Some(imm) = imm {
            self.publish(lane, imm);
        }
        Ok(())
    }

    #[inline]
    fn poll_cq(&self, out: &mut [Completion]) -> usize {
        let mut n = 0;
        for lane in [Lane::Control, Lane::Stream] {
            while n < out.len() {
                let Some(imm) = self.next(lane) else { break };
                out[n] = Completion::Recv(imm);
                n += 1;
            }
        }
        n
    }

    fn request_event(&self) {
        let cpu = rustix::thread::sched_getcpu() as u32;
        // In front of the arm word, which orders it; who reads another one is only slower.
        Self::word(self.peer, SLEPT_ON).store(cpu.wrapping_add(1), Ordering::Relaxed);
        shm::arm(Self::word(self.peer, ARM));
    }

    fn await_event(&self) -> Result<(), Errno> {
        // A real receive, so that the kernel decides about signals and SA_RESTART.
        match rustix::net::recv(self.socket(), &mut [0u8; 1][..], RecvFlags::PEEK) {
            Ok((_, 0)) => self.gone.store(true, Ordering::Release),
            Ok(_) => {}
            Err(Errno::INTR) => return Err(Errno::INTR),
            Err(_) => self.gone.store(true, Ordering::Release),
        }
        Ok(())
    }

    fn take_event(&self) {
        let mut bytes = [0u8; 64];
        match rustix::net::recv(self.socket(), &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.gone.store(true, Ordering::Release),
            Ok((n, _)) => self.hear(&bytes[..n]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.gone.store(true, Ordering::Release),
        }
    }

    fn event_fd(&self) -> RawFd {
        self.socket.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn has_left(&self) -> bool {
        let mut bytes = [0u8; 64];
        while let Ok((n @ 1.., _)) =
            rustix::net::recv(self.socket(), &mut bytes[..], RecvFlags::DONTWAIT)
        {
            self.hear(&bytes[..n]);
        }
        // SYNC: left. A peer that lies ends its own connection.
        Self::word(self.own, LEFT).load(Ordering::Acquire) != 0
    }

    fn expose(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        self.expose_buffer(ptr, len)
    }

    fn conceal(&self, region: Region) {
        self.conceal_buffer(&region);
    }

    fn peer_needs_this_processor(&self) -> bool {
        let peer = Self::word(self.own, SLEPT_ON).load(Ordering::Relaxed);
        peer != 0 && peer.wrapping_sub(1) == rustix::thread::sched_getcpu() as u32
    }

    /// A peer that is woken for the first of many pieces, and takes this very processor, finds that
    /// piece only, waits for the next, and sleeps again: two changes of process for each piece.
    fn hold_events(&self) {
        self.holds.store(self.peer_needs_this_processor(), Ordering::Relaxed);
    }

    fn release_events(&self) {
        if self.holds.load(Ordering::Relaxed) {
            self.holds.store(false, Ordering::Relaxed);
        }
        if self.held.load(Ordering::Relaxed) && self.held.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    fn probe(&self) {
        self.is_ended();
    }

    fn disconnect(&self) {
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Both);
        self.gone.store(true, Ordering::Release);
    }
}
