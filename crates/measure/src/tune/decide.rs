//! Which setting is best, and whether that is more than chance.
//!
//! The rounds are cut into blocks. Every second block chooses: the fastest of many settings always
//! looks better than it is, because luck chose with. The other blocks, which had no part in the
//! choice, judge what was chosen.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::bench::checksum::event::Case;
use crate::bench::checksum::figures::sorted;
use crate::bench::samples::median;

const BLOCKS: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Better,
    SameAsBuiltIn,
    /// The gain is no larger than the spread.
    Refused,
}

#[derive(Debug, Serialize)]
pub struct Choice {
    pub built_in: String,
    pub best: String,
    /// What part of the time the best setting saves against the built-in one, in the blocks that
    /// judge.
    pub gain: f64,
    /// Between the least and the greatest gain of such a block.
    pub spread: f64,
    pub verdict: Verdict,
}

impl Choice {
    /// The setting to use.
    pub fn kept(&self) -> &str {
        if self.verdict == Verdict::Better { &self.best } else { &self.built_in }
    }

    pub fn words(&self) -> String {
        let Choice { built_in, best, .. } = self;
        let (gain, spread) = (self.gain * 100.0, self.spread * 100.0);
        match self.verdict {
            Verdict::SameAsBuiltIn => format!("{built_in}: the built-in setting is the best"),
            Verdict::Better => format!(
                "{best}: {gain:.1} % faster than the built-in {built_in}, spread {spread:.1} %"
            ),
            Verdict::Refused => format!(
                "{built_in} stays: {best} gains {gain:.1} %, which the spread of {spread:.1} % does not bear out"
            ),
        }
    }
}

/// All cases have the same settings, and count alike.
pub fn decide(cases: &[&Case], built_in: &str) -> Result<Choice> {
    let settings = &cases.first().context("no prefetch setting was measured")?.routines;
    let (choosing, judging): (Vec<usize>, Vec<usize>) =
        (0..BLOCKS).partition(|block| block % 2 == 0);
    let mut best: Option<(&str, f64)> = None;
    for setting in settings {
        let gains = gains(cases, &setting.name, built_in, &choosing)?;
        let gain = gains.iter().sum::<f64>() / gains.len() as f64;
        if best.is_none_or(|(_, most)| gain > most) {
            best = Some((&setting.name, gain));
        }
    }
    let best = best.context("no prefetch setting was measured")?.0;
    let gains = sorted(gains(cases, best, built_in, &judging)?.into_iter());
    let gain = median(&gains).context("too few rounds")?;
    let spread = gains[gains.len() - 1] - gains[0];
    let verdict = match best == built_in {
        true => Verdict::SameAsBuiltIn,
        false if gain > spread => Verdict::Better,
        false => Verdict::Refused,
    };
    Ok(Choice { built_in: built_in.into(), best: best.into(), gain, spread, verdict })
}

/// The part of the time that a setting saves against the built-in one, on average over the cases,
/// in each block.
fn gains(cases: &[&Case], setting: &str, built_in: &str, blocks: &[usize]) -> Result<Vec<f64>> {
    blocks
        .iter()
        .map(|&block| {
            let gains: Result<Vec<f64>> =
                cases.iter().map(|case| gain(case, setting, built_in, block)).collect();
            let gains = gains?;
            Ok(gains.iter().sum::<f64>() / gains.len() as f64)
        })
        .collect()
}

fn gain(case: &Case, setting: &str, built_in: &str, block: usize) -> Result<f64> {
    let values = |name: &str| {
        let routine =
            case.routine(name).with_context(|| format!("{} has no setting {name}", case.case))?;
        ensure!(
            routine.ns.len() >= 2 * BLOCKS,
            "{} has too few rounds to tell chance from gain",
            case.case
        );
        Ok(&routine.ns[part(routine.ns.len(), block)])
    };
    let (ours, theirs) = (values(setting)?, values(built_in)?);
    let ratio = median(&sorted(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs)));
    Ok(1.0 - ratio.context("an empty block")?)
}

fn part(rounds: usize, block: usize) -> Range<usize> {
    rounds * block / BLOCKS..rounds * (block + 1) / BLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::checksum::event::{Case, Role, Routine};

    const ROUNDS: usize = 200;

    /// Settings with their time in each round.
    fn case(settings: &[(&str, &dyn Fn(usize) -> f64)]) -> Case {
        let routine = |(name, ns): &(&str, &dyn Fn(usize) -> f64)| Routine {
            name: name.to_string(),
            role: Role::Setting,
            wrong: false,
            ns: (0..ROUNDS).map(ns).collect(),
        };
        Case {
            case: "tune".into(),
            group: "tune".into(),
            table: String::new(),
            column: String::new(),
            bytes: 1500.0,
            routines: settings.iter().map(routine).collect(),
            dropped: 0,
            disturbed: false,
            additions_per_cycle: 3.0,
            writer_gbps: None,
        }
    }

    /// Repeats every 7 rounds, so each block has much the same.
    fn noise(round: usize) -> f64 {
        (round % 7) as f64
    }

    #[test]
    fn a_gain_beyond_the_spread_is_taken() {
        let case = case(&[
            ("0 0", &|round| 200.0 + noise(round)),
            ("8 2", &|round| 170.0 + noise(round + 3)),
        ]);
        let choice = decide(&[&case], "0 0").unwrap();
        assert_eq!((choice.verdict, choice.kept()), (Verdict::Better, "8 2"));
        assert!((choice.gain - 0.15).abs() < 0.02, "{choice:?}");
        assert!(choice.spread < choice.gain);
    }

    #[test]
    fn a_gain_within_the_spread_is_refused() {
        // In half of the judging blocks it is the other way round.
        let wavers = |round: usize| if round / 20 % 4 == 1 { 210.0 } else { 190.0 };
        let case = case(&[("0 0", &|_| 200.0), ("8 2", &wavers)]);
        let choice = decide(&[&case], "0 0").unwrap();
        assert_eq!((choice.verdict, choice.kept()), (Verdict::Refused, "0 0"));
        assert!(choice.words().contains("8 2"), "{}", choice.words());
    }

    #[test]
    fn luck_in_the_choosing_blocks_does_not_count() {
        // Faster only where it is chosen: what a maximum over noise looks like.
        let lucky = |round: usize| if (round / 20).is_multiple_of(2) { 150.0 } else { 201.0 };
        let case = case(&[("0", &|_| 200.0), ("320", &lucky)]);
        let choice = decide(&[&case], "0").unwrap();
        assert_eq!((choice.best.as_str(), choice.verdict), ("320", Verdict::Refused));
        assert!(choice.gain < 0.0);
    }

    #[test]
    fn the_built_in_setting_may_be_the_best() {
        let case = case(&[("0", &|_| 200.0), ("320", &|_| 220.0)]);
        let choice = decide(&[&case], "0").unwrap();
        assert_eq!((choice.verdict, choice.kept()), (Verdict::SameAsBuiltIn, "0"));
    }

    #[test]
    fn all_cases_count_alike() {
        let short = case(&[("0", &|_| 200.0), ("320", &|_| 190.0)]);
        let long = case(&[("0", &|_| 5000.0), ("320", &|_| 6000.0)]);
        assert_eq!(decide(&[&short, &long], "0").unwrap().verdict, Verdict::SameAsBuiltIn);
        assert_eq!(decide(&[&short], "0").unwrap().verdict, Verdict::Better);
    }

    #[test]
    fn too_few_rounds_and_missing_settings_are_errors() {
        let mut few = case(&[("0", &|_| 200.0)]);
        assert!(decide(&[&few], "64").unwrap_err().to_string().contains("64"));
        few.routines[0].ns.truncate(19);
        assert!(decide(&[&few], "0").unwrap_err().to_string().contains("too few"));
        assert!(decide(&[], "0").is_err());
    }
}
