//! Traces as a picture.
//!
//! One line per trace: a root trace at the left, what its exits lead to below it and further right,
//! as in an outline. Nothing can overlap however many traces there are, and a path through the
//! program reads from top to bottom. The hottest family comes first.

use std::collections::HashMap;
use std::fmt::Write;

use engine::lua::traces::{Finding, Trace, TraceFacts};

use super::{percent, short};

const LINE: usize = 36;
const INDENT: usize = 46;
const MARGIN: usize = 24;
/// Of the whole picture, at least.
const WIDTH: usize = 900;
/// Of a character of the text in a box, on the wide side.
const CHARACTER: usize = 7;
/// How far the line of a trace that goes on elsewhere may bend.
const BEND: usize = 150;
/// Characters of a line of text in the head.
const LETTERS: usize = 118;

/// Where a trace stands.
struct Place<'a> {
    trace: &'a Trace,
    depth: usize,
    row: usize,
    /// Where its box ends: the same for all, so that shares of time can be compared, and the whole
    /// picture is used.
    right: usize,
}

pub fn draw(facts: &TraceFacts, found: &[Finding], script: &str) -> String {
    let mut places = arrange(facts);
    let right = right_edge(&places, facts.samples());
    for place in &mut places {
        place.right = right;
    }
    let head = head(facts, found, script);
    let top = MARGIN + head.len() * 18 + 16;
    let width = right + lanes(&places) + MARGIN;
    let height = top + places.len() * LINE + MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\" fill=\"#567\"/></marker></defs>\n"
    );
    for (i, (text, style)) in head.iter().enumerate() {
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\" {style}>{}</text>",
            MARGIN + i * 18,
            escape(text)
        );
    }
    let by_id: HashMap<u64, &Place> = places.iter().map(|place| (place.trace.id, place)).collect();
    for place in &places {
        entry(&mut out, place, &by_id, top);
        onward(&mut out, place, &by_id, top);
    }
    for place in &places {
        node(&mut out, place, facts.samples(), top);
    }
    out.push_str("</svg>\n");
    out
}

/// Lines above the picture, with their style.
fn head(facts: &TraceFacts, found: &[Finding], script: &str) -> Vec<(String, &'static str)> {
    let plain = "fill=\"#333\"";
    let mut lines = vec![(format!("Traces of {script}"), "font-size=\"16\" font-weight=\"bold\"")];
    lines.push((
        format!(
            "{} traces; {:.1} % of the time in the engine, {:.1} % in the interpreter. Round: looping. Red: its share of the time. A number at a line: the exit.",
            facts.traces.len(),
            percent(facts.engine, facts.samples()),
            percent(facts.interpreter, facts.samples())
        ),
        plain,
    ));
    lines.push((
        "Broken line: where a trace goes on at its end. \u{2193}: exits taken to the interpreter."
            .to_string(),
        plain,
    ));
    for finding in found {
        for line in wrap(&format!("Finding: {}. {}", finding.what, finding.advice)) {
            lines.push((line, "fill=\"#a00000\" font-weight=\"bold\""));
        }
    }
    if found.is_empty() {
        lines.push(("No findings.".to_string(), "fill=\"#007000\""));
    }
    lines
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.len() + word.len() < LETTERS => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// Families one after the other, the hottest first; within one, depth first.
fn arrange(facts: &TraceFacts) -> Vec<Place<'_>> {
    let mut children: HashMap<u64, Vec<&Trace>> = HashMap::new();
    let known: HashMap<u64, &Trace> = facts.traces.iter().map(|trace| (trace.id, trace)).collect();
    let mut roots = Vec::new();
    for trace in &facts.traces {
        // A parent is always older, so that there are no circles.
        match trace.parent.filter(|parent| *parent < trace.id && known.contains_key(parent)) {
            Some(parent) => children.entry(parent).or_default().push(trace),
            None => roots.push(trace),
        }
    }
    roots.sort_by_key(|root| std::cmp::Reverse(family(root, &children)));
    let mut places = Vec::new();
    let mut waiting: Vec<(&Trace, usize)> = roots.into_iter().rev().map(|root| (root, 0)).collect();
    while let Some((trace, depth)) = waiting.pop() {
        places.push(Place { trace, depth, row: places.len(), right: 0 });
        let next = children.get(&trace.id).into_iter().flatten().rev();
        waiting.extend(next.map(|child| (*child, depth + 1)));
    }
    places
}

/// Where boxes end, so that each has room for its text and the lines at the right have theirs.
fn right_edge(places: &[Place], samples: u64) -> usize {
    let text = |place: &Place| label(place.trace, samples).chars().count() * CHARACTER + 24;
    let needed = places.iter().map(|place| place.x() + text(place)).max().unwrap_or(0);
    needed.max(WIDTH - MARGIN - lanes(places))
}

/// Room at the right for the lines that lead on from the end of a trace.
fn lanes(places: &[Place]) -> usize {
    let rows: HashMap<u64, usize> =
        places.iter().map(|place| (place.trace.id, place.row)).collect();
    let bends = places.iter().filter_map(|place| {
        let target = rows.get(&place.trace.link?)?;
        Some(bend(place.row.abs_diff(*target)))
    });
    bends.max().unwrap_or(0)
}

fn bend(rows: usize) -> usize {
    14 + (rows * 5).min(BEND)
}

/// Samples of a trace and all that its exits lead to.
fn family(root: &Trace, children: &HashMap<u64, Vec<&Trace>>) -> u64 {
    let (mut sum, mut waiting) = (0, vec![root]);
    while let Some(trace) = waiting.pop() {
        sum += trace.samples;
        waiting.extend(children.get(&trace.id).into_iter().flatten());
    }
    sum
}

impl Place<'_> {
    fn x(&self) -> usize {
        MARGIN + self.depth * INDENT
    }

    fn y(&self, top: usize) -> usize {
        top + self.row * LINE
    }
}

/// The line from the parent, with the number of the exit.
fn entry(out: &mut String, place: &Place, by_id: &HashMap<u64, &Place>, top: usize) {
    let Some(parent) = place.trace.parent.and_then(|parent| by_id.get(&parent)) else { return };
    let (x, from, to) = (parent.x() + 16, parent.y(top) + LINE - 10, place.y(top) + 15);
    let _ = writeln!(
        out,
        "<path d=\"M{x} {from}V{to}H{}\" fill=\"none\" stroke=\"#567\" marker-end=\"url(#tip)\"/>\
         <text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#567\">{}</text>",
        place.x(),
        x + 3,
        to - 3,
        place.trace.exit.unwrap_or(0)
    );
}

/// The broken line to where the trace goes on.
fn onward(out: &mut String, place: &Place, by_id: &HashMap<u64, &Place>, top: usize) {
    let Some(target) = place.trace.link.and_then(|link| by_id.get(&link)) else { return };
    let (from, to) = (place.y(top) + 19, target.y(top) + 10);
    let (right, left) = (place.right, target.right);
    let reach = right + bend(place.row.abs_diff(target.row));
    let _ = writeln!(
        out,
        "<path d=\"M{right} {from}C{reach} {from} {reach} {to} {left} {to}\" fill=\"none\" stroke=\"#89a\" \
         stroke-dasharray=\"4 3\" marker-end=\"url(#tip)\"/>"
    );
}

fn node(out: &mut String, place: &Place, samples: u64, top: usize) {
    let (trace, x, y) = (place.trace, place.x(), place.y(top));
    let width = place.right - x;
    let share = percent(trace.samples, samples);
    let pale = (255.0 - (share * 6.0).min(170.0)) as u8;
    let round = if trace.looping { 15 } else { 3 };
    // The whole width stands for the time of the run, whatever the depth.
    let bar = (share / 100.0 * (place.right - MARGIN) as f64).min(width as f64);
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"30\" rx=\"{round}\" \
         fill=\"#fbfbfb\" stroke=\"#345\"/><rect x=\"{x}\" y=\"{}\" width=\"{bar:.1}\" height=\"28\" rx=\"{round}\" \
         fill=\"rgb(255,{pale},{pale})\"/><text x=\"{}\" y=\"{}\"><tspan font-weight=\"bold\">{}</tspan>{}</text></g>",
        escape(&title(trace)),
        y + 1,
        x + 12,
        y + 19,
        trace.id,
        escape(label(trace, samples).trim_start_matches(|c: char| c.is_ascii_digit())),
    );
}

/// What stands in the box of a trace.
fn label(trace: &Trace, samples: u64) -> String {
    let share = percent(trace.samples, samples);
    let app = trace.app.as_deref().map(|app| format!(" \u{b7} {app}")).unwrap_or_default();
    let mut text =
        format!("{}  {share:.1} %  {}:{}{app}", trace.id, short(&trace.file), trace.line);
    if trace.falls() > 0 {
        let _ = write!(text, " \u{2193}{}", trace.falls());
    }
    if let Some(link) = trace.link {
        let _ = write!(text, " \u{2192}{link}");
    } else if !trace.looping {
        let _ = write!(text, " \u{2192}{}", trace.link_kind);
    }
    text
}

/// What a viewer shows when one points at a trace.
fn title(trace: &Trace) -> String {
    let mut text = format!(
        "{} ({}): {} instructions, {} bytes, {} exits",
        trace.place(),
        trace.kind(),
        trace.instructions,
        trace.bytes,
        trace.nexits
    );
    for exit in &trace.exits {
        let _ = write!(text, "\nexit {} to the interpreter: {} times", exit.exit, exit.count);
    }
    for guard in &trace.guards {
        let field = guard.field.as_deref().unwrap_or("a value");
        let _ = write!(text, "\n{field} must have ctype {}, else exit {}", guard.ctype, guard.exit);
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_traces_each_have_a_line() {
        let trace = |id: u64| Trace {
            id,
            parent: (id % 4 != 1).then_some(id - 1),
            file: "a<b>.lua".into(),
            samples: id,
            ..Trace::default()
        };
        let facts = TraceFacts { traces: (1..=100).map(trace).collect(), ..TraceFacts::default() };
        let places = arrange(&facts);
        assert_eq!(places.len(), 100);
        assert!(places.iter().enumerate().all(|(i, place)| place.row == i));
        // The hottest family first: the last four, of which the root is 97.
        assert_eq!((places[0].trace.id, places[1].depth), (97, 1));
        let picture = draw(&facts, &[], "test.lua");
        assert!(picture.contains("a&lt;b&gt;.lua") && !picture.contains("a<b>"));
    }

    /// Numbers behind each `name="`.
    fn numbers(picture: &str, name: &str) -> Vec<f64> {
        let start = format!(" {name}=\"");
        let parts = picture.split(&start).skip(1);
        parts.filter_map(|part| part.split('"').next()?.parse().ok()).collect()
    }

    #[test]
    fn boxes_and_bars_use_the_width() {
        let trace = |id, link, file: &str| Trace {
            id,
            link,
            file: file.into(),
            samples: 50,
            ..Trace::default()
        };
        let mut facts = TraceFacts {
            traces: vec![trace(1, None, "a.lua"), trace(2, None, "a.lua")],
            ..TraceFacts::default()
        };
        let picture = draw(&facts, &[], "test.lua");
        let widths = numbers(&picture, "width");
        // The picture, two boxes from margin to margin, and a bar of half of each.
        let inside = (WIDTH - 2 * MARGIN) as f64;
        assert!(widths.contains(&(WIDTH as f64)), "{widths:?}");
        assert_eq!(widths.iter().filter(|&&width| width == inside).count(), 2, "{widths:?}");
        assert_eq!(widths.iter().filter(|&&width| width == inside / 2.0).count(), 2, "{widths:?}");
        // A long name, and room for a line that leads on, make it wider.
        facts.traces.push(trace(3, Some(1), &format!("{}.lua", "x".repeat(200))));
        let picture = draw(&facts, &[], "test.lua");
        let whole = numbers(&picture, "width")[0];
        assert!(
            whole > 200.0 * CHARACTER as f64 && picture.contains("stroke-dasharray"),
            "{whole}"
        );
    }
}
