//! Programs of this project that measure, apart from the command so that it does not contain what
//! they contain.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Beside this executable, where the build leaves all; or where an installation puts helpers. Tests
/// of the command run one folder below.
pub fn locate(name: &str) -> Result<PathBuf> {
    let own = env::current_exe()
        .with_context(|| format!("cannot find this executable, and so not {name} beside it"))?;
    let directory = own.parent().context("this executable has no directory")?;
    let places = ["", "../lib/shortwire", ".."].map(|place| directory.join(place).join(name));
    match places.into_iter().find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("{name} is not beside {}; build it with `make build`", own.display()),
    }
}
