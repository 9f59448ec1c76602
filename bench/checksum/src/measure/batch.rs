//! Many packets in one call, with the next packets' prefetch and without.

use std::cell::RefCell;
use std::hint::black_box;

use checksum::Kernel;
use checksum::prefetch::Profile;

use super::sums::NEIGHBOURS;
use super::{Measured, Session, hand, measured};
use crate::deck::{Deck, Order};
use crate::lengths::Lengths;
use crate::rounds::Contender;
use crate::sum::{Role, Routine};
use crate::{bound, ours, rivals};

/// What `csum_batch` without prefetch is called.
pub const PLAIN: &str = "no prefetch";

pub fn batches(session: &mut Session, lengths: Lengths, order: Order) -> Measured {
    let clock = session.rounds.clock;
    let region = session.region.bytes();
    let deck = Deck::new(region, order, lengths.longest(), 0, &mut session.random, |random| {
        lengths.draw(random)
    });
    let (deck, count) = (RefCell::new(deck), hand(lengths.mean()));
    let with_sums = RefCell::new(vec![0u32; count]);
    let (deck, with_sums) = (&deck, &with_sums);
    let batch = |name, role, profile: Profile| {
        Contender::new(name, role, move |_| {
            let (mut deck, mut sums) = (deck.borrow_mut(), with_sums.borrow_mut());
            sums.fill(0);
            let packets = deck.deal(count);
            let ns = clock.time(|| {
                Kernel::active().csum_batch(
                    packets,
                    black_box(&mut sums[..packets.len()]),
                    &profile,
                )
            });
            let ns = ns / packets.len() as f64;
            if order == Order::Sequential {
                deck.skip(NEIGHBOURS);
            }
            ns
        })
    };
    let routines: Vec<Routine> = rivals::all()
        .0
        .into_iter()
        .chain([bound::read(), bound::memcpy(lengths.longest())])
        .collect();
    let mut contenders = vec![
        batch(ours::NAME, Role::Ours, session.profile),
        batch(PLAIN, Role::Setting, Profile::new(session.profile.in_packet, 0, 0)),
    ];
    for routine in &routines {
        contenders.push(Contender::new(routine.name.clone(), routine.role, move |_| {
            let mut deck = deck.borrow_mut();
            let packets = deck.deal(count);
            let ns = clock.time(|| routine.loops.each(packets)) / packets.len() as f64;
            if order == Order::Sequential {
                deck.skip(NEIGHBOURS);
            }
            ns
        }));
    }
    measured(contenders, &session.rounds, &mut session.random)
}
