//! The table: our figures beside those of the source document.

use super::{CASES, HOPS};
use crate::bench::rows::{Bar, Figures, Row};

/// What the numbers are.
pub const NOTE: &str = "packets of 64 bytes over software models of the 82599: no figures of a network card. Mpps: packets that the \
shunt forwards, both ways, on one processor, with the time of models and packetblasters taken off; ";

/// Two instances with one ctype, with mixed ctypes, and what that machine could have done (Snabb's
/// issue 612, 2015).
const DOCUMENT: [f64; 3] = [20.2, 7.6, 26.0];

/// What Snabb moves over one hop in memory.
const SNABB_HOP: f64 = 46.0;

pub fn rows(figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in CASES {
        let (rival, bar) = match (case.driver, case.instances, case.shared) {
            ("native", 2, _) => {
                (Some(("the document's ideal", DOCUMENT[2])), Bar::Value(DOCUMENT[2]))
            }
            ("same", 2, _) => (Some(("the document, patched", DOCUMENT[0])), Bar::None),
            ("mixed", 2, _) => (Some(("the document", DOCUMENT[1])), Bar::None),
            _ => (None, Bar::None),
        };
        if let Some(values) = figures.combine([&part(case.name, "cost")], |[cost]| 1e3 / cost) {
            let against = rival.map(|(name, rate)| (name.to_string(), vec![rate; values.len()]));
            rows.push(Row { name: case.name.into(), unit: "Mpps", values, against, bar });
        }
    }
    let [one, two, ..] = CASES;
    rows.extend(compared(
        figures,
        "driver, two instances: cost per packet",
        two.name,
        one.name,
        "one instance",
    ));
    let [_, _, one, two, mixed, shared, shared_mixed] = CASES;
    let lua = |case: &str| part(case, "lua");
    for (name, case, base, against) in [
        ("apps in Lua, own copies: their cost", two.name, one.name, "one instance"),
        ("mixed ctypes, own copies: their cost", mixed.name, two.name, "one ctype"),
        ("mixed ctypes, shared code: their cost", shared_mixed.name, shared.name, "one ctype"),
    ] {
        if let (Some(values), Some(rival)) = (figures.rates(&lua(case)), figures.rates(&lua(base)))
        {
            rows.push(Row {
                name: name.into(),
                unit: "ns",
                values,
                against: Some((against.into(), rival)),
                bar: Bar::None,
            });
        }
    }
    let [(lua_hop, _), (native_hop, _)] = HOPS;
    if let (Some(ours), Some(native)) = (figures.rates(lua_hop), figures.rates(native_hop)) {
        let snabb = Some(("Snabb's hop".to_string(), vec![SNABB_HOP; ours.len()]));
        let cost = |rates: &[f64]| rates.iter().map(|rate| 1e3 / rate).collect::<Vec<f64>>();
        let (values, against) = (cost(&ours), Some(("native".to_string(), cost(&native))));
        rows.push(Row {
            name: lua_hop.into(),
            unit: "Mpps",
            values: ours,
            against: snabb,
            bar: Bar::Value(SNABB_HOP),
        });
        rows.push(Row {
            name: "one hop in Lua: cost per packet".into(),
            unit: "ns",
            values,
            against,
            bar: Bar::Ratio(0.5),
        });
    }
    let [_, two, ..] = CASES;
    for (name, key, unit) in [
        ("driver, two instances: all of it, as measured", "whole", "Mpps"),
        ("taken off: the models, per packet", "model", "ns"),
        ("taken off: the packetblasters, per packet", "blasters", "ns"),
        ("lost on full links", "lost", "%"),
    ] {
        if let Some(values) = figures.rates(&part(two.name, key)) {
            rows.push(Row { name: name.into(), unit, values, against: None, bar: Bar::None });
        }
    }
    rows
}

fn part(case: &str, part: &str) -> String {
    format!("{case}: {part}")
}

fn compared(figures: &Figures, name: &str, ours: &str, theirs: &str, against: &str) -> Option<Row> {
    let values = figures.rates(&part(ours, "cost"))?;
    let rival = figures.rates(&part(theirs, "cost"))?;
    let against = Some((against.to_string(), rival));
    Some(Row { name: name.into(), unit: "ns", values, against, bar: Bar::Ratio(1.0 / 1.03) })
}
