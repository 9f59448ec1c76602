//! `shortwire loadtest`: the highest rate that passes between two interfaces.

use std::path::PathBuf;
use std::process::ExitCode;

use ::engine::arena;
use ::engine::stop::Signals;
use anyhow::{Context, Result, bail, ensure};
use measure::pending::Pending;
use serde::Serialize;
use terminal::units::{engineering, parse_seconds};

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

The first trial runs at --max, or without it as fast as the interface takes packets. A trial that \
passes although fewer packets were sent than it asked for, by more than --precision, is repeated, and then refused.")]
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
    let trials =
        search(args, highest, || signals.stop_requested(), |rate| bed.trial(rate, args.duration))?;
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

fn refusal(args: &Loadtest, trial: &Trial) -> String {
    let asked = engineering(trial.asked.unwrap_or(trial.rate));
    let (from, reached) = (&args.from, engineering(trial.rate));
    format!(
        "only {reached}pps of {asked}pps could be sent into {from}, without too much loss: what lies beyond was not tried. \
Leave --max out, or give {reached}pps, to search up to what the sender reaches; or give it a processor of its own (taskset), \
or longer trials (--duration)"
    )
}

/// A trial at the highest rate, then by halves.
fn search(
    args: &Loadtest,
    highest: f64,
    stopped: impl Fn() -> bool,
    trial: impl Fn(f64) -> Result<Trial>,
) -> Result<Vec<Trial>> {
    let mut trials: Vec<Trial> = Vec::new();
    let mut attempt = |rate: f64| -> Result<(f64, bool)> {
        for retry in 0..=args.retries {
            let trial = trial(rate)?;
            if stopped() {
                bail!("interrupted");
            }
            eprintln!("{}", trial.sentence());
            let (reached, passed) = (trial.rate, trial.loss_percent <= args.loss);
            // One that lost too much at a lower rate than asked has failed all the same.
            if passed && trial.fell_short(args.precision / 100.0) {
                if retry < args.retries {
                    continue;
                }
                bail!(refusal(args, &trial));
            }
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Loadtest,
    }

    fn args(more: &[&str]) -> Loadtest {
        let words = ["loadtest", "--from", "a", "--to", "b"];
        Line::parse_from(words.iter().chain(more)).args
    }

    /// A sender that reaches so much, and a way that lets so much through.
    fn searched(args: &Loadtest, highest: f64, sender: f64, way: f64) -> Result<Vec<Trial>> {
        search(
            args,
            highest,
            || false,
            |asked| {
                let rate = asked.min(sender);
                let loss_percent = (1.0 - way / rate).max(0.0) * 100.0;
                let asked = (asked < UNLIMITED).then_some(asked);
                let (sent, received) = (rate as u64, rate.min(way) as u64);
                Ok(Trial { asked, rate, sent, received, loss_percent, latency_us: None })
            },
        )
    }

    #[test]
    fn a_trial_that_offered_less_than_asked_is_refused() {
        let refused = searched(&args(&[]), 150e3, 62.2e3, 1e9).err().map(|e| e.to_string());
        let refused = refused.expect("an error");
        assert!(refused.contains("62.2kpps of 150kpps") && refused.contains("--max"), "{refused}");
        // Within the precision, without a limit, and where the loss speaks for itself it is not.
        assert_eq!(searched(&args(&[]), 150e3, 148e3, 1e9).unwrap().len(), 1);
        assert_eq!(searched(&args(&[]), UNLIMITED, 62.2e3, 1e9).unwrap().len(), 1);
        let trials = searched(&args(&[]), 150e3, 62.2e3, 30e3).unwrap();
        let best = trials.iter().filter(|trial| trial.loss_percent == 0.0);
        let best = best.map(|trial| trial.rate).fold(0.0, f64::max);
        assert!((28e3..=30e3).contains(&best), "{best}");
    }

    #[test]
    fn one_stall_of_the_sender_is_repeated_and_not_counted() {
        let calls = std::cell::Cell::new(0);
        let trials = search(
            &args(&["--retries", "1"]),
            1000.0,
            || false,
            |asked| {
                calls.set(calls.get() + 1);
                let sent = if calls.get() == 1 { 500 } else { 1000 };
                let rate = sent as f64;
                let asked = Some(asked);
                Ok(Trial { asked, rate, sent, received: sent, loss_percent: 0.0, latency_us: None })
            },
        );
        assert_eq!((calls.get(), trials.unwrap().len()), (2, 1));
    }

    #[test]
    fn the_packet_that_was_about_to_go_makes_no_trial_short() {
        let trial = |sent: u64| Trial {
            asked: Some(10.0),
            rate: sent as f64,
            sent,
            received: sent,
            loss_percent: 0.0,
            latency_us: None,
        };
        assert!(!trial(9).fell_short(0.0) && trial(8).fell_short(0.0));
    }
}
