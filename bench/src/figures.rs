//! What a client prints at its end.

use serde::Serialize;

use crate::histogram::Histogram;

#[derive(Serialize)]
pub struct Figures {
    pub mode: &'static str,
    pub size: usize,
    pub connections: u32,
    pub seconds: f64,
    pub messages: u64,
    pub bytes: u64,
    pub messages_per_second: f64,
    pub bytes_per_second: f64,
    /// Of a whole round trip (of a whole connection in mode `short`); absent where nothing comes
    /// back.
    pub latency_us: Option<Latency>,
}

#[derive(Serialize)]
pub struct Latency {
    pub avg: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Figures {
    pub fn new(
        mode: &'static str,
        size: usize,
        connections: u32,
        seconds: f64,
        messages: u64,
        bytes: u64,
    ) -> Figures {
        let seconds = seconds.max(1e-9);
        Figures {
            mode,
            size,
            connections,
            seconds,
            messages,
            bytes,
            messages_per_second: messages as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency_us: None,
        }
    }

    pub fn with_latency(mut self, histogram: &Histogram) -> Figures {
        self.latency_us = Some(Latency {
            avg: histogram.mean_ns() / 1e3,
            p50: histogram.quantile_ns(0.5) / 1e3,
            p90: histogram.quantile_ns(0.9) / 1e3,
            p99: histogram.quantile_ns(0.99) / 1e3,
            p999: histogram.quantile_ns(0.999) / 1e3,
            max: histogram.max_ns() as f64 / 1e3,
        });
        self
    }

    pub fn print(&self, json: bool) {
        if json {
            println!(
                "{}",
                serde_json::to_string(self).expect("numbers and names always serialise")
            );
            return;
        }
        println!(
            "{} {} B, {} connection(s), {:.2} s: {:.0} messages/s, {:.1} MB/s",
            self.mode,
            self.size,
            self.connections,
            self.seconds,
            self.messages_per_second,
            self.bytes_per_second / 1e6
        );
        if let Some(latency) = &self.latency_us {
            println!(
                "latency avg {:.2} us, p50 {:.2} us, p90 {:.2} us, p99 {:.2} us, p99.9 {:.2} us, max {:.1} us",
                latency.avg, latency.p50, latency.p90, latency.p99, latency.p999, latency.max
            );
        }
    }
}
