//! What one run over one path gave.

use serde_json::Value;

/// In microseconds, as far as the program tells.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Latency {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub max: Option<f64>,
}

impl Latency {
    pub fn named(&self) -> [(&'static str, Option<f64>); 5] {
        [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p999),
            ("max", self.max),
        ]
    }

    /// As shortwire-peers prints it.
    pub fn of_peers(figures: &Value) -> Latency {
        let at =
            |name: &str| figures.pointer(&format!("/latency_us/{name}")).and_then(Value::as_f64);
        Latency { p50: at("p50"), p90: at("p90"), p99: at("p99"), p999: at("p999"), max: at("max") }
    }
}

/// How much was done, to divide the processors' time and system calls by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    Requests(f64),
    Bytes(f64),
}

/// Seconds of processor time that the two sides took together with what they started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    pub server: f64,
    pub client: f64,
}

pub struct Outcome {
    /// In the order of the row's measures.
    pub values: Vec<f64>,
    pub latency: Latency,
    pub work: Option<Work>,
    pub cpu: Cpu,
}

impl Outcome {
    pub fn new(values: Vec<f64>, cpu: Cpu) -> Outcome {
        Outcome { values, latency: Latency::default(), work: None, cpu }
    }

    pub fn latency(self, latency: Latency) -> Outcome {
        Outcome { latency, ..self }
    }

    pub fn requests(self, count: f64) -> Outcome {
        Outcome { work: Some(Work::Requests(count)), ..self }
    }

    pub fn bytes(self, count: f64) -> Outcome {
        Outcome { work: Some(Work::Bytes(count)), ..self }
    }
}
