//! All values of a bench, as they are kept in a record, and what is computed from them.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use terminal::units::{engineering, time_us};

use super::calls::Calls;
use super::case::{Bar, Better, Case, Measure, Path};
use super::machine::Machine;
use super::observe::Seen;
use super::outcome::{Outcome, Work};

#[derive(Serialize, Deserialize)]
pub struct Samples {
    pub machine: Machine,
    pub settings: Settings,
    pub rounds: u32,
    #[serde(rename = "samples")]
    pub rows: Vec<Row>,
    /// System calls of servers for each request, by name.
    pub calls: Vec<CallsOf>,
    pub connections: Vec<Connections>,
    pub skipped: Vec<Note>,
    #[serde(rename = "failed")]
    pub failures: Vec<Failure>,
}

/// How it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub command: String,
    /// When it began, in seconds since 1970.
    pub unix_time: u64,
    /// Of each run.
    pub seconds: f64,
    /// Rounds that were wanted.
    pub repeat: u32,
    /// `perf`, or `strace`, which slows the server down and so has its peers sleep more.
    pub calls_counted_by: Option<String>,
}

/// What a row is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Figure,
    Latency,
    Cpu,
    Calls,
}

#[derive(Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub kind: Kind,
    pub measure: Measure,
    /// By path, then by round: a failed run leaves a hole, and its partner is then not compared.
    pub values: BTreeMap<Path, Vec<Option<f64>>>,
}

#[derive(Serialize, Deserialize)]
pub struct Connections {
    pub row: String,
    #[serde(flatten)]
    pub seen: Seen,
}

#[derive(Serialize, Deserialize)]
pub struct CallsOf {
    pub row: String,
    pub path: Path,
    pub by_name: Calls,
}

impl CallsOf {
    /// The most frequent first; rare ones together.
    pub fn sentence(&self) -> String {
        let mut calls: Vec<(&String, &f64)> = self.by_name.iter().collect();
        calls.sort_by(|one, other| other.1.total_cmp(one.1));
        let (often, rare): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(name, each)| **each >= 0.01 && *name != "others");
        let mut words: Vec<String> =
            often.iter().map(|(name, each)| format!("{name} {each:.2}")).collect();
        if !rare.is_empty() {
            words.push(format!("others {:.3}", rare.iter().map(|(_, each)| **each).sum::<f64>()));
        }
        format!("{} over {}: {}", self.row, self.path.name(), words.join(", "))
    }
}

#[derive(Serialize, Deserialize)]
pub struct Note {
    pub name: String,
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
pub struct Failure {
    pub name: String,
    pub path: Path,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
}

impl Samples {
    pub fn new(machine: Machine, settings: Settings) -> Samples {
        Samples {
            machine,
            settings,
            rounds: 0,
            rows: Vec::new(),
            calls: Vec::new(),
            connections: Vec::new(),
            skipped: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(Note { name: name.into(), reason: reason.into() });
    }

    /// Takes in what a run gave; returns it in words.
    pub fn add(&mut self, case: &Case, path: Path, round: u32, outcome: Result<Outcome>) -> String {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.fail(case, path, &error),
        };
        let mut words = Vec::new();
        for (measure, value) in case.measures.iter().zip(&outcome.values) {
            words.push(match &*measure.unit {
                "us" => time_us(*value),
                unit => format!("{} {unit}", engineering(*value)),
            });
            self.set(case, Kind::Figure, measure.clone(), path, round, *value);
        }
        for (name, value) in outcome.latency.named() {
            if let Some(value) = value {
                self.set(
                    case,
                    Kind::Latency,
                    lower(case, &format!("latency {name}"), "us"),
                    path,
                    round,
                    value,
                );
            }
        }
        let cost = outcome
            .work
            .filter(|work| matches!(work, Work::Requests(n) | Work::Bytes(n) if *n > 0.0));
        if let Some(work) = cost {
            let (what, unit, each) = match work {
                Work::Requests(count) => ("request", "us", 1e6 / count),
                Work::Bytes(count) => ("byte", "ns", 1e9 / count),
            };
            for (who, seconds) in [
                ("both", outcome.cpu.server + outcome.cpu.client),
                ("server's", outcome.cpu.server),
            ] {
                let measure = lower(case, &format!("{who} processor time per {what}"), unit);
                self.set(case, Kind::Cpu, measure, path, round, seconds * each);
            }
        }
        words.join(", ")
    }

    pub fn add_calls(&mut self, case: &Case, path: Path, outcome: Result<Calls>) -> String {
        match outcome {
            Ok(by_name) => {
                let calls = by_name.values().sum();
                let measure = lower(case, "server's system calls per request", "calls");
                self.set(case, Kind::Calls, measure, path, 0, calls);
                self.calls.push(CallsOf { row: case.name.into(), path, by_name });
                format!("{} system calls per request", engineering(calls))
            }
            Err(error) => self.fail(case, path, &error),
        }
    }

    fn fail(&mut self, case: &Case, path: Path, error: &anyhow::Error) -> String {
        let reason = format!("{error:#}");
        let words = format!("FAILED: {reason}");
        self.failures.push(Failure { name: case.name.into(), path, reason });
        words
    }

    pub fn has_failed(&self, case: &Case, path: Path) -> bool {
        self.failures.iter().any(|failure| failure.name == case.name && failure.path == path)
    }

    fn set(
        &mut self,
        case: &Case,
        kind: Kind,
        measure: Measure,
        path: Path,
        round: u32,
        value: f64,
    ) {
        let index =
            self.rows.iter().position(|row| row.measure.name == measure.name).unwrap_or_else(
                || {
                    self.rows.push(Row {
                        case: case.name.into(),
                        kind,
                        measure,
                        values: BTreeMap::new(),
                    });
                    self.rows.len() - 1
                },
            );
        let values = self.rows[index].values.entry(path).or_default();
        let round = round as usize;
        values.resize(values.len().max(round + 1), None);
        values[round] = Some(value);
    }

    pub fn take_connections(&mut self, seen: BTreeMap<&'static str, Seen>) {
        self.connections =
            seen.into_iter().map(|(row, seen)| Connections { row: row.into(), seen }).collect();
    }

    /// Adds what was measured of other rows on the same machine.
    pub fn join(&mut self, other: Samples) -> Result<()> {
        let place = |machine: &Machine| (machine.cpu.clone(), machine.cpus, machine.kernel.clone());
        ensure!(
            place(&self.machine) == place(&other.machine),
            "it is of another machine or kernel"
        );
        let twice = other
            .rows
            .iter()
            .find(|row| self.rows.iter().any(|own| own.measure.name == row.measure.name));
        if let Some(row) = twice {
            bail!("both have the row {}", row.measure.name);
        }
        self.rounds = self.rounds.min(other.rounds);
        self.settings.command = format!("{}; {}", self.settings.command, other.settings.command);
        self.machine.load_average = self.machine.load_average.max(other.machine.load_average);
        self.machine.busy =
            [self.machine.busy, other.machine.busy].into_iter().flatten().reduce(f64::max);
        self.rows.extend(other.rows);
        self.settings.calls_counted_by =
            self.settings.calls_counted_by.take().or(other.settings.calls_counted_by);
        self.calls.extend(other.calls);
        self.connections.extend(other.connections);
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        Ok(())
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.kind == kind)
    }

    /// Names of the rows, in their order.
    pub fn cases(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.case.as_str()) {
                names.push(&row.case);
            }
        }
        names
    }
}

fn lower(case: &Case, what: &str, unit: &'static str) -> Measure {
    Measure {
        name: format!("{}: {what}", case.name).into(),
        unit: unit.into(),
        better: Better::Lower,
        bar: None,
    }
}

impl Summary {
    /// None of no values.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        Some(Summary {
            median: median(&values)?,
            min: *values.first()?,
            max: *values.last()?,
            n: values.len(),
        })
    }
}

impl Row {
    pub fn values(&self, path: Path) -> Vec<f64> {
        self.values.get(&path).into_iter().flatten().filter_map(|value| *value).collect()
    }

    pub fn summary(&self, path: Path) -> Option<Summary> {
        Summary::of(&self.values(path))
    }

    /// Ours against theirs in the same round, over the rounds; above 1 ours is better.
    pub fn ratio(&self, ours: Path, theirs: Path) -> Option<Summary> {
        let (ours, theirs) = (self.values.get(&ours)?, self.values.get(&theirs)?);
        let pairs = ours.iter().zip(theirs).filter_map(|(our, their)| Some(((*our)?, (*their)?)));
        let ratio = |(our, their): (f64, f64)| {
            if self.measure.better == Better::Higher { our / their } else { their / our }
        };
        Summary::of(&pairs.map(ratio).filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
    }

    /// What the bar says, and whether it was reached, if that is known.
    pub fn verdict(&self) -> Option<(String, Option<bool>)> {
        let ratio = |path| self.ratio(path, Path::Tcp).map(|ratio| ratio.median);
        Some(match self.measure.bar? {
            Bar::Ratio(bar) => {
                (format!("{bar:.2} x"), ratio(Path::Shortwire).map(|ratio| ratio >= bar))
            }
            Bar::Worst(bar) => {
                let worst = self.ratio(Path::Shortwire, Path::Tcp).map(|ratio| ratio.min);
                (format!("{bar:.2} x each"), worst.map(|worst| worst >= bar))
            }
            Bar::Copy(bar) => {
                (format!("{bar:.2} x copy"), ratio(Path::Copy).map(|ratio| ratio >= bar))
            }
            Bar::Value(bar) => (
                format!("{bar} {}", self.measure.unit),
                self.summary(Path::Shortwire).map(|value| value.median >= bar),
            ),
        })
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
pub mod tests {
    use super::*;

    pub fn row(
        name: &'static str,
        better: Better,
        bar: Option<Bar>,
        values: &[(Path, &[Option<f64>])],
    ) -> Row {
        let values = values.iter().map(|(path, values)| (*path, values.to_vec())).collect();
        let measure = Measure { name: name.into(), unit: "1/s".into(), better, bar };
        Row { case: "case".into(), kind: Kind::Figure, measure, values }
    }

    fn pair(better: Better, tcp: &[Option<f64>], ours: &[Option<f64>]) -> Row {
        row("m", better, Some(Bar::Ratio(2.0)), &[(Path::Tcp, tcp), (Path::Shortwire, ours)])
    }

    fn ratio(row: &Row) -> Option<f64> {
        row.ratio(Path::Shortwire, Path::Tcp).map(|ratio| ratio.median)
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
        let row = pair(Better::Higher, &[Some(5.0), Some(1.0), Some(3.0)], &[]);
        assert_eq!(row.summary(Path::Tcp), Some(Summary { median: 3.0, min: 1.0, max: 5.0, n: 3 }));
        assert_eq!(row.summary(Path::Unix), None);
    }

    #[test]
    fn ratios_pair_rounds_and_know_which_way_is_better() {
        let rate = pair(
            Better::Higher,
            &[Some(100.0), Some(50.0), Some(100.0)],
            &[Some(200.0), Some(100.0), Some(300.0)],
        );
        assert_eq!(ratio(&rate), Some(2.0));
        assert_eq!(rate.verdict(), Some(("2.00 x".into(), Some(true))));
        let latency = pair(Better::Lower, &[Some(10.0), Some(12.0)], &[Some(5.0), Some(4.0)]);
        assert_eq!(ratio(&latency), Some(2.5));
        let holes = pair(Better::Higher, &[None, Some(10.0)], &[Some(100.0), Some(19.0)]);
        assert_eq!(ratio(&holes), Some(1.9));
        assert_eq!(holes.verdict(), Some(("2.00 x".into(), Some(false))));
        let half = pair(Better::Higher, &[Some(1.0)], &[]);
        assert_eq!((ratio(&half), half.verdict()), (None, Some(("2.00 x".into(), None))));
    }

    #[test]
    fn costs_are_per_request_and_a_failed_run_leaves_a_hole() {
        let mut samples = Samples::new(Machine::describe(None), Settings::default());
        let case = super::super::catalogue::all()
            .into_iter()
            .find(|case| case.name == "redis-get")
            .unwrap();
        let cpu = super::super::outcome::Cpu { server: 1.0, client: 0.5 };
        samples.add(&case, Path::Tcp, 1, Ok(Outcome::new(vec![9.0], cpu).requests(1e6)));
        samples.add(&case, Path::Unix, 0, Err(anyhow::anyhow!("hung")));
        let find =
            |name: &str| samples.rows.iter().find(|row| row.measure.name.ends_with(name)).unwrap();
        assert_eq!(find("both processor time per request").values[&Path::Tcp], [None, Some(1.5)]);
        assert_eq!(
            find("server's processor time per request").values[&Path::Tcp],
            [None, Some(1.0)]
        );
        assert!(samples.has_failed(&case, Path::Unix) && !samples.has_failed(&case, Path::Tcp));
    }
}
