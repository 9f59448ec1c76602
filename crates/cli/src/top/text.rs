//! The rows of `top`: the same for the terminal and for `--once`.

use super::rates::{AppRates, LinkRates, ProcessRates};
use crate::units::engineering;

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
            .map(|link| format!("{}  {} pps, {} dropped/s", link.name, figure(link.packets), figure(link.drops)))
            .collect();
        let own = app.counters.iter();
        children.extend(own.map(|(name, (total, rate))| format!("{name} {total}  {}/s", figure(*rate))));
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
            format!(", {} / {} / {} us (median, 99 %, longest)", us(latency.p50), us(latency.p99), us(latency.max))
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
    let cycles = app.cycles_per_packet.map_or_else(String::new, |cycles| format!(", {} cycles/packet", figure(cycles)));
    format!("{} pps, {:.1}% of its thread{cycles}", figure(app.packets), app.load * 100.0)
}

fn figure(value: f64) -> String {
    if value == 0.0 { "0".into() } else { engineering(value) }
}

/// For a pipe or a file.
pub fn plain(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        match line {
            Line::Title(text) | Line::Text(text) => out.push_str(text),
            Line::Header(cells) => out.push_str(&columns(cells)),
            Line::Row(cells, _) => out.push_str(&columns(cells)),
            Line::Blank => {}
        }
        out.push('\n');
    }
    out
}

/// The first column is as wide as a long link's name; figures stand at the right.
pub fn columns(cells: &[impl AsRef<str>]) -> String {
    let mut out = String::new();
    for (number, cell) in cells.iter().enumerate() {
        match number {
            0 => out += &format!("{:<34}", cell.as_ref()),
            _ => out += &format!(" {:>14}", cell.as_ref()),
        }
    }
    out
}
