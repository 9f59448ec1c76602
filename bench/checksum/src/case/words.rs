//! How cases are called, on the command line and in tables.

use super::{Kind, Warmth};
use crate::deck::Order;
use crate::lengths::Lengths;

pub struct Words {
    pub name: String,
    pub table: String,
    pub column: String,
}

pub fn words(kind: Kind) -> Words {
    match kind {
        Kind::Hot { length, shift } => sized("hot", "In the cache", length, shift),
        Kind::Large { length, shift } => {
            sized("large", "Longer than caches, another place each time", length, shift)
        }
        Kind::Mix { lengths, shift } => {
            shifted("mix", "Mixed lengths, in the cache", lengths, shift)
        }
        Kind::Latency { length } => {
            sized("latency", "Latency: each call waits for the result before", length, 0)
        }
        Kind::Inline { length } => {
            sized("inline", "Headers, inline where there is such a form", length, 0)
        }
        Kind::Cold { length, shift, order, writer } => {
            let (by, how) = ordered(order, writer);
            sized(&format!("cold-{by}"), &format!("In no cache, {how}"), length, shift)
        }
        Kind::Copy { length, warmth } => match warmth {
            Warmth::Hot => sized("copy-hot", "Copy, all in the cache", length, 0),
            Warmth::ColdSource => {
                sized("copy-cold-source", "Copy, the source in no cache", length, 0)
            }
            Warmth::ColdBoth => sized("copy-cold-both", "Copy, neither side in a cache", length, 0),
        },
        Kind::CopyMix { lengths } => {
            shifted("copy-mix", "Copy, mixed lengths, all in the cache", lengths, 0)
        }
        Kind::Batch { lengths, order, writer } => {
            let (by, how) = ordered(order, writer);
            shifted(
                &format!("batch-{by}"),
                &format!("Many packets in one call, in no cache, {how}"),
                lengths,
                0,
            )
        }
        Kind::Distance { length, order, writer } => {
            let (by, how) = ordered(order, writer);
            sized(
                &format!("distance-{by}"),
                &format!("Prefetch distances, in no cache, {how}"),
                length,
                0,
            )
        }
        Kind::TuneInPacket { length } => {
            sized("tune-in-packet", "In-packet distances, in no cache", length, 0)
        }
        Kind::TuneNextPacket { lengths } => {
            shifted("tune-next-packet", "Next-packet settings, in no cache", lengths, 0)
        }
    }
}

fn sized(name: &str, table: &str, length: usize, shift: usize) -> Words {
    shifted(name, table, Lengths::Fixed(length), shift)
}

fn shifted(name: &str, table: &str, lengths: Lengths, shift: usize) -> Words {
    let (odd, address) = if shift == 0 { ("", "") } else { ("-odd", ", odd address") };
    let column = lengths.name();
    Words { name: format!("{name}-{column}{odd}"), table: format!("{table}{address}"), column }
}

fn ordered(order: Order, writer: bool) -> (&'static str, &'static str) {
    match (order, writer) {
        (Order::Sequential, false) => ("seq", "one behind the other"),
        (Order::Random, false) => ("random", "in random order"),
        (Order::Sequential, true) => {
            ("seq-writer", "one behind the other, a second core writing memory")
        }
        (Order::Random, true) => ("random-writer", "in random order, a second core writing memory"),
    }
}
