//! The tables for people.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table};
use terminal::screen::{self, wrapped};
use terminal::units::engineering;

use super::case::{Bar, Path};
use super::samples::{Kind, Row, Samples, Summary};

/// For a terminal of so many columns; None: as wide as they are.
pub fn text(samples: &Samples, width: Option<usize>) -> String {
    let (mut text, narrow) = fitting(width, |narrow| figures(samples, narrow));
    let mut say = |words: String| text += &wrapped(&words, width.or(Some(120)), "");
    say(format!(
        "Median{} of {} round(s); ratio: Shortwire to TCP in the same round, above 1 is better{}{}{}. {}",
        if samples.rounds > 1 && !narrow { " [min..max]" } else { "" },
        samples.rounds,
        if narrow { "; below it the bar" } else { "" },
        if has(samples, Path::Copy) { ", in brackets that of the copying device" } else { "" },
        if has(samples, Path::BareRing) {
            "; limit: two processes spinning on a bare ring in shared memory"
        } else {
            ""
        },
        samples.machine.sentence()
    ));
    if let Some(doubt) = few_rounds(samples) {
        say(doubt);
    }
    if let Some(doubt) = samples.machine.doubt() {
        let doubt = wrapped(&doubt, width, "");
        text += &format!("{}\n", screen::red(doubt.trim_end(), &std::io::stdout()));
    }
    latencies(&mut text, samples, width);
    costs(&mut text, samples, width);
    connections(&mut text, samples, width);
    for note in &samples.skipped {
        text += &hung(&format!("skipped {}: {}", note.name, note.reason), width);
    }
    for failure in &samples.failures {
        let (name, path) = (&failure.name, failure.path.name());
        text += &hung(&format!("FAILED {name} over {path}: {}", failure.reason), width);
    }
    text
}

/// What a quick look is worth.
pub fn few_rounds(samples: &Samples) -> Option<String> {
    let (rounds, seconds) = (samples.rounds, samples.settings.seconds);
    (rounds < 5).then(|| {
        format!(
            "A quick look: {rounds} round(s) of {seconds} s say how much, not exactly how much."
        )
    })
}

fn has(samples: &Samples, path: Path) -> bool {
    samples.rows.iter().any(|row| row.summary(path).is_some())
}

/// The wide form, unless it is too wide; whether it is the narrow one.
fn fitting(width: Option<usize>, form: impl Fn(bool) -> String) -> (String, bool) {
    let wide = form(false);
    let most = wide.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if width.is_some_and(|width| most > width) { (form(true), true) } else { (wide, false) }
}

/// A line, and its rest below it with some blanks before it.
fn hung(line: &str, width: Option<usize>) -> String {
    let inner = width.map(|width| width.saturating_sub(4));
    let lines = wrapped(line.trim_start(), inner, "");
    let blanks = &line[..line.len() - line.trim_start().len()];
    let mut text = String::new();
    for (number, line) in lines.lines().enumerate() {
        let _ = writeln!(text, "{blanks}{}{line}", if number > 0 { "  " } else { "" });
    }
    text
}

/// The paths that are shown, with their names.
fn columns(shown: &impl Fn(&Path) -> bool) -> Vec<(Path, &'static str)> {
    let all = [
        (Path::Tcp, "TCP"),
        (Path::Unix, "Unix"),
        (Path::Copy, "copy"),
        (Path::Shortwire, "Shortwire"),
    ];
    all.into_iter().filter(|(path, _)| shown(path)).collect()
}

/// Paths that nothing was measured of have no column. A narrow table has medians only, and bars
/// below ratios.
fn figures(samples: &Samples, narrow: bool) -> String {
    let shown = |path: &Path| samples.of_kind(Kind::Figure).any(|row| row.summary(*path).is_some());
    let paths = columns(&shown);
    let limit = Some("limit").filter(|_| shown(&Path::BareRing));
    let mut table = terminal::table::new(["measure"]);
    let bar_column = Some("bar").filter(|_| !narrow);
    let numbers =
        paths.iter().map(|(_, name)| *name).chain(["ratio"]).chain(bar_column).chain(limit);
    let header = numbers.map(|name| right(name.into()));
    table.set_header([Cell::new("measure")].into_iter().chain(header));
    for row in samples.of_kind(Kind::Figure) {
        let value = |path| {
            let shown = |summary: Summary| {
                if narrow { engineering(summary.median) } else { spread(summary) }
            };
            right(row.summary(path).map_or_else(|| "-".into(), shown))
        };
        let mut cells = vec![Cell::new(format!("{}\n{}", row.measure.name, row.measure.unit))];
        cells.extend(paths.iter().map(|(path, _)| value(*path)));
        if narrow {
            cells.push(right(format!("{}{}", ratios(row), bar_below(row))));
        } else {
            cells.extend([right(ratios(row)), right(bar(row))]);
        }
        cells.extend(limit.map(|_| value(Path::BareRing)));
        table.add_row(cells);
    }
    shown_as(table, narrow) + "\n"
}

fn shown_as(mut table: Table, narrow: bool) -> String {
    if narrow {
        let last = table.column_count().saturating_sub(1);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, u16::from(at < last)));
        }
    }
    table.to_string()
}

/// Whether it was reached, where that is known.
fn bar_below(row: &Row) -> String {
    match row.verdict() {
        Some((bar, Some(reached))) => {
            let sign = if reached { "≥" } else { "<" };
            let number = bar.split(' ').next().unwrap_or_default();
            match row.measure.bar {
                Some(Bar::Copy(_)) => format!("\n({sign} {number})"),
                Some(Bar::Value(_)) => format!("\n{sign} {bar}"),
                _ => format!("\n{sign} {number}"),
            }
        }
        _ => String::new(),
    }
}

fn times(ratio: f64) -> String {
    format!("{} x", engineering(ratio))
}

fn ratios(row: &Row) -> String {
    let of = |path| row.ratio(path, Path::Tcp).map(|ratio| times(ratio.median));
    let (ours, copy) = (of(Path::Shortwire), of(Path::Copy));
    if let (Some(Bar::Worst(_)), Some(ratio)) =
        (row.measure.bar, row.ratio(Path::Shortwire, Path::Tcp))
    {
        return format!("{}\nworst {:.2}", times(ratio.median), ratio.min);
    }
    let copy = copy.map_or_else(String::new, |ratio| format!("\n({ratio})"));
    format!("{}{copy}", ours.unwrap_or_else(|| "-".into()))
}

fn bar(row: &Row) -> String {
    match row.verdict() {
        Some((bar, Some(reached))) => {
            format!("{bar}\n{}", if reached { "reached" } else { "MISSED" })
        }
        Some((bar, None)) => bar,
        None => String::new(),
    }
}

/// The quantiles of a case side by side, a line for each path.
fn latencies(text: &mut String, samples: &Samples, width: Option<usize>) {
    let quantiles = |narrow| {
        let mut table =
            terminal::table::new(["latency in us", "over", "p50", "p90", "p99", "p99.9", "max"]);
        for case in samples.cases() {
            let rows: Vec<&Row> =
                samples.of_kind(Kind::Latency).filter(|row| row.case == case).collect();
            for path in Path::ALL {
                let quantile = |name: &str| {
                    let wanted = format!("latency {name}");
                    let row = rows.iter().find(|row| row.measure.name.ends_with(&wanted));
                    row.and_then(|row| row.summary(path)).map(|summary| engineering(summary.median))
                };
                let quantiles = ["p50", "p90", "p99", "p99.9", "max"].map(quantile);
                if quantiles.iter().any(Option::is_some) {
                    let over = if narrow { path.name() } else { path.title() };
                    let cells = quantiles.map(|value| right(value.unwrap_or_else(|| "-".into())));
                    table.add_row([Cell::new(case), Cell::new(over)].into_iter().chain(cells));
                }
            }
        }
        let has_rows = table.row_iter().next().is_some();
        if has_rows { format!("\n{}\n", shown_as(table, narrow)) } else { String::new() }
    };
    let (table, _) = fitting(width, quantiles);
    if !table.is_empty() {
        *text += &table;
        *text += "Medians of the rounds; a dash: the program does not tell.\n";
    }
}

/// What the paths cost per request or byte: processors' time and system calls.
fn costs(text: &mut String, samples: &Samples, width: Option<usize>) {
    let is_there = |kind| samples.of_kind(kind).next().is_some();
    if is_there(Kind::Cpu) || is_there(Kind::Calls) {
        *text += &fitting(width, |narrow| cost_table(samples, narrow)).0;
    }
    let mut say = |words: &str| *text += &wrapped(words, width.or(Some(120)), "");
    if is_there(Kind::Cpu) {
        say(
            "Processor time of client and server with all that they started, in ticks of 10 ms, so small differences say nothing.",
        );
    }
    if is_there(Kind::Calls) {
        let counter = samples.settings.calls_counted_by.as_ref();
        let counter = counter.map_or_else(String::new, |counter| format!(" by {counter}"));
        say(&format!(
            "System calls: of the server alone, counted{counter} in runs of their own: what 3 s of load need more than 1 s."
        ));
    }
    for calls in &samples.calls {
        *text += &hung(&format!("  {}", calls.sentence()), width);
    }
}

fn cost_table(samples: &Samples, narrow: bool) -> String {
    let costs = || samples.rows.iter().filter(|row| matches!(row.kind, Kind::Cpu | Kind::Calls));
    let shown = |path: &Path| costs().any(|row| row.summary(*path).is_some());
    let paths = columns(&shown);
    let mut table = terminal::table::new(["cost", "unit"]);
    let numbers = paths.iter().map(|(_, name)| *name).chain(["ratio"]);
    let numbers = numbers.map(|name| right(name.into()));
    table.set_header([Cell::new("cost"), Cell::new("unit")].into_iter().chain(numbers));
    for row in costs() {
        let value = |path| {
            let summary = row.summary(path);
            right(summary.map_or_else(|| "-".into(), |summary| engineering(summary.median)))
        };
        let ratio = row.ratio(Path::Shortwire, Path::Tcp);
        let name = row.measure.name.to_string();
        let name = if narrow {
            name.replacen(": ", ":\n", 1).replace("processor time", "CPU time")
        } else {
            name
        };
        let mut cells = vec![Cell::new(name), Cell::new(&row.measure.unit)];
        cells.extend(paths.iter().map(|(path, _)| value(*path)));
        cells.push(right(ratio.map_or_else(|| "-".into(), |ratio| times(ratio.median))));
        table.add_row(cells);
    }
    format!("\n{}\n", shown_as(table, narrow))
}

fn connections(text: &mut String, samples: &Samples, width: Option<usize>) {
    if samples.connections.is_empty() {
        return;
    }
    text.push_str("\nConnections of the clients under `shortwire run`, seen while they ran:\n");
    for connections in &samples.connections {
        let seen = &connections.seen;
        let mut line = format!(
            "  {:<16} {} of {} through shared memory",
            connections.row,
            seen.smcd,
            seen.total()
        );
        for (reason, count) in &seen.reasons {
            let _ = write!(line, "; {count} TCP: {reason}");
        }
        *text += &hung(&line, width);
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
    use super::super::catalogue;
    use super::super::record::tests::samples;
    use super::super::samples::tests::row;
    use super::*;

    #[test]
    fn the_tables_say_everything() {
        let text = super::text(&samples(), None);
        for part in [
            "redis GET",
            "100k",
            "140k",
            "152k",
            "1.52 x",
            "(1.20 x)",
            "1.30 x",
            "reached",
            "p99.9",
            "both processor time per request",
            "system calls per request",
            "4.00 x",
            "redis-get over tcp: read 1.00, write 1.00, others 0.002",
            "49 of 50",
            "1 TCP: peer gone",
            "skipped nginx-wrk",
            "FAILED iperf3 over tcp",
            "A quick look: 2 round(s)",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("limit"), "nothing was measured of it:\n{text}");
    }

    /// What may be printed, with names and figures as long as they come.
    #[test]
    fn the_tables_fit_80_columns() {
        let mut samples = samples();
        samples.rows.retain(|row| row.kind != Kind::Calls);
        samples.calls.clear();
        for case in catalogue::all().into_iter().filter(|case| !case.long_only) {
            for measure in case.measures {
                let paths =
                    Path::ALL.map(|path| (path, &[Some(123.4e6), Some(-0.001), Some(99.9e3)][..]));
                let mut long = row("", measure.better, measure.bar, &paths);
                (long.case, long.measure) = (case.name.into(), measure);
                samples.rows.push(long);
            }
            for (name, kind) in [
                ("latency p99.9", Kind::Latency),
                ("both processor time per request", Kind::Cpu),
                ("server's processor time per request", Kind::Cpu),
            ] {
                let mut more = row(
                    "",
                    super::super::case::Better::Lower,
                    None,
                    &[
                        (Path::Tcp, &[Some(12.3e3)]),
                        (Path::Unix, &[Some(12.3e3)]),
                        (Path::Shortwire, &[Some(0.0123)]),
                        (Path::BareRing, &[Some(0.0123)]),
                    ],
                );
                (more.case, more.kind) = (case.name.into(), kind);
                more.measure.name = format!("{}: {name}", case.name).into();
                samples.rows.push(more);
            }
        }
        // With the copying device that of a whole bench, without it that of a demo.
        for has_copy in [true, false] {
            let copies = samples.rows.iter_mut().filter(|_| !has_copy);
            copies.for_each(|row| drop(row.values.remove(&Path::Copy)));
            let text = super::text(&samples, Some(80));
            let wide: Vec<_> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(wide.is_empty(), "{wide:#?}\n{text}");
        }
        let text = super::text(&samples, Some(80));
        assert!(text.contains(" ≥ 1.30 ") && text.contains(" < 12.00 "), "{text}");
        let wide = super::text(&samples, None);
        assert!(wide.lines().any(|line| line.chars().count() > 80), "it has two forms:\n{wide}");
    }

    #[test]
    fn a_loaded_machine_is_told_with_the_figures() {
        let mut samples = samples();
        assert!(!super::text(&samples, None).contains("do not trust"));
        samples.machine.busy = Some(1.5);
        assert!(super::text(&samples, None).contains("do not trust these figures"));
    }
}
