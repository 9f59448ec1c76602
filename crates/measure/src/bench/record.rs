//! Records: what `--json` prints, and what reads it again.

use std::fs;
use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use serde_json::error::Category;

use super::case::Path;
use super::samples::{Row, Samples, Summary};

const BENCH: &str = "sockets";
/// Of the records. Raised when an older reader would misunderstand.
const FORMAT: u64 = 2;

/// `rows` has the shape that all benches of this project share; all else is complete: every sample,
/// the machine, the settings.
#[derive(Serialize)]
pub struct Object<'a> {
    bench: &'static str,
    format: u64,
    version: &'static str,
    rows: Vec<Ours<'a>>,
    /// What the others reached in the same rounds.
    rivals: Vec<Rival<'a>>,
    #[serde(flatten)]
    samples: &'a Samples,
}

/// A value of Shortwire beside one rival.
#[derive(Serialize)]
struct Ours<'a> {
    name: &'a str,
    path: &'static str,
    value: f64,
    unit: &'a str,
    min: f64,
    max: f64,
    n: usize,
    against: &'static str,
    ratio: f64,
}

#[derive(Serialize)]
struct Rival<'a> {
    name: &'a str,
    path: &'static str,
    unit: &'a str,
    value: f64,
    min: f64,
    max: f64,
    n: usize,
}

const OURS: [Path; 2] = [Path::Shortwire, Path::Copy];
const RIVALS: [Path; 3] = [Path::Tcp, Path::Unix, Path::BareRing];

pub fn object(samples: &Samples) -> Object<'_> {
    let pairs = OURS.into_iter().flat_map(|path| RIVALS.map(|against| (path, against)));
    let pairs: Vec<(Path, Path)> = pairs.collect();
    let of_row = |row| pairs.iter().filter_map(move |&(path, against)| ours(row, path, against));
    Object {
        bench: BENCH,
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        rows: samples.rows.iter().flat_map(of_row).collect(),
        rivals: samples
            .rows
            .iter()
            .flat_map(|row| RIVALS.into_iter().filter_map(|path| rival(row, path)))
            .collect(),
        samples,
    }
}

fn ours(row: &Row, path: Path, against: Path) -> Option<Ours<'_>> {
    let Summary { median, min, max, n } = row.summary(path)?;
    let (name, unit) = (row.measure.name.as_ref(), row.measure.unit.as_ref());
    let ratio = row.ratio(path, against)?.median;
    Some(Ours {
        name,
        path: path.name(),
        value: median,
        unit,
        min,
        max,
        n,
        against: against.name(),
        ratio,
    })
}

fn rival(row: &Row, path: Path) -> Option<Rival<'_>> {
    let Summary { median, min, max, n } = row.summary(path)?;
    Some(Rival {
        name: &row.measure.name,
        path: path.name(),
        unit: &row.measure.unit,
        value: median,
        min,
        max,
        n,
    })
}

pub fn read(file: &FilePath) -> Result<Samples> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&text).with_context(|| format!("cannot use {}", file.display()))
}

/// Several records of one machine, of different rows, as one.
pub fn read_all(files: &[PathBuf]) -> Result<Samples> {
    let mut all: Option<Samples> = None;
    for file in files {
        let next = read(file)?;
        match &mut all {
            None => all = Some(next),
            Some(samples) => {
                samples.join(next).with_context(|| format!("cannot add {}", file.display()))?
            }
        }
    }
    all.context("no records given")
}

fn parse(text: &str) -> Result<Samples> {
    let value: Value = serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Eof => anyhow::anyhow!(
            "the record is truncated: it ends in line {}, within a value",
            error.line()
        ),
        _ => anyhow::anyhow!("this is not JSON: {error}"),
    })?;
    match value.get("bench").and_then(Value::as_str) {
        Some(BENCH) => {}
        Some(other) => {
            bail!("this is a record of `shortwire bench {other}`, not of `shortwire bench sockets`")
        }
        None => {
            bail!("this JSON is not a record of `shortwire bench sockets`: it has no field bench")
        }
    }
    let format = value.get("format").and_then(Value::as_u64);
    let version =
        value.get("version").and_then(Value::as_str).unwrap_or("an older version").to_string();
    ensure!(
        format == Some(FORMAT),
        "this record is in format {}, written by shortwire {version}; this is shortwire {}, which reads format {FORMAT}: \
         measure again, or compare with the version that wrote it",
        format.map_or("1".into(), |format| format.to_string()),
        env!("CARGO_PKG_VERSION"),
    );
    serde_json::from_value(value)
        .context("a field of this record is missing or has another type; was it edited?")
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bench::case::{Bar, Better};
    use crate::bench::machine::Machine;
    use crate::bench::observe::Seen;
    use crate::bench::samples::tests::row;
    use crate::bench::samples::{CallsOf, Failure, Kind, Settings};

    /// One of everything.
    pub fn samples() -> Samples {
        let settings = Settings {
            command: "shortwire bench".into(),
            unix_time: 1,
            seconds: 0.5,
            repeat: 2,
            calls_counted_by: Some("perf".into()),
        };
        let machine = Machine { busy: Some(0.0), ..Machine::describe(Some((0, 1))) };
        let mut samples = Samples::new(machine, settings);
        samples.rounds = 2;
        let paths: [(Path, &[Option<f64>]); 4] = [
            (Path::Tcp, &[Some(100_000.0), Some(100_000.0)]),
            (Path::Unix, &[Some(140_000.0), None]),
            (Path::Copy, &[Some(120_000.0), Some(120_000.0)]),
            (Path::Shortwire, &[Some(150_000.0), Some(154_000.0)]),
        ];
        samples.rows.push(row(
            "redis GET <50> & \"more\"",
            Better::Higher,
            Some(Bar::Ratio(1.3)),
            &paths,
        ));
        for (name, kind) in [
            ("case: latency p50", Kind::Latency),
            ("case: latency p99", Kind::Latency),
            ("case: both processor time per request", Kind::Cpu),
            ("case: server's processor time per request", Kind::Cpu),
            ("case: server's system calls per request", Kind::Calls),
        ] {
            let mut row = row(
                name,
                Better::Lower,
                None,
                &[(Path::Tcp, &[Some(8.0)]), (Path::Shortwire, &[Some(2.0)])],
            );
            row.kind = kind;
            samples.rows.push(row);
        }
        let by_name = [("read", 1.0), ("write", 1.0), ("openat", 0.002)];
        let by_name = by_name.map(|(name, each)| (name.to_string(), each)).into();
        samples.calls.push(CallsOf { row: "redis-get".into(), path: Path::Tcp, by_name });
        samples.skip("nginx-wrk", "wrk not installed");
        samples.failures.push(Failure {
            name: "iperf3".into(),
            path: Path::Tcp,
            reason: "hung".into(),
        });
        let seen = Seen { smcd: 49, tcp: 1, reasons: BTreeMap::from([("peer gone".into(), 1)]) };
        samples.take_connections(BTreeMap::from([("redis-get", seen)]));
        samples
    }

    fn written() -> String {
        serde_json::to_string_pretty(&object(&samples())).unwrap()
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", parse(text).err().expect("a refusal"))
    }

    #[test]
    fn rows_have_the_shape_that_all_benches_share() {
        let value: Value = serde_json::from_str(&written()).unwrap();
        assert_eq!(value["bench"], "sockets");
        assert!(value["machine"].is_object());
        let rows = value["rows"].as_array().unwrap();
        let mut keys: Vec<&str> = rows[0].as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["against", "max", "min", "n", "name", "path", "ratio", "unit", "value"]);
        assert_eq!((&rows[0]["against"], &rows[0]["ratio"]), (&"tcp".into(), &1.52.into()));
        assert_eq!((&rows[1]["against"], &rows[1]["path"]), (&"unix".into(), &"shortwire".into()));
        assert_eq!(
            (&rows[2]["against"], &rows[2]["path"]),
            (&"tcp".into(), &"shortwire-copy".into())
        );
        assert_eq!(value["connections"][0]["smcd"], 49);
        assert_eq!(value["skipped"][0]["reason"], "wrk not installed");
        assert_eq!(
            (&value["failed"][0]["name"], &value["failed"][0]["path"]),
            (&"iperf3".into(), &"tcp".into())
        );
        assert_eq!(value["settings"]["seconds"], 0.5);
    }

    #[test]
    fn what_was_written_is_read_again_whole() {
        let text = written();
        let read = parse(&text).unwrap();
        assert_eq!(serde_json::to_string_pretty(&object(&read)).unwrap(), text);
        assert_eq!(read.rows[0].values[&Path::Unix], [Some(140_000.0), None]);
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let text = written();
        for end in [1, text.len() / 2, text.len() - 2] {
            assert!(refusal(&text[..end]).contains("truncated"), "{}", refusal(&text[..end]));
        }
        assert!(refusal("").contains("truncated"));
        assert!(refusal("measure TCP Unix").contains("not JSON"));
        assert!(refusal("{\"start\": {}, \"end\": {}}").contains("no field bench"));
        assert!(refusal("[1, 2]").contains("no field bench"));
        assert!(
            refusal(&text.replacen("\"sockets\"", "\"engine\"", 1))
                .contains("`shortwire bench engine`")
        );
        let newer = refusal(&text.replacen("\"format\": 2", "\"format\": 3", 1));
        assert!(newer.contains("format 3") && newer.contains("reads format 2"), "{newer}");
        assert!(refusal("{\"bench\": \"sockets\", \"rows\": []}").contains("format 1"));
        assert!(refusal(&text.replacen("\"samples\"", "\"examples\"", 1)).contains("samples"));
        let missing = read(FilePath::new("/nonexistent/record.json")).err().unwrap();
        assert!(format!("{missing:#}").contains("/nonexistent/record.json"));
    }

    #[test]
    fn records_of_different_rows_join_and_others_do_not() {
        let mut both = samples();
        let mut other = samples();
        for row in &mut other.rows {
            row.measure.name = format!("another {}", row.measure.name).into();
        }
        let rows = other.rows.len();
        both.join(other).unwrap();
        assert_eq!(both.rows.len(), 2 * rows);
        assert!(
            both.join(samples()).unwrap_err().to_string().contains("redis GET"),
            "the same row twice"
        );
        let mut elsewhere = samples();
        elsewhere.machine.cpu = "another".into();
        assert!(samples().join(elsewhere).unwrap_err().to_string().contains("machine"));
    }
}
