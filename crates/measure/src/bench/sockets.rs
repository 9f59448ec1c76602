//! Runs rows over their paths, and shows what came of it.

mod args;

use std::fs;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
pub use args::{Demo, SeedTable, Sockets};
use terminal::screen::{self, wrapped};
use terminal::signals;

use super::case::{Case, Path};
use super::progress::Progress;
use super::samples::{Samples, Settings};
use super::session::{Conditions, Session};
use super::{calls, catalogue, compare, html, peers, record, report, seed};
use crate::Run;
use crate::pending::Pending;
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
    paths: &'static [Path],
    counts_calls: bool,
    conditions: Conditions,
}

/// The thread's columns.
const SEED_PATHS: &[Path] = &[Path::Tcp, Path::Unix, Path::Copy, Path::Shortwire];
/// A quick look has no time for the copying device.
const QUICK_PATHS: &[Path] = &[Path::Tcp, Path::Unix, Path::Shortwire, Path::BareRing];

pub fn sockets(args: &Sockets, run: Run) -> Result<ExitCode> {
    if args.list {
        for case in catalogue::all() {
            writeln!(std::io::stdout(), "{:<16} {:<9} {}", case.name, case.group, case.what)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Before minutes of measuring: what cannot be read or written then would be a pity.
    let page = args.html.as_deref().map(Pending::create).transpose()?;
    let old = args.compare.as_deref().map(record::read).transpose()?;
    let samples = if args.from.is_empty() {
        measure(&plan(args)?, run)?
    } else {
        record::read_all(&args.from)?
    };
    let mut output = std::io::stdout().lock();
    if args.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&record::object(&samples))?)?;
    } else {
        output.write_all(report::text(&samples, screen::width()).as_bytes())?;
    }
    // Behind the table, which is there whatever becomes of the file.
    if let Some(page) = page {
        page.commit(html::page(&samples).as_bytes())?;
    }
    if let Some(old) = &old {
        let text = compare::text(old, &samples);
        if args.json {
            std::io::stderr().write_all(text.as_bytes())?
        } else {
            output.write_all(text.as_bytes())?
        }
    }
    if let Some(old) = old.filter(|_| args.gate) {
        let lost = compare::lost(&old, &samples)?;
        ensure!(lost.is_empty(), "lost beyond the spread:\n  {}", lost.join("\n  "));
    }
    Ok(exit_code(&samples))
}

pub fn seed_table(args: &SeedTable, run: Run) -> Result<ExitCode> {
    let plan = Plan {
        rounds: args.repeat,
        seconds: args.seconds,
        budget: None,
        timeout: Duration::from_secs(20),
        cases: catalogue::all().into_iter().filter(|case| seed::has(case.name)).collect(),
        paths: SEED_PATHS,
        counts_calls: false,
        conditions: Conditions::default(),
    };
    let samples =
        if args.from.is_empty() { measure(&plan, run)? } else { record::read_all(&args.from)? };
    let mut output = std::io::stdout().lock();
    if args.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&record::object(&samples))?)?;
    } else {
        output.write_all(seed::text(&samples).as_bytes())?;
    }
    Ok(exit_code(&samples))
}

pub fn demo(args: &Demo, run: Run) -> Result<ExitCode> {
    let mut output = std::io::stdout();
    let width = screen::width();
    let what = "Ordinary TCP programs, unchanged: over TCP, over Unix sockets where they can, and under `shortwire run`. \
Every byte is checked by the programs that can (peers). This takes less than two minutes.";
    writeln!(output, "{}", wrapped(what, width, ""))?;
    let plan = Plan {
        rounds: QUICK_ROUNDS,
        seconds: QUICK_SECONDS,
        budget: Some(Duration::from_secs_f64(args.budget)),
        timeout: Duration::from_secs(10),
        cases: chosen(&[], true),
        paths: QUICK_PATHS,
        counts_calls: false,
        conditions: Conditions::default(),
    };
    let samples = measure(&plan, run)?;
    output.write_all(report::text(&samples, width).as_bytes())?;
    let more =
        "Measure longer with `shortwire bench sockets`; see live connections with `shortwire ss`.";
    write!(output, "\n{}", wrapped(more, width, ""))?;
    Ok(exit_code(&samples))
}

fn plan(args: &Sockets) -> Result<Plan> {
    let timeout = Duration::from_secs_f64(args.timeout);
    let cases = chosen(&args.only, args.quick);
    let (rounds, seconds) = (args.repeat, args.seconds);
    let conditions = Conditions {
        pin: args.pin,
        busy: args.busy,
        congestion: args.congestion.clone(),
        spin: args.spin,
    };
    Ok(if args.quick {
        Plan {
            rounds: rounds.min(QUICK_ROUNDS),
            seconds: seconds.min(QUICK_SECONDS),
            budget: Some(Duration::from_secs_f64(QUICK_BUDGET)),
            timeout,
            cases,
            paths: QUICK_PATHS,
            counts_calls: false,
            conditions,
        }
    } else {
        Plan {
            rounds,
            seconds,
            budget: None,
            timeout,
            cases,
            paths: &Path::ALL,
            counts_calls: true,
            conditions,
        }
    })
}

fn exit_code(samples: &Samples) -> ExitCode {
    if samples.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Those of these names, which the command line knows; all, if there are none.
fn chosen(only: &[String], quick: bool) -> Vec<Case> {
    let mut cases = catalogue::all();
    cases.retain(|case| {
        if only.is_empty() {
            !(quick && case.long_only)
        } else {
            only.iter().any(|name| case.is_called(name))
        }
    });
    cases
}

/// What runs later finds what the earlier left behind (closed connections, warm or cold caches):
/// every second round goes the other way.
fn in_turn(case: &Case, plan: &Plan, round: u32) -> Vec<Path> {
    let mut paths: Vec<Path> =
        case.paths.iter().copied().filter(|path| plan.paths.contains(path)).collect();
    if round % 2 == 1 {
        paths.reverse();
    }
    paths
}

/// Rounds outermost: what disturbs the machine for a while then disturbs all rows and paths alike.
fn measure(plan: &Plan, run: Run) -> Result<Samples> {
    signals::catch_interrupts();
    if let Some(name) = &plan.conditions.congestion {
        enter_network(name)?;
    }
    // Refused here, before minutes of measuring, if there is no library.
    let mut session = Session::new(plan.seconds, plan.timeout, run()?)?;
    // Before anything of ours keeps it busy.
    let machine = session.machine().warned();
    let _others = match plan.conditions.busy {
        0 => None,
        threads => Some(peers::busy_threads(&session, threads)?),
    };
    session.conditions = plan.conditions.clone();
    let mut samples = Samples::new(machine, settings(plan));
    let mut cases = Vec::new();
    for case in &plan.cases {
        match case.missing() {
            None => cases.push(case),
            Some(reason) => samples.skip(case.name, &reason),
        }
    }
    let counted = counted(plan, &session, &cases, &mut samples);
    let runs: usize = cases.iter().map(|case| in_turn(case, plan, 0).len()).sum();
    let progress = Progress::new(runs * plan.rounds as usize + counted.len());
    let began = Instant::now();
    for round in 0..plan.rounds {
        let each = began.elapsed() / round.max(1);
        if round > 0 && plan.budget.is_some_and(|budget| began.elapsed() + each > budget) {
            progress.note(&format!("{round} rounds fit into the time"));
            break;
        }
        for case in &cases {
            session.begin(case);
            for path in in_turn(case, plan, round) {
                let label = format!(
                    "round {}/{}: {} over {}",
                    round + 1,
                    plan.rounds,
                    case.name,
                    path.name()
                );
                progress.begin(&label);
                if samples.has_failed(case, path) {
                    progress.end(&label, "not tried again");
                    continue;
                }
                let outcome = (case.run)(&session, path);
                stop_if_interrupted()?;
                progress.end(&label, &samples.add(case, path, round, outcome));
            }
        }
        samples.rounds = round + 1;
    }
    samples.take_connections(session.seen());
    for (case, path) in counted {
        session.begin(case);
        let label = format!("counting system calls: {} over {}", case.name, path.name());
        progress.begin(&label);
        let outcome = calls::per_request(&mut session, case, path);
        stop_if_interrupted()?;
        progress.end(&label, &samples.add_calls(case, path, outcome));
    }
    progress.finish();
    Ok(samples)
}

/// A network namespace of this process alone, with this congestion control. Before any other thread
/// begins.
fn enter_network(congestion: &str) -> Result<()> {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    sys::new_network_namespace()
        .context("--congestion needs a network namespace, and that needs root")?;
    let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    ensure!(
        up.context("cannot run ip (package iproute2)")?.success(),
        "cannot set up the loopback interface"
    );
    fs::write("/proc/sys/net/ipv4/tcp_congestion_control", congestion).with_context(|| {
        format!("this kernel takes no congestion control {congestion}; it knows {}", known.trim())
    })
}

/// Before and after: over TCP and over Shortwire.
fn counted<'a>(
    plan: &Plan,
    session: &Session,
    cases: &[&'a Case],
    samples: &mut Samples,
) -> Vec<(&'a Case, Path)> {
    let cases: Vec<&Case> =
        cases.iter().copied().filter(|case| plan.counts_calls && case.counts_calls).collect();
    if cases.is_empty() {
        return Vec::new();
    }
    match calls::Counter::find(session) {
        Some(counter) => samples.settings.calls_counted_by = Some(counter.name().into()),
        None => {
            samples.skip("system calls per request", "perf not allowed, strace not installed");
            return Vec::new();
        }
    }
    cases.into_iter().flat_map(|case| [(case, Path::Tcp), (case, Path::Shortwire)]).collect()
}

fn stop_if_interrupted() -> Result<()> {
    Ok(signals::go_on_unless_interrupted("; everything that was started has been ended")?)
}

fn settings(plan: &Plan) -> Settings {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Settings {
        command: format!("shortwire {}", arguments.join(" ")),
        unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        seconds: plan.seconds,
        repeat: plan.rounds,
        calls_counted_by: None,
    }
}
