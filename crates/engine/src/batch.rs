//! Packets on their way through an app: a short array without allocation.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use crate::link::Link;
use crate::packet::Packet;
use crate::pool;

/// Most packets of a batch, and of one pull.
pub const BATCH: usize = 128;

/// Up to [`BATCH`] packets. What is left in it when it goes is freed.
pub struct Batch {
    length: usize,
    packets: [MaybeUninit<Packet>; BATCH],
}

impl Batch {
    /// Without a packet.
    #[inline]
    pub fn new() -> Self {
        Self { length: 0, packets: [const { MaybeUninit::uninit() }; BATCH] }
    }

    /// Places left.
    #[inline]
    pub fn room(&self) -> usize {
        BATCH - self.length
    }

    /// Adds a packet; one too many comes back.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Option<Packet> {
        if self.length == BATCH {
            return Some(packet);
        }
        self.packets[self.length].write(packet);
        self.length += 1;
        None
    }

    /// Adds a packet; a full batch is sent to `to` first.
    #[inline]
    pub fn push_towards(&mut self, to: &Link, packet: Packet) {
        if let Some(packet) = self.push(packet) {
            to.transmit_batch(self);
            self.push(packet);
        }
    }

    /// Takes the last packet out.
    #[inline]
    pub fn pop(&mut self) -> Option<Packet> {
        self.length = self.length.checked_sub(1)?;
        // SAFETY: it lay below the old length.
        Some(unsafe { self.packets[self.length].assume_init_read() })
    }

    /// Keeps the packets for which `keep` says so, in order, and frees the others.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Packet) -> bool) {
        let all = std::mem::take(&mut self.length);
        for i in 0..all {
            // SAFETY: below the old length; read once. If `keep` panics the rest is leaked, not
            // freed twice.
            let mut packet = unsafe { self.packets[i].assume_init_read() };
            if keep(&mut packet) {
                self.packets[self.length].write(packet);
                self.length += 1;
            }
        }
    }

    /// Takes all packets out, the first one first.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        let end = std::mem::take(&mut self.length);
        Drain { batch: self, next: 0, end }
    }

    /// Frees all.
    #[inline]
    pub fn clear(&mut self) {
        let length = std::mem::take(&mut self.length);
        // SAFETY: `length` packets, forgotten by the line above.
        unsafe { free_all(self.packets.as_ptr().cast(), length) };
    }

    /// The first of [`Self::room`] places behind the packets.
    #[inline]
    pub(crate) fn spare(&mut self) -> *mut Packet {
        self.packets.as_mut_ptr().wrapping_add(self.length).cast()
    }

    /// # Safety
    /// Below `length` are packets.
    #[inline]
    pub(crate) unsafe fn set_length(&mut self, length: usize) {
        debug_assert!(length <= BATCH);
        self.length = length;
    }
}

/// Packets on their way out of a [`Batch`]. What is not taken is freed.
pub struct Drain<'a> {
    batch: &'a mut Batch,
    next: usize,
    end: usize,
}

impl Iterator for Drain<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        if self.next == self.end {
            return None;
        }
        self.next += 1;
        // SAFETY: it lay below the length of the batch, which is 0 now, and is read once.
        Some(unsafe { self.batch.packets[self.next - 1].assume_init_read() })
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Batch {
    type Target = [Packet];

    #[inline]
    fn deref(&self) -> &[Packet] {
        // SAFETY: packets lie below the length.
        unsafe { std::slice::from_raw_parts(self.packets.as_ptr().cast(), self.length) }
    }
}

impl DerefMut for Batch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Packet] {
        // SAFETY: packets lie below the length.
        unsafe { std::slice::from_raw_parts_mut(self.packets.as_mut_ptr().cast(), self.length) }
    }
}

impl Drop for Batch {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

/// Frees `count` packets and returns the sum of their lengths.
///
/// # Safety
/// `packets` is valid for reads of `count` packets, which the caller forgets.
#[inline]
pub(crate) unsafe fn free_all(packets: *const Packet, count: usize) -> u64 {
    let mut bytes = 0;
    let done = pool::with(|pool| {
        pool.put_each(count, |i| {
            // SAFETY: one of `count` packets.
            let packet = unsafe { packets.add(i).read() };
            bytes += packet.length() as u64;
            packet.into_slot().as_ptr()
        });
        pool.count_frees(count as u64, bytes);
    });
    if done.is_none() {
        for i in 0..count {
            // SAFETY: as above; without a pool each goes by itself.
            drop(unsafe { packets.add(i).read() });
        }
    }
    bytes
}
