//! Where a connection's memory is mapped: private to the process, beside the table, which it may
//! share.
//!
//! A connection's slot is writable by every process that has inherited it, also by one that has
//! since given up its rights. So nothing that becomes an address, or bounds one, is kept there:
//! cursors from the table are clamped by the sizes here.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use super::announce::Announced;
use super::bells::Bells;
use super::{Conn, DmbHeader, Waits};
use crate::{sys, table};

/// Mappings of one connection. A fork child inherits them with the mappings themselves.
#[repr(C, align(64))]
pub struct Window {
    /// Our DMB.
    pub my: AtomicPtr<DmbHeader>,
    /// The peer's DMB.
    pub peer: AtomicPtr<DmbHeader>,
    /// Control page in our arena: the waits in which the peer sleeps.
    pub my_waits: AtomicPtr<Waits>,
    /// Control page in the peer's arena: the waits in which we sleep.
    pub peer_waits: AtomicPtr<Waits>,
    /// Bells of the waits in our control page.
    pub bells: AtomicPtr<Bells>,
    /// Usable bytes of our ring.
    pub my_size: AtomicU32,
    /// Usable bytes of the peer's ring.
    pub peer_size: AtomicU32,
    /// Where we announce to the peer what happens, and our bit there: the address, and above it the
    /// slot of the peer's DMB; 0: an arena has no such place.
    peer_bits: AtomicU64,
    /// Over ism and verbs: address of the peer's DMB in its own memory, 0 when it is mapped here.
    pub far: AtomicU64,
    /// The process that this is an address of.
    pub far_pid: AtomicU32,
    /// Bytes behind either ring that hold the records of a checksum; 0: there is none.
    pub tail: AtomicU32,
    /// Where in that process the proof of the DMB's arena lies.
    pub far_base: AtomicU64,
    /// What is found there as long as the arena is.
    pub far_proof: AtomicU64,
    /// When it was last found, in nanoseconds.
    pub far_seen: AtomicU64,
    /// Since when it cannot be reached, 0: it can.
    pub far_lost: AtomicU64,
    /// Over verbs: the link, 0 over ism.
    pub link: AtomicU32,
    /// What opens the peer's DMB there.
    pub key: AtomicU32,
    /// A copy of the peer's ring, for what must be sent again over TCP.
    pub stash: AtomicPtr<u8>,
    /// Length of `stash`.
    pub stash_len: AtomicU32,
    /// Where the peer announces to us what happens, in our arena, and its bit there, packed as
    /// `peer_bits`; 0: it does not.
    my_bits: AtomicU64,
    /// How far we had sent when connections at rest were last looked for.
    pub swept: AtomicU64,
}

/// Where in `my_bits` and `peer_bits` the slot begins: no address of a program has more bits.
const SLOT_AT: u32 = 48;

impl Window {
    /// Where the peer announces what happens, and the bit of this connection there.
    #[inline]
    pub fn my_bits(&self) -> Option<(&'static Announced, u32)> {
        // SAFETY: what `announced_in` was given.
        unsafe { bits(self.my_bits.load(Relaxed)) }
    }

    /// Where we announce it to the peer, and the bit of this connection there.
    #[inline]
    pub fn peer_bits(&self) -> Option<(&'static Announced, u32)> {
        // SAFETY: what `announces_in` was given.
        unsafe { bits(self.peer_bits.load(Relaxed)) }
    }

    /// The peer announces in these bits of our arena, or nowhere (null).
    pub fn announced_in(&self, bits: *mut Announced, slot: u32) {
        self.my_bits.store(word(bits, slot), Relaxed);
    }

    /// We announce in these bits of the peer's arena, or nowhere (null).
    pub fn announces_in(&self, bits: *mut Announced, slot: u32) {
        self.peer_bits.store(word(bits, slot), Relaxed);
    }
}

/// An address with a slot above it; 0 where they do not fit into one word.
fn word(bits: *mut Announced, slot: u32) -> u64 {
    let (address, slot) = (bits.expose_provenance() as u64, u64::from(slot));
    let fits = address >> SLOT_AT == 0 && slot >> (64 - SLOT_AT) == 0;
    if fits && address != 0 { address | slot << SLOT_AT } else { 0 }
}

/// # Safety
/// `word` is one of bits in an arena: type-stable, as a retired mapping reads as zeros.
#[inline(always)]
unsafe fn bits(word: u64) -> Option<(&'static Announced, u32)> {
    let address = (word & ((1 << SLOT_AT) - 1)) as usize;
    // SAFETY: the contract.
    let bits = unsafe { core::ptr::with_exposed_provenance::<Announced>(address).as_ref() }?;
    Some((bits, (word >> SLOT_AT) as u32))
}

static WINDOWS: AtomicPtr<Window> = AtomicPtr::new(core::ptr::null_mut());

/// Stands for a DMB that is not mapped here: all zero, and nobody's.
static NOWHERE: DmbHeader = DmbHeader {
    kind: AtomicU64::new(0),
    prod: AtomicU64::new(0),
    cons: AtomicU64::new(0),
    switch: AtomicU64::new(0),
    rx_arm: AtomicU32::new(0),
    tx_arm: AtomicU32::new(0),
    cover: AtomicU32::new(0),
    cpu: AtomicU32::new(0),
    rung: AtomicU32::new(0),
    kin: AtomicU32::new(0),
    takeback: AtomicU64::new(0),
};
static NO_WINDOW: Window = Window {
    my: AtomicPtr::new(core::ptr::null_mut()),
    peer: AtomicPtr::new(core::ptr::null_mut()),
    my_waits: AtomicPtr::new(core::ptr::null_mut()),
    peer_waits: AtomicPtr::new(core::ptr::null_mut()),
    bells: AtomicPtr::new(core::ptr::null_mut()),
    my_size: AtomicU32::new(0),
    peer_size: AtomicU32::new(0),
    peer_bits: AtomicU64::new(0),
    far: AtomicU64::new(0),
    far_pid: AtomicU32::new(0),
    tail: AtomicU32::new(0),
    far_base: AtomicU64::new(0),
    far_proof: AtomicU64::new(0),
    far_seen: AtomicU64::new(0),
    far_lost: AtomicU64::new(0),
    link: AtomicU32::new(0),
    key: AtomicU32::new(0),
    stash: AtomicPtr::new(core::ptr::null_mut()),
    stash_len: AtomicU32::new(0),
    my_bits: AtomicU64::new(0),
    swept: AtomicU64::new(0),
};

/// The window of a slot of the table.
#[inline]
pub fn of(conn: &Conn) -> &'static Window {
    let base = WINDOWS.load(Acquire);
    let index = table::index_of(conn);
    if base.is_null() || index >= table::CAPACITY as usize {
        return reserve(index);
    }
    // SAFETY: below CAPACITY.
    let window = unsafe { base.add(index) };
    // SAFETY: in memory that is never unmapped.
    unsafe { &*window }
}

/// Whether there is memory for windows; from then on there always is. What is exposed before that
/// would be lost.
pub fn ready(conn: &Conn) -> bool {
    !core::ptr::eq(of(conn), &NO_WINDOW)
}

#[cold]
fn reserve(index: usize) -> &'static Window {
    if index >= table::CAPACITY as usize {
        return &NO_WINDOW;
    }
    let fresh =
        sys::reserve(table::CAPACITY as usize * size_of::<Window>(), false).cast::<Window>();
    if fresh.is_null() {
        return &NO_WINDOW;
    }
    let base = match WINDOWS.compare_exchange(core::ptr::null_mut(), fresh, AcqRel, Acquire) {
        Ok(_) => fresh,
        // The loser's reservation stays: address space, never touched.
        Err(other) => other,
    };
    // SAFETY: below CAPACITY, zeroed memory is a valid Window.
    unsafe { &*base.wrapping_add(index) }
}

/// The header at a mapping, or a stand-in.
#[inline]
pub fn header(at: &AtomicPtr<DmbHeader>) -> &'static DmbHeader {
    let p = at.load(Relaxed);
    if p.is_null() {
        return &NOWHERE;
    }
    // SAFETY: type-stable once set: a retired mapping reads as zeros, never faults.
    unsafe { &*p }
}
