//! Prefetch settings against each other, on packets that no cache holds.

use std::cell::RefCell;
use std::hint::black_box;

use checksum::Kernel;
use checksum::prefetch::Profile;

use super::{Measured, Session, hand, measured};
use crate::deck::{Deck, Order};
use crate::lengths::Lengths;
use crate::rounds::Contender;
use crate::sum::{Loops, Role};
#[cfg(c_rivals)]
use crate::{bound, ours};

/// In bytes. The source thread's own setting is 5 lines, 320 bytes.
#[cfg(c_rivals)]
const CLAIMED: [usize; 7] = [64, 128, 320, 512, 1024, 1536, 2048];
const IN_PACKET: [u16; 8] = [0, 128, 256, 320, 512, 1024, 1536, 2048];
const LINES: [u8; 6] = [4, 5, 6, 8, 12, 16];
const AHEAD: [u8; 4] = [1, 2, 3, 4];

/// The packets of one case, for all that are compared on them.
struct Table<'a> {
    deck: RefCell<Deck<'a>>,
    count: usize,
    clock: crate::clock::Clock,
    /// Packets that are left out between two samples.
    skip: usize,
}

impl<'a> Table<'a> {
    fn new(
        session: &'a Session,
        random: &mut crate::random::Random,
        lengths: Lengths,
        order: Order,
    ) -> Table<'a> {
        let deck =
            Deck::new(session.region.bytes(), order, lengths.longest(), 0, random, |random| {
                lengths.draw(random)
            });
        let skip = if order == Order::Sequential { super::sums::NEIGHBOURS } else { 0 };
        Table {
            deck: RefCell::new(deck),
            count: hand(lengths.mean()),
            clock: session.rounds.clock,
            skip,
        }
    }

    fn each<'b>(
        &'b self,
        name: String,
        role: Role,
        sum: impl Fn(&[u8]) -> u64 + 'b,
    ) -> Contender<'b> {
        Contender::new(name, role, move |_| {
            let mut deck = self.deck.borrow_mut();
            let packets = deck.deal(self.count);
            let ns = self.clock.time(|| Loops::each(&sum, packets)) / packets.len() as f64;
            deck.skip(self.skip);
            ns
        })
    }

    fn batch(&self, name: String, profile: Profile) -> Contender<'_> {
        let mut sums = vec![0; self.count];
        Contender::new(name, Role::Setting, move |_| {
            let mut deck = self.deck.borrow_mut();
            let packets = deck.deal(self.count);
            let sums = &mut sums[..packets.len()];
            sums.fill(0);
            let ns =
                self.clock.time(|| Kernel::active().csum_batch(packets, black_box(sums), &profile));
            ns / packets.len() as f64
        })
    }
}

/// The source thread's chain with each distance, past the end of the data and not; and our best
/// kernel.
#[cfg(c_rivals)]
pub fn distances(session: &mut Session, length: usize, order: Order) -> Measured {
    use crate::rivals::one_chain;
    let mut random = crate::random::Random::new(21);
    let read = bound::read();
    let table = Table::new(session, &mut random, Lengths::Fixed(length), order);
    let mut contenders = vec![table.each("one chain".into(), Role::Setting, one_chain::plain)];
    for distance in CLAIMED {
        let setting = |how| format!("one chain, {how} {distance}");
        contenders.push(
            table.each(setting("dumb"), Role::Setting, move |data| one_chain::dumb(data, distance)),
        );
        contenders.push(
            table.each(setting("smart"), Role::Setting, move |data| {
                one_chain::smart(data, distance)
            }),
        );
    }
    contenders.push(table.each(ours::NAME.into(), Role::Ours, |data| {
        u64::from(Kernel::active().csum_partial(data, 0))
    }));
    for distance in CLAIMED {
        contenders.push(table.each(
            format!("{}, smart {distance}", ours::NAME),
            Role::Setting,
            move |data| u64::from(Kernel::active().csum_partial_prefetch(data, 0, distance)),
        ));
    }
    contenders.push(Contender::new(read.name.clone(), read.role, |_| {
        let mut deck = table.deck.borrow_mut();
        let packets = deck.deal(table.count);
        table.clock.time(|| read.loops.each(packets)) / packets.len() as f64
    }));
    measured(contenders, &session.rounds, &mut random)
}

#[cfg(not(c_rivals))]
pub fn distances(session: &mut Session, _: usize, _: Order) -> Measured {
    measured(Vec::new(), &session.rounds, &mut session.random)
}

/// Names are distances, the built-in one among them.
pub fn in_packet(session: &mut Session, length: usize) -> Measured {
    let mut random = crate::random::Random::new(22);
    let table = Table::new(session, &mut random, Lengths::Fixed(length), Order::Random);
    let built_in = Profile::built_in().in_packet;
    let distances =
        IN_PACKET.into_iter().chain((!IN_PACKET.contains(&built_in)).then_some(built_in));
    let contenders = distances.map(|distance| {
        table.each(distance.to_string(), Role::Setting, move |data| {
            u64::from(Kernel::active().csum_partial_prefetch(data, 0, distance.into()))
        })
    });
    measured(contenders.collect(), &session.rounds, &mut random)
}

/// Names are lines and packets ahead, `8 2`; the built-in setting is among them.
pub fn next_packet(session: &mut Session, lengths: Lengths) -> Measured {
    let mut random = crate::random::Random::new(23);
    let table = Table::new(session, &mut random, lengths, Order::Random);
    let built_in = Profile::built_in();
    let mut settings = vec![(0, 0), (built_in.next_packet_lines, built_in.packets_ahead)];
    settings.extend(LINES.iter().flat_map(|&lines| AHEAD.map(|ahead| (lines, ahead))));
    settings.sort_unstable();
    settings.dedup();
    let contenders = settings.into_iter().map(|(lines, ahead)| {
        table.batch(format!("{lines} {ahead}"), Profile::new(0, lines, ahead))
    });
    measured(contenders.collect(), &session.rounds, &mut random)
}
