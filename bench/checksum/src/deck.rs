//! Packets that no cache holds: a region cut into slots, thrown out of the caches once, and then
//! dealt, each slot a single time. When all are dealt, the region is thrown out again.

use crate::random::Random;
use crate::region::{LINE, flush};

/// A page: what the hardware's prefetchers do not look beyond.
const PAGE: usize = 4096;
/// As network drivers cut their buffers.
const BUFFER: usize = 2048;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// One buffer behind the other.
    Sequential,
    /// No two neighbours, and a different place in the page each time.
    Random,
}

pub struct Deck<'a> {
    region: &'a [u8],
    slots: Vec<&'a [u8]>,
    next: usize,
    hand: Vec<&'a [u8]>,
}

impl<'a> Deck<'a> {
    /// `lengths` gives the length of each packet, at most `longest`; `shift` bytes are added to
    /// each address.
    pub fn new(
        region: &'a [u8],
        order: Order,
        longest: usize,
        shift: usize,
        random: &mut Random,
        mut lengths: impl FnMut(&mut Random) -> usize,
    ) -> Deck<'a> {
        let unit = if order == Order::Random { PAGE } else { BUFFER };
        let slot = (longest + shift).next_multiple_of(unit);
        let mut slots: Vec<&[u8]> = region
            .chunks_exact(slot)
            .map(|bytes| {
                let length = lengths(random).min(longest);
                let room = (slot - shift - length) / LINE;
                let place = if order == Order::Random { random.below(room + 1) * LINE } else { 0 };
                &bytes[place + shift..][..length]
            })
            .collect();
        if order == Order::Random {
            random.shuffle(&mut slots);
        }
        flush(region);
        Deck { region, slots, next: 0, hand: Vec::new() }
    }

    /// The next `count` packets, in a list that is in the cache.
    pub fn deal(&mut self, count: usize) -> &[&'a [u8]] {
        let count = count.min(self.slots.len());
        if self.next + count > self.slots.len() {
            flush(self.region);
            self.next = 0;
        }
        self.hand.clear();
        self.hand.extend_from_slice(&self.slots[self.next..][..count]);
        self.next += count;
        &self.hand
    }

    /// Leaves out a few packets, which the hardware may have fetched because those before them were
    /// read.
    pub fn skip(&mut self, count: usize) {
        self.next = (self.next + count).min(self.slots.len());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_packet_is_dealt_once_before_any_comes_again() {
        let bytes = vec![1u8; 64 * PAGE];
        for (order, slots) in [(Order::Random, 64), (Order::Sequential, 128)] {
            let mut deck = Deck::new(&bytes, order, 1500, 1, &mut Random::new(3), |random| {
                60 + random.below(1400)
            });
            assert_eq!(deck.slots.len(), slots);
            let mut seen = HashSet::new();
            for _ in 0..slots / 16 {
                for packet in deck.deal(16) {
                    assert!(
                        packet.as_ptr().addr() % 2 != bytes.as_ptr().addr() % 2,
                        "one byte off"
                    );
                    assert!(seen.insert(packet.as_ptr()), "dealt twice");
                }
            }
            assert!(!seen.insert(deck.deal(16)[0].as_ptr()), "dealt anew");
        }
    }
}
