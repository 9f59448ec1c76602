//! Plots as SVG. Colours come from the page's style, so that they follow light and dark.

use std::fmt::Write as _;

use terminal::units::{engineering, time_us};

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
        let of = |value: f64| match &*unit {
            "us" => time_us(value),
            unit => format!("{} {unit}", engineering(value)),
        };
        let words = match &*unit {
            "us" => format!("{title}: {}", in_time(summary)),
            unit => format!("{title}: {} {unit}", spread(summary)),
        };
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
                let said = format!("{title}, round {}: {}", round + 1, of(*value));
                let _ = write!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{middle}\" r=\"2.5\"><title>{said}</title></circle>",
                    x(*value)
                );
            }
        }
        let ratio = row.ratio(*path, Path::Tcp).filter(|_| *path != Path::Tcp);
        let ratio =
            ratio.map_or_else(String::new, |ratio| format!(", {} TCP", times(ratio.median)));
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}{ratio}</text></g>",
            x(summary.max) + 8.0,
            top + 13.0,
            of(summary.median)
        );
    }
    svg + "</svg>\n"
}

/// A line for each row: its ratio to TCP on a logarithmic scale, above and below 1. None without
/// ratios.
pub fn ratios(rows: &[&Row]) -> Option<String> {
    const NAMES: f64 = 300.0;
    let ratio = |row: &Row, path| row.ratio(path, Path::Tcp);
    let rows: Vec<&Row> =
        rows.iter().copied().filter(|row| ratio(row, Path::Shortwire).is_some()).collect();
    let all = || {
        rows.iter().flat_map(|row| {
            [Path::Shortwire, Path::Copy].into_iter().filter_map(|path| ratio(row, path))
        })
    };
    let bars = || rows.iter().filter_map(|row| row.measure.bar).filter_map(Bar::as_ratio);
    let least = all().map(|ratio| ratio.min).chain(bars()).fold(0.5, f64::min);
    let most = all().map(|ratio| ratio.max).chain(bars()).fold(2.0, f64::max);
    let grid = grid(least, most);
    let (least, most) = (least.min(grid[0]), most.max(grid[grid.len() - 1]));
    let scale = |value: f64| (value.max(least) / least).ln() / (most / least).ln();
    let x = |value: f64| NAMES + scale(value) * (WIDTH - NAMES - 70.0);
    let height = rows.len() as f64 * 20.0;
    let mut svg = open(height + 24.0);
    for &value in &grid {
        let class = if value == 1.0 { "one" } else { "grid" };
        let at = x(value);
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{height}\"/>\
             <text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{value}</text>",
            height + 16.0
        );
    }
    for (line, row) in rows.iter().enumerate() {
        let y = line as f64 * 20.0 + 10.0;
        let name = escape(&row.measure.name);
        let _ = write!(
            svg,
            "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            NAMES - 10.0,
            y + 4.0
        );
        if let Some(bar) = row.measure.bar.and_then(Bar::as_ratio) {
            let at = x(bar);
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
                let _ = write!(
                    svg,
                    "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    WIDTH - 2.0,
                    y + 4.0,
                    times(summary.median)
                );
            }
        }
        svg.push('\n');
    }
    (!rows.is_empty()).then(|| svg + "</svg>\n")
}

/// 1, 2 and 5 of each power of ten, or powers of ten alone if there are many: those within, and one
/// on either side.
fn grid(least: f64, most: f64) -> Vec<f64> {
    let (bottom, top) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let steps: &[f64] = if top - bottom > 5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    // Divided, because 0.1 is to be written as that.
    let at = |exponent: i32, step: f64| match exponent {
        0.. => step * 10f64.powi(exponent),
        _ => step / 10f64.powi(-exponent),
    };
    let exponents = bottom - 1..=top + 1;
    let all: Vec<f64> =
        exponents.flat_map(|exponent| steps.iter().map(move |step| at(exponent, *step))).collect();
    let from = all.iter().rposition(|value| *value <= least).unwrap_or(0);
    let to = all.iter().position(|value| *value >= most).unwrap_or(all.len() - 1);
    all[from..=to].to_vec()
}

/// `1.52 x`, `3372 x`.
fn times(ratio: f64) -> String {
    format!("{} x", engineering(ratio))
}

/// A curve for each path over the quantiles. None without latencies.
pub fn quantiles(rows: &[&Row]) -> Option<String> {
    const HEIGHT: f64 = 220.0;
    const LEFT: f64 = 60.0;
    let medians = |path| {
        rows.iter().filter_map(move |row| Some(row.summary(path)?.median)).filter(|us| *us > 0.0)
    };
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
            time_us(10f64.powi(power)).replace(".00", "").replace(".0", "")
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let name = row.measure.name.rsplit(' ').next().unwrap_or_default();
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(at),
            HEIGHT - 4.0,
            escape(name)
        );
    }
    for path in Path::ALL {
        let known =
            rows.iter().enumerate().filter_map(|(at, row)| Some((at, *row, row.summary(path)?)));
        let points: Vec<(usize, &Row, Summary)> =
            known.filter(|(_, _, summary)| summary.median > 0.0).collect();
        let line: Vec<String> = points
            .iter()
            .map(|(at, _, summary)| format!("{:.1},{:.1}", x(*at), y(summary.median)))
            .collect();
        let _ =
            write!(svg, "<g class=\"{}\"><polyline points=\"{}\"/>", path.name(), line.join(" "));
        for (at, row, summary) in &points {
            let name = escape(row.measure.name.rsplit(' ').next().unwrap_or_default());
            let _ = write!(
                svg,
                "<circle class=\"point\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\"><title>{}, {name}: {}</title></circle>",
                x(*at),
                y(summary.median),
                path.title(),
                in_time(summary)
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

/// Of microseconds.
fn in_time(summary: &Summary) -> String {
    let Summary { median, min, max, n } = *summary;
    if n == 1 {
        return time_us(median);
    }
    format!("{} [{}..{}]", time_us(median), time_us(min), time_us(max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::case::Better;
    use crate::bench::samples::tests::row;

    /// The numbers that stand behind this attribute.
    fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
        let attribute = format!(" {attribute}=\"");
        let values = svg.split(&attribute).skip(1);
        values.filter_map(|rest| rest.split('"').next()?.parse().ok()).collect()
    }

    #[test]
    fn the_axis_holds_every_point() {
        let wide = |tcp: f64, ours: f64| {
            row(
                "m",
                Better::Lower,
                Some(Bar::Ratio(2.0)),
                &[
                    (Path::Tcp, &[Some(tcp), Some(tcp)]),
                    (Path::Shortwire, &[Some(ours), Some(ours * 1.5)]),
                ],
            )
        };
        for (most, rows) in [
            (3372.0, vec![wide(3372.0, 1.0), wide(1.0, 20.0)]),
            (1.3, vec![wide(1.3, 1.0)]),
            (2e7, vec![wide(2e7, 1.0), wide(1.0, 3e4)]),
        ] {
            let rows: Vec<&Row> = rows.iter().collect();
            let svg = ratios(&rows).unwrap();
            let lines: Vec<&str> = svg.split("<line class=\"grid\"").skip(1).collect();
            let grid: Vec<f64> =
                lines.iter().flat_map(|line| numbers(line, "x1").first().copied()).collect();
            let (first, last) = (grid[0], grid[grid.len() - 1]);
            assert!(first >= 0.0 && last < WIDTH - 60.0, "{grid:?}");
            for at in numbers(&svg, "cx") {
                assert!((first..=last).contains(&at), "{at} beyond {grid:?} for {most}");
            }
            assert!(
                grid.windows(2).all(|pair| pair[1] - pair[0] > 20.0),
                "room for words: {grid:?}"
            );
        }
    }

    #[test]
    fn ratios_are_whole_and_times_have_units() {
        let far = row(
            "m",
            Better::Lower,
            None,
            &[(Path::Tcp, &[Some(1111.25)]), (Path::Shortwire, &[Some(1.0)])],
        );
        assert!(ratios(&[&far]).unwrap().contains(">1111 x</text>"));
        let slow = row("case: latency p99", Better::Lower, None, &[(Path::Tcp, &[Some(17_600.0)])]);
        let svg = quantiles(&[&slow]).unwrap();
        assert!(svg.contains("TCP, p99: 17.6 ms") && svg.contains(">10 ms</text>"), "{svg}");
        let mut slow = slow;
        slow.measure.unit = "us".into();
        assert!(bars(&slow).contains(">17.6 ms</text>"), "{}", bars(&slow));
        slow.measure.unit = "1/s".into();
        assert!(bars(&slow).contains(">17.6k 1/s</text>"), "{}", bars(&slow));
    }

    #[test]
    fn grids_have_round_numbers() {
        assert_eq!(grid(0.5, 2.0), [0.5, 1.0, 2.0]);
        assert_eq!(grid(0.07, 3.0), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]);
        assert_eq!(grid(0.5, 3372.0).last(), Some(&5000.0));
        assert_eq!(grid(0.5, 2e6), [0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7]);
    }
}
