//! Counters that other processes read: a tree of small files, one folder per object.
//!
//! ```text
//! RUN/PID/lock                             held by the process; free: the process is gone, whatever its PID says
//!        /engine/THREAD/counters           breaths, frees, sleep ...
//!        /engine/THREAD/latency            durations of breaths
//!        /links/a.output -> b.input/counters
//!        /apps/NAME/counters               cycles, and the app's own
//! ```
//!
//! The writer maps a file and replaces the values of an object as one record ([`shm::Snapshot`])
//! about a thousand times a second; packets touch private numbers only. Readers take no lock and
//! cannot disturb the writer.

mod read;
mod record;
mod tree;

pub use read::{EngineView, Object, Process, Tree, processes};
pub(crate) use record::LatencyFile;
pub use record::{MOST, Record};
pub use tree::{RunDir, RunDirError, run_root, sweep};
