//! `cargo xtask`: the project's own chores.

mod circles;
mod generate;
mod layering;

use std::path::{Path, PathBuf};

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
    /// Fail if a crate depends on one that it must not see, preload on a package not listed, or modules on each other in a circle
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

fn main() -> Result<()> {
    let root = root();
    match Args::parse().task {
        Task::Layering => layering::check(root)?,
        Task::Man { out } => generate::man(&root.join(out))?,
        Task::Completions { out } => generate::completions(&root.join(out))?,
    }
    Ok(())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The cargo that runs us.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
