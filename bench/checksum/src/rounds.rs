//! The rounds: each measures everything that is compared once, in an order of its own, so that what
//! disturbs the machine for a while disturbs all alike. Rounds in which the core did not work for
//! us alone do not count, as long as there are others.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::random::Random;
use crate::sum::Role;

/// Fewer give no median worth the name.
pub const FEWEST: usize = 5;

/// One of the things that are compared. `sample` measures it once, in ns per packet; its argument
/// is the number of the round, for those that all work on the same data.
pub struct Contender<'a> {
    pub name: String,
    pub role: Role,
    pub wrong: bool,
    pub sample: Box<dyn FnMut(usize) -> f64 + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(
        name: impl Into<String>,
        role: Role,
        sample: impl FnMut(usize) -> f64 + 'a,
    ) -> Contender<'a> {
        Contender { name: name.into(), role, wrong: false, sample: Box::new(sample) }
    }
}

pub struct Rounds {
    pub clock: Clock,
    pub most: usize,
    pub limit: Duration,
    /// What the core gets done when it works for us alone, as far as was seen.
    undisturbed: Cell<f64>,
}

/// The values of each contender, one per round.
pub struct Values {
    pub ns: Vec<Vec<f64>>,
    /// Rounds that do not count, because other work took from this core meanwhile.
    pub dropped: usize,
    /// There were too few others, so that these do count.
    pub disturbed: bool,
    /// What the core got done when the case began.
    pub additions_per_cycle: f64,
}

/// Below this part of what the core can do it does not work for us alone.
const ALONE: f64 = 0.88;
const LOOKS: usize = 101;

impl Rounds {
    pub fn new(clock: Clock, most: usize, limit: Duration) -> Rounds {
        Rounds { clock, most, limit, undisturbed: Cell::new(0.0) }
    }

    /// The median of many looks, for a single one can be far off. Over all cases the most counts.
    fn look_at_core(&self) -> f64 {
        let mut looks: Vec<f64> = (0..LOOKS).map(|_| self.clock.additions_per_cycle()).collect();
        looks.sort_by(f64::total_cmp);
        let now = looks[LOOKS / 2];
        self.undisturbed.set(self.undisturbed.get().max(now));
        now
    }

    fn is_alone(&self) -> bool {
        self.clock.additions_per_cycle() >= ALONE * self.undisturbed.get()
    }

    /// Ends early when the time is over.
    pub fn run(&self, contenders: &mut [Contender<'_>], random: &mut Random) -> Values {
        let mut order: Vec<usize> =
            (0..contenders.len()).filter(|&index| !contenders[index].wrong).collect();
        // Unmeasured: code and data come to where they stay.
        for &index in &order {
            (contenders[index].sample)(0);
        }
        let (mut good, mut bad): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        let additions_per_cycle = self.look_at_core();
        let began = Instant::now();
        let mut alone = self.is_alone();
        while good.len() < self.most {
            let rounds = good.len() + bad.len();
            if rounds >= FEWEST && began.elapsed() > self.limit {
                break;
            }
            random.shuffle(&mut order);
            let mut round = vec![f64::NAN; contenders.len()];
            for &index in &order {
                round[index] = (contenders[index].sample)(rounds);
            }
            let before = std::mem::replace(&mut alone, self.is_alone());
            if before && alone { &mut good } else { &mut bad }.push(round);
        }
        let disturbed = good.len() < FEWEST;
        let dropped = if disturbed { 0 } else { bad.len() };
        let mut rounds = if disturbed { [good, bad].concat() } else { good };
        rounds.truncate(self.most);
        let of = |index: usize| -> Vec<f64> {
            rounds.iter().map(|round| round[index]).filter(|ns| !ns.is_nan()).collect()
        };
        Values {
            ns: (0..contenders.len()).map(of).collect(),
            dropped,
            disturbed,
            additions_per_cycle,
        }
    }
}
