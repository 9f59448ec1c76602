//! From a case to its figures.

mod batch;
mod copy;
mod prefetch;
mod sums;

use anyhow::{Context, Result};
use checksum::prefetch::Profile;

use crate::case::{Case, Kind};
use crate::event::Figures;
use crate::random::Random;
use crate::region::Region;
use crate::rounds::{Contender, FEWEST, Rounds, Values};
use crate::sum::Routine;
#[cfg(c_rivals)]
use crate::sum::{Role, from_native};
use crate::writer::Writer;
use crate::{bound, ours, rivals};

/// ns in one sample of what is in the cache: long against the clock's own time, short against a
/// timer interrupt's period.
const SAMPLE_NS: f64 = 40_000.0;

pub struct Session {
    pub rounds: Rounds,
    pub random: Random,
    /// Where packets that no cache holds lie.
    pub region: Region,
    /// Where these are copied to; made when it is first needed.
    destination: Option<Region>,
    pub profile: Profile,
    pub writing_cpu: Option<usize>,
}

/// What the rounds of a case gave.
pub struct Measured {
    pub figures: Vec<Figures>,
    pub dropped: usize,
    pub disturbed: bool,
    pub additions_per_cycle: f64,
}

pub struct Outcome {
    pub measured: Measured,
    pub writer_gbps: Option<f64>,
}

impl Session {
    pub fn new(
        rounds: Rounds,
        region_bytes: usize,
        profile: Profile,
        writing_cpu: Option<usize>,
    ) -> Result<Session> {
        let mut random = Random::new(1);
        let region = Region::new(region_bytes, &mut random)
            .with_context(|| format!("cannot get {} MiB of memory", region_bytes >> 20))?;
        Ok(Session { rounds, random, region, destination: None, profile, writing_cpu })
    }

    /// Why a case cannot be measured here.
    pub fn obstacle(&self, case: &Case) -> Option<&'static str> {
        if case.is_cold() && !crate::region::can_flush() {
            return Some("this processor has no clflushopt to throw data out of its caches");
        }
        if case.needs_writer() && self.writing_cpu.is_none() {
            return Some("there is no second processor to write from");
        }
        if matches!(case.kind, Kind::Distance { .. }) && cfg!(not(c_rivals)) {
            return Some("the chain of this case is in C for x86-64, and no compiler was there");
        }
        let length = case.mean_length() as usize;
        (2 * length > self.region.bytes().len())
            .then_some("too long for the memory of this machine")
    }

    pub fn measure(&mut self, case: &Case) -> Result<Outcome> {
        let writer = match self.writing_cpu {
            Some(cpu) if case.needs_writer() => Some(Writer::start(cpu)?),
            _ => None,
        };
        let measured = match case.kind {
            Kind::Hot { length, shift } => sums::hot(self, length, shift),
            Kind::Large { length, shift } => sums::large(self, length, shift),
            Kind::Cold { length, shift, order, .. } => sums::cold(self, length, shift, order),
            Kind::Mix { lengths, shift } => sums::mix(self, lengths, shift),
            Kind::Latency { length } => sums::latency(self, length),
            Kind::Inline { length } => sums::inline(self, length),
            Kind::Copy { length, warmth } => copy::copies(self, length, warmth)?,
            Kind::CopyMix { lengths } => copy::mixed(self, lengths),
            Kind::Batch { lengths, order, .. } => batch::batches(self, lengths, order),
            Kind::Distance { length, order, .. } => prefetch::distances(self, length, order),
            Kind::TuneInPacket { length } => prefetch::in_packet(self, length),
            Kind::TuneNextPacket { lengths } => prefetch::next_packet(self, lengths),
        };
        Ok(Outcome { measured, writer_gbps: writer.map(|writer| writer.gbps()) })
    }
}

/// What is compared wherever sums are: our own, our kernels, the rivals, and the two limits.
fn everything(longest: usize) -> Vec<Routine> {
    let mut routines = vec![ours::dispatched()];
    routines.extend(ours::kernels());
    routines.extend(rivals::all().0);
    #[cfg(c_rivals)]
    routines.push(Routine::new(
        "one chain",
        Role::Setting,
        Some(from_native),
        rivals::one_chain::plain,
    ));
    routines.extend([bound::read(), bound::memcpy(longest)]);
    routines
}

/// As many calls as fill a sample.
fn calls(ns_per_call: f64) -> usize {
    ((SAMPLE_NS / ns_per_call.max(0.1)) as usize).clamp(1, 100_000)
}

/// How many packets that no cache holds make a sample: enough for the clock, few enough for the
/// region.
fn hand(mean_length: f64) -> usize {
    ((128.0 * 1024.0 / mean_length) as usize).clamp(8, 128)
}

fn measured(mut contenders: Vec<Contender<'_>>, rounds: &Rounds, random: &mut Random) -> Measured {
    let Values { ns, dropped, disturbed, additions_per_cycle } =
        rounds.run(&mut contenders, random);
    let figures = contenders.into_iter().zip(ns).map(|(contender, ns)| {
        let Contender { name, role, wrong, .. } = contender;
        Figures { name, role, wrong, ns }
    });
    Measured { figures: figures.collect(), dropped, disturbed, additions_per_cycle }
}

/// Roughly how long a case takes, in seconds; shown before the run.
pub fn estimate(case: &Case, rounds: usize, limit: f64) -> f64 {
    let contenders = match case.kind {
        Kind::Copy { .. } | Kind::CopyMix { .. } | Kind::Batch { .. } => 6.0,
        Kind::Distance { .. } | Kind::TuneNextPacket { .. } => 20.0,
        Kind::TuneInPacket { .. } => 8.0,
        _ => 18.0,
    };
    let length = case.mean_length();
    let sample = if case.is_cold() {
        hand(length) as f64 * (40.0 + length * 0.12)
    } else {
        SAMPLE_NS.max(length * 0.12)
    } * 1e-9;
    let round = contenders * sample;
    // At first the data is checked, and thrown out of the caches.
    let setup = if case.is_cold() { 0.3 } else { 0.02 } + contenders * length * 2e-9;
    setup + (round * rounds as f64).min(limit.max(round * FEWEST as f64)) + round
}
