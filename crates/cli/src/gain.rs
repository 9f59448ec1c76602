//! `shortwire gain`: runs a program, and says afterwards what it gained.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use connections::{Totals, kept};
use measure::bench::tree_of;
use measure::pending::Pending;
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use smc::reason::Reason;
use terminal::signals;
use terminal::units::{bytes, engineering};

use crate::{OWN_FAILURE, run};

mod cost;
mod watch;

use cost::Cost;
use watch::{Seen, Watch};

/// Between two looks at the program, from the first on.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// So many of the short ones.
const SHORT: u32 = 50;

#[derive(clap::Args)]
#[command(about = "Run a program under Shortwire and say what it gained")]
#[command(override_usage = "shortwire gain [OPTIONS] -- PROG [ARGS]...")]
#[command(
    after_help = "Runs PROG as `shortwire run` does and waits for its end. Then it says, on standard error, how many bytes and calls \
of PROG, and of what it started, did not pass the kernel, how many connections left TCP, why others did not, and how much processor time that \
saved. The time is an estimate: calls and bytes by what a message costs on this machine over TCP and through memory, measured at the end in a \
quarter of a second. What a program saves by not sleeping, and spends on spinning, is not in it.

The other end gains as much again, and counts by itself.

Options of `shortwire run` are given by their variables (SHORTWIRE_AFTER ...).

Examples:
  shortwire run -- redis-server &
  shortwire gain -- redis-benchmark -t get -n 1000000 -c 3
  shortwire gain --json -o gain.json -- ./job

Exit status: that of PROG, as with `shortwire run`; 125 also if FILE cannot be written. Of a program that could not be started nothing \
is said but why."
)]
pub struct Gain {
    /// Say it as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write it to a file, whole or not at all, and not among what PROG says on standard error
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Only say what a message costs in this process
    #[arg(long, hide = true)]
    pub measure: bool,
    /// The program and its arguments
    #[arg(value_name = "PROG", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// Of the JSON object.
const VERSION: u32 = 1;

/// Statuses by which `shortwire run` says that it could not start the program. It has said why.
const NOT_STARTED: [i32; 3] = [OWN_FAILURE as i32, 126, 127];

pub fn run(args: &Gain) -> ExitCode {
    observe(args).unwrap_or_else(|error| own_failure(&error))
}

fn own_failure(error: &anyhow::Error) -> ExitCode {
    eprintln!("shortwire gain: {error:#}");
    ExitCode::from(OWN_FAILURE)
}

fn observe(args: &Gain) -> Result<ExitCode> {
    if args.measure {
        terminal::outln!("{}", serde_json::to_string(&cost::here()?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before the program, which may run for hours.
    let pending = args.output.as_deref().map(Pending::create).transpose()?;
    let folder = tempfile::Builder::new().prefix("shortwire-gain-").tempdir()?;
    let (status, seconds, seen) = watched(args, folder.path())?;
    if seen.is_nothing() && status.code().is_some_and(|code| NOT_STARTED.contains(&code)) {
        return Ok(exit_code(status));
    }
    // The program has ended: its status counts, whatever becomes of the measurement.
    let this = std::env::current_exe()?;
    let over_tcp = cost::there(&[this.clone().into()]);
    let under = run::words().map(|words| [words, vec!["--".into(), this.into()]].concat());
    let through_memory = under.and_then(|words| cost::there(&words));
    let costs = match (over_tcp, through_memory) {
        (Ok(tcp), Ok(memory)) => Some((tcp, memory)),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("shortwire gain: {error:#}");
            None
        }
    };
    let said = if args.json {
        serde_json::to_string_pretty(&json(seconds, &seen, costs))? + "\n"
    } else {
        text(seconds, &seen, costs)
    };
    match pending.map(|pending| pending.commit(said.as_bytes())) {
        // Whoever reads may have gone.
        None => _ = std::io::stderr().write_all(said.as_bytes()),
        Some(Ok(())) => {}
        Some(Err(error)) => {
            let told = own_failure(&error);
            return Ok(if status.success() { told } else { exit_code(status) });
        }
    }
    Ok(exit_code(status))
}

/// Runs it to its end.
fn watched(args: &Gain, folder: &std::path::Path) -> Result<(ExitStatus, f64, Seen)> {
    let uid = rustix::process::geteuid().as_raw();
    let own_folder = std::env::var_os("SHORTWIRE_MAX_MEMORY_USER").is_none();
    if own_folder {
        kept::keep_in(folder, uid)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    let words = run::words()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("--").args(&args.program);
    if own_folder {
        command.env("SHORTWIRE_RUN_DIR", folder);
    }
    // Caught, and so again what they were behind exec.
    signals::catch_interrupts();
    let begun = Instant::now();
    let mut child = command.spawn().context("cannot start `shortwire run`")?;
    let mut watch = Watch::default();
    let status = follow(&mut child, &mut watch)?;
    let kept = if own_folder { kept::kept_in(folder) } else { Vec::new() };
    Ok((status, begun.elapsed().as_secs_f64(), watch.sum(&kept)))
}

fn follow(child: &mut Child, watch: &mut Watch) -> Result<ExitStatus> {
    let root = child.id();
    let mut looks = 0;
    loop {
        let tree = tree_of(root);
        watch.look(|pid| tree.contains(&pid));
        let pause = Instant::now() + LOOKS[usize::from(looks >= SHORT)];
        looks += 1;
        while Instant::now() < pause {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if let Some(signal) = signals::take().and_then(Signal::from_named_raw) {
                pass_on(signal, root);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Ctrl-C the terminal has told the program as well: one that takes its time to end would be told
/// twice, which means more to many.
fn pass_on(signal: Signal, root: u32) {
    let is_told = signal == Signal::INT
        && File::open("/dev/tty").is_ok_and(|tty| tcgetpgrp(tty).ok() == Some(getpgrp()));
    let program = i32::try_from(root).ok().and_then(Pid::from_raw).filter(|_| !is_told);
    let _ = program.map(|program| kill_process(program, signal));
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(code as u8)
}

/// Calls that did not pass the kernel, and doorbells, which did.
fn calls(seen: &Seen) -> (u64, u64) {
    let Totals { rx, tx, .. } = &seen.totals;
    (rx.calls + tx.calls, rx.doorbells + tx.doorbells)
}

fn moved(seen: &Seen) -> u64 {
    seen.totals.rx.bytes + seen.totals.tx.bytes
}

/// Seconds of processor time. A doorbell is a message of the kernel's.
fn saved(seen: &Seen, (tcp, memory): (Cost, Cost)) -> f64 {
    let (calls, doorbells) = calls(seen);
    tcp.seconds(calls, moved(seen)) - memory.seconds(calls, moved(seen)) - tcp.seconds(doorbells, 0)
}

fn json(seconds: f64, seen: &Seen, costs: Option<(Cost, Cost)>) -> serde_json::Value {
    let (calls, doorbells) = calls(seen);
    let reasons = seen.reasons.iter().map(|(&code, &count)| {
        let reason = Reason(code);
        serde_json::json!({ "reason": code, "name": reason.name(), "words": reason.words(), "count": count })
    });
    serde_json::json!({
        "version": VERSION,
        "seconds": seconds,
        "upgraded": seen.totals.client + seen.totals.server,
        "stayed_tcp": seen.reasons.values().sum::<u64>(),
        "reasons": reasons.collect::<Vec<_>>(),
        "memory_bytes": moved(seen),
        "memory_calls": calls,
        "doorbells": doorbells,
        "tcp_bytes": seen.tcp,
        "cost": costs.map(|(tcp, memory)| serde_json::json!({ "tcp": tcp, "memory": memory })),
        "saved_seconds": costs.map(|costs| saved(seen, costs)),
    })
}

fn text(seconds: f64, seen: &Seen, costs: Option<(Cost, Cost)>) -> String {
    let (calls, doorbells) = calls(seen);
    let count = |n: u64| if n < 10_000 { n.to_string() } else { engineering(n as f64) };
    let upgraded = seen.totals.client + seen.totals.server;
    let stayed: u64 = seen.reasons.values().sum();
    let mut text = format!("\nshortwire gain, in {seconds:.1} s:\n");
    let _ = writeln!(text, "  connections      {upgraded} left TCP, {stayed} did not");
    for (&code, &number) in &seen.reasons {
        let reason = Reason(code);
        let _ = writeln!(
            text,
            "                   {number} {}: {}. {}",
            reason.name(),
            reason.words(),
            reason.hint()
        );
    }
    let through = format!("{} in {} calls", bytes(moved(seen)), count(calls));
    let _ = writeln!(
        text,
        "  through memory   {through} that did not pass the kernel; {} doorbells did",
        count(doorbells)
    );
    let _ = writeln!(text, "  over TCP         {} seen", bytes(seen.tcp));
    let Some(costs) = costs else { return text };
    let (tcp, memory) = costs;
    let _ = writeln!(
        text,
        "  processor time   about {:.2} s saved: an estimate, by {:.0} ns for a message over TCP and {:.0} ns through memory, {:.2} and {:.2} ns for each byte",
        saved(seen, costs),
        tcp.message_ns,
        memory.message_ns,
        tcp.byte_ns,
        memory.byte_ns
    );
    if upgraded == 0 {
        let _ = writeln!(
            text,
            "  Nothing was gained: is the other end under `shortwire run` too? See `shortwire help doctor`."
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use connections::Flow;

    fn seen() -> Seen {
        let flow = Flow { bytes: 500_000, calls: 50_000, doorbells: 5_000, ..Flow::default() };
        let totals = Totals { client: 2, rx: flow.clone(), tx: flow, ..Totals::default() };
        Seen { totals, reasons: [(0x0999_1001, 3)].into(), tcp: 800 }
    }

    fn costs() -> (Cost, Cost) {
        let cost = |message_ns| Cost { message_ns, byte_ns: 0.0 };
        (cost(2000.0), cost(200.0))
    }

    #[test]
    fn what_is_saved_is_the_difference_less_the_doorbells() {
        // 100,000 calls are 50,000 messages of 1.8 us less; 10,000 doorbells 5,000 of 2 us.
        assert!((saved(&seen(), costs()) - 0.08).abs() < 1e-9);
        let json = json(1.5, &seen(), Some(costs()));
        assert_eq!((&json["memory_calls"], &json["stayed_tcp"]), (&100_000.into(), &3.into()));
        assert_eq!(json["reasons"][0]["name"], "NOT_YET");
    }

    #[test]
    fn it_is_said_as_an_estimate() {
        let said = text(1.5, &seen(), Some(costs()));
        for part in [
            "2 left TCP, 3 did not",
            "3 NOT_YET",
            "976.6K in 100k calls",
            "about 0.08 s saved: an estimate",
        ] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
        let nothing = text(1.5, &Seen::default(), None);
        assert!(!nothing.contains("saved"), "{nothing}");
    }

    #[test]
    fn the_status_is_the_programs() {
        let code = |raw| format!("{:?}", exit_code(ExitStatus::from_raw(raw)));
        assert_eq!(code(3 << 8), format!("{:?}", ExitCode::from(3)));
        assert_eq!(code(9), format!("{:?}", ExitCode::from(137)));
    }
}
