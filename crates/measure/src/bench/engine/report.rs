//! Rows out of figures: what is compared with what, and the bars.

use super::blaster;
use super::cost;
use super::depth::{CHAINS, TERMS, UNFILTERED, chain_name, filter_name};
use super::further;
use super::instances::{
    FURTHER, KINDS, MANY, ONE, Originals, SAME, alone, further_alone, memory_of,
};
use super::interfaces;
use super::rivals::{HEADERS, LOOP, MEMIF, MEMIF_DPDK, NULL, RINGS};
use super::snabb;
use crate::bench::rows::{Bar, Figures, Row};

/// What the issue of figures promises, for packets of 60 bytes.
const SHAPES: [(&str, Bar); 5] = [
    ("Source -> Sink", Bar::Value(100.0)),
    ("Source -> Tee -> 2 Sinks", Bar::Value(50.0)),
    ("one hop", Bar::Value(75.0)),
    ("five hops", Bar::None),
    ("two memory shunts", Bar::None),
];
const INTERFACES: [(&str, &str, f64); 3] = [
    ("receive: XDP -> Sink", "receive", 0.95),
    ("transmit: Source -> XDP", "transmit", 0.95),
    (interfaces::XDP, "forward", 0.90),
];

pub fn rows(figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for size in [60, 1500] {
        memory(figures, size, &mut rows);
    }
    if let Some(rival) = figures.rates(NULL) {
        rows.extend(compared(
            figures,
            "two memory shunts, 60 B",
            Some((NULL, rival)),
            Bar::Ratio(1.0),
        ));
    }
    for name in [LOOP, HEADERS] {
        let against = figures.rates(RINGS).map(|rates| (RINGS, rates));
        rows.extend(compared(figures, name, against, Bar::Ratio(1.0)));
    }
    rows.extend(compared(
        figures,
        MEMIF,
        figures.rates(MEMIF_DPDK).map(|rates| (MEMIF_DPDK, rates)),
        Bar::Ratio(1.0),
    ));
    instances(figures, &mut rows);
    for [name, limit] in further::rows() {
        let against = figures.rates(limit).map(|rates| (limit, rates));
        rows.extend(compared(figures, name, against, Bar::None));
    }
    for (name, group, bar) in INTERFACES {
        let bare = format!("{group}: bare AF_XDP loop");
        rows.extend(compared(
            figures,
            name,
            figures.rates(&bare).map(|v| (bare.as_str(), v)),
            Bar::Ratio(bar),
        ));
        let alone =
            ["XDP_DROP", "XDP_REDIRECT"].map(|action| format!("{group}: kernel alone ({action})"));
        if let Some((alone, rates)) =
            alone.iter().find_map(|name| Some((name, figures.rates(name)?)))
        {
            rows.extend(compared(figures, name, Some((alone, rates)), Bar::None));
        }
    }
    for rival in [interfaces::RAW_SOCKET, interfaces::SNABB] {
        let against = figures.rates(rival).map(|rates| (rival, rates));
        if against.is_some() {
            rows.extend(compared(figures, interfaces::XDP, against, Bar::Ratio(1.0)));
        }
        rows.extend(compared(figures, rival, None, Bar::None));
    }
    for [checksum, whole] in cost::rows() {
        let all = figures.rates(&whole).map(|values| (whole.clone(), values));
        for (name, against) in [(checksum, all), (whole, None)] {
            if let Some(values) = figures.rates(&name) {
                rows.push(Row { name, unit: "ns", values, against, bar: Bar::None });
            }
        }
    }
    depth(figures, &mut rows);
    for [one, many] in blaster::rows() {
        let against = figures.rates(&many).map(|rates| (many.as_str(), rates));
        rows.extend(compared(figures, &one, against, Bar::Ratio(0.95)));
    }
    rows
}

fn compared(
    figures: &Figures,
    name: &str,
    against: Option<(&str, Vec<f64>)>,
    bar: Bar,
) -> Option<Row> {
    let values = figures.rates(name)?;
    let against = against.map(|(name, values)| (name.to_string(), values));
    Some(Row { name: name.to_string(), unit: "Mpps", values, against, bar })
}

fn memory(figures: &Figures, size: usize, rows: &mut Vec<Row>) {
    let promised = |bar| if size == 60 { bar } else { Bar::None };
    let sized = |name: &str| format!("{name}, {size} B");
    let copy = format!("copy of {size} B");
    let limit = || figures.rates(&copy).map(|rates| (copy.as_str(), rates));
    for (name, bar) in SHAPES {
        rows.extend(compared(figures, &sized(name), limit(), promised(bar)));
        if name == "five hops"
            && let Some(values) = figures
                .combine([&sized("one hop"), &sized("five hops")], |[one, five]| {
                    (1e3 / five - 1e3 / one) / 4.0
                })
        {
            let name = format!("each further hop, {size} B");
            rows.push(Row {
                name,
                unit: "ns",
                values,
                against: None,
                bar: promised(Bar::Value(2.5)),
            });
        }
    }
    rows.extend(compared(figures, &sized("two threads"), limit(), promised(Bar::Value(40.0))));
}

/// Where Snabb's traces would take over, a script or a filter must be far ahead to stay so.
fn of_snabb(name: &str) -> Bar {
    let bar = if name == chain_name(8, true) {
        1.5
    } else if name == filter_name(18) {
        2.0
    } else {
        1.0
    };
    Bar::Ratio(bar)
}

/// Apps in Lua against the same one by one and against Snabb's, and what each further one costs; filters.
fn depth(figures: &Figures, rows: &mut Vec<Row>) {
    for apps in CHAINS {
        let alone = chain_name(apps, false);
        let against = figures.rates(&alone).map(|rates| (alone.as_str(), rates));
        let name = chain_name(apps, true);
        rows.extend(compared(figures, &name, against, Bar::None));
        beside_snabb(figures, &name, rows);
    }
    for [few, many] in [[1, 4], [4, 8], [8, 16]] {
        let names = [few, many].map(|apps| chain_name(apps, true));
        let further = |[one, other]: [f64; 2]| (1e3 / other - 1e3 / one) / (many - few) as f64;
        if let Some(values) = figures.combine([&names[0], &names[1]], further) {
            let name = format!("each further app in Lua, {few} to {many}");
            rows.push(Row { name, unit: "ns", values, against: None, bar: Bar::Value(2.0) });
        }
    }
    rows.extend(compared(figures, UNFILTERED, None, Bar::None));
    for name in TERMS.map(filter_name) {
        let against = figures.rates(UNFILTERED).map(|rates| (UNFILTERED, rates));
        rows.extend(compared(figures, &name, against, Bar::None));
        beside_snabb(figures, &name, rows);
    }
}

fn beside_snabb(figures: &Figures, name: &str, rows: &mut Vec<Row>) {
    let theirs = snabb::name(name);
    if let Some(rates) = figures.rates(&theirs) {
        rows.extend(compared(figures, name, Some((&theirs, rates)), of_snabb(name)));
    }
}

/// Cost per packet of many instances, less what the memory of many costs by itself: of so many
/// sources for one kind, of so many recordings for the kinds.
fn instances(figures: &Figures, rows: &mut Vec<Row>) {
    let mut push =
        |name: &str, values: Option<Vec<f64>>, against: Option<(&str, Vec<f64>)>, bar: Bar| {
            if let Some(values) = values {
                let against = against.map(|(name, values)| (name.to_string(), values));
                rows.push(Row { name: name.to_string(), unit: "ns", values, against, bar });
            }
        };
    let cost = |name: &str| figures.combine([name], |[rate]| 1e3 / rate);
    push("one instance: cost per packet", cost(ONE), None, Bar::None);
    for name in further_alone() {
        push(&format!("{name}: cost per packet"), cost(&name), None, Bar::None);
    }
    let ratio = Bar::Ratio(1.0 / 1.05);
    let (kinds, further) = (mean(figures, alone()), mean(figures, further_alone()));
    for (many, alone, originals) in [
        (SAME, cost(ONE), Originals::Template),
        (KINDS, kinds, Originals::Recording),
        (FURTHER, further, Originals::Further),
    ] {
        let bare = [memory_of(1, originals), memory_of(MANY, originals)];
        let part = |one: f64, many: f64| 1e3 / many - 1e3 / one;
        let memory = figures.combine([&bare[0], &bare[1]], |[one, many]| part(one, many));
        push(&format!("{many}: the memory part"), memory, None, Bar::None);
        let own = figures
            .combine([many, &bare[0], &bare[1]], |[all, one, many]| 1e3 / all - part(one, many));
        for (what, values, bar) in
            [("cost per packet", cost(many), Bar::None), ("without the memory part", own, ratio)]
        {
            push(
                &format!("{many}: {what}"),
                values,
                alone.clone().map(|values| ("alone", values)),
                bar,
            );
        }
    }
}

/// The mean cost of these rows, each a kind alone.
fn mean(figures: &Figures, names: impl Iterator<Item = String>) -> Option<Vec<f64>> {
    let columns: Vec<Vec<f64>> = names.map(|name| figures.rates(&name)).collect::<Option<_>>()?;
    let rounds = columns.iter().map(Vec::len).min()?;
    let cost = |round: usize| columns.iter().map(|rates| 1e3 / rates[round]).sum::<f64>();
    Some((0..rounds).map(|round| cost(round) / columns.len() as f64).collect())
}

/// What the numbers are.
pub const NOTE: &str = "Mpps: packets that sources send, or that arrive; ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;
    use crate::bench::rows::{json, text};

    fn figures(rates: &[(&str, f64)]) -> Figures {
        let mut figures = Figures::new(1);
        rates.iter().for_each(|(name, rate)| figures.add(name, *rate));
        figures.skipped.push(("dpdk-testpmd".into(), "not installed".into()));
        figures
    }

    fn row<'a>(rows: &'a [Row], name: &str) -> &'a Row {
        rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn a_hop_is_what_four_more_hops_cost() {
        let figures = figures(&[
            ("one hop, 60 B", 100.0),
            ("five hops, 60 B", 50.0),
            ("copy of 60 B", 200.0),
        ]);
        let rows = rows(&figures);
        let hop = row(&rows, "each further hop, 60 B");
        assert_eq!((hop.values[0], hop.verdict()), (2.5, Some(("2.5 ns".into(), true))));
        let one = row(&rows, "one hop, 60 B");
        assert_eq!((one.ratio(), one.verdict()), (Some(0.5), Some(("75 Mpps".into(), true))));
    }

    #[test]
    fn the_memory_of_many_is_taken_off_their_cost() {
        let figures = figures(&[
            ("one instance alone", 100.0),
            ("16 instances of one kind", 50.0),
            ("memory of 1 without apps", 200.0),
            ("memory of 16 without apps", 80.0),
        ]);
        let rows = rows(&figures);
        // 20 ns less (12.5 - 5) ns against 10 ns.
        let many = row(&rows, "16 instances of one kind: without the memory part");
        assert_eq!(
            (many.values[0], many.ratio(), many.verdict()),
            (12.5, Some(0.8), Some(("0.95 x".into(), false)))
        );
    }

    #[test]
    fn json_has_the_shape_that_all_benches_share() {
        let figures = figures(&[("receive: XDP -> Sink", 3.0), ("receive: bare AF_XDP loop", 3.0)]);
        let machine = Machine::describe(None);
        let rows = rows(&figures);
        let value = serde_json::to_value(json("engine", &machine, &rows, &figures)).unwrap();
        assert_eq!(value["bench"], "engine");
        let row = &value["rows"][0];
        assert_eq!(
            (&row["against"], &row["ratio"]),
            (&"receive: bare AF_XDP loop".into(), &1.0.into())
        );
        for key in ["name", "value", "unit", "min", "max", "n"] {
            assert!(!row[key].is_null(), "{key}");
        }
        assert_eq!(value["skipped"][0]["reason"], "not installed");
        let text = text(NOTE, &machine, &rows, &figures);
        assert!(
            text.contains("0.95 x")
                && text.contains("reached")
                && text.contains("skipped dpdk-testpmd"),
            "{text}"
        );
    }
}
