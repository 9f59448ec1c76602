//! All values of a bench, and what is computed from them.

use std::collections::BTreeMap;

use anyhow::Result;

use super::case::{Better, Case, Measure, Path};
use super::machine::Machine;
use super::observe::Seen;
use crate::units::engineering;

pub struct Samples {
    pub machine: Machine,
    pub rounds: u32,
    pub rows: Vec<Row>,
    pub skipped: Vec<(&'static str, String)>,
    pub failures: Vec<Failure>,
    pub connections: BTreeMap<&'static str, Seen>,
}

pub struct Row {
    pub measure: Measure,
    /// By path, then by round: a failed run leaves a hole, and its partner is then not compared.
    pub values: BTreeMap<Path, BTreeMap<u32, f64>>,
}

pub struct Failure {
    pub case: &'static str,
    pub path: Path,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
}

impl Samples {
    pub fn new(machine: Machine) -> Samples {
        Samples {
            machine,
            rounds: 0,
            rows: Vec::new(),
            skipped: Vec::new(),
            failures: Vec::new(),
            connections: BTreeMap::new(),
        }
    }

    pub fn skip(&mut self, case: &Case, reason: &str) {
        self.skipped.push((case.name, reason.to_string()));
    }

    /// Takes in what a run gave; returns it in words.
    pub fn add(&mut self, case: &Case, path: Path, round: u32, outcome: Result<Vec<f64>>) -> String {
        let values = match outcome {
            Ok(values) => values,
            Err(error) => {
                let reason = format!("{error:#}");
                self.failures.push(Failure { case: case.name, path, reason: reason.clone() });
                return format!("FAILED: {reason}");
            }
        };
        let mut words = Vec::new();
        for (measure, value) in case.measures.iter().zip(values) {
            words.push(format!("{} {}", engineering(value), measure.unit));
            self.row(measure).values.entry(path).or_default().insert(round, value);
        }
        words.join(", ")
    }

    pub fn has_failed(&self, case: &Case, path: Path) -> bool {
        self.failures.iter().any(|failure| failure.case == case.name && failure.path == path)
    }

    fn row(&mut self, measure: &Measure) -> &mut Row {
        let index = match self.rows.iter().position(|row| row.measure.name == measure.name) {
            Some(index) => index,
            None => {
                self.rows.push(Row { measure: *measure, values: BTreeMap::new() });
                self.rows.len() - 1
            }
        };
        &mut self.rows[index]
    }
}

impl Row {
    pub fn summary(&self, path: Path) -> Option<Summary> {
        let mut values: Vec<f64> = self.values.get(&path)?.values().copied().collect();
        values.sort_by(f64::total_cmp);
        Some(Summary { median: median(&values)?, min: *values.first()?, max: *values.last()?, n: values.len() })
    }

    /// The median over the rounds of ours against theirs in the same round; above 1 ours is better.
    pub fn ratio(&self, rival: Path) -> Option<f64> {
        let (ours, theirs) = (self.values.get(&Path::Shortwire)?, self.values.get(&rival)?);
        let mut ratios: Vec<f64> = ours
            .iter()
            .filter_map(|(round, &our)| {
                let &their = theirs.get(round)?;
                let ratio = if self.measure.better == Better::Higher { our / their } else { their / our };
                ratio.is_finite().then_some(ratio)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios)
    }
}

/// Of sorted values.
pub fn median(values: &[f64]) -> Option<f64> {
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(better: Better, tcp: &[(u32, f64)], ours: &[(u32, f64)]) -> Row {
        let values =
            [(Path::Tcp, tcp), (Path::Shortwire, ours)].map(|(path, values)| (path, values.iter().copied().collect()));
        Row { measure: Measure { name: "m", unit: "u", better, bar: None }, values: values.into_iter().collect() }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
        let row = row(Better::Higher, &[(0, 5.0), (1, 1.0), (2, 3.0)], &[]);
        assert_eq!(row.summary(Path::Tcp), Some(Summary { median: 3.0, min: 1.0, max: 5.0, n: 3 }));
        assert_eq!(row.summary(Path::Unix), None);
    }

    #[test]
    fn ratios_pair_rounds_and_know_which_way_is_better() {
        let rate = row(Better::Higher, &[(0, 100.0), (1, 50.0), (2, 100.0)], &[(0, 200.0), (1, 100.0), (2, 300.0)]);
        assert_eq!(rate.ratio(Path::Tcp), Some(2.0));
        let latency = row(Better::Lower, &[(0, 10.0), (1, 12.0)], &[(0, 5.0), (1, 4.0)]);
        assert_eq!(latency.ratio(Path::Tcp), Some(2.5));
        let holes = row(Better::Higher, &[(1, 10.0)], &[(0, 100.0), (1, 20.0)]);
        assert_eq!(holes.ratio(Path::Tcp), Some(2.0));
        assert_eq!(row(Better::Higher, &[(0, 1.0)], &[]).ratio(Path::Tcp), None);
    }
}
