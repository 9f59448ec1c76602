//! Copies with a sum, and without.

use std::cell::RefCell;
use std::hint::black_box;

use anyhow::{Context, Result};
use checksum::{csum_and_copy, csum_and_copy_nt, csum_partial};

use super::{Measured, SAMPLE_NS, Session, hand, measured};
use crate::case::Warmth;
use crate::lengths::Lengths;
use crate::ours;
use crate::random::Random;
use crate::region::{LINE, Region, flush};
use crate::rivals;
use crate::rounds::Contender;
use crate::sum::Role;

const PAGE: usize = 4096;
/// What hot sources and destinations take together at most, unless one alone is longer.
const HOT_BYTES: usize = 16 << 10;

type Copies = Box<dyn Fn(&[&[u8]], &mut [&mut [u8]]) -> u64>;

/// A loop of its own for each way, as for sums.
fn copier(copy: impl Fn(&[u8], &mut [u8]) -> u64 + 'static) -> Copies {
    Box::new(move |sources, destinations| {
        let pairs = sources.iter().zip(destinations);
        pairs.fold(0, |sum, (source, destination)| sum ^ copy(source, destination))
    })
}

fn ways() -> Vec<(String, Role, Copies)> {
    let mut ways = own_ways();
    ways.extend(
        rivals::copies()
            .into_iter()
            .map(|(name, copy)| (name.to_string(), Role::Rival, copier(copy))),
    );
    ways
}

/// Two passes are a rival, too, though the sum is ours: whoever has it needs no copy that takes longer.
fn own_ways() -> Vec<(String, Role, Copies)> {
    vec![
        (
            "memcpy".into(),
            Role::Memcpy,
            copier(|source, destination| {
                destination.copy_from_slice(source);
                0
            }),
        ),
        (
            "memcpy, then sum".into(),
            Role::Rival,
            copier(|source, destination| {
                destination.copy_from_slice(source);
                csum_partial(destination, 0).into()
            }),
        ),
        (
            "sum, then memcpy".into(),
            Role::Rival,
            copier(|source, destination| {
                let sum = csum_partial(source, 0);
                destination.copy_from_slice(source);
                sum.into()
            }),
        ),
        (
            ours::NAME.into(),
            Role::Ours,
            copier(|source, destination| csum_and_copy(source, destination, 0).into()),
        ),
        (
            format!("{} non-temporal", ours::NAME),
            Role::Setting,
            copier(|source, destination| csum_and_copy_nt(source, destination, 0).into()),
        ),
    ]
}

pub fn copies(session: &mut Session, length: usize, warmth: Warmth) -> Result<Measured> {
    let mut to = match session.destination.take() {
        Some(region) => region,
        None => Region::new(session.region.bytes().len() / 2, &mut session.random)
            .context("no memory to copy to")?,
    };
    let clock = session.rounds.clock;
    let mut random = Random::new(31);
    let (mut sources, mut destinations) = match warmth {
        Warmth::Hot => (
            places(session.region.bytes(), length, false, &mut random),
            cut(to.bytes_mut(), length, false, &mut random),
        ),
        Warmth::ColdSource => (
            places(session.region.bytes(), length, true, &mut random),
            cut(to.bytes_mut(), length, false, &mut random),
        ),
        Warmth::ColdBoth => (
            places(session.region.bytes(), length, true, &mut random),
            cut(to.bytes_mut(), length, true, &mut random),
        ),
    };
    let hot = (HOT_BYTES / 2 / length).max(1);
    let count = if warmth == Warmth::Hot { hot } else { hand(length as f64) };
    if warmth != Warmth::ColdSource {
        // Both sides are dealt together.
        let common = sources.len().min(destinations.len());
        sources.truncate(common);
        destinations.truncate(common);
    }
    // Destinations that stay hot are used again and again within a sample.
    let table = RefCell::new(Table { destinations, next: 0 });
    let passes = if warmth == Warmth::Hot {
        (SAMPLE_NS / (count as f64 * (8.0 + length as f64 * 0.02))) as usize + 1
    } else {
        1
    };
    let (table, sources) = (&table, &sources[..]);
    let contenders = ways().into_iter().map(|(name, role, copies)| {
        Contender::new(name, role, move |_| {
            let mut table = table.borrow_mut();
            table.advance(sources, count, warmth);
            let first = table.next;
            table.next += count;
            let from =
                if warmth == Warmth::Hot { &sources[..count] } else { &sources[first..][..count] };
            let ns = match warmth {
                Warmth::ColdBoth => {
                    let to = &mut table.destinations[first..][..count];
                    clock.time(|| copies(from, to))
                }
                _ => {
                    let to = &mut table.destinations[..hot];
                    // Also what a non-temporal store has thrown out is back.
                    to.iter_mut().for_each(|bytes| bytes.fill(0));
                    clock.time(|| {
                        for _ in 0..passes {
                            for from in from.chunks(hot) {
                                black_box(copies(from, to));
                            }
                        }
                    })
                }
            };
            ns / (count * passes) as f64
        })
    });
    let figures = measured(contenders.collect(), &session.rounds, &mut session.random);
    session.destination = Some(to);
    Ok(figures)
}

/// Packets in a sample of mixed lengths.
const MIX_PACKETS: usize = 256;

/// New lengths each round, the same for all that are compared.
pub fn mixed(session: &mut Session, lengths: Lengths) -> Measured {
    let clock = session.rounds.clock;
    let slot = lengths.longest().next_multiple_of(LINE);
    let data = &session.region.bytes()[..HOT_BYTES / 2];
    // Not at the sources' own offsets in a page, as in `cut`.
    let mut memory = vec![1; HOT_BYTES / 2 + 2 * PAGE];
    let start = memory.as_ptr().align_offset(PAGE) + PAGE / 2 + LINE;
    let mut places: Vec<&mut [u8]> =
        memory[start..][..HOT_BYTES / 2].chunks_exact_mut(slot).collect();
    let count = places.len();
    let mut random = Random::new(13);
    let of_round = |random: &mut Random| -> Vec<&[u8]> {
        let one = |_| {
            let length = lengths.draw(random);
            &data[random.below((data.len() - length) / LINE + 1) * LINE..][..length]
        };
        (0..MIX_PACKETS / count * count).map(one).collect()
    };
    let packets = RefCell::new((usize::MAX, of_round(&mut random)));
    let (packets, random, places) = (&packets, RefCell::new(random), RefCell::new(&mut places));
    let (random, places, of_round) = (&random, &places, &of_round);
    let contenders = ways().into_iter().map(|(name, role, copies)| {
        Contender::new(name, role, move |round| {
            let mut packets = packets.borrow_mut();
            if packets.0 != round {
                *packets = (round, of_round(&mut random.borrow_mut()));
            }
            let mut places = places.borrow_mut();
            let ns = clock.time(|| {
                for sources in packets.1.chunks(count) {
                    let cut = places.iter_mut().zip(sources);
                    let mut cut: Vec<&mut [u8]> =
                        cut.map(|(place, source)| &mut place[..source.len()]).collect();
                    black_box(copies(sources, &mut cut));
                }
            });
            ns / packets.1.len() as f64
        })
    });
    measured(contenders.collect(), &session.rounds, &mut session.random)
}

struct Table<'a> {
    destinations: Vec<&'a mut [u8]>,
    next: usize,
}

impl Table<'_> {
    /// Begins anew, with cold packets, when there are not enough left.
    fn advance(&mut self, sources: &[&[u8]], count: usize, warmth: Warmth) {
        if warmth == Warmth::Hot {
            self.next = 0;
        } else if self.next == 0 || self.next + count > sources.len() {
            self.next = 0;
            sources.iter().for_each(|bytes| flush(bytes));
            if warmth == Warmth::ColdBoth {
                self.destinations.iter().for_each(|bytes| flush(bytes));
            }
        }
    }
}

/// Cold packets lie in random order at random places of their pages, hot ones side by side.
fn slot(length: usize, cold: bool) -> usize {
    length.next_multiple_of(if cold { PAGE } else { LINE })
}

fn places<'a>(bytes: &'a [u8], length: usize, cold: bool, random: &mut Random) -> Vec<&'a [u8]> {
    let slot = slot(length, cold);
    let mut found: Vec<&[u8]> = bytes
        .chunks_exact(slot)
        .map(|bytes| &bytes[random.below((slot - length) / LINE + 1) * LINE..][..length])
        .collect();
    if cold {
        random.shuffle(&mut found);
    }
    found
}

fn cut<'a>(
    bytes: &'a mut [u8],
    length: usize,
    cold: bool,
    random: &mut Random,
) -> Vec<&'a mut [u8]> {
    let slot = slot(length, cold);
    // Not at the sources' own offsets in a page: loads would wait for stores that only look like
    // theirs.
    let chunks = bytes[if cold { 0 } else { PAGE / 2 + LINE }..].chunks_exact_mut(slot);
    let mut found: Vec<&mut [u8]> = chunks
        .map(|bytes| &mut bytes[random.below((slot - length) / LINE + 1) * LINE..][..length])
        .collect();
    if cold {
        random.shuffle(&mut found);
    }
    found
}
