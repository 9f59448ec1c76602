//! What the compiler did with a script, and what there is to say about it.
//!
//! The facts come from `modules/shortwire/traces.lua`, the shares of time from the [sampler](super::sampler).

use serde::{Deserialize, Serialize};

mod findings;

pub use findings::{Finding, findings};

/// Everything about one run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceFacts {
    pub traces: Vec<Trace>,
    pub aborts: Vec<Abort>,
    /// Values of foreign types that instances hold.
    pub fields: Vec<Field>,
    /// How often all traces were thrown away.
    pub flushes: u64,
    /// Samples by what was going on; those of traces are theirs.
    pub interpreter: u64,
    pub engine: u64,
    pub collector: u64,
    pub exiting: u64,
    pub compiler: u64,
    /// Instances share their code.
    pub shared: bool,
}

/// A trace: a path through the script, compiled.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// Counts from 1 over the run.
    pub id: u64,
    /// LuaJIT's number, which is given out again after a flush.
    pub number: u64,
    pub file: String,
    pub line: i64,
    /// The instance whose copy of the code it is.
    pub app: Option<String>,
    /// The trace whose exit leads here. A trace without is entered from the interpreter, and from other traces' ends.
    pub parent: Option<u64>,
    pub exit: Option<i64>,
    /// The trace that this one goes on to at its end.
    pub link: Option<u64>,
    pub link_kind: String,
    /// It ends where it starts.
    pub looping: bool,
    pub instructions: u64,
    pub bytes: u64,
    pub nexits: u64,
    /// Exits taken towards the interpreter. Those to other traces are not counted, only known: they are children.
    pub exits: Vec<ExitCount>,
    pub guards: Vec<Guard>,
    pub samples: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExitCount {
    pub exit: i64,
    pub count: u64,
}

/// A check that a value has the type for which the trace was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guard {
    pub ctype: u64,
    /// The key of the table that holds the value.
    pub field: Option<String>,
    /// Where execution goes on if the type is another one.
    pub exit: i64,
    /// The line that made the type, and by which call.
    pub place: Option<String>,
    pub call: Option<String>,
}

/// A recording that was given up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Abort {
    pub file: String,
    pub line: i64,
    pub from_file: Option<String>,
    pub from_line: Option<i64>,
    pub app: Option<String>,
    pub reason: String,
    pub count: u64,
}

/// A value of a foreign type by its name in instances of one class.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Field {
    pub class: String,
    pub name: String,
    pub apps: Vec<FieldOf>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FieldOf {
    pub app: String,
    pub ctype: u64,
    pub type_name: String,
    pub place: Option<String>,
    pub call: Option<String>,
}

impl TraceFacts {
    pub fn samples(&self) -> u64 {
        let traces: u64 = self.traces.iter().map(|trace| trace.samples).sum();
        traces + self.interpreter + self.engine + self.collector + self.exiting + self.compiler
    }

    /// Samples in the script: what is not the engine's own apps.
    pub fn script_samples(&self) -> u64 {
        self.samples() - self.engine
    }
}

impl Trace {
    /// `looping`, `side`, or how it ends.
    pub fn kind(&self) -> &str {
        match (self.looping, self.parent.is_some()) {
            (true, _) => "looping",
            (false, true) => "side",
            (false, false) => "straight",
        }
    }

    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// Exits towards the interpreter.
    pub fn falls(&self) -> u64 {
        self.exits.iter().map(|exit| exit.count).sum()
    }
}
