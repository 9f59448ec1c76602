//! The `shortwire` command. A library as well, so that man page and completions are made from the
//! same definition.
//!
//! Each subcommand is a module of its name, with what can be said to it; `args` puts the command
//! line together. What measures is in the crate `measure`. `unsafe` is in `sys`, `info/probes` and
//! `broker`, for calls of the kernel, and in `packetblaster/xdp`, where frames are lent to it.

mod args;
mod broker;
mod conffiles;
mod config;
mod devices;
mod doctor;
mod eids;
mod enable;
mod engine;
mod exposition;
mod finding;
mod gain;
mod http;
mod info;
mod json;
mod linkgroups;
mod loadtest;
mod look;
mod metrics;
mod models;
mod off;
mod packetblaster;
mod ps;
mod run;
#[cfg(feature = "lua")]
mod snsh;
mod ss;
mod stats;
mod sys;
mod tell;
mod top;
mod trace;
mod typos;
mod units;
pub mod variables;
mod webhook;

use std::io::Write;
use std::process::ExitCode;

use args::{Args, Command};
/// The definition of the command line, for generators.
pub use args::{GROUPS, command, find};
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue};
use measure::{bench, rstream, tune};
use terminal::signals;

/// What `env`, `nohup` and `timeout` use for their own failures.
pub(crate) const OWN_FAILURE: u8 = 125;

pub fn main() -> ExitCode {
    let parsed = args::command().try_get_matches();
    let args = match parsed.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => return usage_error(error),
    };
    let (name, outcome) = match args.command {
        Command::Run(args) => return run::run(&args),
        Command::TraceClc(args) => return trace::run(&args),
        Command::Gain(args) => return gain::run(&args),
        Command::Bench(args) => ("bench", bench::run(&args, run::words)),
        Command::Tune(args) => ("tune", tune::run(&args)),
        #[cfg(feature = "lua")]
        Command::Snsh(args) => ("snsh", snsh::run(&args)),
        Command::Demo(args) => ("demo", bench::demo(&args, run::words)),
        Command::Engine(args) => ("engine", self::engine::run(&args)),
        Command::Packetblaster(args) => ("packetblaster", packetblaster::run(&args)),
        Command::Capture(args) => ("capture", look::capture::run(&args)),
        Command::TracePackets(args) => ("trace-packets", look::ways::run(&args)),
        Command::Loadtest(args) => ("loadtest", loadtest::run(&args)),
        Command::Rstream(args) => ("rstream", rstream::run(&args).map(|()| ExitCode::SUCCESS)),
        Command::Broker(args) => ("broker", broker::run(&args)),
        Command::Top(args) => ("top", top::run(&args)),
        Command::Metrics(args) => ("metrics", metrics::run(&args)),
        Command::Webhook(args) => ("webhook", webhook::run(&args)),
        other => {
            // `shortwire ss | head` ends quietly, as other tools do.
            signals::default_sigpipe();
            match other {
                Command::Ss(args) => ("ss", ss::run(&args)),
                Command::Stats(args) => ("stats", stats::run(&args)),
                Command::Info(args) => ("info", info::run(&args)),
                Command::Config(args) => ("config", config::run(&args)),
                Command::Off(args) => ("off", off::off(&args)),
                Command::On(args) => ("on", off::on(&args)),
                Command::Devices(args) => ("devices", devices::run(&args)),
                Command::Linkgroups(args) => ("linkgroups", linkgroups::run(&args)),
                Command::Ueid(args) => ("ueid", eids::ueid(&args)),
                Command::Seid(args) => ("seid", eids::seid(&args)),
                Command::Doctor(args) => ("doctor", doctor::run(&args)),
                Command::Enable(args) => ("enable", enable::enable(&args)),
                Command::Disable(args) => ("disable", enable::disable(&args)),
                Command::Ps(args) => ("ps", ps::run(&args)),
                _ => unreachable!("handled above"),
            }
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("shortwire {name}: {error:#}");
            error
                .downcast_ref::<signals::Interrupted>()
                .map_or(ExitCode::FAILURE, |why| ExitCode::from(why.exit_status()))
        }
    }
}

/// The environment variable from which the value came that clap found wrong, if it came from one.
fn variable_of(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = argument.split([' ', '=']).next()?.strip_prefix("--")?;
    let variable = format!("SHORTWIRE_{}", option.to_uppercase().replace('-', "_"));
    let said = std::env::args()
        .any(|word| word.strip_prefix("--").is_some_and(|word| word.starts_with(option)));
    (!said && std::env::var_os(&variable).is_some()).then_some(variable)
}

/// Prints what clap found; `run` keeps its exit statuses apart from those of the program it starts.
fn usage_error(mut error: clap::Error) -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    typos::explain(&mut error, &args::command(), &words);
    // Help and version are what was asked for: an end with 0 says that they were had.
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    if let (Err(why), 0) = (printed, error.exit_code()) {
        eprintln!("shortwire: cannot write to standard output: {why}");
        return ExitCode::FAILURE;
    }
    if let Some(variable) = variable_of(&error) {
        eprintln!("\nThe value is that of the environment variable {variable}.");
    }
    let is_run = words.first().is_some_and(|word| ["run", "trace-clc", "gain"].contains(&&**word));
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
        super::args::command().debug_assert();
    }
}
