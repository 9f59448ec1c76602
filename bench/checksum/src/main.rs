//! `shortwire-checksum-bench`: the measuring half of `shortwire bench checksum` and
//! `shortwire tune checksum`. It links the rivals, which the command does not, and prints raw
//! values; the command starts it and makes tables of them.

mod bound;
mod case;
mod clock;
mod deck;
mod event;
mod instructions;
mod lengths;
mod measure;
mod ours;
mod random;
mod region;
mod rivals;
mod rounds;
mod sum;
mod writer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use checksum::Kernel;
use checksum::kernel;
use checksum::prefetch::{Profile, set_profile};
use clap::Parser;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use case::Case;
use clock::Clock;
use event::{CaseResult, Counted, Event, Listed, Machine, print};
use measure::Session;
use rounds::Rounds;

/// Larger than the last cache of most machines, so that nothing of it is found there again.
const REGION: usize = 512 << 20;
const SMALLEST_REGION: usize = 64 << 20;

/// Measures checksums and prints one JSON object per line. `shortwire bench checksum` makes tables
/// of it.
#[derive(Parser)]
#[command(name = "shortwire-checksum-bench", version)]
struct Args {
    /// Only these cases or groups
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Only the cases of a short run
    #[arg(long)]
    quick: bool,
    /// The kernel that csum_partial uses
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Prefetch profile, as its text
    #[arg(long, value_name = "TEXT")]
    profile: Option<String>,
    /// Rounds of each case
    #[arg(long, value_name = "N", default_value_t = 301)]
    rounds: usize,
    /// No further round of a case after this long, in seconds
    #[arg(long, value_name = "N", default_value_t = 3.0)]
    limit: f64,
    /// Count instructions per call instead, which takes no quiet machine
    #[arg(long)]
    instructions: bool,
    /// Print the cases and end
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let outcome = run(&Args::parse());
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // If nobody reads any more there is nobody to tell.
    let _ = print(&Event::Error { message: &format!("{error:#}") });
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<()> {
    if args.list {
        let listed = |case: Case| Listed {
            name: case.name,
            group: case.group,
            table: case.table,
            column: case.column,
            on_demand: case.on_demand,
        };
        let cases: Vec<Listed> = case::all().into_iter().map(listed).collect();
        return Ok(print(&Event::Cases { cases: &cases })?);
    }
    if args.instructions {
        return count_instructions(args);
    }
    let cases = case::chosen(&args.only, args.quick)?;
    if let Some(name) = &args.kernel {
        kernel::select(Kernel::by_name(name)?)?;
    }
    let profile = match &args.profile {
        Some(text) => Profile::parse(text)?,
        None => Profile::built_in(),
    };
    set_profile(profile);
    let (measuring_cpu, writing_cpu) = two_cpus();
    if let Some(cpu) = measuring_cpu {
        pin(cpu);
    }
    let rounds = Rounds::new(Clock::calibrate(), args.rounds, Duration::from_secs_f64(args.limit));
    let clock = rounds.clock;
    let mut session = Session::new(rounds, region_bytes(), profile, writing_cpu)?;
    let machine = Machine {
        counter_ghz: clock.counter_ghz(),
        core_ghz: clock.core_ghz(),
        measuring_cpu,
        writing_cpu,
        region_bytes: session.region.bytes().len(),
        compiled_for: compiled_for(),
    };
    let estimate_seconds =
        cases.iter().map(|case| measure::estimate(case, args.rounds, args.limit)).sum();
    let (absent, kernel) = (rivals::all().1, Kernel::active().name());
    print(&Event::Start {
        machine: &machine,
        kernel,
        absent: &absent,
        cases: cases.len(),
        estimate_seconds,
    })?;
    for case in &cases {
        print(&Event::Begin { case: &case.name })?;
        if let Some(reason) = session.obstacle(case) {
            print(&Event::Skipped { case: &case.name, reason })?;
            continue;
        }
        let outcome = session.measure(case).with_context(|| format!("case {}", case.name))?;
        print(&Event::Result(CaseResult {
            case: &case.name,
            group: case.group,
            table: &case.table,
            column: &case.column,
            bytes: case.mean_length(),
            routines: outcome.measured.figures,
            dropped: outcome.measured.dropped,
            disturbed: outcome.measured.disturbed,
            additions_per_cycle: outcome.measured.additions_per_cycle,
            writer_gbps: outcome.writer_gbps,
        }))?;
    }
    Ok(print(&Event::End)?)
}

fn count_instructions(args: &Args) -> Result<()> {
    if let Some(name) = &args.kernel {
        kernel::select(Kernel::by_name(name)?)?;
    }
    let (rivals, absent) = rivals::all();
    let routines: Vec<_> =
        [ours::dispatched()].into_iter().chain(ours::kernels()).chain(rivals).collect();
    let counts = instructions::count(&routines, &instructions::LENGTHS).context(
        "cannot count instructions, for which a process must be allowed to trace a child of its own",
    )?;
    let routines = routines.iter().zip(counts);
    let routines: Vec<_> = routines
        .map(|(routine, counts)| Counted { name: &routine.name, role: routine.role, counts })
        .collect();
    let (lengths, kernel) = (&instructions::LENGTHS[..], Kernel::active().name());
    Ok(print(&Event::Instructions { kernel, lengths, routines, absent: &absent })?)
}

/// The last allowed processor measures: interrupts tend to go to the first.
fn two_cpus() -> (Option<usize>, Option<usize>) {
    let Ok(allowed) = sched_getaffinity(None) else { return (None, None) };
    let mut cpus = (0..CpuSet::MAX_CPU).rev().filter(|&cpu| allowed.is_set(cpu));
    (cpus.next(), cpus.next())
}

/// The calling thread. Where that is not allowed, the figures are less steady and as right.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// A quarter of what is free, so that a small machine does not swap.
fn region_bytes() -> usize {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok()
    });
    available.map_or(REGION, |kib| (kib * 1024 / 4).clamp(SMALLEST_REGION, REGION))
}

fn compiled_for() -> String {
    let level = if cfg!(target_feature = "avx512bw") {
        " with AVX-512"
    } else if cfg!(target_feature = "avx2") {
        " with AVX2"
    } else {
        ""
    };
    format!("{}{level}", std::env::consts::ARCH)
}
