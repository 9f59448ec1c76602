//! The window of sequence numbers that were seen: RFC 4303, 3.4.3, by the blocks of RFC 6479, and
//! extended numbers as its appendix A has them.

/// Numbers below the highest that are told apart.
pub(super) const WINDOW: u64 = 1024;
/// Words of 64 bits: twice the window, so that words ahead of it can be emptied whole.
const WORDS: u64 = WINDOW * 2 / 64;

/// Which numbers have come. Number 0 never does.
#[derive(Debug, Clone)]
pub(super) struct Replay {
    highest: u64,
    seen: [u64; WORDS as usize],
}

impl Replay {
    pub(super) fn new() -> Self {
        Self { highest: 0, seen: [0; WORDS as usize] }
    }

    /// Whether a packet with this number is new.
    #[inline]
    pub(super) fn is_new(&self, number: u64) -> bool {
        let old = number.saturating_add(WINDOW) <= self.highest;
        let seen = self.seen[(number / 64 % WORDS) as usize] >> (number % 64) & 1 != 0;
        number != 0 && !old && (number > self.highest || !seen)
    }

    /// A packet with this number, which is new, was authentic.
    #[inline]
    pub(super) fn add(&mut self, number: u64) {
        if number > self.highest {
            let (from, to) = (self.highest / 64, number / 64);
            for word in (from + 1..=to).rev().take(WORDS as usize) {
                self.seen[(word % WORDS) as usize] = 0;
            }
            self.highest = number;
        }
        self.seen[(number / 64 % WORDS) as usize] |= 1 << (number % 64);
    }

    /// The number of 64 bits whose lower half came with a packet.
    #[inline]
    pub(super) fn extend(&self, low: u32) -> u64 {
        let (top_high, top_low) = (self.highest >> 32, self.highest as u32);
        let bottom = top_low.wrapping_sub(WINDOW as u32 - 1);
        let high = if u64::from(top_low) >= WINDOW - 1 {
            // The window lies within one half of all numbers.
            if low >= bottom { top_high } else { top_high.wrapping_add(1) }
        } else if low >= bottom {
            top_high.wrapping_sub(1)
        } else {
            top_high
        };
        high << 32 | u64::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn agrees_with_a_set(
            start in prop_oneof![Just(1u64), 1u64..5000, Just((1 << 32) - 100)],
            steps in prop::collection::vec(prop_oneof![-1200i64..1200, -40i64..90, Just(70_000)], 0..300),
        ) {
            let (mut replay, mut seen, mut highest) = (Replay::new(), HashSet::new(), 0u64);
            let mut number = start;
            for step in steps {
                let is_new = number != 0 && number + WINDOW > highest && !seen.contains(&number);
                prop_assert_eq!(replay.is_new(number), is_new, "{} below {}", number, highest);
                // The upper half is found as long as no more than half of all numbers are lost.
                if highest > 0 && number + WINDOW > highest {
                    prop_assert_eq!(replay.extend(number as u32), number);
                }
                if is_new {
                    replay.add(number);
                    seen.insert(number);
                    highest = highest.max(number);
                }
                number = highest.saturating_add_signed(step);
            }
        }
    }
}
