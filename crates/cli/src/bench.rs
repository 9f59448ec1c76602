//! `shortwire bench`: pairs of programs over every path in turn, and what came of it.

mod calls;
mod case;
mod catalogue;
pub mod checksum;
mod compare;
mod cpu;
mod engine;
mod helper;
mod html;
pub mod lock;
pub mod machine;
mod observe;
mod outcome;
mod peers;
mod process;
pub mod progress;
mod record;
mod report;
mod rows;
pub mod samples;
mod seed;
pub mod session;
#[cfg(feature = "lua")]
pub mod shunt;
pub mod sockets;
mod tools;
#[cfg(test)]
mod well_formed;

pub use engine::engine;
