//! Counters of an engine as Prometheus text over HTTP: threads that read what any other process
//! could read.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ::engine::counters::{Process, Tree};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::exposition::{OPENMETRICS, counter, openmetrics};
use crate::http::{self, Response};

/// Starts to serve. Gives where, in words.
pub fn serve(address: SocketAddr, path: PathBuf) -> io::Result<String> {
    let mut registry = Registry::with_prefix("shortwire");
    let process = Process { pid: std::process::id(), path, alive: true };
    registry.register_collector(Box::new(Source(process)));
    http::serve(&http::Place::Tcp(address), move |request| match request.path.as_str() {
        "/metrics" | "/" => Response::ok(OPENMETRICS, openmetrics(&registry)),
        _ => Response::refused("404 Not Found", "the counters are at /metrics"),
    })
}

/// Reads the counters anew for each scrape.
#[derive(Debug)]
struct Source(Process);

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let tree = self.0.read().unwrap_or_default();
        engines(&mut encoder, &tree)?;
        links(&mut encoder, &tree)?;
        apps(&mut encoder, &tree)
    }
}

fn engines(encoder: &mut DescriptorEncoder, tree: &Tree) -> fmt::Result {
    let threads: Vec<String> = tree.engines.keys().map(ToString::to_string).collect();
    for (name, key, help) in [
        ("breaths", "breaths", "Rounds of the engine"),
        ("freed_packets", "frees", "Packets freed"),
        ("freed_bytes", "freebytes", "Bytes of packets freed"),
        ("configs", "configs", "Configurations applied"),
    ] {
        let values = tree.engines.values().zip(&threads);
        counter(
            encoder,
            name,
            help,
            values.map(|(e, thread)| (vec![("thread", thread.as_str())], e.counters.get(key))),
        )?;
    }
    let gauge = MetricType::Gauge;
    let mut metric = encoder.encode_descriptor("live_packets", "Packets in use", None, gauge)?;
    for (engine, thread) in tree.engines.values().zip(&threads) {
        // Packets may be allocated on one thread and freed on another: the parts can be negative.
        let live = engine.counters.get("live").cast_signed();
        ConstGauge::new(live).encode(metric.encode_family(&[("thread", thread.as_str())])?)?;
    }
    let help = "Duration of a breath that this share of all breaths did not exceed";
    let mut metric =
        encoder.encode_descriptor("breath_duration", help, Some(&Unit::Seconds), gauge)?;
    for (engine, thread) in tree.engines.values().zip(&threads) {
        for (quantile, part) in [("0.5", 0.5), ("0.99", 0.99), ("1", 1.0)] {
            let seconds = engine.latency.quantile(part).unwrap_or(0) as f64 / 1e9;
            let labels = [("thread", thread.as_str()), ("quantile", quantile)];
            ConstGauge::new(seconds).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn links(encoder: &mut DescriptorEncoder, tree: &Tree) -> fmt::Result {
    for (name, key, help) in [
        ("link_sent_packets", "txpackets", "Packets sent into a link"),
        ("link_sent_bytes", "txbytes", "Bytes sent into a link"),
        ("link_dropped_packets", "txdrop", "Packets that found a link full"),
        ("link_received_packets", "rxpackets", "Packets taken out of a link"),
        ("link_received_bytes", "rxbytes", "Bytes taken out of a link"),
    ] {
        let values = tree.links.iter();
        counter(
            encoder,
            name,
            help,
            values.map(|(link, object)| (vec![("link", link.as_str())], object.get(key))),
        )?;
    }
    Ok(())
}

fn apps(encoder: &mut DescriptorEncoder, tree: &Tree) -> fmt::Result {
    let gauge = MetricType::Gauge;
    let mut metric =
        encoder.encode_descriptor("app_running", "1 if the app could start", None, gauge)?;
    for (app, object) in &tree.apps {
        let labels = [("app", app.as_str()), ("kind", object.label.as_str())];
        ConstGauge::new(object.get("running") as i64).encode(metric.encode_family(&labels)?)?;
    }
    let busy = tree
        .apps
        .iter()
        .map(|(app, o)| (vec![("app", app.as_str()), ("kind", o.label.as_str())], o.get("ns")));
    counter(encoder, "app_busy_nanoseconds", "Time spent in an app", busy)?;
    let own = tree.apps.iter().flat_map(|(app, object)| {
        let values =
            object.values.iter().filter(|(name, _)| !matches!(name.as_str(), "ns" | "running"));
        values.map(move |(name, value)| {
            (
                vec![
                    ("app", app.as_str()),
                    ("kind", object.label.as_str()),
                    ("counter", name.as_str()),
                ],
                *value,
            )
        })
    });
    counter(encoder, "app", "Counters of an app's own", own)
}
