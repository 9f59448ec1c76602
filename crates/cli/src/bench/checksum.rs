//! `shortwire bench checksum`: starts the measuring program, and makes tables, JSON and curves of what it prints.

mod bars;
mod claims;
pub mod event;
pub mod figures;
pub mod program;
mod report;
mod svg;
pub mod tables;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use event::Event;
use figures::Figures;
use program::Program;

use super::machine::Machine;
use super::progress::Progress;
use crate::args::Checksum;
use crate::pending::Pending;
use crate::{profile, sys};

/// What `--quick` makes of the options.
const QUICK_ROUNDS: u32 = 101;
const QUICK_SECONDS: f64 = 0.5;

pub fn run(args: &Checksum) -> Result<ExitCode> {
    if args.list {
        return list();
    }
    // Refused here, before minutes of measuring.
    let drawing = args.svg.as_deref().map(Pending::create).transpose()?;
    let machine = Machine::describe(None);
    let figures = measure(&arguments(args))?;
    if let Some(drawing) = drawing {
        drawing.commit(svg::draw(&figures)?.as_bytes())?;
    }
    // Nothing is left to clean up: ends quietly if nobody reads.
    sys::default_sigpipe();
    let claims = if args.reproduce { claims::judge(&figures) } else { Vec::new() };
    let mut output = std::io::stdout().lock();
    if args.json {
        let object = report::json(&figures, &machine, &claims);
        writeln!(output, "{}", serde_json::to_string_pretty(&object)?)?;
    } else if args.reproduce {
        output.write_all(claims::text(&claims).as_bytes())?;
        output.write_all(report::footer(&figures, &machine).as_bytes())?;
    } else {
        output.write_all(report::text(&figures, &machine).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn arguments(args: &Checksum) -> Vec<OsString> {
    let (rounds, seconds) = match args.quick {
        true => (args.repeat.min(QUICK_ROUNDS), args.seconds.min(QUICK_SECONDS)),
        false => (args.repeat, args.seconds),
    };
    let mut arguments: Vec<OsString> = Vec::new();
    let mut option = |name: &str, value: String| arguments.extend([name.into(), value.into()]);
    option("--rounds", rounds.to_string());
    option("--limit", seconds.to_string());
    option("--profile", profile::load().to_string());
    if args.reproduce {
        option("--only", claims::CASES.join(","));
    } else if !args.only.is_empty() {
        option("--only", args.only.join(","));
    }
    if let Some(kernel) = &args.kernel {
        option("--kernel", kernel.clone());
    }
    if args.quick {
        arguments.push("--quick".into());
    }
    arguments
}

fn list() -> Result<ExitCode> {
    let Event::Cases { cases } = Program::start(&["--list".into()])?.next()? else {
        bail!("the measuring program did not print its cases");
    };
    sys::default_sigpipe();
    let mut output = std::io::stdout().lock();
    for case in cases {
        let note = if case.on_demand { " (only when named)" } else { "" };
        writeln!(output, "{:<28} {:<9} {}: {}{note}", case.name, case.group, case.table, case.column)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the measuring program to its end.
pub fn measure(arguments: &[OsString]) -> Result<Figures> {
    sys::catch_interrupts();
    let mut program = Program::start(arguments)?;
    let Event::Start(start) = program.next()? else {
        bail!("the measuring program did not say what it is about to measure");
    };
    let progress = Progress::new(start.cases);
    progress.note(&format!("{} cases, about {:.0} s", start.cases, start.estimate_seconds));
    let mut figures = Figures { start, cases: Vec::new(), skipped: Vec::new() };
    loop {
        match program.next()? {
            Event::Begin { case } => progress.begin(&case),
            Event::Result(case) => {
                progress.end(&case.case, &case.words());
                figures.cases.push(case);
            }
            Event::Skipped { case, reason } => {
                progress.end(&case, &format!("skipped: {reason}"));
                figures.skipped.push((case, reason));
            }
            Event::End => break,
            Event::Cases { .. } | Event::Start(_) | Event::Error { .. } => {}
        }
    }
    progress.finish();
    Ok(figures)
}
