//! Sums: in the cache, in none, of mixed lengths, one after the other, and of headers.

use std::cell::{Cell, RefCell};

use super::{Measured, Session, calls, everything, hand, measured};
use crate::deck::{Deck, Order};
use crate::lengths::Lengths;
use crate::ours;
use crate::random::Random;
use crate::region::LINE;
use crate::rounds::Contender;
use crate::sum::{Role, Routine, opaque_array};

/// Packets in a sample of mixed lengths: their list takes a fraction of the first cache, and no
/// branch predictor learns it within a round.
const MIX_PACKETS: usize = 512;
/// Where packets of mixed lengths lie: in the first cache beside their list.
const MIX_BYTES: usize = 16 << 10;

fn contender<'a>(
    routine: &'a Routine,
    right: bool,
    sample: impl FnMut(usize) -> f64 + 'a,
) -> Contender<'a> {
    Contender { wrong: !right, ..Contender::new(routine.name.clone(), routine.role, sample) }
}

/// Right on these packets, and on the worst ones of their length.
fn is_right(routine: &Routine, packets: &[&[u8]]) -> bool {
    let longest = packets.iter().map(|packet| packet.len()).max().unwrap_or(0);
    routine.is_right(packets) && routine.is_right(&[&vec![0xff; longest]])
}

pub fn hot(session: &mut Session, length: usize, shift: usize) -> Measured {
    let data = &session.region.bytes()[shift..][..length];
    let clock = session.rounds.clock;
    let routines = everything(length);
    let contenders = routines.iter().map(|routine| {
        routine.loops.repeat(data, 16);
        let times = calls(clock.time(|| routine.loops.repeat(data, 64)) / 64.0);
        contender(routine, is_right(routine, &[data]), move |_| {
            clock.time(|| routine.loops.repeat(data, times)) / times as f64
        })
    });
    measured(contenders.collect(), &session.rounds, &mut session.random)
}

pub fn large(session: &mut Session, length: usize, shift: usize) -> Measured {
    let clock = session.rounds.clock;
    let region = session.region.bytes();
    let places = region.len() / (length + LINE);
    let place = Cell::new(0);
    let routines = everything(length);
    let contenders = routines.iter().map(|routine| {
        let right = is_right(routine, &[&region[shift..][..length]]);
        let place = &place;
        contender(routine, right, move |_| {
            place.set((place.get() + 1) % places);
            let data = &region[place.get() * (length + LINE) + shift..][..length];
            clock.time(|| routine.loops.each(&[data]))
        })
    });
    measured(contenders.collect(), &session.rounds, &mut session.random)
}

pub fn cold(session: &mut Session, length: usize, shift: usize, order: Order) -> Measured {
    let clock = session.rounds.clock;
    let region = session.region.bytes();
    let routines = everything(length);
    let right: Vec<bool> =
        routines.iter().map(|routine| is_right(routine, &[&region[shift..][..length]])).collect();
    let deck = Deck::new(region, order, length, shift, &mut session.random, |_| length);
    let count = hand(length as f64);
    let deck = RefCell::new(deck);
    let contenders = routines.iter().zip(right).map(|(routine, right)| {
        let deck = &deck;
        contender(routine, right, move |_| {
            let mut deck = deck.borrow_mut();
            let packets = deck.deal(count);
            let ns = clock.time(|| routine.loops.each(packets)) / packets.len() as f64;
            if order == Order::Sequential {
                deck.skip(NEIGHBOURS);
            }
            ns
        })
    });
    measured(contenders.collect(), &session.rounds, &mut session.random)
}

/// Packets behind a sequence that the hardware may have begun to fetch.
pub const NEIGHBOURS: usize = 4;

/// New lengths and places each round, the same for all that are compared.
struct Mix<'a> {
    data: &'a [u8],
    lengths: Lengths,
    shift: usize,
    round: usize,
    random: Random,
    packets: Vec<&'a [u8]>,
}

impl<'a> Mix<'a> {
    fn of_round(&mut self, round: usize) -> &[&'a [u8]] {
        if self.round != round || self.packets.is_empty() {
            self.round = round;
            let (data, lengths, shift, random) =
                (self.data, self.lengths, self.shift, &mut self.random);
            self.packets.clear();
            self.packets.extend((0..MIX_PACKETS).map(|_| {
                let length = lengths.draw(random);
                let place = random.below((data.len() - length - shift) / LINE + 1) * LINE;
                &data[place + shift..][..length]
            }));
        }
        &self.packets
    }
}

pub fn mix(session: &mut Session, lengths: Lengths, shift: usize) -> Measured {
    let clock = session.rounds.clock;
    let data = &session.region.bytes()[..MIX_BYTES];
    let mix = Mix { data, lengths, shift, round: 0, random: Random::new(11), packets: Vec::new() };
    let mix = RefCell::new(mix);
    let routines = everything(lengths.longest());
    let contenders = routines.iter().map(|routine| {
        let right = is_right(routine, mix.borrow_mut().of_round(0));
        let mix = &mix;
        contender(routine, right, move |round| {
            let mut mix = mix.borrow_mut();
            let packets = mix.of_round(round);
            clock.time(|| routine.loops.each(packets)) / packets.len() as f64
        })
    });
    measured(contenders.collect(), &session.rounds, &mut session.random)
}

pub fn latency(session: &mut Session, length: usize) -> Measured {
    let data = &session.region.bytes()[..length];
    let clock = session.rounds.clock;
    let mut routines = everything(length);
    // They do not return what they read.
    routines.retain(|routine| routine.to_sum.is_some());
    // What a user takes who waits for the sum; the other one beside it.
    routines.iter_mut().filter(|routine| routine.role == Role::Ours).for_each(|routine| {
        (routine.name, routine.role) = (format!("{} csum_partial", ours::NAME), Role::Setting);
    });
    routines.insert(0, ours::at_once());
    let contenders = routines.iter().map(|routine| {
        routine.loops.chain(data, 16);
        let times = calls(clock.time(|| routine.loops.chain(data, 64)) / 64.0);
        contender(routine, is_right(routine, &[data]), move |_| {
            clock.time(|| routine.loops.chain(data, times)) / times as f64
        })
    });
    measured(contenders.collect(), &session.rounds, &mut session.random)
}

pub fn inline(session: &mut Session, length: usize) -> Measured {
    let clock = session.rounds.clock;
    let data = &session.region.bytes()[..length];
    let times = calls(3.0);
    let mut routines = everything(length);
    for routine in &mut routines {
        if routine.role == Role::Ours {
            (routine.name, routine.role) = (format!("{} (call)", ours::NAME), Role::Setting);
        }
    }
    let ours = Contender::new(ours::NAME, Role::Ours, move |_| {
        let ns = match data.len() {
            20 => clock.time(|| headers(data.first_chunk(), times, checksum::csum_header20)),
            _ => clock.time(|| headers(data.first_chunk(), times, checksum::csum_header40)),
        };
        ns / times as f64
    });
    let contenders = routines.iter().map(|routine| {
        contender(routine, is_right(routine, &[data]), move |_| {
            clock.time(|| routine.loops.repeat(data, times)) / times as f64
        })
    });
    measured([ours].into_iter().chain(contenders).collect(), &session.rounds, &mut session.random)
}

#[inline(never)]
fn headers<const N: usize>(
    header: Option<&[u8; N]>,
    times: usize,
    sum: impl Fn(&[u8; N]) -> u16,
) -> u64 {
    header.map_or(0, |header| {
        (0..times).fold(0, |sums, _| sums ^ u64::from(sum(opaque_array(header))))
    })
}
