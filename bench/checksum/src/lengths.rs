//! How long the packets of a case are.

use crate::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lengths {
    Fixed(usize),
    /// Each length from .. to equally often.
    Uniform(usize, usize),
    /// The simple Internet mix: 7 of 40 bytes, 4 of 576, 1 of 1500.
    Imix,
}

impl Lengths {
    pub fn draw(self, random: &mut Random) -> usize {
        match self {
            Lengths::Fixed(length) => length,
            Lengths::Uniform(from, to) => from + random.below(to - from + 1),
            Lengths::Imix => match random.below(12) {
                0..7 => 40,
                7..11 => 576,
                _ => 1500,
            },
        }
    }

    pub fn longest(self) -> usize {
        match self {
            Lengths::Fixed(length) | Lengths::Uniform(_, length) => length,
            Lengths::Imix => 1500,
        }
    }

    pub fn mean(self) -> f64 {
        match self {
            Lengths::Fixed(length) => length as f64,
            Lengths::Uniform(from, to) => (from + to) as f64 / 2.0,
            Lengths::Imix => (7 * 40 + 4 * 576 + 1500) as f64 / 12.0,
        }
    }

    pub fn name(self) -> String {
        match self {
            Lengths::Fixed(length) if length >= 1 << 20 => format!("{}M", length >> 20),
            Lengths::Fixed(length) => length.to_string(),
            Lengths::Uniform(from, to) => format!("{from}-{to}"),
            Lengths::Imix => "imix".into(),
        }
    }
}
