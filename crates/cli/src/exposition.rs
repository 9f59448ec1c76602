//! Counters in the formats that Prometheus reads.

use std::collections::HashSet;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The older format, which node_exporter reads from files, and who asks for nothing else gets.
pub const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names and values of labels.
pub type Labels<'a> = Vec<(&'a str, &'a str)>;

/// All that is registered.
pub fn openmetrics(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to memory fails only where a collector says so, and none does.
    let _ = text::encode(&mut text, registry);
    text
}

/// The same in the older format: counters have `_total` in their names everywhere, and there is no
/// end mark.
pub fn classic(openmetrics: &str) -> String {
    let about = |line: &str, what: &str| {
        let (name, rest) = line.strip_prefix(what)?.split_once(' ')?;
        Some((name.to_string(), rest.to_string()))
    };
    let counters: HashSet<String> = openmetrics
        .lines()
        .filter_map(|line| about(line, "# TYPE "))
        .filter(|(_, kind)| kind == "counter")
        .map(|(name, _)| name)
        .collect();
    let mut text = String::new();
    for line in openmetrics.lines() {
        let described = ["# HELP ", "# TYPE "]
            .into_iter()
            .find_map(|what| about(line, what).map(|(name, rest)| (what, name, rest)));
        match described {
            Some((what, name, rest)) if counters.contains(&name) => {
                text += &format!("{what}{name}_total {rest}\n");
            }
            None if line.starts_with('#') => {}
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

/// A counter with a value for each set of labels.
pub fn counter<'a>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels<'a>, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The same of what may fall.
pub fn gauge<'a>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels<'a>, f64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_whole() {
        let new = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{x=\"y\"} 3\n# HELP g Now.\n# TYPE g gauge\n\
                   # UNIT g seconds\ng 1\n# EOF\n";
        let old = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"y\"} 3\n# HELP g Now.\n# TYPE g gauge\ng 1\n";
        assert_eq!(classic(new), old);
    }
}
