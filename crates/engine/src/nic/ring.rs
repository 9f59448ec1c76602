//! Rings of descriptors: how a card is told where packets are, and tells when it is done with them.
//!
//! A descriptor has 16 bytes: the address of the packet's bytes, and a word of marks whose layout
//! is the card's ([`Layout`]). The driver owns what lies behind the tail, the card what lies before
//! it, until it sets the "done" mark. No register is read while packets move, and the tail register
//! is written once per batch.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use super::dma::{Buffer, DmaError, DmaSpace, PacketMap};
use crate::arena::CHUNK;
use crate::batch::Batch;
use crate::link::Link;
use crate::packet::{Packet, ROOM_OF_NEW, offset_of_new};
use crate::pool;

/// Bytes of a slot that a card may fill.
pub const RECEIVE_ROOM: usize = ROOM_OF_NEW;
/// Descriptors are given back to the card so many at a time.
const REFILL: u32 = 32;
/// The card reports at least every so many packets that it has sent.
const REPORT: u32 = 64;

/// The second word of a card's descriptors.
pub trait Layout {
    /// What a receive descriptor says; None while it is the card's. A descriptor that is given to
    /// the card has 0 there.
    fn received(word: u64) -> Option<Received>;

    /// A whole frame to be sent. With `report` the card marks the descriptor when it has sent
    /// everything up to here.
    fn transmit(length: u16, report: bool) -> u64;

    /// Whether that mark is there.
    fn sent(word: u64) -> bool;
}

/// A frame, or what the card gave for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes.
    pub length: u16,
    /// Whole and without errors.
    pub good: bool,
}

/// The descriptors of one direction, and the slot behind each of those that the card has. Positions
/// run freely; the place is the position modulo the number of descriptors, a power of two.
struct Ring {
    descriptors: Buffer,
    packets: PacketMap,
    slots: Box<[*mut u8]>,
    /// The oldest position that the card has.
    first: u32,
    /// The first position that it has not.
    tail: u32,
}

impl Ring {
    fn new(space: &mut dyn DmaSpace, size: u32) -> Result<Self, DmaError> {
        assert!(size.is_power_of_two() && size > REFILL, "{size} descriptors");
        let descriptors = space.buffer(size as usize * 16)?;
        let slots = vec![null_mut(); size as usize].into();
        Ok(Self { descriptors, packets: space.packets().clone(), slots, first: 0, tail: 0 })
    }

    #[inline(always)]
    fn place(&self, position: u32) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    #[inline(always)]
    fn mark(&self, position: u32) -> &AtomicU64 {
        &self.descriptors.cells::<AtomicU64>()[2 * self.place(position) + 1]
    }

    /// Fills the descriptor at the tail. The card sees it when the tail register is written.
    #[inline(always)]
    fn give(&mut self, slot: *mut u8, byte: *const u8, word: u64) {
        let (place, address) = (self.place(self.tail), self.packets.address(byte));
        let cells = self.descriptors.cells::<AtomicU64>();
        cells[2 * place].store(address.to_le(), Ordering::Relaxed);
        cells[2 * place + 1].store(word.to_le(), Ordering::Relaxed);
        self.slots[place] = slot;
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.tail.wrapping_sub(self.first)
    }

    /// One place stays free: a card takes a full ring, whose head is its tail, for an empty one.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.slots.len() as u32 - 1 - self.length()
    }

    /// Takes back the slots of the oldest `count` descriptors.
    #[inline]
    fn free(&mut self, count: u32) {
        let (first, mask) = (self.first as usize, self.slots.len() - 1);
        let slots = &self.slots;
        pool::with(|pool| pool.put_each(count as usize, |i| slots[(first + i) & mask]));
        self.first = self.first.wrapping_add(count);
    }
}

/// The receiving direction of a card.
pub struct RxRing<L> {
    ring: Ring,
    layout: PhantomData<L>,
}

impl<L: Layout> RxRing<L> {
    /// An empty ring; `size` is a power of two above 32.
    pub fn new(space: &mut dyn DmaSpace, size: u32) -> Result<Self, DmaError> {
        Ok(Self { ring: Ring::new(space, size)?, layout: PhantomData })
    }

    /// What the card calls the first descriptor.
    pub fn address(&self) -> u64 {
        self.ring.descriptors.address()
    }

    /// Moves up to `most` frames to the batch, and frees those that are broken. Returns how many
    /// were.
    #[inline]
    pub fn receive(&mut self, most: usize, batch: &mut Batch) -> u64 {
        let ring = &mut self.ring;
        let most = (ring.length() as usize).min(most).min(batch.room());
        let mut broken = 0;
        for _ in 0..most {
            // SYNC: done mark. The card writes the frame, then the mark: what was read here orders
            // what is read later.
            let word = u64::from_le(ring.mark(ring.first).load(Ordering::Acquire));
            let Some(Received { length, good }) = L::received(word) else { break };
            let slot = ring.slots[ring.place(ring.first)];
            if good && length as usize <= RECEIVE_ROOM {
                let offset = offset_of_new(slot);
                // SAFETY: a slot of the arena, from `refill`.
                let slot = unsafe { std::ptr::NonNull::new_unchecked(slot) };
                // SAFETY: the card has given the slot back; the length was checked.
                let packet = unsafe { Packet::from_slot(slot, offset, length.into()) };
                batch.push(packet);
                ring.first = ring.first.wrapping_add(1);
            } else {
                ring.free(1);
                broken += 1;
            }
        }
        broken
    }

    /// Gives the card slots to receive into. Returns what to write to the tail register, if
    /// anything.
    #[inline]
    pub fn refill(&mut self) -> Option<u32> {
        if self.ring.room() < REFILL {
            return None;
        }
        let before = self.ring.tail;
        let ring = &mut self.ring;
        pool::with(|pool| {
            loop {
                let ready = pool.ready(ring.room().min(CHUNK as u32) as usize);
                if ready == 0 {
                    break;
                }
                // SAFETY: `ready` slots are.
                unsafe {
                    pool.take_each(ready, |slot| {
                        ring.give(slot, slot.wrapping_add(offset_of_new(slot)), 0)
                    })
                };
            }
        });
        // SYNC: tail. `Bar::write32` puts the descriptors before the register; the card reads them
        // behind it.
        (ring.tail != before).then(|| ring.place(ring.tail) as u32)
    }

    /// Takes all slots back. The card must not write any more.
    pub fn clear(&mut self) {
        self.ring.free(self.ring.length());
    }
}

/// The sending direction of a card.
pub struct TxRing<L> {
    ring: Ring,
    /// Positions at which the card will report, the oldest first.
    reports: VecDeque<u32>,
    /// Added to the word of every packet.
    marks: u64,
    layout: PhantomData<L>,
}

impl<L: Layout> TxRing<L> {
    /// An empty ring; `size` is a power of two above 32.
    pub fn new(space: &mut dyn DmaSpace, size: u32) -> Result<Self, DmaError> {
        let reports = VecDeque::with_capacity(size as usize);
        Ok(Self { ring: Ring::new(space, size)?, reports, marks: 0, layout: PhantomData })
    }

    /// What the card calls the first descriptor.
    pub fn address(&self) -> u64 {
        self.ring.descriptors.address()
    }

    /// From now on these bits are set for every packet.
    pub fn set_marks(&mut self, marks: u64) {
        self.marks = marks;
    }

    /// Gives the card a descriptor that is no packet. Returns what to write to the tail register;
    /// None when there is no room, or no slot to stand behind it.
    pub fn command(&mut self, words: [u64; 2]) -> Option<u32> {
        if self.ring.room() == 0 {
            return None;
        }
        let slot = Packet::allocate()?.into_slot().as_ptr();
        let place = self.ring.place(self.ring.tail);
        self.ring.give(slot, slot, words[1]);
        self.ring.descriptors.cells::<AtomicU64>()[2 * place]
            .store(words[0].to_le(), Ordering::Relaxed);
        Some(self.ring.place(self.ring.tail) as u32)
    }

    /// Packets that the card was given and has not reported.
    pub fn pending(&self) -> u32 {
        self.ring.length()
    }

    /// Gives the card what waits, as far as there is room; the rest stays in the link. `prepare`
    /// may change a packet or refuse it by false. Returns what to write to the tail register, if
    /// anything.
    #[inline]
    pub fn send(
        &mut self,
        input: &Link,
        mut prepare: impl FnMut(&mut Packet) -> bool,
    ) -> Option<u32> {
        self.complete();
        let (before, mut bytes, mut last) = (self.ring.tail, 0, 0);
        let (ring, reports, marks) = (&mut self.ring, &mut self.reports, self.marks);
        let fitting = input.length().min(ring.room() as usize);
        input.drain(fitting, |packets, count| {
            for i in 0..count {
                // SAFETY: `drain` hands out packets that the link forgets, and each is read once.
                let mut packet = unsafe { packets.add(i).read() };
                if !prepare(&mut packet) {
                    continue;
                }
                let (byte, length, position) = (packet.as_ptr(), packet.length() as u16, ring.tail);
                let report = position % REPORT == REPORT - 1;
                if report {
                    reports.push_back(position);
                }
                ring.give(packet.into_slot().as_ptr(), byte, L::transmit(length, report) | marks);
                (bytes, last) = (bytes + u64::from(length), length);
            }
        });
        let count = self.ring.tail.wrapping_sub(before);
        if count == 0 {
            return None;
        }
        let end = self.ring.tail.wrapping_sub(1);
        if self.reports.back() != Some(&end) {
            self.reports.push_back(end);
            self.ring
                .mark(end)
                .store((L::transmit(last, true) | self.marks).to_le(), Ordering::Relaxed);
        }
        pool::with(|pool| pool.count_frees(count.into(), bytes));
        // SYNC: tail. As in `RxRing::refill`.
        Some(self.ring.place(self.ring.tail) as u32)
    }

    /// Takes back the slots of packets that were sent.
    #[inline]
    pub fn complete(&mut self) {
        while let Some(&position) = self.reports.front() {
            if !L::sent(u64::from_le(self.ring.mark(position).load(Ordering::Acquire))) {
                break;
            }
            self.reports.pop_front();
            self.ring.free(position.wrapping_sub(self.ring.first).wrapping_add(1));
        }
    }

    /// Takes all slots back. The card must not read any more.
    pub fn clear(&mut self) {
        self.reports.clear();
        self.ring.free(self.ring.length());
    }
}
