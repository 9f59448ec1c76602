//! `shortwire loadtest`: the highest rate that passes between two interfaces.

use std::path::PathBuf;
use std::process::ExitCode;

use ::engine::arena;
use ::engine::stop::Signals;
use anyhow::{Context, Result, bail, ensure};
use measure::pending::Pending;
use serde::Serialize;
use terminal::units::parse_seconds;

use crate::packetblaster::frames::{self, Frames};
use crate::packetblaster::{Rate, packets_per_second, parse_rate};

mod bisect;
mod plot;
mod trial;

use bisect::Search;
use trial::{Bed, Trial};

/// More than any interface can, to find out what the sender reaches.
const UNLIMITED: f64 = 1e9;

#[derive(Serialize)]
struct Outcome<'a> {
    from: &'a str,
    to: &'a str,
    loss_limit_percent: f64,
    /// Highest rate within the limit, in packets per second; null if no rate was.
    packets_per_second: Option<f64>,
    bits_per_second: Option<f64>,
    trials: &'a [Trial],
}

#[derive(clap::Args)]
#[command(about = "Find the highest rate that passes between two interfaces")]
#[command(
    long_about = "Sends made-up packets into one interface and counts them at another, through whatever lies between. Bisects the rate for the \
highest one whose loss is at most the limit (RFC 2544 section 26.1), and measures the latency at each rate by packets that carry the \
time at which they were sent."
)]
#[command(after_help = "Examples:
  shortwire loadtest --from eth1 --to eth2
  shortwire loadtest --from eth1 --to eth2 --max 10Gb/s --loss 0.1 \\
      --sizes 512 --plot load.svg

The first trial runs at --max, or without it as fast as the interface takes packets. A rate that the sender itself cannot reach is \
reported as such.")]
pub struct Loadtest {
    /// Interface to send into
    #[arg(long, value_name = "NAME")]
    pub from: String,
    /// Interface at which packets arrive
    #[arg(long, value_name = "NAME")]
    pub to: String,
    /// Highest rate to try (default: what the sender can)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub max: Option<Rate>,
    /// Loss that still passes, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub loss: f64,
    /// Stop when the limit is known to this share of the highest rate, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    pub precision: f64,
    /// Length of a trial
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_seconds)]
    pub duration: f64,
    /// Repeat a failed trial so often before its rate counts as too high
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub retries: u32,
    /// Draw rate, loss and latency into this SVG file
    #[arg(long, value_name = "FILE.svg", value_hint = clap::ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub frames: Frames,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Loadtest) -> Result<ExitCode> {
    ensure!((0.0..100.0).contains(&args.loss), "--loss is a percentage from 0 to below 100");
    ensure!((0.01..50.0).contains(&args.precision), "--precision is a percentage from 0.01 to 50");
    ensure!(args.from != args.to, "--from and --to are two interfaces");
    let built = frames::synth(&args.frames)?;
    let offset = frames::payload_offset(&args.frames);
    let room = built.iter().map(|frame| frame.len() - offset).min().unwrap_or(0);
    let shortest = offset + frames::STAMP + 4;
    ensure!(
        room >= frames::STAMP,
        "packets need room for the time they were sent: use --sizes {shortest} or more"
    );
    arena::set_slots(arena::DEFAULT_SLOTS.max(2 * built.len() + 32768))?;
    let signals = Signals::catch().context("cannot catch signals")?;
    // Before minutes of trials.
    let plot = args.plot.as_deref().map(Pending::create).transpose()?;
    let bed = Bed::open(args, &built, offset)?;
    let highest = args.max.map_or(UNLIMITED, |rate| packets_per_second(rate, &built));
    let trials = search(args, highest, &signals, |rate| bed.trial(rate, args.duration))?;
    bed.close()?;
    let best = trials
        .iter()
        .filter(|trial| trial.loss_percent <= args.loss)
        .max_by(|a, b| a.rate.total_cmp(&b.rate));
    let mean = built.iter().map(|frame| frame.len() + frames::ON_WIRE).sum::<usize>() as f64
        / built.len() as f64;
    let outcome = Outcome {
        from: &args.from,
        to: &args.to,
        loss_limit_percent: args.loss,
        packets_per_second: best.map(|best| best.rate),
        bits_per_second: best.map(|best| best.rate * mean * 8.0),
        trials: &trials,
    };
    if args.json {
        crate::json::print(&outcome)?;
    } else {
        terminal::out!("{}", plot::text(&outcome))?;
    }
    if let Some(plot) = plot {
        plot.commit(plot::svg(&trials, best)?.as_bytes())?;
    }
    Ok(if best.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A trial at the highest rate, then by halves.
fn search(
    args: &Loadtest,
    highest: f64,
    signals: &Signals,
    trial: impl Fn(f64) -> Result<Trial>,
) -> Result<Vec<Trial>> {
    let mut trials: Vec<Trial> = Vec::new();
    let mut attempt = |rate: f64| -> Result<(f64, bool)> {
        for retry in 0..=args.retries {
            let trial = trial(rate)?;
            if signals.stop_requested() {
                bail!("interrupted");
            }
            eprintln!("{}", trial.sentence());
            let (reached, passed) = (trial.rate, trial.loss_percent <= args.loss);
            trials.push(trial);
            if passed || retry == args.retries {
                return Ok((reached, passed));
            }
        }
        unreachable!("the last retry returns")
    };
    let (reached, passed) = attempt(highest)?;
    if !passed {
        // Above what the sender reached there is nothing to be found.
        let mut search = Search::new(reached.min(highest), args.precision / 100.0);
        while let Some(rate) = search.next() {
            let (_, passed) = attempt(rate)?;
            search.tell(passed);
        }
    }
    Ok(trials)
}
