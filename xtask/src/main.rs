//! `cargo xtask`: the project's own chores.

mod aarch64;
mod check;
mod generate;
mod layering;
mod tally;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own chores")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that CI runs; the last line sums up what passed, failed and was skipped
    Check,
    /// Fail if a crate depends on one that it must not see, or preload on a package not listed
    Layering,
    /// Write the man pages
    Man {
        #[arg(long, value_name = "DIR", default_value = "target/man")]
        out: PathBuf,
    },
    /// Write completions for bash, zsh and fish
    Completions {
        #[arg(long, value_name = "DIR", default_value = "target/completions")]
        out: PathBuf,
    },
}

fn main() -> Result<ExitCode> {
    let root = root();
    match Args::parse().task {
        Task::Check => return check::run(root),
        Task::Layering => layering::check(root)?,
        Task::Man { out } => generate::man(&root.join(out))?,
        Task::Completions { out } => generate::completions(&root.join(out))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The cargo that runs us.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
