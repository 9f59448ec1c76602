//! Two rings of packets in memory that two processes share, one for each direction.
//!
//! ```text
//! | control page | slots of ring 0 | slots of ring 1 |      the listening end writes ring 0
//! control: 0 producer 0 | 64 consumer 0 | 128 producer 1 | 192 consumer 1
//! slot:    0 length (u32) | 64 bytes of the packet
//! ```
//!
//! The other process is not trusted: its cursors pass [`Cursor::follow`], lengths are loaded once
//! and checked, bytes are copied out before anybody looks at them. Cursors count slots. A violation
//! ends the link.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shm::{Cursor, Errno, OpenError, Segment, Violation};

use crate::arena::{MAX_LENGTH, SLOT};
use crate::batch::Batch;
use crate::packet::Packet;

const CONTROL: usize = 4096;
const DATA: usize = 64;

/// Fewest and most slots of a ring.
pub(super) const SLOTS: std::ops::RangeInclusive<u32> = 16..=65536;

pub(super) struct Channel {
    segment: Segment,
    slots: u32,
    /// The ring that we write: 0 or 1.
    ours: usize,
    sent: Cursor,
    /// How far the other end has read, as it says.
    freed: Cursor,
    received: Cursor,
    /// How far the other end has written, as it says.
    seen: Cursor,
}

fn length(slots: u32) -> usize {
    CONTROL + 2 * slots as usize * SLOT
}

impl Channel {
    /// Fresh memory, for the end that listens.
    pub fn create(slots: u32) -> Result<Channel, Errno> {
        Ok(Self::new(Segment::create(c"shortwire-shm-link", length(slots))?, slots, 0))
    }

    /// The memory that the listening end made, with as many slots as it says.
    pub fn open(memory: BorrowedFd, slots: u32) -> Result<Channel, OpenError> {
        if !SLOTS.contains(&slots) {
            return Err(OpenError::BadSize(slots.into()));
        }
        let length = length(slots);
        Ok(Self::new(Segment::open(memory.as_raw_fd(), length, length)?, slots, 1))
    }

    fn new(segment: Segment, slots: u32, ours: usize) -> Channel {
        let zero = Cursor::ZERO;
        Channel { segment, slots, ours, sent: zero, freed: zero, received: zero, seen: zero }
    }

    /// The memory's descriptor, to be passed to the other end.
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the segment owns the descriptor and is borrowed.
        self.segment.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The other end has the memory; the descriptor is of no use any more.
    pub fn forget_memory(&mut self) {
        self.segment.close_fd();
    }

    /// Copies packets out, as many as there is room for, and tells how many.
    pub fn send(&mut self, packets: &[Packet]) -> Result<usize, Violation> {
        let used = (self.sent.pos - self.freed.pos) as u32;
        if self.slots - used < packets.len() as u32 {
            // SYNC: slot read. The reader's copies out of the slots come before its cursor.
            let word = self.word(self.ours, 1).load(Ordering::Acquire);
            self.freed.follow(word, self.slots, used)?;
        }
        let free = self.slots - (self.sent.pos - self.freed.pos) as u32;
        let count = packets.len().min(free as usize);
        for packet in &packets[..count] {
            let slot = self.slot(self.ours, &self.sent);
            // SAFETY: the slot has room for any packet; the other end may race, which costs it its
            // own data.
            unsafe {
                slot.wrapping_add(DATA).copy_from_nonoverlapping(packet.as_ptr(), packet.length())
            };
            self.slot_length(slot).store(packet.length() as u32, Ordering::Relaxed);
            self.sent.advance(1, self.slots);
        }
        if count > 0 {
            // SYNC: slot written. The packets come before the cursor that shows them.
            self.word(self.ours, 0).store(self.sent.wire(), Ordering::Release);
        }
        Ok(count)
    }

    /// Adds up to `most` packets that have come. The second number counts those for which there was
    /// no memory.
    pub fn receive(&mut self, most: usize, batch: &mut Batch) -> Result<u64, Violation> {
        let theirs = 1 - self.ours;
        let held = (self.seen.pos - self.received.pos) as u32;
        if (held as usize) < most {
            // SYNC: slot written. The writer's packets come before its cursor.
            let word = self.word(theirs, 0).load(Ordering::Acquire);
            self.seen.follow(word, self.slots, self.slots - held)?;
        }
        let count = ((self.seen.pos - self.received.pos) as usize).min(most).min(batch.room());
        let mut lost = 0;
        for _ in 0..count {
            let slot = self.slot(theirs, &self.received);
            let length = self.slot_length(slot).load(Ordering::Relaxed) as usize;
            if length > MAX_LENGTH {
                return Err(Violation);
            }
            match copy_out(slot.wrapping_add(DATA), length) {
                Some(packet) => drop(batch.push(packet)),
                None => lost += 1,
            }
            self.received.advance(1, self.slots);
        }
        if count > 0 {
            // SYNC: slot read. Our copies come before the cursor that frees the slots.
            self.word(theirs, 1).store(self.received.wire(), Ordering::Release);
        }
        Ok(lost)
    }

    /// Word of the control page: of ring 0 or 1, producer (0) or consumer (1), each on a line of
    /// its own.
    fn word(&self, ring: usize, which: usize) -> &AtomicU64 {
        let at = (ring * 2 + which) * 64;
        // SAFETY: within the control page, aligned, mapped as long as the segment; both ends use it
        // as an atomic only.
        unsafe { AtomicU64::from_ptr(self.segment.base().wrapping_add(at).cast()) }
    }

    fn slot(&self, ring: usize, at: &Cursor) -> *mut u8 {
        // The cursor is ours, and stays below `slots`.
        let index = ring * self.slots as usize + at.count() as usize;
        self.segment.base().wrapping_add(CONTROL + index * SLOT)
    }

    fn slot_length(&self, slot: *mut u8) -> &AtomicU32 {
        // SAFETY: the first word of a slot of the segment, aligned; both ends use it as an atomic
        // only.
        unsafe { AtomicU32::from_ptr(slot.cast()) }
    }
}

/// A packet with the `length` bytes at `from`, which another process may be writing: they are
/// copied, not looked at.
fn copy_out(from: *const u8, length: usize) -> Option<Packet> {
    let mut packet = Packet::allocate()?;
    if !packet.resize(length) {
        return None;
    }
    // SAFETY: `length` bytes of a slot, and as many of a packet that is ours; any bytes are valid.
    unsafe { packet.as_mut_ptr().copy_from_nonoverlapping(from, length) };
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn pair(slots: u32) -> (Channel, Channel) {
        let one = Channel::create(slots).unwrap();
        let two = Channel::open(one.memory().unwrap(), slots).unwrap();
        (one, two)
    }

    fn packet(n: u64, length: usize) -> Packet {
        let mut packet = Packet::from_slice(&n.to_ne_bytes()).unwrap();
        packet.resize(length.max(8));
        packet
    }

    proptest! {
        #[test]
        fn behaves_like_two_bounded_queues(
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), 1usize..40, 8usize..1984), 1..200),
        ) {
            let (mut one, mut two) = pair(32);
            let mut queues = [VecDeque::new(), VecDeque::new()];
            let mut next = 0;
            for (first, sending, count, length) in steps {
                let (queue, from, to) = match first {
                    true => (&mut queues[0], &mut one, &mut two),
                    false => (&mut queues[1], &mut two, &mut one),
                };
                if sending {
                    let packets: Vec<Packet> = (0..count as u64).map(|n| packet(next + n, length)).collect();
                    let sent = from.send(&packets).unwrap();
                    prop_assert_eq!(sent, count.min(32 - queue.len()));
                    queue.extend(packets.iter().take(sent).map(|packet| packet.to_vec()));
                    next += count as u64;
                } else {
                    let mut batch = Batch::new();
                    prop_assert_eq!(to.receive(count, &mut batch), Ok(0));
                    let got: Vec<Vec<u8>> = batch.iter().map(|packet| packet.to_vec()).collect();
                    let expected: Vec<Vec<u8>> = queue.drain(..count.min(queue.len())).collect();
                    prop_assert_eq!(got, expected);
                }
            }
        }

        #[test]
        fn a_hostile_peer_is_noticed_or_harmless(words: [u64; 2], length: u32) {
            let (mut one, two) = pair(16);
            two.word(0, 1).store(words[0], Ordering::Relaxed);
            two.word(1, 0).store(words[1], Ordering::Relaxed);
            for slot in 0..16 {
                let slot = two.segment.base().wrapping_add(CONTROL + (16 + slot) * SLOT);
                two.slot_length(slot).store(length, Ordering::Relaxed);
            }
            let packets: Vec<Packet> = (0..40).map(|n| packet(n, 60)).collect();
            if let Ok(sent) = one.send(&packets) {
                prop_assert!(sent <= 16);
            }
            let mut batch = Batch::new();
            if one.receive(128, &mut batch).is_ok() {
                prop_assert!(batch.len() <= 16);
            }
            prop_assert!(batch.is_empty() || length as usize <= MAX_LENGTH);
        }
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let one = Channel::create(16).unwrap();
        assert!(Channel::open(one.memory().unwrap(), 32).is_err());
        assert!(Channel::open(one.memory().unwrap(), 15).is_err());
        assert!(Channel::open(one.memory().unwrap(), u32::MAX).is_err());
    }
}
