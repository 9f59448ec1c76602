//! `make check`, `make quick`, `make check-arm64`, `make check-system` and `make torture`: what they run, where, and
//! how many at once.
//!
//! Tests are found in what cargo builds; there is no list of them. A system test is a process of
//! its own, in namespaces of its own where these can be had; a test in a module called `alone` runs
//! when nothing else does.

mod aarch64;
mod all;
mod cargo;
mod children;
mod isolate;
mod pool;
mod publishing;
mod quick;
mod screen;
mod tally;
mod torture;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: check all | check quick | check arm64 [NAME] | check system [NAME] | check torture NAME TIMES LOAD";

fn main() -> ExitCode {
    children::end_with_us();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["all"] => all::run(),
        ["quick"] => quick::run(),
        ["arm64"] => all::arm64(""),
        ["arm64", name] => all::arm64(name),
        ["system"] => all::system(""),
        ["system", name] => all::system(name),
        ["torture", name, times, load] => match (times.parse(), load.parse()) {
            (Ok(times), Ok(load)) => torture::run(name, times, load),
            _ => Err(USAGE.to_string()),
        },
        _ => Err(USAGE.to_string()),
    };
    children::clean_up();
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace")
}

/// Where cargo builds.
fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(named)
}

/// How many processors there are for us.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
