//! `shortwire doctor`: what would keep a program, or keeps a process, from using shared memory, and
//! what to do about it.

mod followed;
mod loaded;
mod process;
mod program;
mod surroundings;
mod unit;

pub use followed::explain;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::finding::{Finding, Level, lines_of, plain};
use crate::off;
use crate::units::Scope;

/// What was examined and what was found.
#[derive(Serialize)]
pub struct Report {
    pub subject: String,
    pub findings: Vec<Finding>,
}

#[derive(clap::Args)]
#[command(about = "Explain what keeps a program, service or process on TCP")]
#[command(
    long_about = "Examines a program before it is started, or a running process, and says what keeps its connections on TCP, and what to do \
about it: static linking, rights gained at start, io_uring, system calls past the C library, a seccomp filter, another network namespace, a \
peer that does not take part. Of a service unit (NAME.service, or NAME if there is no such program) it says what each setting of its sandbox means.

What is only possible is a note; what keeps every connection on TCP is marked STOP, and the exit status is then 1."
)]
#[command(after_help = "Examples:
  shortwire doctor nginx
  shortwire doctor ./server
  shortwire doctor redis-server.service
  shortwire doctor $(pidof -s redis-server)
  shortwire doctor 4711 --json")]
pub struct Doctor {
    /// Name or path of a program, a service unit, or the id of a process
    #[arg(value_name = "PROG|UNIT|PID")]
    pub subject: OsString,
    /// Look among the units of this user
    #[arg(long)]
    pub user: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Doctor) -> Result<ExitCode> {
    let pid = args.subject.to_str().and_then(|text| text.parse().ok());
    let scope = Scope { root: "/".into(), user: args.user };
    let name = args.subject.to_string_lossy();
    let unit = if pid.is_none() { unit::named(&name, &scope)? } else { None };
    let mut report = match (pid, unit) {
        (Some(pid), _) => process::examine(pid)?,
        (None, Some(unit)) => unit::examine(&unit, &scope)?,
        (None, None) => program::examine(&args.subject)?,
    };
    report.findings.extend(machine());
    if args.json {
        crate::json::print(&report)?;
    } else {
        terminal::out!("{}", text(&report))?;
    }
    let stands_in_the_way = report.findings.iter().any(|finding| finding.level == Level::Obstacle);
    Ok(if stands_in_the_way { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Only what is missing: the machine is not what was asked about.
fn machine() -> Vec<Finding> {
    let missing = crate::info::features().into_iter().filter_map(|feature| {
        let problem = feature.problem?;
        Some(Finding::obstacle(
            format!(
                "on this machine: {} does not work ({problem}): {}",
                feature.name, feature.without
            ),
            "See `shortwire info`; a container's seccomp profile may forbid it.",
        ))
    });
    let library = crate::run::find_library().err().map(|error| {
        Finding::obstacle(
            format!("the library is not where it should be: {error:#}"),
            "Build or install it again.",
        )
    });
    let off = off::state_for(rustix::process::geteuid().as_raw()).map(|state| {
        Finding::obstacle(format!("Shortwire is {state}"), "`shortwire on` switches it on again.")
    });
    library.into_iter().chain(off).chain(missing).collect()
}

fn text(report: &Report) -> String {
    format!("{}\n{}", plain(&report.subject), lines_of(&report.findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_what_it_is_for() {
        let report = Report {
            subject: "7 x".into(),
            findings: vec![
                Finding::good("fine"),
                Finding::obstacle("is static", "Link it dynamically."),
            ],
        };
        assert_eq!(
            text(&report),
            "7 x\n  ok    fine\n  STOP  is static\n        -> Link it dynamically.\n"
        );
    }
}
