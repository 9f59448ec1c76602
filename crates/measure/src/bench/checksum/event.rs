//! What shortwire-checksum-bench prints, line by line (bench/checksum/src/event.rs).

use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    Cases {
        cases: Vec<Listed>,
    },
    Start(Start),
    Begin {
        case: String,
    },
    Result(Case),
    Skipped {
        case: String,
        reason: String,
    },
    Instructions {
        kernel: String,
        lengths: Vec<usize>,
        routines: Vec<Counted>,
        absent: Vec<Absent>,
    },
    End,
    Error {
        message: String,
    },
}

#[derive(Deserialize)]
pub struct Listed {
    pub name: String,
    pub group: String,
    pub table: String,
    pub column: String,
    pub on_demand: bool,
}

#[derive(Deserialize)]
pub struct Start {
    pub machine: Probed,
    /// What csum_partial uses.
    pub kernel: String,
    pub absent: Vec<Absent>,
    pub cases: usize,
    pub estimate_seconds: f64,
}

/// What only the measuring program can tell of the machine.
#[derive(Clone, Deserialize, Serialize)]
pub struct Probed {
    pub counter_ghz: f64,
    pub core_ghz: Option<f64>,
    pub measuring_cpu: Option<usize>,
    pub writing_cpu: Option<usize>,
    pub region_bytes: u64,
    pub compiled_for: String,
}

#[derive(Deserialize, Serialize)]
pub struct Counted {
    pub name: String,
    pub role: Role,
    /// Instructions per call, by length.
    pub counts: Vec<u64>,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct Absent {
    pub name: String,
    pub reason: String,
}

#[derive(Clone, Deserialize)]
pub struct Case {
    pub case: String,
    pub group: String,
    pub table: String,
    pub column: String,
    pub bytes: f64,
    pub routines: Vec<Routine>,
    /// Rounds that do not count, because the core did not work for the program alone.
    pub dropped: usize,
    /// There were hardly any other rounds.
    pub disturbed: bool,
    /// What the core got done when the case began: less than it can, if other work shared it.
    pub additions_per_cycle: f64,
    pub writer_gbps: Option<f64>,
}

#[derive(Clone, Deserialize)]
pub struct Routine {
    pub name: String,
    pub role: Role,
    pub wrong: bool,
    /// Per packet, one value for each round.
    pub ns: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Ours,
    Kernel,
    Rival,
    Read,
    Memcpy,
    Setting,
}
