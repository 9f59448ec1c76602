//! The figures as OpenMetrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use connections::{StreamTotals, Totals};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use smc::reason::Reason;

use super::collect::{Owner, Pair, View};
use crate::exposition::{Labels, counter, gauge, openmetrics};

pub fn text(view: &Arc<View>) -> String {
    let mut registry = Registry::with_prefix("shortwire");
    registry.register_collector(Box::new(Source(view.clone())));
    openmetrics(&registry)
}

struct Source(Arc<View>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// Name, help, and what a program has of it.
type Single = (&'static str, &'static str, fn(&Totals) -> u64);
/// The same in both directions.
type Double = (&'static str, &'static str, fn(&Totals) -> [u64; 2]);

/// Both of rsockets.
type StreamSingle = (&'static str, &'static str, fn(&StreamTotals) -> u64);
type StreamDouble = (&'static str, &'static str, fn(&StreamTotals) -> [u64; 2]);

const SINGLES: [Single; 6] = [
    ("link_groups", "Link groups made", |t| t.link_groups),
    ("handshake_errors", "Handshakes that broke off", |t| t.handshake_errors),
    ("violations", "Peers that broke the protocol", |t| t.violations),
    ("damaged", "Streams that arrived otherwise than they were sent", |t| t.damaged),
    ("wakeups", "Sleeping ends woken by doorbells", |t| t.wakeups.all),
    ("late_wakeups", "Those that took longer than 5 ms", |t| t.wakeups.late),
];
const DOUBLES: [Double; 4] = [
    ("memory_bytes", "Payload bytes through shared memory", |t| [t.rx.bytes, t.tx.bytes]),
    ("memory_calls", "Calls that moved them", |t| [t.rx.calls, t.tx.calls]),
    ("ring_full", "Times a ring was full", |t| [t.rx.full, t.tx.full]),
    ("doorbells", "Doorbells sent, for space and for data", |t| [t.rx.doorbells, t.tx.doorbells]),
];

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let view = &*self.0;
        now(&mut encoder, view)?;
        programs(&mut encoder, view)?;
        streams(&mut encoder, view)?;
        pairs(&mut encoder, &view.pairs)
    }
}

fn now(encoder: &mut DescriptorEncoder, view: &View) -> fmt::Result {
    let version = [(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)];
    gauge(encoder, "build_info", "Always 1", version.into_iter())?;
    let hidden = [(vec![], view.hidden as f64)];
    let help = "Processes that this one may not look into";
    gauge(encoder, "hidden_processes", help, hidden.into_iter())?;
    let took = [(vec![], view.took)];
    gauge(encoder, "look_seconds", "What the last look at all processes took", took.into_iter())?;
    let ends = view.ends.iter().map(|((owner, mode, reason), count)| {
        (labels(owner, &[("mode", *mode), ("reason", *reason)]), *count as f64)
    });
    gauge(encoder, "connections", "Ends of connections now", ends)?;
    let listeners = view.listeners.iter();
    let listeners = listeners.map(|(owner, count)| (labels(owner, &[]), *count as f64));
    gauge(encoder, "listeners", "Listening sockets now", listeners)
}

fn labels<'a>(owner: &'a Owner, more: &[(&'a str, &'a str)]) -> Labels<'a> {
    [&[("program", owner.program.as_str()), ("uid", owner.uid.as_str())], more].concat()
}

fn programs(encoder: &mut DescriptorEncoder, view: &View) -> fmt::Result {
    let all = &view.programs;
    for (name, help, value) in SINGLES {
        counter(
            encoder,
            name,
            help,
            all.iter().map(|(o, totals)| (labels(o, &[]), value(totals))),
        )?;
    }
    for (name, help, value) in DOUBLES {
        let values = all.iter().flat_map(|(owner, totals)| {
            ["rx", "tx"]
                .into_iter()
                .zip(value(totals))
                .map(|(direction, value)| (labels(owner, &[("direction", direction)]), value))
        });
        counter(encoder, name, help, values)?;
    }
    let roles = all.iter().flat_map(|(owner, totals)| {
        [("client", totals.client), ("server", totals.server)]
            .map(|(role, count)| (labels(owner, &[("role", role)]), count))
    });
    counter(encoder, "upgrades", "Connections that left TCP", roles)?;
    let fallbacks = all.iter().flat_map(|(owner, totals)| {
        // Codes of newer libraries, and broken ones, have one name.
        let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
        for &(code, count) in &totals.reasons {
            let sum = by_name.entry(Reason(code).name()).or_default();
            *sum = sum.saturating_add(count);
        }
        by_name.into_iter().map(move |(name, count)| (labels(owner, &[("reason", name)]), count))
    });
    counter(encoder, "fallbacks", "Connections that stayed TCP, or went back to it", fallbacks)
}

fn streams(encoder: &mut DescriptorEncoder, view: &View) -> fmt::Result {
    let singles: [StreamSingle; 4] = [
        ("rsocket_streams", "Connections of rsockets that were made", |t| t.streams),
        ("rsocket_failures", "Connections of rsockets that could not be made", |t| t.failed),
        ("rsocket_doorbells", "Doorbells that rsockets sent", |t| t.doorbells),
        ("rsocket_sleeps", "Sleeps of rsockets that a doorbell ended", |t| t.slept),
    ];
    for (name, help, value) in singles {
        let values = view.streams.iter().map(|(o, totals)| (labels(o, &[]), value(totals)));
        counter(encoder, name, help, values)?;
    }
    let doubles: [StreamDouble; 2] = [
        ("rsocket_bytes", "Payload bytes of rsockets", |t| [t.rx_bytes, t.tx_bytes]),
        ("rsocket_calls", "Calls that moved them", |t| [t.rx_calls, t.tx_calls]),
    ];
    for (name, help, value) in doubles {
        let values = view.streams.iter().flat_map(|(owner, totals)| {
            ["rx", "tx"]
                .into_iter()
                .zip(value(totals))
                .map(|(direction, value)| (labels(owner, &[("direction", direction)]), value))
        });
        counter(encoder, name, help, values)?;
    }
    Ok(())
}

fn pairs(encoder: &mut DescriptorEncoder, pairs: &[Pair]) -> fmt::Result {
    let values = pairs.iter().flat_map(|pair| {
        [("memory", pair.memory), ("tcp", pair.tcp)].map(|(path, bytes)| {
            (vec![("from", pair.from.as_str()), ("to", pair.to.as_str()), ("path", path)], bytes)
        })
    });
    let help = "Bytes from one program to another while metrics were collected, through memory and by the kernel";
    counter(encoder, "pair_bytes", help, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::classic;
    use connections::Flow;

    fn view() -> Arc<View> {
        let mut view = View::default();
        let totals = Totals {
            client: 3,
            reasons: vec![(0x0999_1001, 4), (0x1234_5678, 1), (0x1234_5679, 2)],
            tx: Flow { bytes: 1 << 20, ..Flow::default() },
            ..Totals::default()
        };
        let owner = |program: &str| Owner { program: program.into(), uid: "33".into() };
        view.programs.insert(owner("re\"dis\\"), totals);
        view.ends.insert((owner("nginx"), "TCP", "NOT_YET"), 2);
        view.listeners.insert(owner("nginx"), 1);
        let streams = StreamTotals { tx_bytes: 99, ..StreamTotals::default() };
        view.streams.insert(owner("rstream"), streams);
        view.pairs.push(Pair { from: "a".into(), to: "b".into(), memory: 5, ..Pair::default() });
        Arc::new(view)
    }

    #[test]
    fn figures_have_their_labels() {
        let text = text(&view());
        for line in [
            "shortwire_connections{program=\"nginx\",uid=\"33\",mode=\"TCP\",reason=\"NOT_YET\"} 2.0",
            "shortwire_pair_bytes_total{from=\"a\",to=\"b\",path=\"memory\"} 5",
            "# TYPE shortwire_memory_bytes counter",
            "shortwire_rsocket_bytes_total{program=\"rstream\",uid=\"33\",direction=\"tx\"} 99",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert_eq!(text.matches("reason=\"UNKNOWN\"} 3").count(), 1, "{text}");
        for part in ["reason=\"NOT_YET\"} 4", "direction=\"tx\"} 1048576", "role=\"client\"} 3"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    /// Programs name themselves.
    #[test]
    fn a_hostile_name_stays_within_its_quotes() {
        let text = classic(&text(&view()));
        let line = text.lines().find(|line| line.starts_with("shortwire_wakeups_total")).unwrap();
        assert_eq!(line, r#"shortwire_wakeups_total{program="re\"dis\\",uid="33"} 0"#);
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let dashboard = include_str!("../../../../packaging/grafana-dashboard.json");
        let parsed: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 5));
        let text = classic(&text(&view()));
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let asked = dashboard.match_indices("shortwire_").map(|(at, _)| {
            let rest = &dashboard[at..];
            &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]
        });
        let asked: std::collections::BTreeSet<&str> = asked.collect();
        assert!(asked.len() > 5, "{asked:?}");
        for name in asked {
            assert!(text.contains(&format!("\n{name}{{")), "{name} is not in\n{text}");
        }
    }
}
