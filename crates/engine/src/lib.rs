//! The packet engine: apps joined by links.
//!
//! An app is a piece of packet processing with named inputs and outputs. A link joins an output to
//! an input. A configuration names apps and links; an [`Engine`] makes the network what the
//! configuration says and breathes: it pulls packets in and pushes them through. Read `packet`,
//! `link`, `app` and `engine`, in this order, to have seen all that happens to a packet.
#![deny(missing_docs)]

pub mod app;
pub mod apps;
pub mod arena;
pub mod args;
pub mod batch;
mod bpf;
pub mod clock;
pub mod config;
pub mod counters;
pub mod crossing;
pub mod depot;
pub mod engine;
mod flow_table;
pub mod histogram;
pub mod link;
pub mod look;
pub mod lpm;
#[cfg(feature = "lua")]
pub mod lua;
pub mod netdev;
pub mod nic;

pub mod packet;
pub mod pcap;
pub mod pool;
pub mod registry;
pub mod report;
pub mod stop;
mod sync;
pub mod threads;
pub mod together;
pub mod xdp;

pub use app::{App, AppError, Context, Direction, Io, Kind, Ports, Reconfigured};
pub use batch::{BATCH, Batch};
pub use config::Config;
pub use engine::{Engine, Options, Pace, Until};
pub use link::Link;
pub use packet::Packet;
pub use registry::Registry;
pub use stop::Stop;
pub use threads::Threads;
