//! What `shortwire bench sockets`, `bench seed-table` and `demo` can be told.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use terminal::units::parse_seconds;

use crate::bench::catalogue;
use crate::bench::session::Pin;

#[derive(clap::Args)]
#[command(about = "Measure TCP programs over TCP, over Unix sockets, and under `shortwire run`")]
#[command(
    long_about = "Runs pairs of ordinary programs over TCP, over Unix sockets where they can, and under `shortwire run`, one after the \
other in turn, and prints the medians and their ratio. The programs are shortwire-peers (found beside this executable), and iperf3, sockperf, \
redis, nginx with wrk, haproxy, memcached, Node.js, Java, Go, Caddy, etcd and PostgreSQL where they are installed. The limit is two processes spinning on a bare \
ring in shared memory. Beside figures it prints latencies, the processor time of both sides per request or byte, and, where strace is \
installed, the system calls of nginx and redis per request, which are counted in short runs of their own.

Servers listen on free ports of 127.0.0.1, keep their files in a temporary directory and are ended, by process id, also on Ctrl-C."
)]
#[command(after_help = "Examples:
  shortwire bench sockets                     all rows, 5 rounds of 2 s each:
                                              about 20 minutes
  shortwire bench sockets --quick             the main rows, short, without the
                                              copying device
  shortwire bench sockets --only pingpong,redis --json > new.json
  shortwire bench sockets --only few --pin one --busy 8 --congestion reno
      a few connections, on one processor, beside load
  shortwire bench sockets --html page.html    the same tables and plots as a
                                              page for a browser
  shortwire bench sockets --compare old.json  measure, and tell what moved
                                              since that record
  shortwire bench sockets --compare old.json --gate
      the same, and fail if a row lost more than 5 % beyond its spread
  shortwire bench sockets --from new.json --compare old.json --html page.html
      of records, without measuring
  shortwire bench sockets --list              the names that --only takes

The ratio is the median over the rounds of Shortwire against TCP in the same round; above 1 Shortwire is better, also for latencies.
A bar is the ratio that the project promises. Only one bench should run on a machine at a time.")]
pub struct Sockets {
    /// How long each run takes
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds: each runs every row once per path
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Only these rows (or groups of rows), separated by commas
    #[arg(long, value_name = "ROW,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(catalogue::names()), hide_possible_values = true)]
    pub only: Vec<String>,
    /// 3 rounds of 1 s at most, ending after 100 s in all
    #[arg(long)]
    pub quick: bool,
    /// Where servers and clients run (as each row has it, if not said)
    #[arg(long, value_name = "WHERE", value_enum)]
    pub pin: Option<Pin>,
    /// Threads beside them that only compute
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub busy: u32,
    /// Congestion control, in a network namespace of the bench's own (needs root)
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Longest busy wait of `shortwire run`, in microseconds
    #[arg(long, value_name = "USEC", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: Option<u32>,
    /// Give up a run that takes this much longer than it should, and say which
    #[arg(long, value_name = "N", default_value = "20", value_parser = parse_seconds)]
    pub timeout: f64,
    /// Print the names that --only takes, and what each row runs
    #[arg(long)]
    pub list: bool,
    /// Print one JSON object: a record with every sample, the machine and the settings
    #[arg(long)]
    pub json: bool,
    /// Write a page with tables and plots, complete in one file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub html: Option<PathBuf>,
    /// Tell how far each row moved since this record (written with --json)
    #[arg(long, value_name = "OLD.json", value_hint = clap::ValueHint::FilePath)]
    pub compare: Option<PathBuf>,
    /// With --compare: fail if a main row lost more than 5 % beyond the spread, or was not measured
    #[arg(long, requires = "compare")]
    pub gate: bool,
    /// Show records instead of measuring; several, of different rows on one machine, as one
    #[arg(long, value_name = "FILE.json,...", value_delimiter = ',', value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["only", "quick", "seconds", "repeat"])]
    pub from: Vec<PathBuf>,
}

#[derive(clap::Args)]
#[command(about = "Redo the table of the patch that brought a loopback device for SMC-D")]
#[command(
    long_about = "Measures what \"[RFC PATCH net-next v2 0/5] net/smc: Introduce SMC-D based loopback acceleration\" (netdev, December 2022) \
measured: messages of 100 bytes, sockperf's bandwidth and latency, iperf3, nginx with wrk, each over TCP, over Unix sockets where the thread \
did, under `shortwire run --copy` and under `shortwire run`; and prints it beside the thread's figures and ratios."
)]
#[command(after_help = "Examples:
  shortwire bench seed-table  3 rounds of 2 s each: about 2 minutes
  shortwire bench seed-table --json > seed.json
  shortwire bench seed-table --from seed.json
      the table of a record, also of one of `bench sockets`")]
pub struct SeedTable {
    /// How long each run takes
    #[arg(long, value_name = "N", default_value = "2", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds: each runs every row once per path
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print one JSON object: a record as `bench sockets --json` prints it
    #[arg(long)]
    pub json: bool,
    /// Show records instead of measuring
    #[arg(long, value_name = "FILE.json,...", value_delimiter = ',', value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["seconds", "repeat"])]
    pub from: Vec<PathBuf>,
}

#[derive(clap::Args)]
#[command(about = "Show in under two minutes what Shortwire does on this machine")]
#[command(
    long_about = "Runs `bench sockets --quick` and explains what it shows. `make demo` builds first and then runs this."
)]
pub struct Demo {
    /// End after about this long
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_seconds)]
    pub budget: f64,
}
