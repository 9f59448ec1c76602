//! `shortwire bench engine`: the packet engine in memory, beside itself, on interfaces and beside
//! others.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use terminal::signals;
use terminal::units::parse_seconds;

use super::machine::Machine;
use super::progress::Progress;
use super::rows::{self, Figures};
use crate::processors::two_cpus;

mod bare;
mod blaster;
mod cost;
mod depth;
mod further;
mod instances;
mod interfaces;
mod memory;
mod namespace;
mod report;
mod rivals;
mod snabb;

/// What `--quick` makes of the options.
const QUICK_SECONDS: f64 = 0.3;
const QUICK_ROUNDS: u32 = 3;

#[derive(clap::Args)]
#[command(about = "Measure the engine: in memory, on interfaces, beside others")]
#[command(
    long_about = "Measures networks of apps in memory (in millions of packets per second that sources send), one app alone and beside others, and \
interfaces in a network namespace of its own beside what the kernel itself can move there. dpdk-testpmd runs in the same round where it \
is installed, and Snabb where its program is named."
)]
#[command(after_help = "Examples:
  shortwire bench engine
  shortwire bench engine --quick --only memory,instances
  sudo shortwire bench engine --only interfaces --json")]
pub struct BenchEngine {
    /// How long each run takes
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds: each runs every row once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Only these groups
    #[arg(long, value_name = "GROUP,...", value_enum, value_delimiter = ',')]
    pub only: Vec<EngineGroup>,
    /// 3 rounds of 0.3 s
    #[arg(long)]
    pub quick: bool,
    /// Snabb's program: it forwards between the same interfaces, and runs the same script and filters
    #[arg(long, value_name = "PROGRAM", env = "SHORTWIRE_SNABB_PROGRAM")]
    pub snabb: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum EngineGroup {
    /// Networks in memory, one and two threads
    Memory,
    /// One app alone, and beside instances of itself and of other kinds
    Instances,
    /// AF_XDP on veth pairs beside the kernel's own ceiling, and the processor time of checksums there
    Interfaces,
    /// dpdk-testpmd with devices in memory
    Rivals,
    /// The packet blaster on a capture of one packet
    Blaster,
    /// Apps in Lua in a row, entered together and one by one, and filters by their length
    Depth,
}

/// One thing to run: millions of packets per second of one network, or of several in turns, over so
/// many seconds; or what has another unit.
struct Run {
    name: String,
    unit: &'static str,
    measure: Box<dyn Fn(f64) -> Result<Rates>>,
}

/// By what was measured.
type Rates = Vec<(String, f64)>;

impl Run {
    fn new(name: impl Into<String>, measure: impl Fn(f64) -> Result<f64> + 'static) -> Run {
        let name = name.into();
        Run::several(name.clone(), move |seconds| Ok(vec![(name.clone(), measure(seconds)?)]))
    }

    fn several(name: impl Into<String>, measure: impl Fn(f64) -> Result<Rates> + 'static) -> Run {
        Run { name: name.into(), unit: "Mpps", measure: Box::new(measure) }
    }

    fn in_unit(self, unit: &'static str) -> Run {
        Run { unit, ..self }
    }
}

pub fn run(args: &BenchEngine) -> Result<ExitCode> {
    signals::catch_interrupts();
    let (rounds, seconds) = match args.quick {
        true => (args.repeat.min(QUICK_ROUNDS), args.seconds.min(QUICK_SECONDS)),
        false => (args.repeat, args.seconds),
    };
    let wants = |group| args.only.is_empty() || args.only.contains(&group);
    let machine = Machine::describe(two_cpus());
    let mut runs = Vec::new();
    let mut skipped = Vec::new();
    let mut add = |name: &str, made: Result<Vec<Run>>| match made {
        Ok(more) => runs.extend(more),
        Err(error) => skipped.push((name.to_string(), format!("{error:#}"))),
    };
    if wants(EngineGroup::Memory) {
        add("memory", Ok(memory::shapes()));
        add("two threads", memory::threads());
    }
    if wants(EngineGroup::Instances) {
        add("instances", instances::runs());
        add("apps at work", Ok(further::runs()));
    }
    // Beside the shapes that they are compared with.
    if wants(EngineGroup::Rivals) {
        add("dpdk-testpmd", rivals::testpmd());
    }
    if wants(EngineGroup::Interfaces) {
        add("interfaces", interfaces::runs());
        add("Snabb", interfaces::snabb(args.snabb.as_deref()));
        add("time per KB", cost::runs());
    }
    if wants(EngineGroup::Blaster) {
        add("packetblaster in memory", blaster::in_memory());
        add("packetblaster on interfaces", blaster::to_interfaces());
    }
    if wants(EngineGroup::Depth) {
        add("apps in Lua and filters", depth::runs());
        add("Snabb's apps in Lua and filters", snabb::runs(args.snabb.as_deref()));
    }
    let mut figures = measure(&runs, rounds, seconds)?;
    figures.skipped.extend(skipped);
    let table = report::rows(&figures);
    let mut output = std::io::stdout().lock();
    if args.json {
        writeln!(
            output,
            "{}",
            serde_json::to_string_pretty(&rows::json("engine", &machine, &table, &figures))?
        )?;
    } else {
        output.write_all(rows::text(report::NOTE, &machine, &table, &figures).as_bytes())?;
    }
    Ok(if figures.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Rounds outermost, so that what disturbs the machine disturbs all rows alike; every second one
/// goes the other way, so that what is compared is not always in the same order.
fn measure(runs: &[Run], rounds: u32, seconds: f64) -> Result<Figures> {
    let mut figures = Figures::new(rounds);
    let progress = Progress::new(runs.len() * rounds as usize);
    let forth: Vec<&Run> = runs.iter().collect();
    let back: Vec<&Run> = runs.iter().rev().collect();
    for round in 0..rounds {
        for run in if round % 2 == 0 { &forth } else { &back } {
            if figures.has_failed(&run.name) {
                continue;
            }
            let label = format!("round {}/{rounds}: {}", round + 1, run.name);
            progress.begin(&label);
            let outcome = (run.measure)(seconds);
            signals::go_on_unless_interrupted("; nothing that was made for it is left")?;
            match outcome {
                Ok(rates) => {
                    let told: Vec<String> =
                        rates.iter().map(|(_, rate)| format!("{rate:.2}")).collect();
                    progress.end(&label, &format!("{} {}", told.join(" "), run.unit));
                    rates.iter().for_each(|(name, rate)| figures.add(name, *rate));
                }
                Err(error) => {
                    progress.end(&label, &format!("FAILED: {error:#}"));
                    figures.failed.push((run.name.clone(), format!("{error:#}")));
                }
            }
        }
    }
    progress.finish();
    Ok(figures)
}
