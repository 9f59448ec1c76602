//! The table for people and the object for scripts.

use anyhow::Result;
use comfy_table::{Cell, CellAlignment};
use serde_json::{Value, json};
use terminal::units::engineering;

use super::Rstream;
use super::measure::{Case, Kind};
use super::wire;
use crate::bench::machine::Machine;
use crate::bench::samples::{Summary, median};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    Rsocket,
    Tcp,
    /// A bare ring, or memcpy.
    Limit,
}

pub struct Report {
    machine: Machine,
    mode: String,
    json: bool,
    cases: Vec<Case>,
    /// By case and path, in rounds.
    values: Vec<[Vec<f64>; 3]>,
    /// Nanoseconds for a cache line between the processors, in rounds.
    crossings: Vec<f64>,
}

/// What the project promises: against which path, and how much.
fn bars(case: &Case) -> &'static [(Path, f64)] {
    match (case.kind, case.size) {
        (Kind::Latency, 64) => &[(Path::Tcp, 10.0), (Path::Limit, 0.5)],
        (Kind::Bandwidth | Kind::Both, 65536 | 1_048_576) => {
            &[(Path::Tcp, 2.0), (Path::Limit, 0.8)]
        }
        (Kind::Direct, 1_048_576) => &[(Path::Limit, 0.9)],
        _ => &[],
    }
}

/// Messages of 8 bytes per second.
const RATE_BAR: f64 = 20e6;

fn against(case: &Case, path: Path) -> &'static str {
    match (path, case.kind) {
        (Path::Rsocket, _) => "rsocket",
        (Path::Tcp, _) => "tcp",
        (Path::Limit, Kind::Direct) => "memcpy",
        (Path::Limit, _) => "bare-ring",
    }
}

impl Report {
    pub fn new(args: &Rstream, machine: Machine, cases: &[Case]) -> Self {
        let verified = if args.verify { ", every byte verified" } else { "" };
        let forked = if args.fork { ", served by a fork" } else { "" };
        Self {
            machine,
            mode: format!("{}{verified}{forked}", wire::name(args.mode)),
            json: args.json,
            cases: cases.to_vec(),
            values: cases.iter().map(|_| Default::default()).collect(),
            crossings: Vec::new(),
        }
    }

    pub fn add(&mut self, case: usize, path: Path, value: f64) {
        self.values[case][path as usize].push(value);
    }

    pub fn add_crossing(&mut self, nanoseconds: f64) {
        self.crossings.push(nanoseconds);
    }

    pub fn print(&self) -> Result<()> {
        if self.json {
            terminal::outln!("{}", serde_json::to_string_pretty(&self.object())?)?;
        } else {
            terminal::out!("{}", self.text())?;
        }
        Ok(())
    }

    fn summary(&self, case: usize, path: Path) -> Option<Summary> {
        Summary::of(&self.values[case][path as usize])
    }

    /// Above 1 where rsockets are better.
    fn ratio(&self, case: usize, path: Path) -> Option<f64> {
        let [ours, theirs] = [Path::Rsocket, path].map(|path| &self.values[case][path as usize]);
        let lower = self.cases[case].kind == Kind::Latency;
        let mut ratios: Vec<f64> =
            ours.iter().zip(theirs).map(|(o, t)| if lower { t / o } else { o / t }).collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios)
    }

    fn object(&self) -> Value {
        let mut rows = Vec::new();
        let mut others = Vec::new();
        for (i, case) in self.cases.iter().enumerate() {
            let entry = |s: &Summary, against: &str, ratio: Option<f64>| {
                json!({"name": case.name(), "value": s.median, "unit": case.unit(), "min": s.min, "max": s.max, "n": s.n,
                    "against": against, "ratio": ratio})
            };
            let ours = self.summary(i, Path::Rsocket);
            let rivals = [Path::Tcp, Path::Limit].map(|path| (path, self.summary(i, path)));
            for (path, theirs) in &rivals {
                let Some(theirs) = theirs else { continue };
                let name = against(case, *path);
                match &ours {
                    Some(ours) => rows.push(entry(ours, name, self.ratio(i, *path))),
                    None => rows.push(entry(theirs, "", None)),
                }
                others.push(json!({"name": case.name(), "path": name, "value": theirs.median, "unit": case.unit(),
                    "min": theirs.min, "max": theirs.max, "n": theirs.n}));
            }
            if let (Some(ours), [(_, None), (_, None)]) = (&ours, &rivals) {
                rows.push(entry(ours, "", None));
            }
        }
        json!({"bench": "rstream", "machine": self.machine, "mode": self.mode, "cache_line_ns": self.crossings, "rows": rows,
            "rivals": others})
    }

    fn text(&self) -> String {
        let mut table =
            terminal::table::new(["measure", "rsocket", "TCP", "ratio", "limit", "ratio", "bar"]);
        for (i, case) in self.cases.iter().enumerate() {
            let value =
                |path| right(self.summary(i, path).map_or_else(|| "-".into(), |s| spread(&s)));
            let ratio = |path| {
                right(self.ratio(i, path).map_or_else(|| "-".into(), |r| format!("{r:.2} x")))
            };
            table.add_row([
                Cell::new(format!("{}\n{}", case.name(), case.unit())),
                value(Path::Rsocket),
                value(Path::Tcp),
                ratio(Path::Tcp),
                value(Path::Limit),
                ratio(Path::Limit),
                right(self.bar(i)),
            ]);
        }
        let crossing = Summary::of(&self.crossings).map_or_else(String::new, |s| {
            format!(
                " A cache line took {:.0} [{:.0}..{:.0}] ns from processor to processor.",
                s.median, s.min, s.max
            )
        });
        format!(
            "{table}\nMedian [min..max]; {}; latency is half a round trip; limit: a ring in shared memory with one copy in and one out, \
or memcpy for riowrite.{crossing} {}\n",
            self.mode,
            self.machine.sentence()
        )
    }

    fn bar(&self, case: usize) -> String {
        let judge = |reached| if reached { "reached" } else { "MISSED" };
        let mut lines: Vec<String> = bars(&self.cases[case])
            .iter()
            .filter_map(|(path, bar)| {
                let ratio = self.ratio(case, *path)?;
                Some(format!(
                    "{bar:.1} x {}: {}",
                    against(&self.cases[case], *path),
                    judge(ratio >= *bar)
                ))
            })
            .collect();
        if self.cases[case].kind == Kind::Rate
            && let Some(ours) = self.summary(case, Path::Rsocket)
        {
            lines.push(format!("{}/s: {}", engineering(RATE_BAR), judge(ours.median >= RATE_BAR)));
        }
        lines.join("\n")
    }
}

fn spread(summary: &Summary) -> String {
    let Summary { median, min, max, n } = *summary;
    if n == 1 {
        return engineering(median);
    }
    format!("{}\n[{}..{}]", engineering(median), engineering(min), engineering(max))
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}
