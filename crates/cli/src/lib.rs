//! The `shortwire` command. A library as well, so that man page and completions are made from the same definition.
//!
//! `args` is the command line; each subcommand is a module of its name. All `unsafe` is in `sys`.

mod args;
mod bench;
mod connections;
mod devices;
mod info;
mod run;
mod ss;
mod stats;
mod sys;
mod units;

use std::ffi::OsStr;
use std::process::ExitCode;

use args::{Args, BenchCommand, Command};
use clap::{CommandFactory, Parser};

/// What `env`, `nohup` and `timeout` use for their own failures.
pub(crate) const OWN_FAILURE: u8 = 125;

/// The definition of the command line, for generators.
pub fn command() -> clap::Command {
    Args::command()
}

pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error),
    };
    let (name, outcome) = match args.command {
        Command::Run(args) => return run::run(&args),
        Command::Bench(args) => {
            let outcome = match args.command {
                BenchCommand::Sockets(args) => bench::sockets(&args),
                BenchCommand::Lock(args) => bench::lock::run(&args).map(|()| ExitCode::SUCCESS),
            };
            ("bench", outcome)
        }
        Command::Demo(args) => ("demo", bench::demo(&args)),
        other => {
            // `shortwire ss | head` ends quietly, as other tools do.
            sys::default_sigpipe();
            match other {
                Command::Ss(args) => ("ss", ss::run(&args)),
                Command::Stats(args) => ("stats", stats::run(&args)),
                Command::Info(args) => ("info", info::run(&args)),
                Command::Devices(args) => ("devices", devices::run(&args)),
                _ => unreachable!("handled above"),
            }
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("shortwire {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what clap found; `run` keeps its exit statuses apart from those of the program it starts.
fn usage_error(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let is_run = std::env::args_os().nth(1).as_deref() == Some(OsStr::new("run"));
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if is_run => ExitCode::from(OWN_FAILURE),
        code => ExitCode::from(code as u8),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
