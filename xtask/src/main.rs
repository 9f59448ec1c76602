//! `cargo xtask`: the project's own chores.

mod circles;
mod completions;
#[cfg(test)]
mod documents;
mod layering;
mod man;
mod materials;
#[cfg(test)]
mod orderings;
mod roff;

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
    /// Fail if a crate depends on one that it must not see, preload on a package not listed, or
    /// modules on each other in a circle
    Layering,
    /// Write what packages hold beside programs: man pages, completions, the bill of materials, the
    /// licences of others
    Generate {
        #[arg(long, value_name = "DIR", default_value = "target/generated")]
        out: PathBuf,
    },
}

fn main() -> Result<()> {
    let root = root();
    match Args::parse().task {
        Task::Layering => layering::check(root)?,
        Task::Generate { out } => {
            let out = root.join(out);
            man::write(root, &out.join("man"))?;
            completions::write(&out.join("completions"))?;
            materials::write(root, &out)?;
        }
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
