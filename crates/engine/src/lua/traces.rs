//! What the compiler did with a script, and what there is to say about it.
//!
//! The facts come from `modules/shortwire/traces.lua`, the shares of time from the sampler.

use serde::{Deserialize, Serialize};

mod costs;
mod findings;

pub use costs::too_short;
pub use findings::{Finding, findings};

/// Everything about one run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceFacts {
    /// In the order in which they were made.
    pub traces: Vec<Trace>,
    /// Recordings that were given up, those alike as one.
    pub aborts: Vec<Abort>,
    /// Values of foreign types that instances hold.
    pub fields: Vec<Field>,
    /// Lines that ask for memory in traces, and in functions that could not be compiled.
    pub allocations: Vec<Allocation>,
    /// How often all traces were thrown away.
    pub flushes: u64,
    /// Samples by what was going on; those of traces are theirs.
    pub interpreter: u64,
    /// In C: the engine and its own apps.
    pub engine: u64,
    /// In the garbage collector.
    pub collector: u64,
    /// Leaving a trace towards the interpreter.
    pub exiting: u64,
    /// Recording, optimizing and assembling traces.
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
    /// Where it starts.
    pub file: String,
    /// The line there.
    pub line: i64,
    /// The instance whose copy of the code it is.
    pub app: Option<String>,
    /// The trace whose exit leads here. A trace without is entered from the interpreter, and from
    /// other traces' ends.
    pub parent: Option<u64>,
    /// Number of that exit.
    pub exit: Option<i64>,
    /// The trace that this one goes on to at its end.
    pub link: Option<u64>,
    /// What follows its end, in LuaJIT's words: `loop`, `root`, `return`, `interpreter` and so on.
    pub link_kind: String,
    /// Where its recording ended: for one that is stitched, the call that is not compiled.
    pub end_file: Option<String>,
    /// The line there.
    pub end_line: Option<i64>,
    /// It ends where it starts.
    pub looping: bool,
    /// Of the intermediate representation.
    pub instructions: u64,
    /// Of machine code.
    pub bytes: u64,
    /// Exits that it could be left by.
    pub nexits: u64,
    /// Exits taken towards the interpreter. Those to other traces are not counted, only known: they
    /// are children.
    pub exits: Vec<ExitCount>,
    /// Checks of types of foreign values in it.
    pub guards: Vec<Guard>,
    /// How often the sampler saw it run.
    pub samples: u64,
}

/// How often an exit was taken.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExitCount {
    /// Number of the exit in its trace.
    pub exit: i64,
    /// Times that it was taken towards the interpreter.
    pub count: u64,
}

/// A check that a value has the type for which the trace was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guard {
    /// LuaJIT's number of the type (`tonumber(ffi.typeof(...))`).
    pub ctype: u64,
    /// The key of the table that holds the value.
    pub field: Option<String>,
    /// Where execution goes on if the type is another one.
    pub exit: i64,
    /// The line that made the type, and by which call.
    pub place: Option<String>,
    /// As in `ffi.typeof`.
    pub call: Option<String>,
}

/// A recording that was given up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Abort {
    /// Where it was given up.
    pub file: String,
    /// The line there.
    pub line: i64,
    /// Where the recording had begun.
    pub from_file: Option<String>,
    /// The line there.
    pub from_line: Option<i64>,
    /// The instance whose copy of the code it is.
    pub app: Option<String>,
    /// Why, in LuaJIT's words.
    pub reason: String,
    /// Times that it happened.
    pub count: u64,
}

/// A line that makes something for the collector to find.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocation {
    /// Where.
    pub file: String,
    /// The line there.
    pub line: i64,
    /// The instance whose copy of the code it is.
    pub app: Option<String>,
    /// What it makes, such as `a table`.
    pub what: String,
    /// The trace that does it; none: the interpreter.
    pub trace: Option<u64>,
}

/// What it means that a recording was given up, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// LuaJIT cannot compile what stands there.
    NotCompiled,
    /// Recording failed for what it met.
    Failed,
    /// A loop or function that failed so often that it is not tried again: the cause is another
    /// line.
    Blacklisted,
    /// Happens on the way to a good trace, as with each function that contains a loop.
    Harmless,
}

impl Abort {
    /// How bad the reason is.
    pub fn weight(&self) -> Weight {
        match self.reason.as_str() {
            reason if reason.starts_with("NYI") => Weight::NotCompiled,
            "blacklisted" => Weight::Blacklisted,
            "inner loop in root trace"
            | "leaving loop in root trace"
            | "retry recording"
            | "down-recursion, restarting" => Weight::Harmless,
            _ => Weight::Failed,
        }
    }
}

/// A value of a foreign type by its name in instances of one class.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Field {
    /// Name of the class.
    pub class: String,
    /// Keys from the instance to the value, joined by dots.
    pub name: String,
    /// What each instance holds there.
    pub apps: Vec<FieldOf>,
}

/// The type of a field in one instance.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FieldOf {
    /// Name of the instance.
    pub app: String,
    /// LuaJIT's number of the type.
    pub ctype: u64,
    /// The type in words of C.
    pub type_name: String,
    /// The line that made the type, where that was seen.
    pub place: Option<String>,
    /// The call that made it, as in `ffi.typeof`.
    pub call: Option<String>,
}

impl TraceFacts {
    /// All samples of the run.
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

    /// `file:line` of its start.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// Exits towards the interpreter.
    pub fn falls(&self) -> u64 {
        self.exits.iter().map(|exit| exit.count).sum()
    }
}
