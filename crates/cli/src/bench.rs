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

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

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

pub fn run(args: &Bench) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Sockets(args) => sockets::sockets(args),
        BenchCommand::SeedTable(args) => sockets::seed_table(args),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::Checksum(args) => checksum::run(args),
        BenchCommand::Lock(args) => lock::run(args),
        #[cfg(feature = "lua")]
        BenchCommand::Shunt(args) => shunt::run(args),
    }
}
