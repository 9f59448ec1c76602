//! `shortwire bench checksum`: starts the measuring program, and makes tables, JSON and curves of
//! what it prints.

mod bars;
mod claims;
pub mod event;
pub mod figures;
mod instructions;
mod program;
mod report;
mod svg;
pub mod tables;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use event::Event;
use figures::Figures;
use program::Program;
use terminal::signals;
use terminal::units::parse_seconds;

use super::machine::Machine;
use super::progress::Progress;
use crate::pending::Pending;
use crate::profile;

/// What `--quick` makes of the options.
const QUICK_ROUNDS: u32 = 101;
const QUICK_SECONDS: f64 = 0.5;

#[derive(clap::Args)]
#[command(about = "Measure the Internet checksum, beside other people's")]
#[command(
    long_about = "Measures csum_partial of the checksum crate, its kernels one by one, the rivals that this build could link (a Linux-style \
and a VPP-style routine in C, DPDK's where its headers are installed, smoltcp, internet-checksum, etherparse, pnet), a read of all bytes and a \
memcpy: all interleaved in the same rounds, so that a disturbance meets all alike. Data in the cache, in no cache (each line flushed before), \
with a second core writing memory, of mixed lengths, one call waiting for the other, copies, batches, headers.

Every routine is first checked against the plain sum of RFC 1071; one that sums such data wrong is marked and not timed. The measuring is done \
by shortwire-checksum-bench, which is found beside this executable and is ended on Ctrl-C."
)]
#[command(after_help = "Examples:
  shortwire bench checksum                   everything
  shortwire bench checksum --quick           the most telling cases, in less
                                             than a minute
  shortwire bench checksum --only hot,mix-imix
      a group, a case (--list prints the names)
  shortwire bench checksum --kernel avx2     as if the processor had no more
  shortwire bench checksum --instructions    how many instructions a call takes,
                                             exact on any machine
  shortwire bench checksum --svg curves.svg  GB/s over length, drawn
  shortwire bench checksum --reproduce       the claims of the 2013 mail thread
                                             on csum_partial, one by one

Values are ns per packet: medians over the rounds. A ratio is the median of the ratios within a round, above 1 where Shortwire is faster. \
A bar is the ratio that the project promises on a processor with AVX-512. Nothing else should run meanwhile.")]
pub struct Checksum {
    /// No further round of a case after this long
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds of each case; each measures everything once
    #[arg(long, value_name = "N", default_value_t = 301, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    pub repeat: u32,
    /// Only these cases or groups of cases, separated by commas
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The kernel to use instead of the fastest one
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Fewer cases, 101 rounds and 0.5 s for each at most; ends in less than a minute
    #[arg(long)]
    pub quick: bool,
    /// Draw GB/s over length into this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Print the source thread's claims, and what this machine says of each
    #[arg(long, conflicts_with_all = ["only", "svg", "kernel"])]
    pub reproduce: bool,
    /// Count the instructions of a call, which takes no quiet machine
    #[arg(long, conflicts_with_all = ["only", "svg", "reproduce", "quick", "repeat", "seconds"])]
    pub instructions: bool,
    /// Print the names that --only takes
    #[arg(long)]
    pub list: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Checksum) -> Result<ExitCode> {
    if args.list {
        return list();
    }
    if args.instructions {
        instructions::run(args.kernel.as_deref(), args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Refused here, before minutes of measuring.
    let drawing = args.svg.as_deref().map(Pending::create).transpose()?;
    let machine = Machine::describe(None).warned();
    let figures = measure(&arguments(args))?;
    if let Some(drawing) = drawing {
        drawing.commit(svg::draw(&figures)?.as_bytes())?;
    }
    // Nothing is left to clean up: ends quietly if nobody reads.
    signals::default_sigpipe();
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
    signals::default_sigpipe();
    let mut output = std::io::stdout().lock();
    for case in cases {
        let note = if case.on_demand { " (only when named)" } else { "" };
        writeln!(
            output,
            "{:<28} {:<9} {}: {}{note}",
            case.name, case.group, case.table, case.column
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the measuring program to its end.
pub fn measure(arguments: &[OsString]) -> Result<Figures> {
    signals::catch_interrupts();
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
            Event::Cases { .. }
            | Event::Start(_)
            | Event::Instructions { .. }
            | Event::Error { .. } => {}
        }
    }
    progress.finish();
    Ok(figures)
}
