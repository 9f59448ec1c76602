//! Descriptor rings against the plainest card there can be: it takes descriptors in order and marks
//! them.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::arena::{SLOT, arena};
use engine::nic::dma::Memory;
use engine::nic::ring::{Layout, Received, RxRing, TxRing};
use engine::nic::{Buffer, DmaError, DmaSpace, PacketMap};
use engine::{Batch, Link, Packet, pool};

const PACKETS: u64 = 4 << 30;
const RING: u64 = 256 << 30;
const SIZE: u32 = 128;

const DONE: u64 = 1 << 32;
const REPORT: u64 = 1 << 33;
const BROKEN: u64 = 1 << 34;

struct Plain;

impl Layout for Plain {
    fn received(word: u64) -> Option<Received> {
        (word & DONE != 0).then_some(Received { length: word as u16, good: word & BROKEN == 0 })
    }

    fn transmit(length: u16, report: bool) -> u64 {
        u64::from(length) | if report { REPORT } else { 0 }
    }

    fn sent(word: u64) -> bool {
        word & DONE != 0
    }
}

struct Space {
    packets: PacketMap,
    ring: Option<Buffer>,
}

impl DmaSpace for Space {
    fn packets(&self) -> &PacketMap {
        &self.packets
    }

    fn buffer(&mut self, bytes: usize) -> Result<Buffer, DmaError> {
        let buffer = Buffer::new(Arc::new(Memory::anonymous(bytes)?), 0, bytes, RING);
        self.ring = Some(buffer.clone());
        Ok(buffer)
    }
}

/// The other side of a ring.
struct Card {
    ring: Buffer,
    head: u32,
    tail: u32,
}

impl Card {
    fn new(make: impl FnOnce(&mut Space)) -> Self {
        let mut space = Space { packets: PacketMap::linear(PACKETS), ring: None };
        make(&mut space);
        Self { ring: space.ring.expect("a ring"), head: 0, tail: 0 }
    }

    /// The next descriptor that the driver has given: the packet's bytes in memory, and the word.
    fn next(&mut self) -> Option<(*mut u8, &AtomicU64)> {
        if self.head == self.tail {
            return None;
        }
        let cells = self.ring.cells::<AtomicU64>();
        let at = 2 * self.head as usize;
        self.head = (self.head + 1) % SIZE;
        let offset = cells[at]
            .load(Ordering::Relaxed)
            .checked_sub(PACKETS)
            .expect("an address of the packet memory");
        assert!((offset as usize) < arena().length());
        Some((arena().base().as_ptr().wrapping_add(offset as usize), &cells[at + 1]))
    }
}

fn frame(number: u32) -> Vec<u8> {
    let length = 60 + number as usize * 37 % 1400;
    number.to_le_bytes().iter().copied().cycle().take(length).collect()
}

/// Writes a frame as the card does.
fn arrive(card: &mut Card, number: u32, marks: u64) -> bool {
    let Some((bytes, word)) = card.next() else { return false };
    let frame = frame(number);
    assert!(bytes.addr() % SLOT + frame.len() <= SLOT);
    // SAFETY: a slot that the driver gave to the card, with room for the frame.
    unsafe { bytes.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
    word.store(frame.len() as u64 | DONE | marks, Ordering::Release);
    true
}

#[test]
fn frames_are_received_in_order_and_broken_ones_left_out() {
    let before = pool::stats().live;
    let mut ring = None;
    let mut card = Card::new(|space| ring = Some(RxRing::<Plain>::new(space, SIZE).unwrap()));
    let mut ring = ring.unwrap();
    card.tail = ring.refill().expect("a new ring takes slots");
    assert_eq!(card.tail, SIZE - 1, "one place stays free");
    assert_eq!(ring.refill(), None);

    let (mut sent, mut expected, mut broken) = (0, 0, 0);
    for round in 0..1000 {
        for _ in 0..round % 150 {
            let marks = if sent % 11 == 5 { BROKEN } else { 0 };
            if !arrive(&mut card, sent, marks) {
                break;
            }
            sent += 1;
        }
        let mut batch = Batch::new();
        broken += ring.receive(if round % 3 == 0 { 7 } else { 128 }, &mut batch);
        for packet in batch.drain() {
            if expected % 11 == 5 {
                expected += 1;
            }
            assert_eq!(packet[..], frame(expected)[..], "frame {expected}");
            expected += 1;
        }
        if let Some(tail) = ring.refill() {
            card.tail = tail;
        }
    }
    assert!(sent > 10 * SIZE && broken > 0);
    ring.clear();
    assert_eq!(pool::stats().live, before, "slots are back");
}

#[test]
fn packets_are_sent_in_order_and_freed_when_the_card_says_so() {
    let before = pool::stats().live;
    let mut ring = None;
    let mut card = Card::new(|space| ring = Some(TxRing::<Plain>::new(space, SIZE).unwrap()));
    let mut ring = ring.unwrap();
    let link = Link::new();
    let (mut queued, mut seen, mut reports) = (0, 0, 0);
    for round in 0..1000_u32 {
        for _ in 0..(round * 7 % 40).min(link.room() as u32) {
            link.transmit(Packet::from_slice(&frame(queued)).unwrap());
            queued += 1;
        }
        if let Some(tail) = ring.send(&link, |_| true) {
            card.tail = tail;
        }
        for _ in 0..round * 13 % 70 {
            let Some((bytes, word)) = card.next() else { break };
            let marks = word.load(Ordering::Relaxed);
            // SAFETY: the bytes of a packet that the driver gave to the card.
            let bytes = unsafe { std::slice::from_raw_parts(bytes, usize::from(marks as u16)) };
            assert_eq!(bytes, frame(seen), "frame {seen}");
            seen += 1;
            if marks & REPORT != 0 {
                reports += 1;
                word.fetch_or(DONE, Ordering::Release);
            }
        }
    }
    assert!(seen > 10 * SIZE && reports < seen / 4, "{reports} reports of {seen} frames");
    assert!(ring.pending() < SIZE);
    ring.clear();
    link.discard();
    assert_eq!(pool::stats().live, before, "slots are back");
}

#[test]
fn a_card_that_does_nothing_keeps_what_it_was_given_and_no_more() {
    let mut ring = None;
    Card::new(|space| ring = Some(TxRing::<Plain>::new(space, SIZE).unwrap()));
    let mut ring = ring.unwrap();
    let link = Link::new();
    for number in 0..300 {
        link.transmit(Packet::from_slice(&frame(number)).unwrap());
    }
    assert_eq!(ring.send(&link, |_| true), Some(SIZE - 1));
    assert_eq!(ring.send(&link, |_| true), None);
    assert_eq!((ring.pending(), link.length()), (SIZE - 1, 300 - (SIZE as usize - 1)));
    ring.clear();
}

#[test]
fn refused_packets_are_freed_and_the_others_sent() {
    let before = pool::stats().live;
    let mut ring = None;
    Card::new(|space| ring = Some(TxRing::<Plain>::new(space, SIZE).unwrap()));
    let mut ring = ring.unwrap();
    let link = Link::new();
    for number in 0..10 {
        link.transmit(Packet::from_slice(&frame(number)).unwrap());
    }
    let mut number = 0;
    let even = |_: &mut Packet| {
        number += 1;
        number % 2 == 0
    };
    assert_eq!(ring.send(&link, even), Some(5));
    assert_eq!(pool::stats().live, before + 5);
    ring.clear();
    assert_eq!(pool::stats().live, before);
}
