//! `shortwire bench`: pairs of programs over every path in turn, and what came of it.

mod calls;
mod case;
mod catalogue;
pub(crate) mod checksum;
mod compare;
mod cpu;
mod engine;
mod helper;
mod html;
mod lock;
pub(crate) mod machine;
mod observe;
mod outcome;
mod peers;
mod process;
pub(crate) mod progress;
mod record;
mod report;
mod rows;
pub(crate) mod samples;
mod seed;
mod session;
#[cfg(feature = "lua")]
mod shunt;
mod sockets;
mod tools;
#[cfg(test)]
mod well_formed;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
pub use cpu::tree as tree_of;
pub use sockets::{Demo, demo};

use crate::Run;

#[derive(clap::Args)]
#[command(about = "Measure, beside what you would use otherwise")]
pub struct Bench {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    Sockets(sockets::Sockets),
    SeedTable(sockets::SeedTable),
    Engine(engine::BenchEngine),
    Checksum(checksum::Checksum),
    Lock(lock::Args),
    #[cfg(feature = "lua")]
    Shunt(shunt::BenchShunt),
}

pub fn run(args: &Bench, run: Run) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Sockets(args) => sockets::sockets(args, run),
        BenchCommand::SeedTable(args) => sockets::seed_table(args, run),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::Checksum(args) => checksum::run(args),
        BenchCommand::Lock(args) => lock::run(args),
        #[cfg(feature = "lua")]
        BenchCommand::Shunt(args) => shunt::run(args),
    }
}
