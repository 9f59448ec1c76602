//! Plots as SVG. Colours come from the page's style, so that they follow light and dark.

use std::fmt::Write as _;

use terminal::units::engineering;

use super::super::case::{Bar, Path};
use super::super::samples::{Row, Summary};
use super::escape;

const WIDTH: f64 = 860.0;
/// Room for names on the left and for numbers on the right.
const LEFT: f64 = 140.0;
const RIGHT: f64 = 200.0;
const LINE: f64 = 26.0;

/// A bar for each path from 0 to its median, with whiskers, and a dot for each round.
pub fn bars(row: &Row) -> String {
    let paths: Vec<(Path, Summary)> =
        Path::ALL.into_iter().filter_map(|path| Some((path, row.summary(path)?))).collect();
    let most = paths.iter().map(|(_, summary)| summary.max).fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| LEFT + value.max(0.0) / most * (WIDTH - LEFT - RIGHT);
    let mut svg = open(paths.len() as f64 * LINE + 4.0);
    for (line, (path, summary)) in paths.iter().enumerate() {
        let (top, class, title) = (line as f64 * LINE + 4.0, path.name(), path.title());
        let middle = top + 9.0;
        let unit = escape(&row.measure.unit);
        let words = format!("{title}: {} {unit}", spread(summary));
        let _ = writeln!(
            svg,
            "<g class=\"{class}\"><title>{words}</title>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{title}</text>\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{:.1}\" height=\"18\" rx=\"2\"/>\
             <line class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>",
            LEFT - 8.0,
            top + 13.0,
            (x(summary.median) - LEFT).max(1.0),
            x(summary.min),
            x(summary.max),
        );
        for (round, value) in row.values.get(path).into_iter().flatten().enumerate() {
            if let Some(value) = value {
                let said = format!("{title}, round {}: {} {unit}", round + 1, engineering(*value));
                let _ = write!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{middle}\" r=\"2.5\"><title>{said}</title></circle>",
                    x(*value)
                );
            }
        }
        let ratio = row.ratio(*path, Path::Tcp).filter(|_| *path != Path::Tcp);
        let ratio = ratio.map_or_else(String::new, |ratio| format!(", {:.2} x TCP", ratio.median));
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{} {unit}{ratio}</text></g>",
            x(summary.max) + 8.0,
            top + 13.0,
            engineering(summary.median)
        );
    }
    svg + "</svg>\n"
}

/// A line for each row: its ratio to TCP on a logarithmic scale, above and below 1. None without ratios.
pub fn ratios(rows: &[&Row]) -> Option<String> {
    const NAMES: f64 = 300.0;
    let ratio = |row: &Row, path| row.ratio(path, Path::Tcp);
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| ratio(row, Path::Shortwire).is_some()).collect();
    let all =
        || rows.iter().flat_map(|row| [Path::Shortwire, Path::Copy].into_iter().filter_map(|path| ratio(row, path)));
    let least = all().map(|ratio| ratio.min).fold(0.5, f64::min);
    let most = all().map(|ratio| ratio.max).fold(2.0, f64::max);
    let scale = |value: f64| (value.max(least) / least).ln() / (most / least).ln();
    let x = |value: f64| NAMES + scale(value) * (WIDTH - NAMES - 70.0);
    let height = rows.len() as f64 * 20.0;
    let mut svg = open(height + 24.0);
    for value in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0] {
        if (least..=most).contains(&value) {
            let class = if value == 1.0 { "one" } else { "grid" };
            let at = x(value);
            let _ = writeln!(
                svg,
                "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{height}\"/>\
                 <text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{value}</text>",
                height + 16.0
            );
        }
    }
    for (line, row) in rows.iter().enumerate() {
        let y = line as f64 * 20.0 + 10.0;
        let name = escape(&row.measure.name);
        let _ = write!(svg, "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>", NAMES - 10.0, y + 4.0);
        if let Some(Bar::Ratio(bar) | Bar::Copy(bar)) = row.measure.bar {
            let at = x(bar.min(most));
            let (from, to) = (y - 7.0, y + 7.0);
            let _ = write!(
                svg,
                "<line class=\"bar\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{from}\" y2=\"{to}\"><title>bar {bar} x</title></line>"
            );
        }
        for path in [Path::Copy, Path::Shortwire] {
            let Some(summary) = ratio(row, path) else { continue };
            let (class, title) = (path.name(), path.title());
            let _ = write!(
                svg,
                "<g class=\"{class}\"><title>{name}, {title}: {} x</title>\
                 <line class=\"range\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>\
                 <circle class=\"point\" cx=\"{:.1}\" cy=\"{y}\" r=\"4.5\"/></g>",
                spread(&summary),
                x(summary.min),
                x(summary.max),
                x(summary.median)
            );
            if path == Path::Shortwire {
                let _ =
                    write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{:.2} x</text>", WIDTH - 52.0, y + 4.0, summary.median);
            }
        }
        svg.push('\n');
    }
    (!rows.is_empty()).then(|| svg + "</svg>\n")
}

/// A curve for each path over the quantiles. None without latencies.
pub fn quantiles(rows: &[&Row]) -> Option<String> {
    const HEIGHT: f64 = 220.0;
    const LEFT: f64 = 60.0;
    let medians = |path| rows.iter().filter_map(move |row| Some(row.summary(path)?.median)).filter(|us| *us > 0.0);
    let all = || Path::ALL.into_iter().flat_map(medians);
    let (least, most) = (all().reduce(f64::min)?, all().reduce(f64::max)?);
    // To whole powers of ten, and one apart at least.
    let (bottom, top) = (least.log10().floor(), most.log10().ceil());
    let top = if top > bottom { top } else { bottom + 1.0 };
    let y = |us: f64| 8.0 + (top - us.log10()) / (top - bottom) * (HEIGHT - 32.0);
    let x = |at: usize| LEFT + (at as f64 + 0.5) * (WIDTH - LEFT - 20.0) / rows.len() as f64;
    let mut svg = open(HEIGHT);
    for power in bottom as i32..=top as i32 {
        let at = y(10f64.powi(power));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - 20.0,
            LEFT - 8.0,
            at + 4.0,
            engineering(10f64.powi(power)).replace(".00", "").replace(".0", "")
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let name = row.measure.name.rsplit(' ').next().unwrap_or_default();
        let _ =
            write!(svg, "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", x(at), HEIGHT - 4.0, escape(name));
    }
    for path in Path::ALL {
        let known = rows.iter().enumerate().filter_map(|(at, row)| Some((at, *row, row.summary(path)?)));
        let points: Vec<(usize, &Row, Summary)> = known.filter(|(_, _, summary)| summary.median > 0.0).collect();
        let line: Vec<String> =
            points.iter().map(|(at, _, summary)| format!("{:.1},{:.1}", x(*at), y(summary.median))).collect();
        let _ = write!(svg, "<g class=\"{}\"><polyline points=\"{}\"/>", path.name(), line.join(" "));
        for (at, row, summary) in &points {
            let name = escape(row.measure.name.rsplit(' ').next().unwrap_or_default());
            let _ = write!(
                svg,
                "<circle class=\"point\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\"><title>{}, {name}: {} us</title></circle>",
                x(*at),
                y(summary.median),
                path.title(),
                spread(summary)
            );
        }
        svg.push_str("</g>\n");
    }
    Some(svg + "</svg>\n")
}

fn open(height: f64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n")
}

fn spread(summary: &Summary) -> String {
    let Summary { median, min, max, n } = *summary;
    if n == 1 {
        return engineering(median);
    }
    format!("{} [{}..{}]", engineering(median), engineering(min), engineering(max))
}
