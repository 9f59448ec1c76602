//! What can be measured: the names that `--only` takes, and what each means.

mod words;

use anyhow::{Result, bail};
use words::{Words, words};

use crate::deck::Order;
use crate::lengths::Lengths;

/// In which caches source and destination of a copy are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warmth {
    Hot,
    ColdSource,
    ColdBoth,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Hot {
        length: usize,
        shift: usize,
    },
    /// Longer than caches: from place to place in the region, not thrown out of caches on purpose.
    Large {
        length: usize,
        shift: usize,
    },
    Cold {
        length: usize,
        shift: usize,
        order: Order,
        writer: bool,
    },
    Mix {
        lengths: Lengths,
        shift: usize,
    },
    Latency {
        length: usize,
    },
    Inline {
        length: usize,
    },
    Copy {
        length: usize,
        warmth: Warmth,
    },
    /// All in the cache.
    CopyMix {
        lengths: Lengths,
    },
    Batch {
        lengths: Lengths,
        order: Order,
        writer: bool,
    },
    /// For the source thread's claims: one chain and our best, with prefetch at many distances.
    Distance {
        length: usize,
        order: Order,
        writer: bool,
    },
    TuneInPacket {
        length: usize,
    },
    TuneNextPacket {
        lengths: Lengths,
    },
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub group: &'static str,
    /// What it has in common with cases that differ in lengths only, and which lengths.
    pub table: String,
    pub column: String,
    pub kind: Kind,
    pub in_quick: bool,
    /// Only measured when it is named.
    pub on_demand: bool,
}

impl Case {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.group == name
    }

    pub fn needs_writer(&self) -> bool {
        matches!(
            self.kind,
            Kind::Cold { writer: true, .. }
                | Kind::Batch { writer: true, .. }
                | Kind::Distance { writer: true, .. }
        )
    }

    pub fn is_cold(&self) -> bool {
        match self.kind {
            Kind::Hot { .. }
            | Kind::Large { .. }
            | Kind::Mix { .. }
            | Kind::Latency { .. }
            | Kind::CopyMix { .. }
            | Kind::Inline { .. } => false,
            Kind::Copy { warmth, .. } => warmth != Warmth::Hot,
            _ => true,
        }
    }

    pub fn mean_length(&self) -> f64 {
        match self.kind {
            Kind::Hot { length, .. }
            | Kind::Large { length, .. }
            | Kind::Cold { length, .. }
            | Kind::Latency { length }
            | Kind::Inline { length }
            | Kind::Copy { length, .. }
            | Kind::Distance { length, .. }
            | Kind::TuneInPacket { length } => length as f64,
            Kind::Mix { lengths, .. }
            | Kind::CopyMix { lengths }
            | Kind::Batch { lengths, .. }
            | Kind::TuneNextPacket { lengths } => lengths.mean(),
        }
    }
}

const SHIFTS: [usize; 2] = [0, 1];
const MIXES: [Lengths; 4] = [
    Lengths::Uniform(20, 64),
    Lengths::Uniform(64, 256),
    Lengths::Uniform(20, 1500),
    Lengths::Imix,
];

pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for shift in SHIFTS {
        for length in [20, 40, 64, 96, 128, 256, 320, 576, 1500, 4096, 9000, 65520, 1 << 20] {
            let quick = shift == 0 || [64, 1500, 4096, 9000].contains(&length);
            add(&mut cases, "hot", Kind::Hot { length, shift }, quick);
        }
    }
    for shift in SHIFTS {
        for length in [16 << 20, 256 << 20] {
            add(
                &mut cases,
                "large",
                Kind::Large { length, shift },
                shift == 0 && length == 16 << 20,
            );
        }
    }
    for shift in SHIFTS {
        for lengths in MIXES {
            add(&mut cases, "mix", Kind::Mix { lengths, shift }, shift == 0);
        }
    }
    for length in [20, 40, 64, 128, 256, 576, 1500] {
        add(&mut cases, "latency", Kind::Latency { length }, [20, 64, 1500].contains(&length));
    }
    for length in [20, 40] {
        add(&mut cases, "inline", Kind::Inline { length }, true);
    }
    cold(&mut cases);
    for (warmth, lengths) in [
        (Warmth::Hot, [64, 128, 256, 576, 1500, 9000, 65520].as_slice()),
        (Warmth::ColdSource, &[64, 256, 1500, 9000, 65520]),
        (Warmth::ColdBoth, &[64, 256, 1500, 9000, 65520, 1 << 20]),
    ] {
        for &length in lengths {
            add(
                &mut cases,
                "copy",
                Kind::Copy { length, warmth },
                length == 1500 || length == 9000,
            );
        }
    }
    for lengths in MIXES {
        add(&mut cases, "copy", Kind::CopyMix { lengths }, false);
    }
    for (lengths, order, writer) in [
        (Lengths::Fixed(1500), Order::Random, false),
        (Lengths::Fixed(1500), Order::Sequential, false),
        (Lengths::Fixed(9000), Order::Random, false),
        (Lengths::Imix, Order::Random, false),
        (Lengths::Fixed(1500), Order::Random, true),
    ] {
        add(
            &mut cases,
            "batch",
            Kind::Batch { lengths, order, writer },
            order == Order::Random && !writer,
        );
    }
    on_demand(&mut cases);
    cases
}

fn cold(cases: &mut Vec<Case>) {
    for (order, writer) in
        [(Order::Sequential, false), (Order::Random, false), (Order::Random, true)]
    {
        for length in [20, 64, 256, 576, 1500, 9000, 65520] {
            let quick = !writer && [64, 256, 1500, 9000].contains(&length) || length == 1500;
            add(cases, "cold", Kind::Cold { length, shift: 0, order, writer }, quick);
        }
    }
    for order in [Order::Sequential, Order::Random] {
        add(cases, "cold", Kind::Cold { length: 1500, shift: 1, order, writer: false }, false);
    }
    add(
        cases,
        "cold",
        Kind::Cold { length: 1500, shift: 0, order: Order::Sequential, writer: true },
        false,
    );
}

fn on_demand(cases: &mut Vec<Case>) {
    let first = cases.len();
    for (length, order, writer) in [
        (1500, Order::Sequential, false),
        (1500, Order::Random, false),
        (1500, Order::Random, true),
        (9000, Order::Random, false),
        (65520, Order::Random, false),
    ] {
        add(cases, "distance", Kind::Distance { length, order, writer }, false);
    }
    for length in [1500, 9000, 65520] {
        add(cases, "tune", Kind::TuneInPacket { length }, false);
    }
    for lengths in [Lengths::Fixed(1500), Lengths::Imix] {
        add(cases, "tune", Kind::TuneNextPacket { lengths }, false);
    }
    cases[first..].iter_mut().for_each(|case| case.on_demand = true);
}

fn add(cases: &mut Vec<Case>, group: &'static str, kind: Kind, in_quick: bool) {
    let Words { name, table, column } = words(kind);
    cases.push(Case { name, group, table, column, kind, in_quick, on_demand: false });
}

/// The cases that `only` names (those and groups), or all that are not on demand.
pub fn chosen(only: &[String], quick: bool) -> Result<Vec<Case>> {
    let all = all();
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|case| case.is_called(name))) {
        bail!(
            "there is no case {unknown}; `shortwire bench checksum --list` prints those there are"
        );
    }
    let wanted = |case: &Case| match only {
        [] => !case.on_demand && (case.in_quick || !quick),
        only => only.iter().any(|name| case.is_called(name)),
    };
    Ok(all.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::Random;

    #[test]
    fn names_are_unique_and_groups_are_no_names() {
        let all = all();
        let names: HashSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|case| !names.contains(case.group)));
    }

    #[test]
    fn choices() {
        let names = |only: &[&str]| -> Vec<String> {
            let only: Vec<String> = only.iter().map(|name| name.to_string()).collect();
            chosen(&only, false).unwrap().into_iter().map(|case| case.name).collect()
        };
        assert_eq!(names(&["hot-64", "mix-imix"]), ["hot-64", "mix-imix"]);
        assert_eq!(names(&["inline"]), ["inline-20", "inline-40"]);
        assert!(!names(&[]).iter().any(|name| name.starts_with("tune")));
        assert!(chosen(&["hot-63".into()], false).unwrap_err().to_string().contains("hot-63"));
    }

    #[test]
    fn the_mixes_have_the_mean_that_they_claim() {
        for lengths in MIXES {
            let mut random = Random::new(5);
            let sum: usize = (0..100_000).map(|_| lengths.draw(&mut random)).sum();
            let mean = sum as f64 / 100_000.0;
            assert!((mean / lengths.mean() - 1.0).abs() < 0.02, "{lengths:?}: {mean}");
        }
    }
}
