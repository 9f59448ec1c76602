//! What this program prints: one JSON object per line, for `shortwire bench checksum` and
//! `shortwire tune checksum`, which know the same shapes
//! (crates/measure/src/bench/checksum/event.rs).

use std::io::{self, Write};

use serde::Serialize;

use crate::sum::Role;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event<'a> {
    /// First, after `--list`: all there are, and nothing else follows.
    Cases {
        cases: &'a [Listed],
    },
    /// First, otherwise.
    Start {
        machine: &'a Machine,
        kernel: &'a str,
        absent: &'a [Absent],
        cases: usize,
        estimate_seconds: f64,
    },
    Begin {
        case: &'a str,
    },
    Result(CaseResult<'a>),
    Skipped {
        case: &'a str,
        reason: &'a str,
    },
    /// All, after `--instructions`: instructions per call, of each routine by length.
    Instructions {
        kernel: &'a str,
        lengths: &'a [usize],
        routines: Vec<Counted<'a>>,
        absent: &'a [Absent],
    },
    /// Last, if all went well.
    End,
    /// Last, if not.
    Error {
        message: &'a str,
    },
}

#[derive(Serialize)]
pub struct Listed {
    pub name: String,
    pub group: &'static str,
    pub table: String,
    pub column: String,
    /// Not measured unless it is named.
    pub on_demand: bool,
}

#[derive(Serialize)]
pub struct Machine {
    pub counter_ghz: f64,
    pub core_ghz: Option<f64>,
    pub measuring_cpu: Option<usize>,
    pub writing_cpu: Option<usize>,
    pub region_bytes: usize,
    /// The instruction sets that rivals in Rust were compiled for.
    pub compiled_for: String,
}

#[derive(Serialize)]
pub struct Counted<'a> {
    pub name: &'a str,
    pub role: Role,
    pub counts: Vec<u64>,
}

/// A rival that could not be linked.
#[derive(Serialize)]
pub struct Absent {
    pub name: &'static str,
    pub reason: &'static str,
}

impl Absent {
    pub fn new(name: &'static str, reason: &'static str) -> Absent {
        Absent { name, reason }
    }
}

#[derive(Serialize)]
pub struct CaseResult<'a> {
    pub case: &'a str,
    pub group: &'a str,
    pub table: &'a str,
    pub column: &'a str,
    /// Of a packet, on average.
    pub bytes: f64,
    pub routines: Vec<Figures>,
    /// Rounds that do not count, because the core did not work for us alone.
    pub dropped: usize,
    /// There were hardly any other rounds.
    pub disturbed: bool,
    /// What the core got done when the case began.
    pub additions_per_cycle: f64,
    /// What the second core wrote meanwhile, in 10^9 bytes per second.
    pub writer_gbps: Option<f64>,
}

#[derive(Serialize)]
pub struct Figures {
    pub name: String,
    pub role: Role,
    /// It sums such data wrong, and was not measured.
    pub wrong: bool,
    /// ns per packet, one value for each round.
    pub ns: Vec<f64>,
}

pub fn print(event: &Event<'_>) -> io::Result<()> {
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, event)?;
    output.write_all(b"\n")?;
    output.flush()
}
