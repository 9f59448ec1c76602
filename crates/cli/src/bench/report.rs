//! The table for people and the object for scripts.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;

use super::case::Path;
use super::machine::Machine;
use super::observe::Seen;
use super::samples::{Row, Samples, Summary};
use crate::units::engineering;

/// What every bench of this project prints with `--json`.
#[derive(Serialize)]
pub struct Object<'a> {
    bench: &'static str,
    machine: &'a Machine,
    rows: Vec<Ours<'a>>,
    /// What the others reached in the same rounds.
    rivals: Vec<Rival<'a>>,
    connections: Vec<Connections<'a>>,
    skipped: Vec<Note<'a>>,
    failed: Vec<Note<'a>>,
}

/// A value of Shortwire beside one rival.
#[derive(Serialize)]
struct Ours<'a> {
    name: &'a str,
    value: f64,
    unit: &'a str,
    min: f64,
    max: f64,
    n: usize,
    against: &'a str,
    ratio: f64,
}

#[derive(Serialize)]
struct Rival<'a> {
    name: &'a str,
    path: &'a str,
    value: f64,
    unit: &'a str,
    min: f64,
    max: f64,
    n: usize,
}

#[derive(Serialize)]
struct Connections<'a> {
    row: &'a str,
    #[serde(flatten)]
    seen: &'a Seen,
}

#[derive(Serialize)]
struct Note<'a> {
    name: String,
    reason: &'a str,
}

const RIVALS: [Path; 3] = [Path::Tcp, Path::Unix, Path::BareRing];

pub fn json(samples: &Samples) -> Object<'_> {
    Object {
        bench: "sockets",
        machine: &samples.machine,
        rows: samples.rows.iter().flat_map(|row| RIVALS.into_iter().filter_map(|rival| ours(row, rival))).collect(),
        rivals: samples.rows.iter().flat_map(|row| RIVALS.into_iter().filter_map(|path| rival(row, path))).collect(),
        connections: samples.connections.iter().map(|(&row, seen)| Connections { row, seen }).collect(),
        skipped: samples.skipped.iter().map(|(name, reason)| Note { name: name.to_string(), reason }).collect(),
        failed: samples
            .failures
            .iter()
            .map(|failure| Note {
                name: format!("{} over {}", failure.case, failure.path.name()),
                reason: &failure.reason,
            })
            .collect(),
    }
}

fn ours(row: &Row, rival: Path) -> Option<Ours<'_>> {
    let Summary { median, min, max, n } = row.summary(Path::Shortwire)?;
    let (name, unit) = (row.measure.name, row.measure.unit);
    Some(Ours { name, value: median, unit, min, max, n, against: rival.name(), ratio: row.ratio(rival)? })
}

fn rival(row: &Row, path: Path) -> Option<Rival<'_>> {
    let Summary { median, min, max, n } = row.summary(path)?;
    Some(Rival { name: row.measure.name, path: path.name(), value: median, unit: row.measure.unit, min, max, n })
}

pub fn text(samples: &Samples) -> String {
    let mut table = Table::new();
    table.load_style(crate::table::LINES);
    let numbers = ["TCP", "Unix", "Shortwire", "ratio", "bar", "limit"].map(|name| right(name.into()));
    table.set_header([Cell::new("measure")].into_iter().chain(numbers));
    for row in &samples.rows {
        let value = |path| right(row.summary(path).map_or_else(|| "-".into(), spread));
        table.add_row([
            Cell::new(format!("{}\n{}", row.measure.name, row.measure.unit)),
            value(Path::Tcp),
            value(Path::Unix),
            value(Path::Shortwire),
            right(row.ratio(Path::Tcp).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2} x"))),
            right(bar(row)),
            value(Path::BareRing),
        ]);
    }
    let mut text = format!("{table}\n");
    let _ = writeln!(
        text,
        "Median [min..max] of {} round(s); ratio: Shortwire to TCP in the same round, above 1 is better; limit: two processes\n\
         spinning on a bare ring in shared memory. {}",
        samples.rounds,
        samples.machine.sentence()
    );
    connections(&mut text, samples);
    for (name, reason) in &samples.skipped {
        let _ = writeln!(text, "skipped {name}: {reason}");
    }
    for failure in &samples.failures {
        let _ = writeln!(text, "FAILED {} over {}: {}", failure.case, failure.path.name(), failure.reason);
    }
    text
}

fn connections(text: &mut String, samples: &Samples) {
    if samples.connections.is_empty() {
        return;
    }
    text.push_str("Connections of the clients under `shortwire run`, seen while they ran:\n");
    for (case, seen) in &samples.connections {
        let _ = write!(text, "  {case:<14} {} of {} through shared memory", seen.smcd, seen.total());
        let reasons: Vec<String> =
            seen.reasons.iter().map(|(reason, count)| format!("{count} TCP: {reason}")).collect();
        let _ = writeln!(text, "{}{}", if reasons.is_empty() { "" } else { "; " }, reasons.join("; "));
    }
}

fn bar(row: &Row) -> String {
    match (row.measure.bar, row.ratio(Path::Tcp)) {
        (Some(bar), Some(ratio)) => format!("{bar:.2} x\n{}", if ratio >= bar { "reached" } else { "MISSED" }),
        (Some(bar), None) => format!("{bar:.2} x"),
        (None, _) => String::new(),
    }
}

fn spread(summary: Summary) -> String {
    let Summary { median, min, max, n } = summary;
    if n == 1 {
        return engineering(median);
    }
    format!("{}\n[{}..{}]", engineering(median), engineering(min), engineering(max))
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bench::case::{Better, Measure};
    use crate::bench::samples::Failure;

    fn samples() -> Samples {
        let mut samples = Samples::new(Machine::describe(None));
        samples.rounds = 1;
        let measure = Measure { name: "redis GET", unit: "1/s", better: Better::Higher, bar: Some(1.3) };
        let one = |value| BTreeMap::from([(0, value)]);
        let values = BTreeMap::from([
            (Path::Tcp, one(100_000.0)),
            (Path::Unix, one(140_000.0)),
            (Path::Shortwire, one(150_000.0)),
        ]);
        samples.rows.push(Row { measure, values });
        samples.skipped.push(("nginx-wrk", "wrk not installed".into()));
        samples.failures.push(Failure { case: "iperf3", path: Path::Tcp, reason: "hung".into() });
        let seen = Seen { smcd: 49, tcp: 1, reasons: BTreeMap::from([("peer gone".into(), 1)]) };
        samples.connections.insert("redis-get", seen);
        samples
    }

    #[test]
    fn json_has_the_shape_that_all_benches_share() {
        let samples = samples();
        let value = serde_json::to_value(json(&samples)).unwrap();
        assert_eq!(value["bench"], "sockets");
        assert!(value["machine"].is_object());
        let rows = value["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "one row for each rival");
        let mut keys: Vec<&str> = rows[0].as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["against", "max", "min", "n", "name", "ratio", "unit", "value"]);
        assert_eq!(rows[0]["against"], "tcp");
        assert_eq!(rows[0]["value"], 150_000.0);
        assert_eq!(rows[0]["ratio"], 1.5);
        assert_eq!(rows[1]["against"], "unix");
        assert_eq!(value["rivals"].as_array().unwrap().len(), 2);
        assert_eq!(value["connections"][0]["smcd"], 49);
        assert_eq!(value["skipped"][0]["reason"], "wrk not installed");
        assert_eq!(value["failed"][0]["name"], "iperf3 over tcp");
    }

    #[test]
    fn the_table_says_everything() {
        let text = text(&samples());
        for part in [
            "redis GET",
            "100k",
            "140k",
            "150k",
            "1.50 x",
            "1.30 x",
            "reached",
            "49 of 50",
            "1 TCP: peer gone",
            "skipped nginx-wrk",
            "FAILED iperf3 over tcp",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
