//! `make check`: every step runs even if an earlier one failed, and the last line sums them all up.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::tally::Tally;
use crate::{aarch64, layering};

/// How a step's result is read.
enum Counts {
    /// The whole step is one test.
    AsOne,
    /// It runs tests and says how many.
    Tests,
}

struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    counts: Counts,
    /// Model checking builds everything anew with another configuration, and must not disturb the usual build.
    loom: bool,
}

const fn step(name: &'static str, counts: Counts, arguments: &'static [&'static str]) -> Step {
    Step { name, arguments, counts, loom: false }
}

const STEPS: &[Step] = &[
    step("format", Counts::AsOne, &["fmt", "--all", "--check"]),
    step("clippy", Counts::AsOne, &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    step(
        "unit tests and fuzz corpora",
        Counts::Tests,
        &["test", "--workspace", "--exclude", "system-tests", "--no-fail-fast"],
    ),
    Step {
        loom: true,
        ..step(
            "interleavings (loom)",
            Counts::Tests,
            &["test", "-p", "shm", "-p", "rsocket", "-p", "engine", "--test", "loom", "--release"],
        )
    },
    step(
        "whole system",
        Counts::Tests,
        &["test", "-p", "system-tests", "--release", "--no-fail-fast", "--", "--test-threads=1"],
    ),
];

pub fn run(root: &Path) -> Result<ExitCode> {
    let mut sum = Tally::default();
    announce("layering");
    sum.add(match layering::check(root) {
        Ok(()) => Tally::one_passed(),
        Err(error) => {
            eprintln!("{error:#}");
            Tally::one_failed("layering")
        }
    });
    for step in STEPS {
        sum.add(timed(step.name, || perform(root, step))?);
    }
    sum.add(timed(AARCH64, || on_aarch64(root))?);
    println!();
    for remark in &sum.remarks {
        println!("{remark}");
    }
    println!("{}", sum.closing_line());
    std::io::stdout().flush()?;
    Ok(if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const AARCH64: &str = "checksum on aarch64 (qemu)";

fn on_aarch64(root: &Path) -> Result<Tally> {
    match aarch64::command(crate::cargo()) {
        Ok(mut command) => {
            command.current_dir(root).stdin(Stdio::null());
            tests(AARCH64, command)
        }
        Err(why) => {
            println!("skipped: {AARCH64}: {why}");
            Ok(Tally { skipped: 1, remarks: vec![format!("skipped: {AARCH64}: {why}")], ..Tally::default() })
        }
    }
}

fn timed(name: &str, step: impl FnOnce() -> Result<Tally>) -> Result<Tally> {
    announce(name);
    let began = Instant::now();
    let tally = step()?;
    println!("-- {name}: {} ({:.0} s)", tally.closing_line(), began.elapsed().as_secs_f64());
    Ok(tally)
}

fn announce(name: &str) {
    println!("\n== {name}");
}

fn perform(root: &Path, step: &Step) -> Result<Tally> {
    let mut command = Command::new(crate::cargo());
    command.args(step.arguments).current_dir(root).stdin(Stdio::null());
    if step.loom {
        command.env("RUSTFLAGS", format!("{} --cfg loom", env::var("RUSTFLAGS").unwrap_or_default()));
        command.env("CARGO_TARGET_DIR", target(root).join("loom"));
    }
    match step.counts {
        Counts::Tests => tests(step.name, command),
        Counts::AsOne if watch(command).with_context(|| format!("cannot run the step {}", step.name))?.1 => {
            Ok(Tally::one_passed())
        }
        Counts::AsOne => Ok(Tally::one_failed(step.name)),
    }
}

fn tests(name: &str, command: Command) -> Result<Tally> {
    let (lines, succeeded) = watch(command).with_context(|| format!("cannot run the step {name}"))?;
    let mut tally = Tally::of(lines.iter().map(String::as_str));
    // It did not build, or a test took the whole runner down.
    if !succeeded && tally.failed == 0 {
        tally.add(Tally::one_failed(&format!("{name} (ended early)")));
    }
    Ok(tally)
}

fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Lets all output pass through, and keeps its lines.
fn watch(mut command: Command) -> Result<(Vec<String>, bool)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let lines = Mutex::new(Vec::new());
    let pass = |from: &mut dyn Read, mut to: Box<dyn Write>| {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let _ = to.write_all(&line).and_then(|()| to.flush());
            let text = String::from_utf8_lossy(&line).trim_end().to_string();
            lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(text);
            line.clear();
        }
    };
    let (mut output, mut errors) =
        (child.stdout.take().context("no output")?, child.stderr.take().context("no errors")?);
    thread::scope(|scope| {
        scope.spawn(|| pass(&mut errors, Box::new(std::io::stderr())));
        pass(&mut output, Box::new(std::io::stdout()));
    });
    let succeeded = child.wait()?.success();
    Ok((lines.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()), succeeded))
}
