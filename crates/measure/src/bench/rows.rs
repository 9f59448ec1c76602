//! Figures of a bench, rows out of them, and how these are shown: a table for people, one object
//! for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment};
use serde::Serialize;

use super::machine::Machine;
use super::samples::{Summary, median};

/// What was measured: millions of packets per second by name and round.
#[derive(Default)]
pub struct Figures {
    pub rounds: u32,
    by_name: BTreeMap<String, Vec<f64>>,
    pub skipped: Vec<(String, String)>,
    pub failed: Vec<(String, String)>,
}

impl Figures {
    pub fn new(rounds: u32) -> Figures {
        Figures { rounds, ..Figures::default() }
    }

    pub fn add(&mut self, name: &str, rate: f64) {
        self.by_name.entry(name.to_string()).or_default().push(rate);
    }

    pub fn has_failed(&self, name: &str) -> bool {
        self.failed.iter().any(|(failed, _)| failed == name)
    }

    /// Rounds that have all of these, through a function of their rates.
    pub fn combine<const N: usize>(
        &self,
        names: [&str; N],
        value: impl Fn([f64; N]) -> f64,
    ) -> Option<Vec<f64>> {
        let mut columns = Vec::new();
        for name in names {
            columns.push(self.by_name.get(name)?);
        }
        let rounds = columns.iter().map(|column| column.len()).min()?;
        Some((0..rounds).map(|round| value(std::array::from_fn(|at| columns[at][round]))).collect())
    }

    pub fn rates(&self, name: &str) -> Option<Vec<f64>> {
        self.combine([name], |[rate]| rate)
    }
}

/// What a row must reach.
#[derive(Clone, Copy, PartialEq)]
pub enum Bar {
    None,
    Value(f64),
    Ratio(f64),
}

/// A line of the table.
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    pub values: Vec<f64>,
    /// What it is compared with, and its values in the same rounds.
    pub against: Option<(String, Vec<f64>)>,
    pub bar: Bar,
}

impl Row {
    fn summary(&self) -> Option<Summary> {
        Summary::of(&self.values)
    }

    /// Ours to theirs in the same round, above 1 is better.
    pub fn ratio(&self) -> Option<f64> {
        let (_, rival) = self.against.as_ref()?;
        let pairs = self.values.iter().zip(rival);
        let ratio = |(ours, theirs): (&f64, &f64)| {
            if self.unit == "ns" { theirs / ours } else { ours / theirs }
        };
        let mut ratios: Vec<f64> = pairs.map(ratio).filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios)
    }

    /// What the bar says, and whether it was reached.
    pub fn verdict(&self) -> Option<(String, bool)> {
        match self.bar {
            Bar::None => None,
            Bar::Value(bar) => {
                let value = self.summary()?.median;
                Some((
                    format!("{bar} {}", self.unit),
                    if self.unit == "ns" { value <= bar } else { value >= bar },
                ))
            }
            Bar::Ratio(bar) => Some((format!("{bar:.2} x"), self.ratio()? >= bar)),
        }
    }
}

#[derive(Serialize)]
pub struct Object<'a> {
    bench: &'static str,
    machine: &'a Machine,
    rows: Vec<Value<'a>>,
    skipped: Vec<Note<'a>>,
    failed: Vec<Note<'a>>,
}

#[derive(Serialize)]
struct Value<'a> {
    name: &'a str,
    value: f64,
    unit: &'a str,
    min: f64,
    max: f64,
    n: usize,
    against: Option<&'a str>,
    ratio: Option<f64>,
    bar: Option<String>,
    reached: Option<bool>,
}

#[derive(Serialize)]
struct Note<'a> {
    name: &'a str,
    reason: &'a str,
}

/// One object, of the shape that all benches share.
pub fn json<'a>(
    bench: &'static str,
    machine: &'a Machine,
    rows: &'a [Row],
    figures: &'a Figures,
) -> Object<'a> {
    let value = |row: &'a Row| {
        let Summary { median, min, max, n } = row.summary()?;
        let (bar, reached) = row.verdict().unzip();
        let against = row.against.as_ref().map(|(name, _)| name.as_str());
        Some(Value {
            name: &row.name,
            value: median,
            unit: row.unit,
            min,
            max,
            n,
            against,
            ratio: row.ratio(),
            bar,
            reached,
        })
    };
    let notes = |all: &'a [(String, String)]| {
        all.iter().map(|(name, reason)| Note { name, reason }).collect::<Vec<_>>()
    };
    Object {
        bench,
        machine,
        rows: rows.iter().filter_map(value).collect(),
        skipped: notes(&figures.skipped),
        failed: notes(&figures.failed),
    }
}

/// The table. `note` says what its numbers are.
pub fn text(note: &str, machine: &Machine, rows: &[Row], figures: &Figures) -> String {
    let mut table =
        terminal::table::new(["measure", "", "median", "min..max", "ratio", "against", "bar", ""]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for row in rows {
        let Some(Summary { median, min, max, .. }) = row.summary() else { continue };
        let (bar, verdict) = match row.verdict() {
            Some((bar, reached)) => (bar, if reached { "reached" } else { "MISSED" }),
            None => (String::new(), ""),
        };
        table.add_row([
            Cell::new(&row.name),
            Cell::new(row.unit),
            right(format!("{median:.2}")),
            right(format!("{min:.2}..{max:.2}")),
            right(row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2} x"))),
            Cell::new(row.against.as_ref().map_or("", |(name, _)| name)),
            right(bar),
            Cell::new(verdict),
        ]);
    }
    let mut text = format!("{table}\n");
    let _ = writeln!(
        text,
        "Median of {} round(s); {note}ratio in the same round, above 1 is better.\n{}",
        figures.rounds,
        machine.sentence()
    );
    for (name, reason) in &figures.skipped {
        let _ = writeln!(text, "skipped {name}: {reason}");
    }
    for (name, reason) in &figures.failed {
        let _ = writeln!(text, "FAILED {name}: {reason}");
    }
    text
}
