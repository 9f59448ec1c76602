//! The tables for people.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment};
use terminal::units::engineering;

use super::case::Path;
use super::samples::{Kind, Row, Samples, Summary};

pub fn text(samples: &Samples) -> String {
    let mut text = figures(samples);
    let _ = writeln!(
        text,
        "Median [min..max] of {} round(s); ratio: Shortwire to TCP in the same round, above 1 is better, and below it that of the\n\
         copying device; limit: two processes spinning on a bare ring in shared memory. {}",
        samples.rounds,
        samples.machine.sentence()
    );
    latencies(&mut text, samples);
    costs(&mut text, samples);
    connections(&mut text, samples);
    for note in &samples.skipped {
        let _ = writeln!(text, "skipped {}: {}", note.name, note.reason);
    }
    for failure in &samples.failures {
        let _ = writeln!(text, "FAILED {} over {}: {}", failure.name, failure.path.name(), failure.reason);
    }
    text
}

fn figures(samples: &Samples) -> String {
    let mut table = terminal::table::new(["measure"]);
    let numbers = ["TCP", "Unix", "copy", "Shortwire", "ratio", "bar", "limit"].map(|name| right(name.into()));
    table.set_header([Cell::new("measure")].into_iter().chain(numbers));
    for row in samples.of_kind(Kind::Figure) {
        let value = |path| right(row.summary(path).map_or_else(|| "-".into(), spread));
        table.add_row([
            Cell::new(format!("{}\n{}", row.measure.name, row.measure.unit)),
            value(Path::Tcp),
            value(Path::Unix),
            value(Path::Copy),
            value(Path::Shortwire),
            right(ratios(row)),
            right(bar(row)),
            value(Path::BareRing),
        ]);
    }
    format!("{table}\n")
}

fn ratios(row: &Row) -> String {
    let of = |path| row.ratio(path, Path::Tcp).map(|ratio| format!("{:.2} x", ratio.median));
    let (ours, copy) = (of(Path::Shortwire), of(Path::Copy));
    if let (Some(super::case::Bar::Worst(_)), Some(ratio)) = (row.measure.bar, row.ratio(Path::Shortwire, Path::Tcp)) {
        return format!("{:.2} x\nworst {:.2}", ratio.median, ratio.min);
    }
    let copy = copy.map_or_else(String::new, |ratio| format!("\n({ratio})"));
    format!("{}{copy}", ours.unwrap_or_else(|| "-".into()))
}

fn bar(row: &Row) -> String {
    match row.verdict() {
        Some((bar, Some(reached))) => format!("{bar}\n{}", if reached { "reached" } else { "MISSED" }),
        Some((bar, None)) => bar,
        None => String::new(),
    }
}

/// The quantiles of a case side by side, a line for each path.
fn latencies(text: &mut String, samples: &Samples) {
    let mut table = terminal::table::new(["latency in us", "over", "p50", "p90", "p99", "p99.9", "max"]);
    for case in samples.cases() {
        let rows: Vec<&Row> = samples.of_kind(Kind::Latency).filter(|row| row.case == case).collect();
        for path in Path::ALL {
            let quantile = |name: &str| {
                let row = rows.iter().find(|row| row.measure.name.ends_with(&format!("latency {name}")));
                row.and_then(|row| row.summary(path)).map(|summary| engineering(summary.median))
            };
            let quantiles = ["p50", "p90", "p99", "p99.9", "max"].map(quantile);
            if quantiles.iter().any(Option::is_some) {
                let cells = quantiles.map(|value| right(value.unwrap_or_else(|| "-".into())));
                table.add_row([Cell::new(case), Cell::new(path.title())].into_iter().chain(cells));
            }
        }
    }
    if table.row_iter().next().is_some() {
        let _ = writeln!(text, "\n{table}\nMedians of the rounds; a dash: the program does not tell.");
    }
}

/// What the paths cost per request or byte: processors' time and system calls.
fn costs(text: &mut String, samples: &Samples) {
    let mut table = terminal::table::new(["cost", "unit"]);
    let numbers = ["TCP", "Unix", "copy", "Shortwire", "ratio"].map(|name| right(name.into()));
    table.set_header([Cell::new("cost"), Cell::new("unit")].into_iter().chain(numbers));
    for row in samples.rows.iter().filter(|row| matches!(row.kind, Kind::Cpu | Kind::Calls)) {
        let value = |path| {
            let summary = row.summary(path);
            right(summary.map_or_else(|| "-".into(), |summary| engineering(summary.median)))
        };
        let ratio = row.ratio(Path::Shortwire, Path::Tcp);
        table.add_row([
            Cell::new(&row.measure.name),
            Cell::new(&row.measure.unit),
            value(Path::Tcp),
            value(Path::Unix),
            value(Path::Copy),
            value(Path::Shortwire),
            right(ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2} x", ratio.median))),
        ]);
    }
    if table.row_iter().next().is_some() {
        let _ = writeln!(
            text,
            "\n{table}\nProcessor time of client and server with all that they started, in ticks of 10 ms, so small differences say nothing.\n\
             System calls: of the server alone, counted{} in runs of their own: what 3 s of load need more than 1 s.",
            samples.settings.calls_counted_by.as_ref().map_or_else(String::new, |counter| format!(" by {counter}"))
        );
    }
    for calls in &samples.calls {
        let _ = writeln!(text, "  {}", calls.sentence());
    }
}

fn connections(text: &mut String, samples: &Samples) {
    if samples.connections.is_empty() {
        return;
    }
    text.push_str("\nConnections of the clients under `shortwire run`, seen while they ran:\n");
    for connections in &samples.connections {
        let seen = &connections.seen;
        let _ = write!(text, "  {:<16} {} of {} through shared memory", connections.row, seen.smcd, seen.total());
        let reasons: Vec<String> =
            seen.reasons.iter().map(|(reason, count)| format!("{count} TCP: {reason}")).collect();
        let _ = writeln!(text, "{}{}", if reasons.is_empty() { "" } else { "; " }, reasons.join("; "));
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
    use super::super::record::tests::samples;

    #[test]
    fn the_tables_say_everything() {
        let text = super::text(&samples());
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
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
