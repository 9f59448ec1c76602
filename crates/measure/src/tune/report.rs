//! What was measured, and what follows from it.

use std::fmt::Write as _;
use std::path::Path;

use checksum::prefetch::Profile;
use comfy_table::Cell;
use serde::Serialize;
use terminal::units::engineering;

use super::Findings;
use super::decide::Choice;
use crate::bench::checksum::event::{Case, Probed, Routine};
use crate::bench::checksum::figures::Figures;
use crate::bench::checksum::tables::{plain, right};
use crate::bench::samples::Summary;

#[derive(Serialize)]
pub struct Object<'a> {
    bench: &'static str,
    machine: Machine<'a>,
    rows: Vec<Row<'a>>,
    in_packet: &'a Choice,
    next_packet: &'a Choice,
    profile: String,
    /// None: the built-in profile stays, or nothing was to be written.
    written: Option<&'a Path>,
}

#[derive(Serialize)]
struct Machine<'a> {
    processor: String,
    kernel: &'a str,
    #[serde(flatten)]
    probed: &'a Probed,
}

#[derive(Serialize)]
struct Row<'a> {
    name: String,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    n: usize,
    against: &'a str,
    ratio: f64,
}

pub fn json<'a>(
    figures: &'a Figures,
    findings: &'a Findings,
    written: Option<&'a Path>,
) -> Object<'a> {
    let cases = figures.cases.iter().map(|case| (case, choice(case, findings)));
    Object {
        bench: "tune-checksum",
        machine: Machine {
            processor: super::processor(),
            kernel: &figures.start.kernel,
            probed: &figures.start.machine,
        },
        rows: cases
            .flat_map(|(case, choice)| {
                case.routines.iter().filter_map(|setting| row(case, setting, choice))
            })
            .collect(),
        in_packet: &findings.in_packet,
        next_packet: &findings.next_packet,
        profile: findings.profile.to_string(),
        written,
    }
}

fn choice<'a>(case: &Case, findings: &'a Findings) -> &'a Choice {
    if case.case.starts_with("tune-in-packet") {
        &findings.in_packet
    } else {
        &findings.next_packet
    }
}

fn row<'a>(case: &Case, setting: &Routine, choice: &'a Choice) -> Option<Row<'a>> {
    let Summary { median: value, min, max, n } = setting.summary()?;
    let ratio = setting.ratio_to(case.routine(&choice.built_in)?)?;
    let name = format!("{}, {}", case.case, setting.name);
    Some(Row { name, value, unit: "ns", min, max, n, against: &choice.built_in, ratio })
}

pub fn text(figures: &Figures, findings: &Findings, written: Option<&Path>) -> String {
    let mut text = String::new();
    for (title, head, prefix, choice) in [
        ("Within a packet: bytes ahead", "distance", "tune-in-packet", &findings.in_packet),
        (
            "Batches: lines of a later packet, and how many packets ahead",
            "lines ahead",
            "tune-next-packet",
            &findings.next_packet,
        ),
    ] {
        let cases: Vec<&Case> =
            figures.cases.iter().filter(|case| case.case.starts_with(prefix)).collect();
        let _ = writeln!(text, "{title}\n{}\n{}\n", table(head, &cases, choice), choice.words());
    }
    let rounds =
        figures.cases.iter().flat_map(|case| &case.routines).map(|routine| routine.ns.len()).max();
    let _ = writeln!(
        text,
        "Medians of {} rounds, with quartiles, in ns per packet that no cache holds, in random order; the ratio is to the\n\
         built-in setting, above 1 faster. Processor {}, kernel {}.",
        rounds.unwrap_or(0),
        super::processor(),
        figures.start.kernel
    );
    let _ = match written {
        Some(path) => writeln!(text, "Written to {}:\n{}", path.display(), findings.profile),
        None if findings.profile == Profile::built_in() => {
            writeln!(text, "Nothing written: the built-in profile stays.")
        }
        None => writeln!(text, "Not written (--dry-run):\n{}", findings.profile),
    };
    text
}

fn table(head: &str, cases: &[&Case], choice: &Choice) -> comfy_table::Table {
    let mut table = plain();
    let columns = cases.iter().flat_map(|case| [right(&case.column), right("ratio")]);
    table.set_header([Cell::new(head)].into_iter().chain(columns));
    for setting in cases.first().map_or(&[][..], |case| &case.routines) {
        let mark = match setting.name.as_str() {
            name if name == choice.built_in => " built-in",
            name if name == choice.best => " best",
            _ => "",
        };
        let values = cases
            .iter()
            .flat_map(|case| cells(case, &setting.name, choice).map(|text| right(&text)));
        table.add_row([Cell::new(format!("{}{mark}", setting.name))].into_iter().chain(values));
    }
    table
}

fn cells(case: &Case, setting: &str, choice: &Choice) -> [String; 2] {
    let none = || ["-".to_string(), "-".to_string()];
    let Some(routine) = case.routine(setting) else { return none() };
    let (Some((low, high)), Some(built_in)) = (routine.quartiles(), case.routine(&choice.built_in))
    else {
        return none();
    };
    let ratio = routine.ratio_to(built_in).unwrap_or(f64::NAN);
    let value =
        format!("{} [{}..{}]", engineering(routine.median()), engineering(low), engineering(high));
    [value, format!("{ratio:.2} x")]
}
