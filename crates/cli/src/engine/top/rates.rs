//! Two looks at the counters of all processes, and what happened between them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ::engine::clock::{cycles, monotonic};
use ::engine::counters::{Object, Process, Tree, processes};
use ::engine::histogram::Histogram;
use serde::Serialize;

/// All counters at one moment.
#[derive(Default)]
pub struct Look {
    /// Nanoseconds and processor cycles.
    at: (u64, u64),
    trees: BTreeMap<u32, Tree>,
}

#[derive(Serialize)]
pub struct Rates {
    /// Time between the two looks.
    pub seconds: f64,
    pub processes: Vec<ProcessRates>,
}

#[derive(Serialize)]
pub struct ProcessRates {
    pub pid: u32,
    pub command: String,
    pub engines: Vec<EngineRates>,
    pub links: Vec<LinkRates>,
    pub apps: Vec<AppRates>,
}

/// Rates are per second, as in all of these.
#[derive(Serialize)]
pub struct EngineRates {
    pub thread: usize,
    pub breaths: f64,
    pub freed_packets: f64,
    /// With preamble, check sequence and gap.
    pub freed_bits: f64,
    pub live_packets: i64,
    pub sleep_us: u64,
    /// Durations of breaths.
    pub latency_ns: Option<Latency>,
}

#[derive(Serialize)]
pub struct Latency {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

#[derive(Serialize)]
pub struct LinkRates {
    pub name: String,
    pub packets: f64,
    pub bytes: f64,
    pub drops: f64,
    pub total: Totals,
}

#[derive(Serialize)]
pub struct Totals {
    pub packets: u64,
    pub bytes: u64,
    pub drops: u64,
}

#[derive(Serialize)]
pub struct AppRates {
    pub name: String,
    pub kind: String,
    pub running: bool,
    /// Packets that came in or went out, whichever is more.
    pub packets: f64,
    /// Share of the time that its thread spent in it.
    pub load: f64,
    pub ns_per_packet: Option<f64>,
    pub cycles_per_packet: Option<f64>,
    /// The app's own counters, in total and as rates.
    pub counters: BTreeMap<String, (u64, f64)>,
}

impl Look {
    /// Looks at all living processes, or only one.
    pub fn take(root: &Path, only: Option<u32>) -> std::io::Result<Look> {
        let found = match processes(root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let wanted = |process: &Process| process.alive && only.is_none_or(|pid| pid == process.pid);
        let at = (monotonic(), cycles());
        // A process that ends meanwhile is left out.
        let trees = found
            .iter()
            .filter(|p| wanted(p))
            .filter_map(|p| Some((p.pid, p.read().ok()?)))
            .collect();
        Ok(Look { at, trees })
    }

    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// What happened since an earlier look. What is new has counted from zero.
    pub fn since(&self, earlier: &Look) -> Rates {
        let nanos = (self.at.0.saturating_sub(earlier.at.0)).max(1) as f64;
        let span = Span {
            seconds: nanos / 1e9,
            cycles_per_ns: self.at.1.saturating_sub(earlier.at.1) as f64 / nanos,
        };
        let nothing = Tree::default();
        let processes = self.trees.iter().map(|(pid, tree)| {
            let before = earlier.trees.get(pid).unwrap_or(&nothing);
            span.process(*pid, tree, before)
        });
        Rates { seconds: span.seconds, processes: processes.collect() }
    }
}

struct Span {
    seconds: f64,
    cycles_per_ns: f64,
}

impl Span {
    fn rate(&self, name: &str, now: &Object, before: Option<&Object>) -> f64 {
        // A counter that fell belongs to a new object of the old name.
        now.get(name).saturating_sub(before.map_or(0, |before| before.get(name))) as f64
            / self.seconds
    }

    fn process(&self, pid: u32, tree: &Tree, before: &Tree) -> ProcessRates {
        let links: Vec<LinkRates> = tree
            .links
            .iter()
            .map(|(name, link)| self.link(name, link, before.links.get(name)))
            .collect();
        let engines = tree.engines.iter().map(|(thread, engine)| {
            let before = before.engines.get(thread);
            let object = before.map(|before| &before.counters);
            let latency =
                before.map_or_else(|| engine.latency.clone(), |b| engine.latency.since(&b.latency));
            EngineRates {
                thread: *thread,
                breaths: self.rate("breaths", &engine.counters, object),
                freed_packets: self.rate("frees", &engine.counters, object),
                freed_bits: self.rate("freebits", &engine.counters, object),
                live_packets: engine.counters.get("live").cast_signed(),
                sleep_us: engine.counters.get("sleep_us"),
                latency_ns: quantiles(&latency),
            }
        });
        let apps =
            tree.apps.iter().map(|(name, app)| self.app(name, app, before.apps.get(name), &links));
        ProcessRates {
            pid,
            command: command(pid),
            engines: engines.collect(),
            apps: apps.collect(),
            links,
        }
    }

    fn link(&self, name: &str, now: &Object, before: Option<&Object>) -> LinkRates {
        let rate = |counter| self.rate(counter, now, before);
        LinkRates {
            name: printable(name),
            packets: rate("txpackets"),
            bytes: rate("txbytes"),
            drops: rate("txdrop"),
            total: Totals {
                packets: now.get("txpackets"),
                bytes: now.get("txbytes"),
                drops: now.get("txdrop"),
            },
        }
    }

    fn app(
        &self,
        name: &str,
        now: &Object,
        before: Option<&Object>,
        links: &[LinkRates],
    ) -> AppRates {
        let sum = |outgoing: bool| -> f64 {
            let touches = |link: &&LinkRates| {
                let ends = link.name.split_once(" -> ");
                ends.is_some_and(|(from, to)| app_of(if outgoing { from } else { to }) == name)
            };
            links
                .iter()
                .filter(touches)
                .map(|link| link.packets + if outgoing { link.drops } else { 0.0 })
                .sum()
        };
        let packets = sum(true).max(sum(false));
        let busy = self.rate("ns", now, before);
        let ns_per_packet = (packets > 0.0).then_some(busy / packets);
        let own = now.values.iter().filter(|(name, _)| !matches!(name.as_str(), "ns" | "running"));
        AppRates {
            name: printable(name),
            kind: printable(&now.label),
            running: now.get("running") != 0,
            packets,
            load: busy / 1e9,
            ns_per_packet,
            cycles_per_packet: ns_per_packet.map(|ns| ns * self.cycles_per_ns),
            counters: own
                .map(|(name, value)| (printable(name), (*value, self.rate(name, now, before))))
                .collect(),
        }
    }
}

fn app_of(end: &str) -> &str {
    end.split('.').next().unwrap_or(end)
}

fn quantiles(latency: &Histogram) -> Option<Latency> {
    let at = |part| latency.quantile(part);
    Some(Latency { p50: at(0.5)?, p99: at(0.99)?, max: at(1.0)? })
}

/// Names come from files of other users: nothing in them may steer a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What the process was started as.
pub fn command(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ");
    printable(words.rsplit_once("/shortwire ").map_or(words.as_str(), |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::engine::counters::EngineView;

    fn object(label: &str, values: &[(&str, u64)]) -> Object {
        Object {
            label: label.into(),
            values: values.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
        }
    }

    /// A source that sends `packets` into a sink, busy 10 ns for each.
    pub fn look(at: u64, packets: u64) -> Look {
        let mut latency = Histogram::default();
        (0..packets).for_each(|_| latency.record(1000));
        let engine = object(
            "",
            &[("breaths", packets / 10), ("frees", packets), ("freebits", packets * 672)],
        );
        let link = object(
            "",
            &[("txpackets", packets), ("txbytes", packets * 60), ("txdrop", packets / 5)],
        );
        let tree = Tree {
            engines: BTreeMap::from([(0, EngineView { counters: engine, latency })]),
            links: BTreeMap::from([("src.output -> sink.input".to_string(), link)]),
            apps: BTreeMap::from([
                ("src".to_string(), object("Source", &[("ns", packets * 12), ("running", 1)])),
                (
                    "sink".to_string(),
                    object("Sink\u{1b}[2J", &[("ns", packets * 5), ("running", 0), ("own", 7)]),
                ),
            ]),
        };
        Look { at: (at, 2 * at), trees: BTreeMap::from([(u32::MAX, tree)]) }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let rates = look(3_000_000_000, 500).since(&look(1_000_000_000, 100));
        let process = &rates.processes[0];
        assert_eq!(
            (rates.seconds, process.engines[0].breaths, process.engines[0].freed_packets),
            (2.0, 20.0, 200.0)
        );
        assert_eq!(
            process.engines[0].latency_ns.as_ref().map(|latency| latency.p50 / 100),
            Some(10)
        );
        let link = &process.links[0];
        assert_eq!(
            (link.packets, link.bytes, link.drops, link.total.packets),
            (200.0, 12_000.0, 40.0, 500)
        );
    }

    #[test]
    fn an_app_is_charged_for_the_packets_it_tried_to_send() {
        let rates = look(3_000_000_000, 500).since(&look(1_000_000_000, 100));
        let [sink, src] = &rates.processes[0].apps[..] else { panic!("two apps") };
        // 200 sent and 40 dropped per second; 2400 ns in them; two cycles to a nanosecond.
        assert_eq!(
            (src.packets, src.ns_per_packet, src.cycles_per_packet),
            (240.0, Some(10.0), Some(20.0))
        );
        assert_eq!((sink.packets, sink.ns_per_packet, sink.running), (200.0, Some(5.0), false));
        assert_eq!((sink.kind.as_str(), sink.counters["own"]), ("Sink?[2J", (7, 0.0)));
    }

    #[test]
    fn a_restarted_counter_does_not_run_backwards() {
        let rates = look(2, 10).since(&look(1, 100));
        assert_eq!(rates.processes[0].links[0].packets, 0.0);
    }
}
