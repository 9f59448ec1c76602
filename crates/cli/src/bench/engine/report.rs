//! Rows out of figures: what is compared with what, and the bars.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment};
use serde::Serialize;

use super::memory::{MANY, kinds};
use crate::bench::machine::Machine;
use crate::bench::samples::{Summary, median};

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
    fn combine<const N: usize>(&self, names: [&str; N], value: impl Fn([f64; N]) -> f64) -> Option<Vec<f64>> {
        let mut columns = Vec::new();
        for name in names {
            columns.push(self.by_name.get(name)?);
        }
        let rounds = columns.iter().map(|column| column.len()).min()?;
        Some((0..rounds).map(|round| value(std::array::from_fn(|at| columns[at][round]))).collect())
    }

    fn rates(&self, name: &str) -> Option<Vec<f64>> {
        self.combine([name], |[rate]| rate)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Bar {
    None,
    Value(f64),
    Ratio(f64),
}

pub struct Row {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
    against: Option<(String, Vec<f64>)>,
    bar: Bar,
}

/// What the issue of figures promises, for packets of 60 bytes.
const SHAPES: [(&str, Bar); 5] = [
    ("Source -> Sink", Bar::Value(100.0)),
    ("Source -> Tee -> 2 Sinks", Bar::Value(50.0)),
    ("one hop", Bar::Value(75.0)),
    ("five hops", Bar::None),
    ("two memory shunts", Bar::None),
];
const INTERFACES: [(&str, &str, f64); 3] = [
    ("receive: XDP -> Sink", "receive", 0.95),
    ("transmit: Source -> XDP", "transmit", 0.95),
    ("forward: XDP -> XDP", "forward", 0.90),
];

pub fn rows(figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for size in [60, 1500] {
        memory(figures, size, &mut rows);
    }
    let null = "testpmd: null devices with copy";
    let shunts = "two memory shunts, 60 B";
    if let Some(rival) = figures.rates(null) {
        rows.extend(compared(figures, shunts, Some((null, rival)), Bar::Ratio(1.0)));
    }
    instances(figures, &mut rows);
    for (name, group, bar) in INTERFACES {
        let bare = format!("{group}: bare AF_XDP loop");
        rows.extend(compared(figures, name, figures.rates(&bare).map(|v| (bare.as_str(), v)), Bar::Ratio(bar)));
        let alone = ["XDP_DROP", "XDP_REDIRECT"].map(|action| format!("{group}: kernel alone ({action})"));
        if let Some((alone, rates)) = alone.iter().find_map(|name| Some((name, figures.rates(name)?))) {
            rows.extend(compared(figures, name, Some((alone, rates)), Bar::None));
        }
    }
    rows.extend(compared(figures, "forward: RawSocket -> RawSocket", None, Bar::None));
    rows
}

fn compared(figures: &Figures, name: &str, against: Option<(&str, Vec<f64>)>, bar: Bar) -> Option<Row> {
    let values = figures.rates(name)?;
    let against = against.map(|(name, values)| (name.to_string(), values));
    Some(Row { name: name.to_string(), unit: "Mpps", values, against, bar })
}

fn memory(figures: &Figures, size: usize, rows: &mut Vec<Row>) {
    let promised = |bar| if size == 60 { bar } else { Bar::None };
    let sized = |name: &str| format!("{name}, {size} B");
    let copy = format!("copy of {size} B");
    let limit = || figures.rates(&copy).map(|rates| (copy.as_str(), rates));
    for (name, bar) in SHAPES {
        rows.extend(compared(figures, &sized(name), limit(), promised(bar)));
        if name == "five hops"
            && let Some(values) =
                figures.combine([&sized("one hop"), &sized("five hops")], |[one, five]| (1e3 / five - 1e3 / one) / 4.0)
        {
            let name = format!("each further hop, {size} B");
            rows.push(Row { name, unit: "ns", values, against: None, bar: promised(Bar::Value(2.5)) });
        }
    }
    rows.extend(compared(figures, &sized("two threads"), limit(), promised(Bar::Value(40.0))));
}

/// Cost per packet of many instances, less what the memory of many costs by itself.
fn instances(figures: &Figures, rows: &mut Vec<Row>) {
    const ONE: &str = "one instance alone";
    let (bare_one, bare_many) = ("memory of 1 without apps", "memory of 16 without apps");
    let mut push = |name: &str, values: Option<Vec<f64>>, against: Option<(&str, Vec<f64>)>, bar: Bar| {
        if let Some(values) = values {
            let against = against.map(|(name, values)| (name.to_string(), values));
            rows.push(Row { name: name.to_string(), unit: "ns", values, against, bar });
        }
    };
    let cost = |name: &str| figures.combine([name], |[rate]| 1e3 / rate);
    let memory = figures.combine([bare_one, bare_many], |[one, many]| 1e3 / many - 1e3 / one);
    push("one instance: cost per packet", cost(ONE), None, Bar::None);
    push("memory of 16 instances: cost per packet", memory, None, Bar::None);
    for (many, name) in [("16 instances of one kind", "of one kind"), ("16 instances of 6 kinds", "of 6 kinds")] {
        push(&format!("16 instances {name}: cost per packet"), cost(many), None, Bar::None);
        let own = figures.combine([many, bare_one, bare_many], |[many, bare_one, bare_many]| {
            1e3 / many - (1e3 / bare_many - 1e3 / bare_one)
        });
        let alone = if many == "16 instances of one kind" { cost(ONE) } else { mean_alone(figures) };
        let against = alone.map(|values| ("alone", values));
        push(&format!("16 instances {name}: without the memory part"), own, against, Bar::Ratio(1.0 / 1.05));
    }
}

/// The mean cost of the kinds alone, each as often as it takes part.
fn mean_alone(figures: &Figures) -> Option<Vec<f64>> {
    let columns: Option<Vec<(Vec<f64>, usize)>> =
        kinds().map(|(kind, count)| Some((figures.rates(&format!("{kind} alone"))?, count))).collect();
    let columns = columns?;
    let rounds = columns.iter().map(|(rates, _)| rates.len()).min()?;
    let mean =
        |round: usize| columns.iter().map(|(r, count)| *count as f64 * 1e3 / r[round]).sum::<f64>() / MANY as f64;
    Some((0..rounds).map(mean).collect())
}

impl Row {
    fn summary(&self) -> Option<Summary> {
        Summary::of(&self.values)
    }

    /// Ours to theirs in the same round, above 1 is better.
    fn ratio(&self) -> Option<f64> {
        let (_, rival) = self.against.as_ref()?;
        let pairs = self.values.iter().zip(rival);
        let ratio = |(ours, theirs): (&f64, &f64)| if self.unit == "ns" { theirs / ours } else { ours / theirs };
        let mut ratios: Vec<f64> = pairs.map(ratio).filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios)
    }

    /// What the bar says, and whether it was reached.
    fn verdict(&self) -> Option<(String, bool)> {
        match self.bar {
            Bar::None => None,
            Bar::Value(bar) => {
                let value = self.summary()?.median;
                Some((format!("{bar} {}", self.unit), if self.unit == "ns" { value <= bar } else { value >= bar }))
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

pub fn json<'a>(machine: &'a Machine, rows: &'a [Row], figures: &'a Figures) -> Object<'a> {
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
    let notes =
        |all: &'a [(String, String)]| all.iter().map(|(name, reason)| Note { name, reason }).collect::<Vec<_>>();
    Object {
        bench: "engine",
        machine,
        rows: rows.iter().filter_map(value).collect(),
        skipped: notes(&figures.skipped),
        failed: notes(&figures.failed),
    }
}

pub fn text(machine: &Machine, rows: &[Row], figures: &Figures) -> String {
    let mut table = crate::table::new(["measure", "", "median", "min..max", "ratio", "against", "bar", ""]);
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
        "Median of {} round(s); Mpps: packets that sources send, or that arrive; ratio in the same round, above 1 is better.\n\
         {}",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rates: &[(&str, f64)]) -> Figures {
        let mut figures = Figures::new(1);
        rates.iter().for_each(|(name, rate)| figures.add(name, *rate));
        figures.skipped.push(("dpdk-testpmd".into(), "not installed".into()));
        figures
    }

    fn row<'a>(rows: &'a [Row], name: &str) -> &'a Row {
        rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn a_hop_is_what_four_more_hops_cost() {
        let figures = figures(&[("one hop, 60 B", 100.0), ("five hops, 60 B", 50.0), ("copy of 60 B", 200.0)]);
        let rows = rows(&figures);
        let hop = row(&rows, "each further hop, 60 B");
        assert_eq!((hop.values[0], hop.verdict()), (2.5, Some(("2.5 ns".into(), true))));
        let one = row(&rows, "one hop, 60 B");
        assert_eq!((one.ratio(), one.verdict()), (Some(0.5), Some(("75 Mpps".into(), true))));
    }

    #[test]
    fn the_memory_of_many_is_taken_off_their_cost() {
        let figures = figures(&[
            ("one instance alone", 100.0),
            ("16 instances of one kind", 50.0),
            ("memory of 1 without apps", 200.0),
            ("memory of 16 without apps", 80.0),
        ]);
        let rows = rows(&figures);
        // 20 ns less (12.5 - 5) ns against 10 ns.
        let many = row(&rows, "16 instances of one kind: without the memory part");
        assert_eq!((many.values[0], many.ratio(), many.verdict()), (12.5, Some(0.8), Some(("0.95 x".into(), false))));
    }

    #[test]
    fn json_has_the_shape_that_all_benches_share() {
        let figures = figures(&[("receive: XDP -> Sink", 3.0), ("receive: bare AF_XDP loop", 3.0)]);
        let machine = Machine::describe(None);
        let rows = rows(&figures);
        let value = serde_json::to_value(json(&machine, &rows, &figures)).unwrap();
        assert_eq!(value["bench"], "engine");
        let row = &value["rows"][0];
        assert_eq!((&row["against"], &row["ratio"]), (&"receive: bare AF_XDP loop".into(), &1.0.into()));
        for key in ["name", "value", "unit", "min", "max", "n"] {
            assert!(!row[key].is_null(), "{key}");
        }
        assert_eq!(value["skipped"][0]["reason"], "not installed");
        let text = text(&machine, &rows, &figures);
        assert!(text.contains("0.95 x") && text.contains("reached") && text.contains("skipped dpdk-testpmd"), "{text}");
    }
}
