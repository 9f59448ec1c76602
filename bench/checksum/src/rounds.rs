//! The rounds: each measures everything that is compared once, in an order of its own, so that what disturbs the machine for
//! a while disturbs all alike.

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::random::Random;
use crate::sum::Role;

/// Fewer give no median worth the name.
pub const FEWEST: usize = 5;

/// One of the things that are compared. `sample` measures it once, in ns per packet; its argument is the number of the
/// round, for those that all work on the same data.
pub struct Contender<'a> {
    pub name: String,
    pub role: Role,
    pub wrong: bool,
    pub sample: Box<dyn FnMut(usize) -> f64 + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: impl Into<String>, role: Role, sample: impl FnMut(usize) -> f64 + 'a) -> Contender<'a> {
        Contender { name: name.into(), role, wrong: false, sample: Box::new(sample) }
    }
}

pub struct Rounds {
    pub clock: Clock,
    pub most: usize,
    pub limit: Duration,
}

impl Rounds {
    /// The values of each contender, one per round. Ends early when the time is over.
    pub fn run(&self, contenders: &mut [Contender<'_>], random: &mut Random) -> Vec<Vec<f64>> {
        let mut values = vec![Vec::with_capacity(self.most); contenders.len()];
        let mut order: Vec<usize> = (0..contenders.len()).filter(|&index| !contenders[index].wrong).collect();
        // Unmeasured: code and data come to where they stay.
        for &index in &order {
            (contenders[index].sample)(0);
        }
        let began = Instant::now();
        for round in 0..self.most {
            if round >= FEWEST && began.elapsed() > self.limit {
                break;
            }
            random.shuffle(&mut order);
            for &index in &order {
                values[index].push((contenders[index].sample)(round));
            }
        }
        values
    }
}
