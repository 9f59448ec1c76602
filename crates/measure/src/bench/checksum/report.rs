//! The tables for people and the object for scripts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::Cell;
use serde::Serialize;
use terminal::units::engineering;

use super::bars::{self, Bar};
use super::claims::Claim;
use super::event::{Absent, Case, Probed, Role, Routine};
use super::figures::Figures;
use super::tables;
use crate::bench::machine::Machine;
use crate::bench::samples::Summary;

#[derive(Serialize)]
pub struct Object<'a> {
    bench: &'static str,
    machine: MachineObject<'a>,
    /// What csum_partial used.
    kernel: &'a str,
    rows: Vec<Row<'a>>,
    /// What the others reached in the same rounds.
    rivals: Vec<Other<'a>>,
    /// Rivals that sum such data wrong.
    wrong: Vec<Wrong<'a>>,
    writer: Vec<Wrote<'a>>,
    /// Cases during which other work took from the core all the time.
    disturbed: Vec<&'a str>,
    absent: &'a [Absent],
    skipped: Vec<Skipped<'a>>,
    claims: &'a [Claim],
}

#[derive(Serialize)]
struct MachineObject<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    #[serde(flatten)]
    probed: &'a Probed,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    n: usize,
    against: &'a str,
    ratio: f64,
}

#[derive(Serialize)]
struct Other<'a> {
    name: &'a str,
    routine: &'a str,
    role: Role,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    n: usize,
}

#[derive(Serialize)]
struct Wrong<'a> {
    name: &'a str,
    routine: &'a str,
}

#[derive(Serialize)]
struct Wrote<'a> {
    name: &'a str,
    gbps: f64,
}

#[derive(Serialize)]
struct Skipped<'a> {
    name: &'a str,
    reason: &'a str,
}

const UNIT: &str = "ns";

pub fn json<'a>(figures: &'a Figures, machine: &'a Machine, claims: &'a [Claim]) -> Object<'a> {
    let each = || {
        figures
            .cases
            .iter()
            .flat_map(|case| case.routines.iter().map(move |routine| (case, routine)))
    };
    Object {
        bench: "checksum",
        machine: MachineObject { machine, probed: &figures.start.machine },
        kernel: &figures.start.kernel,
        rows: each().filter_map(|(case, routine)| row(case, routine)).collect(),
        rivals: each().filter_map(|(case, routine)| other(case, routine)).collect(),
        wrong: each()
            .filter(|(_, routine)| routine.wrong)
            .map(|(case, routine)| Wrong { name: &case.case, routine: &routine.name })
            .collect(),
        writer: figures
            .cases
            .iter()
            .filter_map(|case| Some(Wrote { name: &case.case, gbps: case.writer_gbps? }))
            .collect(),
        disturbed: figures
            .cases
            .iter()
            .filter(|case| case.disturbed)
            .map(|case| case.case.as_str())
            .collect(),
        absent: &figures.start.absent,
        skipped: figures.skipped.iter().map(|(name, reason)| Skipped { name, reason }).collect(),
        claims,
    }
}

/// Ours against one other.
fn row<'a>(case: &'a Case, other: &'a Routine) -> Option<Row<'a>> {
    let ours = case.ours().filter(|ours| ours.name != other.name)?;
    let Summary { median: value, min, max, n } = ours.summary()?;
    Some(Row {
        name: &case.case,
        value,
        unit: UNIT,
        min,
        max,
        n,
        against: &other.name,
        ratio: ours.ratio_to(other)?,
    })
}

fn other<'a>(case: &'a Case, routine: &'a Routine) -> Option<Other<'a>> {
    let Summary { median: value, min, max, n } = routine.summary()?;
    let other = Other {
        name: &case.case,
        routine: &routine.name,
        role: routine.role,
        value,
        unit: UNIT,
        min,
        max,
        n,
    };
    (routine.role != Role::Ours).then_some(other)
}

pub fn text(figures: &Figures, machine: &Machine) -> String {
    let mut text = String::new();
    for (title, cases) in tables::all(figures) {
        let _ = writeln!(text, "{}", tables::text(title, &cases));
    }
    promises(&mut text, &bars::bars(figures));
    text + &footer(figures, machine)
}

fn promises(text: &mut String, bars: &[Bar]) {
    if bars.is_empty() {
        return;
    }
    let mut table = tables::plain();
    table.set_header([
        Cell::new("bar"),
        tables::right("measured"),
        tables::right("promised"),
        Cell::new(""),
    ]);
    for bar in bars {
        let outcome = if bar.reached { "reached" } else { "MISSED" };
        table.add_row([
            Cell::new(bar.words),
            tables::right(&bar.measured),
            tables::right(&bar.wanted),
            Cell::new(outcome),
        ]);
    }
    let _ = writeln!(text, "{table}\n");
}

/// How to read the tables, on what they were taken, and what is not in them.
pub fn footer(figures: &Figures, machine: &Machine) -> String {
    let mut text = String::new();
    let probed = &figures.start.machine;
    let rounds = figures
        .cases
        .iter()
        .flat_map(|case| &case.routines)
        .map(|routine| routine.ns.len())
        .max()
        .unwrap_or(0);
    let core = probed.core_ghz.map_or_else(String::new, |ghz| format!(", core at {ghz:.2} GHz"));
    let _ = writeln!(
        text,
        "Medians of up to {rounds} rounds; \"to X\" is how many times faster than X, the median of the ratios within a round.\n\
         csum_partial used the kernel {}. Rivals in Rust were compiled for {}.\n\
         {} cpus {}{core}, {:.0} GiB, Linux {}; load before {:.2}",
        figures.start.kernel,
        probed.compiled_for,
        machine.cpus,
        machine.cpu,
        machine.memory_bytes as f64 / (1u64 << 30) as f64,
        machine.kernel,
        machine.load_average
    );
    disturbances(&mut text, figures);
    wrong(&mut text, figures);
    for absent in &figures.start.absent {
        let _ = writeln!(text, "skipped {}: {}", absent.name, absent.reason);
    }
    for (name, reason) in &figures.skipped {
        let _ = writeln!(text, "skipped {name}: {reason}");
    }
    text
}

fn wrong(text: &mut String, figures: &Figures) {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for case in &figures.cases {
        for routine in case.routines.iter().filter(|routine| routine.wrong) {
            found.entry(&routine.name).or_default().push(&case.case);
        }
    }
    for (routine, cases) in found {
        let _ = writeln!(text, "{routine} sums wrong, and was not timed, in {}", cases.join(", "));
    }
}

fn disturbances(text: &mut String, figures: &Figures) {
    let core = || figures.cases.iter().map(|case| case.additions_per_cycle);
    let (least, most) = (core().fold(f64::MAX, f64::min), core().fold(0.0, f64::max));
    let _ = writeln!(
        text,
        "The core did {least:.1} to {most:.1} additions per cycle when the cases began: the fewer, the more other work shared it."
    );
    let dropped: usize = figures.cases.iter().map(|case| case.dropped).sum();
    if dropped > 0 {
        let _ = writeln!(
            text,
            "{dropped} rounds do not count: other work took from the core meanwhile."
        );
    }
    let disturbed: Vec<&str> =
        figures.cases.iter().filter(|case| case.disturbed).map(|case| case.case.as_str()).collect();
    if !disturbed.is_empty() {
        let _ = writeln!(
            text,
            "Other work took from the core all through: {}. Measure these again.",
            disturbed.join(", ")
        );
    }
}

impl Case {
    /// The outcome in a line.
    pub fn words(&self) -> String {
        let value = |routine: Option<&Routine>| {
            routine.map_or_else(String::new, |routine| {
                format!("{} {} ns", routine.name, engineering(routine.median()))
            })
        };
        let parts = [
            value(self.ours()),
            value(self.best_rival()),
            value(self.with_role(Role::Read).next()),
        ];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{case, figures, routine};
    use super::*;

    fn sample() -> Figures {
        let routines = vec![
            routine("shortwire", Role::Ours, &[10.0, 12.0, 11.0]),
            routine("linux", Role::Rival, &[40.0, 44.0, 42.0]),
            routine("read", Role::Read, &[8.0, 8.0, 8.0]),
            Routine { wrong: true, ..routine("smoltcp", Role::Rival, &[]) },
        ];
        let mut hot = case("hot-1500", "In the cache", "1500", 1500.0, routines);
        hot.writer_gbps = Some(9.5);
        hot.disturbed = true;
        let mut figures = figures(vec![hot]);
        figures.start.absent = vec![Absent { name: "dpdk".into(), reason: "no headers".into() }];
        figures.skipped = vec![("cold-random-64".into(), "no clflushopt".into())];
        figures
    }

    #[test]
    fn json_has_the_shape_that_all_benches_share() {
        let (figures, machine) = (sample(), Machine::describe(None));
        let value = serde_json::to_value(json(&figures, &machine, &[])).unwrap();
        assert_eq!(value["bench"], "checksum");
        assert_eq!(value["machine"]["core_ghz"], 2.5);
        assert!(value["machine"]["cpu"].is_string());
        let rows = value["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "one for each other routine that was measured");
        let mut keys: Vec<&str> = rows[0].as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["against", "max", "min", "n", "name", "ratio", "unit", "value"]);
        assert_eq!((&rows[0]["against"], &rows[0]["value"]), (&"linux".into(), &11.0.into()));
        assert!((rows[0]["ratio"].as_f64().unwrap() - 42.0 / 11.0).abs() < 1e-9);
        assert_eq!(value["wrong"][0]["routine"], "smoltcp");
        assert_eq!(value["writer"][0]["gbps"], 9.5);
        assert_eq!(value["disturbed"][0], "hot-1500");
        assert_eq!(value["absent"][0]["name"], "dpdk");
        assert_eq!(value["skipped"][0]["reason"], "no clflushopt");
    }

    #[test]
    fn the_text_says_everything() {
        let text = text(&sample(), &Machine::describe(None));
        for part in [
            "In the cache at 9.5 to 9.5 GB/s",
            "1500",
            "11.0",
            "136.4",
            "3.82 x",
            "0.73 x",
            "smoltcp",
            "WRONG",
            "smoltcp sums wrong, and was not timed, in hot-1500",
            "skipped dpdk: no headers",
            "skipped cold-random-64",
            "kernel avx512vnni",
            "all through: hot-1500",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
