//! The table of the patch that brought a loopback device for SMC-D ("[RFC PATCH net-next v2 0/5]
//! net/smc: Introduce SMC-D based loopback acceleration", netdev, December 2022), measured here,
//! beside the ratios that it gave.
//!
//! There: a VM with 8 cores of a Xeon Platinum at 2.5 GHz, buffers of 1 MiB, its SMC loopback in
//! the kernel without (`lo`) and with the patches that avoid the copy (`lo-nocpy`).

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment};
use terminal::units::engineering;

use super::case::{Better, Path};
use super::samples::{Row, Samples};

struct Seed {
    case: &'static str,
    what: &'static str,
    measure: &'static str,
    unit: &'static str,
    better: Better,
    /// From our unit to the thread's.
    factor: f64,
    /// In the thread: TCP, Unix domain, SMC-lo, SMC-lo-nocpy.
    tcp: f64,
    domain: Option<f64>,
    copy: f64,
    nocopy: f64,
}

const SEEDS: [Seed; 5] = [
    Seed {
        case: "roundtrip",
        what: "ipc-benchmark, 100 B messages",
        measure: "round trips of 100 B",
        unit: "msg/s",
        better: Better::Higher,
        factor: 1.0,
        tcp: 75_140.0,
        domain: Some(129_548.0),
        copy: 152_266.0,
        nocopy: 151_914.0,
    },
    Seed {
        case: "sockperf-tp",
        what: "sockperf tp, 64000 B",
        measure: "sockperf tp 64000 B",
        unit: "MBps",
        better: Better::Higher,
        // As sockperf counts: powers of 1024.
        factor: 64_000.0 / 1_048_576.0,
        tcp: 4943.359,
        domain: None,
        copy: 4936.096,
        nocopy: 8239.624,
    },
    Seed {
        case: "sockperf-pp",
        what: "sockperf pp, 14 B",
        measure: "sockperf pp 14 B, avg",
        unit: "us",
        better: Better::Lower,
        factor: 1.0,
        tcp: 6.372,
        domain: None,
        copy: 3.359,
        nocopy: 3.25,
    },
    Seed {
        case: "iperf3-plain",
        what: "iperf3",
        measure: "iperf3",
        unit: "Gbit/s",
        better: Better::Higher,
        factor: 1e-9,
        tcp: 40.5,
        domain: None,
        copy: 41.4,
        nocopy: 76.4,
    },
    Seed {
        case: "nginx-wrk-500",
        what: "nginx, wrk -t 8 -c 500",
        measure: "nginx + wrk, 500 connections",
        unit: "req/s",
        better: Better::Higher,
        factor: 1.0,
        tcp: 154_643.22,
        domain: None,
        copy: 220_894.03,
        nocopy: 226_754.3,
    },
];

pub fn has(case: &str) -> bool {
    SEEDS.iter().any(|seed| seed.case == case)
}

impl Seed {
    fn ratio(&self, theirs: f64) -> f64 {
        if self.better == Better::Higher { theirs / self.tcp } else { self.tcp / theirs }
    }

    fn row<'a>(&self, samples: &'a Samples) -> Option<&'a Row> {
        samples.rows.iter().find(|row| row.measure.name == self.measure)
    }
}

/// Two lines for each measure: here, and in the thread.
pub fn text(samples: &Samples) -> String {
    let mut table = terminal::table::new([""]);
    let numbers = ["TCP", "Unix domain", "copy", "no copy"].map(right);
    table.set_header([Cell::new("measure"), Cell::new("")].into_iter().chain(numbers));
    for seed in &SEEDS {
        let row = seed.row(samples);
        let here = |path| {
            let Some(summary) = row.and_then(|row| row.summary(path)) else {
                return "-".to_string();
            };
            let value = engineering(summary.median * seed.factor);
            match row.and_then(|row| row.ratio(path, Path::Tcp)).filter(|_| path != Path::Tcp) {
                Some(ratio) => format!("{value} ({:.2} x)", ratio.median),
                None => value,
            }
        };
        let there = |value: f64| format!("{} ({:.2} x)", engineering(value), seed.ratio(value));
        let domain = seed.domain.map_or_else(|| "-".into(), there);
        table.add_row(
            [Cell::new(format!("{}\n{}", seed.what, seed.unit)), Cell::new("here\nthread")]
                .into_iter()
                .chain([
                    right(&format!("{}\n{}", here(Path::Tcp), engineering(seed.tcp))),
                    right(&format!("{}\n{domain}", here(Path::Unix))),
                    right(&format!("{}\n{}", here(Path::Copy), there(seed.copy))),
                    right(&format!("{}\n{}", here(Path::Shortwire), there(seed.nocopy))),
                ]),
        );
    }
    let mut text = format!("{table}\n");
    let _ = writeln!(
        text,
        "Median of {} round(s), with the ratio to TCP in the same round, above 1 is better. The thread's machine is another (a VM with\n\
         8 cores of a Xeon Platinum at 2.5 GHz), its shared memory is in the kernel: only ratios may be compared.\n{}",
        samples.rounds,
        samples.machine.sentence()
    );
    for note in samples.skipped.iter() {
        let _ = writeln!(text, "skipped {}: {}", note.name, note.reason);
    }
    for failure in &samples.failures {
        let _ = writeln!(
            text,
            "FAILED {} over {}: {}",
            failure.name,
            failure.path.name(),
            failure.reason
        );
    }
    text
}

fn right(text: &str) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::catalogue;
    use crate::bench::record::tests::samples;

    #[test]
    fn every_line_of_the_thread_has_its_row_with_the_thread_s_paths() {
        for seed in &SEEDS {
            let case =
                catalogue::all().into_iter().find(|case| case.name == seed.case).expect(seed.case);
            let measure = case
                .measures
                .iter()
                .find(|measure| measure.name == seed.measure)
                .expect(seed.measure);
            assert!(measure.better == seed.better, "{}", seed.measure);
            assert!(case.paths.contains(&Path::Copy), "{}", seed.case);
            assert!(seed.domain.is_none() || case.paths.contains(&Path::Unix), "{}", seed.case);
        }
    }

    #[test]
    fn the_ratios_are_the_thread_s() {
        // As it printed them: +102.17 %, +66.68 %, -49.00 %, +88.64 %, +46.63 %.
        let ratios = SEEDS.map(|seed| seed.ratio(seed.nocopy));
        for (ratio, printed) in ratios.into_iter().zip([2.0217, 1.6668, 1.0 / 0.51, 1.8864, 1.4663])
        {
            assert!((ratio / printed - 1.0).abs() < 0.001, "{ratio} {printed}");
        }
    }

    #[test]
    fn the_table_has_here_and_there() {
        let mut samples = samples();
        samples.rows[0].measure.name = "sockperf tp 64000 B".into();
        let text = text(&samples);
        // 152,000 messages of 64000 B a second are 9277 MiB; 100,000 are 6104.
        for part in
            ["9277 (1.52 x)", "8240 (1.67 x)", "6104", "4943", "-", "FAILED iperf3 over tcp"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
