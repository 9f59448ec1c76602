//! `shortwire bench`: pairs of programs over every path in turn, and what came of it.

mod case;
pub mod checksum;
mod engine;
mod helper;
pub mod lock;
pub mod machine;
mod observe;
mod peers;
mod process;
pub mod progress;
mod report;
mod rows;
pub mod samples;
pub mod session;
#[cfg(feature = "lua")]
pub mod shunt;
mod tools;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use case::Case;
pub use engine::engine;
use progress::Progress;
use samples::Samples;
use session::Session;

use crate::args::{Demo, Sockets};
use crate::sys;

/// What `--quick` makes of the options.
const QUICK_SECONDS: f64 = 0.5;
const QUICK_ROUNDS: u32 = 3;
const QUICK_BUDGET: f64 = 100.0;

struct Plan {
    rounds: u32,
    seconds: f64,
    budget: Option<Duration>,
    timeout: Duration,
    cases: Vec<Case>,
}

pub fn sockets(args: &Sockets) -> Result<ExitCode> {
    if args.list {
        for case in case::all() {
            writeln!(std::io::stdout(), "{:<14} {:<9} {}", case.name, case.group, case.what)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut plan = Plan {
        rounds: args.repeat,
        seconds: args.seconds,
        budget: None,
        timeout: Duration::from_secs_f64(args.timeout),
        cases: chosen(&args.only, args.quick)?,
    };
    if args.quick {
        plan.rounds = plan.rounds.min(QUICK_ROUNDS);
        plan.seconds = plan.seconds.min(QUICK_SECONDS);
        plan.budget = Some(Duration::from_secs_f64(QUICK_BUDGET));
    }
    let samples = measure(&plan)?;
    let mut output = std::io::stdout().lock();
    if args.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&report::json(&samples))?)?;
    } else {
        output.write_all(report::text(&samples).as_bytes())?;
    }
    Ok(exit_code(&samples))
}

pub fn demo(args: &Demo) -> Result<ExitCode> {
    let mut output = std::io::stdout();
    writeln!(
        output,
        "Ordinary TCP programs, unchanged: over TCP, over Unix sockets where they can, and under `shortwire run`."
    )?;
    writeln!(output, "Every byte is checked by the programs that can (peers). This takes less than two minutes.\n")?;
    let plan = Plan {
        rounds: QUICK_ROUNDS,
        seconds: QUICK_SECONDS,
        budget: Some(Duration::from_secs_f64(args.budget)),
        timeout: Duration::from_secs(10),
        cases: chosen(&[], true)?,
    };
    let samples = measure(&plan)?;
    output.write_all(report::text(&samples).as_bytes())?;
    writeln!(output, "\nMeasure longer with `shortwire bench sockets`; see live connections with `shortwire ss`.")?;
    Ok(exit_code(&samples))
}

fn exit_code(samples: &Samples) -> ExitCode {
    if samples.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn chosen(only: &[String], quick: bool) -> Result<Vec<Case>> {
    if only.is_empty() {
        return Ok(case::all().into_iter().filter(|case| !(quick && case.long_only)).collect());
    }
    for name in only {
        if !case::all().iter().any(|case| case.is_called(name)) {
            bail!("there is no row {name}; `shortwire bench sockets --list` prints those there are");
        }
    }
    Ok(case::all().into_iter().filter(|case| only.iter().any(|name| case.is_called(name))).collect())
}

/// What runs later finds what the earlier left behind (closed connections, warm or cold caches): every second round
/// goes the other way.
fn in_turn(paths: &[case::Path], round: u32) -> Vec<case::Path> {
    let mut paths = paths.to_vec();
    if round % 2 == 1 {
        paths.reverse();
    }
    paths
}

/// Rounds outermost: what disturbs the machine for a while then disturbs all rows and paths alike.
fn measure(plan: &Plan) -> Result<Samples> {
    sys::catch_interrupts();
    let session = Session::new(plan.seconds, plan.timeout)?;
    let mut samples = Samples::new(session.machine());
    let mut cases = Vec::new();
    for case in &plan.cases {
        match case.missing() {
            None => cases.push(case),
            Some(reason) => samples.skip(case, &reason),
        }
    }
    let runs: usize = cases.iter().map(|case| case.paths.len()).sum();
    let progress = Progress::new(runs * plan.rounds as usize);
    let began = Instant::now();
    for round in 0..plan.rounds {
        let each = began.elapsed() / round.max(1);
        if round > 0 && plan.budget.is_some_and(|budget| began.elapsed() + each > budget) {
            progress.note(&format!("{round} rounds fit into the time"));
            break;
        }
        for case in &cases {
            for path in in_turn(case.paths, round) {
                let label = format!("round {}/{}: {} over {}", round + 1, plan.rounds, case.name, path.name());
                progress.begin(&label);
                if samples.has_failed(case, path) {
                    progress.end(&label, "not tried again");
                    continue;
                }
                let outcome = (case.run)(&session, path);
                if sys::interrupted() {
                    bail!("interrupted; everything that was started has been ended");
                }
                progress.end(&label, &samples.add(case, path, round, outcome));
            }
        }
        samples.rounds = round + 1;
    }
    samples.connections = session.seen();
    progress.finish();
    Ok(samples)
}
