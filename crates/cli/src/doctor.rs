//! `shortwire doctor`: what would keep a program, or keeps a process, from using shared memory, and what to do about it.

mod process;
mod program;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Good,
    /// May cost some connections their shared memory.
    Note,
    /// All connections stay TCP.
    Obstacle,
}

#[derive(PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    pub level: Level,
    pub words: String,
    pub advice: Option<String>,
}

impl Finding {
    pub fn good(words: impl Into<String>) -> Finding {
        Finding { level: Level::Good, words: words.into(), advice: None }
    }

    pub fn note(words: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { level: Level::Note, words: words.into(), advice: Some(advice.into()) }
    }

    pub fn obstacle(words: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { level: Level::Obstacle, words: words.into(), advice: Some(advice.into()) }
    }
}

/// What was examined and what was found.
#[derive(Serialize)]
pub struct Report {
    pub subject: String,
    pub findings: Vec<Finding>,
}

#[derive(clap::Args)]
#[command(about = "Explain what keeps a program or a process from using shared memory")]
#[command(
    long_about = "Examines a program before it is started, or a running process, and says what keeps its connections on TCP, and what to do \
about it: static linking, rights gained at start, io_uring, system calls past the C library, a seccomp filter, another network namespace, a \
peer that does not take part.

What is only possible is a note; what keeps every connection on TCP is marked STOP, and the exit status is then 1."
)]
#[command(after_help = "Examples:
  shortwire doctor nginx
  shortwire doctor ./server
  shortwire doctor $(pidof -s redis-server)
  shortwire doctor 4711 --json")]
pub struct Doctor {
    /// Name or path of a program, or the id of a process
    #[arg(value_name = "PROG|PID")]
    pub subject: OsString,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Doctor) -> Result<ExitCode> {
    let pid = args.subject.to_str().and_then(|text| text.parse().ok());
    let mut report = match pid {
        Some(pid) => process::examine(pid)?,
        None => program::examine(&args.subject)?,
    };
    report.findings.extend(machine());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report));
    }
    let stands_in_the_way = report.findings.iter().any(|finding| finding.level == Level::Obstacle);
    Ok(if stands_in_the_way { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Only what is missing: the machine is not what was asked about.
fn machine() -> Vec<Finding> {
    let missing = crate::info::features().into_iter().filter_map(|feature| {
        let problem = feature.problem?;
        Some(Finding::obstacle(
            format!("on this machine: {} does not work ({problem}): {}", feature.name, feature.without),
            "See `shortwire info`; a container's seccomp profile may forbid it.",
        ))
    });
    let library = crate::run::find_library().err().map(|error| {
        Finding::obstacle(format!("the library is not where it should be: {error:#}"), "Build or install it again.")
    });
    library.into_iter().chain(missing).collect()
}

fn text(report: &Report) -> String {
    let mut text = format!("{}\n", report.subject);
    for finding in &report.findings {
        let mark = match finding.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Obstacle => "STOP",
        };
        let _ = writeln!(text, "  {mark}  {}", finding.words);
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "        -> {advice}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_what_it_is_for() {
        let report = Report {
            subject: "7 x".into(),
            findings: vec![Finding::good("fine"), Finding::obstacle("is static", "Link it dynamically.")],
        };
        assert_eq!(text(&report), "7 x\n  ok    fine\n  STOP  is static\n        -> Link it dynamically.\n");
    }
}
