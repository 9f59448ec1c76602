//! The rows of `top`: the same for the terminal and for `--once`.

use terminal::units::engineering;

use super::rates::{AppRates, LinkRates, ProcessRates};

/// A line of the view.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A process, or an engine of one.
    Title(String),
    Header(Vec<&'static str>),
    Row(Vec<String>, Mark),
    Text(String),
    Blank,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mark {
    None,
    /// Drops, or an app that does not run.
    Alarm,
}

/// Processes and engines, then links, then apps.
pub fn table(process: &ProcessRates) -> Vec<Line> {
    let mut lines = titles(process);
    lines.push(Line::Header(vec!["link", "pps", "bit/s", "drops/s", "loss", "packets"]));
    lines.extend(process.links.iter().map(link));
    lines.push(Line::Header(vec!["app", "kind", "pps", "load", "cycles/packet", "ns/packet"]));
    lines.extend(process.apps.iter().map(app));
    lines.push(Line::Blank);
    lines
}

/// Apps with the links that leave them and their own counters below.
pub fn tree(process: &ProcessRates) -> Vec<Line> {
    let mut lines = titles(process);
    for app in &process.apps {
        let state = if app.running { "" } else { ", not running" };
        lines.push(Line::Text(format!("{} ({}{state})  {}", app.name, app.kind, cost(app))));
        let mut children: Vec<String> = process
            .links
            .iter()
            .filter(|link| link.name.split('.').next() == Some(&app.name))
            .map(|link| {
                format!(
                    "{}  {} pps, {} dropped/s",
                    link.name,
                    figure(link.packets),
                    figure(link.drops)
                )
            })
            .collect();
        let own = app.counters.iter();
        children.extend(
            own.map(|(name, (total, rate))| format!("{name} {total}  {}/s", figure(*rate))),
        );
        let last = children.len().saturating_sub(1);
        for (number, child) in children.iter().enumerate() {
            lines.push(Line::Text(format!("{} {child}", if number == last { "└" } else { "├" })));
        }
    }
    lines.push(Line::Blank);
    lines
}

fn titles(process: &ProcessRates) -> Vec<Line> {
    let mut lines = vec![Line::Title(format!("{}  {}", process.pid, process.command))];
    for engine in &process.engines {
        let latency = engine.latency_ns.as_ref().map_or_else(String::new, |latency| {
            let us = |ns: u64| figure(ns as f64 / 1e3);
            format!(
                ", {} / {} / {} us (median, 99 %, longest)",
                us(latency.p50),
                us(latency.p99),
                us(latency.max)
            )
        });
        lines.push(Line::Text(format!(
            "thread {}: {} breaths/s{latency}; frees {} pps, {} bit/s on a wire; {} packets in use; sleep {} us",
            engine.thread,
            figure(engine.breaths),
            figure(engine.freed_packets),
            figure(engine.freed_bits),
            engine.live_packets,
            engine.sleep_us,
        )));
    }
    lines
}

fn link(link: &LinkRates) -> Line {
    let offered = link.packets + link.drops;
    let loss = if offered > 0.0 { link.drops / offered * 100.0 } else { 0.0 };
    let mark = if link.drops > 0.0 { Mark::Alarm } else { Mark::None };
    let cells = [
        link.name.clone(),
        figure(link.packets),
        figure(link.bytes * 8.0),
        figure(link.drops),
        format!("{loss:.1}%"),
        ::engine::report::commas(link.total.packets),
    ];
    Line::Row(cells.to_vec(), mark)
}

fn app(app: &AppRates) -> Line {
    let per_packet = |value: Option<f64>| value.map_or_else(|| "-".into(), figure);
    let mark = if app.running { Mark::None } else { Mark::Alarm };
    let cells = [
        app.name.clone(),
        if app.running { app.kind.clone() } else { format!("{} (not running)", app.kind) },
        figure(app.packets),
        format!("{:.1}%", app.load * 100.0),
        per_packet(app.cycles_per_packet),
        per_packet(app.ns_per_packet),
    ];
    Line::Row(cells.to_vec(), mark)
}

fn cost(app: &AppRates) -> String {
    let cycles = app
        .cycles_per_packet
        .map_or_else(String::new, |cycles| format!(", {} cycles/packet", figure(cycles)));
    format!("{} pps, {:.1}% of its thread{cycles}", figure(app.packets), app.load * 100.0)
}

fn figure(value: f64) -> String {
    if value == 0.0 { "0".into() } else { engineering(value) }
}

/// For a pipe or a file: nothing is cut.
pub fn plain(lines: &[Line]) -> String {
    let columns = Columns::of(lines, usize::MAX);
    let text = |line: &Line| match line {
        Line::Title(text) | Line::Text(text) => text.clone(),
        Line::Header(cells) => columns.line(cells),
        Line::Row(cells, _) => columns.line(cells),
        Line::Blank => String::new(),
    };
    lines.iter().flat_map(|line| [text(line), "\n".into()]).collect()
}

/// The widths of the columns of one view. Figures stand at the right and are never cut; the first
/// column has the room that they leave, as far as its names need it.
pub struct Columns {
    first: usize,
    figures: [usize; 5],
}

/// The first column is never narrower: a name that is cut to it can still be told from others.
const NARROWEST: usize = 16;

impl Columns {
    pub fn of(lines: &[Line], width: usize) -> Self {
        let (mut first, mut figures) = (NARROWEST, [7; 5]);
        let mut widen = |cells: &[&str]| {
            for (number, cell) in cells.iter().enumerate() {
                let length = cell.chars().count();
                match number {
                    0 => first = first.max(length),
                    _ => figures[number - 1] = figures[number - 1].max(length),
                }
            }
        };
        for line in lines {
            match line {
                Line::Header(cells) => widen(cells),
                Line::Row(cells, _) => widen(&cells.iter().map(String::as_str).collect::<Vec<_>>()),
                _ => {}
            }
        }
        let taken: usize = figures.iter().map(|width| width + 2).sum();
        Self { first: first.min(width.saturating_sub(taken).max(NARROWEST)), figures }
    }

    pub fn line(&self, cells: &[impl AsRef<str>]) -> String {
        let mut cells = cells.iter().map(AsRef::as_ref);
        let mut out =
            format!("{:<1$}", shortened(cells.next().unwrap_or_default(), self.first), self.first);
        for (cell, width) in cells.zip(self.figures) {
            out += &format!("  {cell:>width$}");
        }
        out
    }
}

/// Cut in the middle: a link's name says at its start and at its end what it joins.
fn shortened(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.into();
    }
    let front = (width - 1) / 2;
    let back = length - (width - 1 - front);
    name.chars().take(front).chain(['…']).chain(name.chars().skip(back)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_and_figures_stay_whole() {
        let name = "a_port_with_a_long_name.output -> another_one.input";
        let row = [name, "2.00M", "960M", "0", "0.0%", "37,870,464"].map(String::from).to_vec();
        let lines = [
            Line::Header(vec!["link", "pps", "bit/s", "drops/s", "loss", "packets"]),
            Line::Row(row, Mark::None),
        ];
        let text = |width| {
            let columns = Columns::of(&lines, width);
            let Line::Row(cells, _) = &lines[1] else { unreachable!() };
            columns.line(cells)
        };
        assert_eq!(text(80).chars().count(), 80);
        assert!(
            text(80).starts_with("a_port_with_a_l")
                && text(80).contains('…')
                && text(80).contains("_one.input")
        );
        assert!(text(80).ends_with("37,870,464") && text(200).starts_with(name));
        assert!(text(10).ends_with("0.0%  37,870,464"));
        assert!(plain(&lines).lines().nth(1).is_some_and(|line| line.starts_with(name)));
    }
}
