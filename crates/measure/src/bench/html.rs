//! The page: plots and tables of a record in one file that asks nothing of the network and runs no
//! script.

mod plot;

use std::fmt::Write as _;

use terminal::units::engineering;

use super::case::Path;
use super::catalogue;
use super::report::few_rounds;
use super::samples::{Kind, Row, Samples, Summary};

const STYLE: &str = include_str!("html/page.css");

pub fn page(samples: &Samples) -> String {
    let mut body = String::new();
    head(&mut body, samples);
    let figures: Vec<&Row> = samples.of_kind(Kind::Figure).collect();
    if let Some(plot) = plot::ratios(&figures) {
        let _ = writeln!(
            body,
            "<h2>How many times better than TCP</h2>\n<p>Medians of the ratios within a round, with the least and the greatest. \
             The scale is logarithmic; a tick is the bar that the project sets itself.</p>\n{}{plot}",
            legend(&measured(&figures, &[Path::Shortwire, Path::Copy]))
        );
    }
    for case in samples.cases() {
        section(&mut body, samples, case);
    }
    table(&mut body, samples);
    notes(&mut body, samples);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>Shortwire: sockets against TCP</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn head(body: &mut String, samples: &Samples) {
    let settings = &samples.settings;
    let _ = writeln!(
        body,
        "<h1>Shortwire: sockets against TCP</h1>\n<p>{}</p>\n<p>{}, {} round(s) of {} s, shortwire {}: <code>{}</code></p>",
        escape(&samples.machine.sentence()),
        date(settings.unix_time),
        samples.rounds,
        settings.seconds,
        env!("CARGO_PKG_VERSION"),
        escape(&settings.command)
    );
    for doubt in samples.machine.doubt().iter().chain(&few_rounds(samples)) {
        let _ = writeln!(body, "<p class=\"warning\">{}</p>", escape(doubt));
    }
}

fn section(body: &mut String, samples: &Samples, case: &str) {
    let what = catalogue::all()
        .into_iter()
        .find(|known| known.name == case)
        .map_or("", |known| known.what);
    let _ = writeln!(body, "<section>\n<h2>{}</h2>\n<p>{}</p>", escape(case), escape(what));
    let rows: Vec<&Row> = samples.rows.iter().filter(|row| row.case == case).collect();
    let bars = |body: &mut String, wanted: &dyn Fn(&Row) -> bool| {
        for row in rows.iter().filter(|row| wanted(row)) {
            let _ = writeln!(body, "<h3>{}</h3>\n{}", caption(row), plot::bars(row));
        }
    };
    bars(body, &|row| row.kind == Kind::Figure);
    let latencies: Vec<&Row> =
        rows.iter().copied().filter(|row| row.kind == Kind::Latency).collect();
    if let Some(plot) = plot::quantiles(&latencies) {
        let legend = legend(&measured(&latencies, &Path::ALL));
        let _ = writeln!(body, "<h3>Latency, logarithmic</h3>\n{legend}{plot}");
    }
    bars(body, &|row| matches!(row.kind, Kind::Cpu | Kind::Calls));
    body.push_str("</section>\n");
}

fn caption(row: &Row) -> String {
    let bar = row.verdict().map_or_else(String::new, |(bar, reached)| {
        let class = if reached == Some(false) { "missed" } else { "reached" };
        let word = reached.map_or("", |reached| if reached { ", reached" } else { ", missed" });
        format!(" <span class=\"{class}\">bar {bar}{word}</span>")
    });
    format!("{} <small>{}</small>{bar}", escape(&row.measure.name), escape(&row.measure.unit))
}

/// Those of the paths that any of the rows has values of.
fn measured(rows: &[&Row], paths: &[Path]) -> Vec<Path> {
    let has = |path: &Path| rows.iter().any(|row| row.summary(*path).is_some());
    paths.iter().copied().filter(has).collect()
}

fn legend(paths: &[Path]) -> String {
    let entries = paths
        .iter()
        .map(|path| format!("<span class=\"key {}\"></span>{}", path.name(), path.title()));
    format!("<p class=\"legend\">{}</p>\n", entries.collect::<Vec<_>>().join(" "))
}

/// All figures as text, for those who read no plots.
fn table(body: &mut String, samples: &Samples) {
    body.push_str("<h2>All figures</h2>\n<div class=\"wide\">\n<table>\n<thead><tr><th>measure</th><th>unit</th>");
    let rows: Vec<&Row> = samples.rows.iter().collect();
    let paths = measured(&rows, &Path::ALL);
    for path in &paths {
        let _ = write!(body, "<th>{}</th>", path.title());
    }
    body.push_str("<th>ratio to TCP</th></tr></thead>\n<tbody>\n");
    for row in &samples.rows {
        let (name, unit) = (escape(&row.measure.name), escape(&row.measure.unit));
        let _ = write!(body, "<tr><td>{name}</td><td>{unit}</td>");
        for path in &paths {
            let _ = write!(
                body,
                "<td class=\"number\">{}</td>",
                row.summary(*path).map_or_else(String::new, spread)
            );
        }
        let ratio = row.ratio(Path::Shortwire, Path::Tcp);
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{:.2} x", ratio.median));
        let _ = writeln!(body, "<td class=\"number\">{ratio}</td></tr>");
    }
    body.push_str("</tbody>\n</table>\n</div>\n");
}

fn notes(body: &mut String, samples: &Samples) {
    let mut notes: Vec<String> = samples
        .calls
        .iter()
        .map(|calls| format!("system calls per request, {}", calls.sentence()))
        .collect();
    for connections in &samples.connections {
        let seen = &connections.seen;
        notes.push(format!(
            "{}: {} of {} connections through shared memory",
            connections.row,
            seen.smcd,
            seen.total()
        ));
    }
    notes.extend(
        samples.skipped.iter().map(|note| format!("skipped {}: {}", note.name, note.reason)),
    );
    let failed = |name: &str, path: Path, reason: &str| {
        format!("FAILED {name} over {}: {reason}", path.title())
    };
    notes.extend(
        samples.failures.iter().map(|failure| failed(&failure.name, failure.path, &failure.reason)),
    );
    body.push_str("<h2>Notes</h2>\n<ul>\n");
    for note in &notes {
        let _ = writeln!(body, "<li>{}</li>", escape(note));
    }
    body.push_str("<li>Values are medians of the rounds, in brackets the least and the greatest; rounds take the paths in turn.</li>\n");
    if samples.of_kind(Kind::Cpu).next().is_some() {
        body.push_str("<li>Processor time is that of client and server with all that they started, in ticks of 10 ms.</li>\n");
    }
    if samples.of_kind(Kind::Calls).next().is_some() {
        body.push_str(
            "<li>System calls are those of the server alone, counted in a run of its own.</li>\n",
        );
    }
    body.push_str("</ul>\n");
}

fn spread(summary: Summary) -> String {
    let Summary { median, min, max, n } = summary;
    if n == 1 {
        return engineering(median);
    }
    format!("{} <small>[{}..{}]</small>", engineering(median), engineering(min), engineering(max))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The day, in UTC, of the calendar in use.
fn date(unix_time: u64) -> String {
    // Years that begin in March have the leap day at their end; eras of 400 years are all alike.
    let days = unix_time / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let minutes = unix_time % 86_400 / 60;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::samples;
    use crate::bench::well_formed::assert_well_formed;

    #[test]
    fn the_page_is_well_formed_and_asks_for_nothing_else() {
        let page = page(&samples());
        assert_well_formed(&page);
        for foreign in [
            "<script", "<link", "<img", "<iframe", "http:", "https:", "@import", "url(", " src=",
            " href=",
        ] {
            assert!(!page.contains(foreign), "the page has {foreign}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn the_page_shows_what_was_measured() {
        let page = page(&samples());
        for part in [
            "redis GET &lt;50&gt; &amp; &quot;more&quot;",
            "152k",
            "1.52 x",
            "bar 1.30 x, reached",
            "Latency, logarithmic",
            "10 us",
            "redis-get over tcp: read 1.00, write 1.00",
            "49 of 50",
            "skipped nginx-wrk",
            "FAILED iperf3 over TCP",
            "1970-01-01",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        // A tooltip for every sample of a bar and every point of a curve.
        assert!(page.matches("<title>").count() > 12);
    }

    #[test]
    fn what_was_not_measured_is_not_explained() {
        let mut samples = samples();
        let page_of = |samples: &Samples| page(samples);
        let whole = page_of(&samples);
        assert!(whole.contains("Shortwire, copy") && whole.contains("System calls are"));
        samples.rows.retain(|row| row.kind == Kind::Figure);
        samples.rows.iter_mut().for_each(|row| drop(row.values.remove(&Path::Copy)));
        let page = page_of(&samples);
        for word in ["Shortwire, copy", "System calls are", "Processor time is", "bare ring"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn what_is_not_to_be_trusted_is_red() {
        let mut samples = samples();
        assert!(page(&samples).contains("<p class=\"warning\">A quick look: 2 round(s)"));
        samples.rounds = 5;
        assert!(!page(&samples).contains("class=\"warning\""));
        samples.machine.busy = Some(1.9);
        assert!(page(&samples).contains("<p class=\"warning\">Other programs kept 1.9 of"));
        assert!(STYLE.contains(".warning { color: var(--bad)"));
    }

    #[test]
    fn days() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400 + 3_660), "2000-02-29 01:01 UTC");
        assert_eq!(date(1_795_305_599), "2026-11-21 23:59 UTC");
    }
}
