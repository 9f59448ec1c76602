//! The command line of all subcommands. Man page and completions are generated from these definitions.

mod checksum;

use std::ffi::OsString;
use std::path::PathBuf;

pub use checksum::{Checksum, Tune, TuneChecksum, TuneCommand};
use clap::{Parser, Subcommand};

mod packets;
pub use packets::*;
mod rstream;
mod run;
pub use rstream::{Mode, Rstream, Transport};
pub use run::{Device, Run};
mod smc;
pub use smc::{Broker, Linkgroups, Seid, SeidCommand, Switch, TraceClc, Ueid, UeidCommand};

#[cfg(feature = "lua")]
mod shunt;
#[cfg(feature = "lua")]
pub use shunt::BenchShunt;

use crate::bench::session::Pin;
use crate::units::parse_seconds;

#[derive(Parser)]
#[command(name = "shortwire", version, max_term_width = 110, propagate_version = true)]
#[command(about = "TCP programs on one machine talk through shared memory, unchanged")]
#[command(long_about = "TCP programs on one machine talk through shared memory, unchanged.

Start both ends under `shortwire run`: their connections begin as ordinary TCP and, after a few messages, move their bytes \
through shared memory (SMC-D with a no-copy loopback device). A program whose peer does not take part stays on plain TCP \
and notices nothing. No root, no kernel module, no configuration.")]
#[command(after_help = "Examples:
  shortwire run -- redis-server &            a server that takes part
  shortwire run -- redis-benchmark -t get    its client: their bytes now go through shared memory
  shortwire ss                               which connections do, and why others do not
  shortwire bench sockets --quick            measure: TCP, Unix sockets, Shortwire

`shortwire help COMMAND` explains each command.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Run(Box<Run>),
    Ss(Ss),
    Stats(Stats),
    Info(Info),
    Devices(Devices),
    Linkgroups(Linkgroups),
    Broker(Broker),
    Ueid(Ueid),
    Seid(Seid),
    TraceClc(TraceClc),
    Doctor(Doctor),
    Bench(Bench),
    Tune(Tune),
    Demo(Demo),
    Engine(Box<Engine>),
    Packetblaster(Box<Packetblaster>),
    Loadtest(Box<Loadtest>),
    Rstream(Box<Rstream>),
    Top(Top),
    Ps(Ps),
    #[cfg(feature = "lua")]
    Snsh(crate::snsh::Snsh),
}

#[derive(clap::Args)]
#[command(about = "Show the connections of programs under Shortwire: which use shared memory, and why others do not")]
#[command(
    after_help = "Columns as in smcss. Mode is SMCD for a connection through shared memory, or TCP with the reason code of this end \
(and behind a slash that of the peer); below the table each reason is explained once, with what can be done.

Examples:
  shortwire ss              established connections
  shortwire ss -a           listeners too
  shortwire ss -d -W        buffers, cursors and flags; whole addresses
  shortwire ss -D           GIDs and link groups (see `shortwire linkgroups`)
  shortwire ss --json | jq '.connections[] | select(.mode == \"TCP\")'

Each end of a connection is a row of its own. Root sees all users' programs, others their own."
)]
pub struct Ss {
    /// Also listeners, and connections that are being set up
    #[arg(short, long)]
    pub all: bool,
    /// Only listeners
    #[arg(short, long, conflicts_with = "all")]
    pub listening: bool,
    /// Tokens, buffer sizes, cursors and flags of upgraded connections
    #[arg(short, long)]
    pub details: bool,
    /// GIDs, tokens and link group ids of upgraded connections, as smcss -D
    #[arg(short = 'D', long)]
    pub smcd: bool,
    /// Do not shorten addresses
    #[arg(short = 'W', long)]
    pub wide: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Show counters of programs under Shortwire")]
#[command(
    after_help = "Sections as in `smcd stats`. The counters of a program live as long as it (or a child it forked) does; both ends of a \
connection count.

Examples:
  shortwire stats
  shortwire stats --reset    count from now on (for this user; the programs' own counters go on)
  shortwire stats -a         count from each program's start, in spite of --reset"
)]
pub struct Stats {
    /// Also roles, link groups, and all fallback reasons
    #[arg(short, long)]
    pub details: bool,
    /// Ignore an earlier --reset
    #[arg(short, long)]
    pub absolute: bool,
    /// Begin counting anew
    #[arg(long)]
    pub reset: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Show what this installation and this machine can do")]
#[command(
    after_help = "Each kernel feature is tried, not guessed from a version number. What is missing costs speed, never correctness."
)]
pub struct Info {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Show the devices that connections can use, or take one away from running programs")]
#[command(
    long_about = "Shows the devices that connections can use. With --remove one of them goes away from programs that run: its link groups end, \
connections over it are reset (ECONNRESET, at both ends), and new ones use the next device, or TCP. A program that is started later has it."
)]
#[command(after_help = "Examples:
  shortwire devices
  shortwire devices --remove ism --pid 4711    from this process and what it forked
  shortwire devices --remove ism               from all of your programs")]
pub struct Devices {
    /// Take this device away from running programs
    #[arg(long, value_name = "DEVICE", value_enum, conflicts_with = "json")]
    pub remove: Option<Device>,
    /// ... from this process, and those that it shares its connections with by fork
    #[arg(long, requires = "remove")]
    pub pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Explain what keeps a program or a process from using shared memory")]
#[command(
    long_about = "Examines a program before it is started, or a running process, and says what keeps its connections on TCP, and what to do \
about it: static linking, rights gained at start, io_uring, system calls past the C library, a seccomp filter, another network namespace, a \
peer that does not take part.

What is only possible is a note; what keeps every connection on TCP is marked STOP, and the exit status is then 1."
)]
#[command(after_help = "Examples:
  shortwire doctor nginx
  shortwire doctor ./server
  shortwire doctor $(pidof -s redis-server)
  shortwire doctor 4711 --json")]
pub struct Doctor {
    /// Name or path of a program, or the id of a process
    #[arg(value_name = "PROG|PID")]
    pub subject: OsString,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Measure, beside what you would use otherwise")]
pub struct Bench {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    Sockets(Sockets),
    SeedTable(SeedTable),
    Engine(BenchEngine),
    Checksum(Checksum),
    Lock(Lock),
    #[cfg(feature = "lua")]
    Shunt(BenchShunt),
}

#[derive(clap::Args)]
#[command(about = "Measure fastlock against a pthread mutex, std's and parking_lot's")]
#[command(
    long_about = "Takes and releases each lock in turn, alone, against one and three other threads, and while signals arrive, and prints \
nanoseconds per pair: the median over the rounds, its spread, and how many times longer a rival takes than fastlock within a round. Every lock \
protects a counter, which is checked."
)]
pub struct Lock {
    /// How long each lock is measured per round
    #[arg(long, value_name = "N", default_value = "0.2", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Measure TCP programs over TCP, over Unix sockets, and under `shortwire run`")]
#[command(
    long_about = "Runs pairs of ordinary programs over TCP, over Unix sockets where they can, and under `shortwire run`, one after the \
other in turn, and prints the medians and their ratio. The programs are shortwire-peers (found beside this executable), and iperf3, sockperf, \
redis, nginx with wrk, haproxy, memcached, Node.js, Java and PostgreSQL where they are installed. The limit is two processes spinning on a bare \
ring in shared memory. Beside figures it prints latencies, the processor time of both sides per request or byte, and, where strace is \
installed, the system calls of nginx and redis per request, which are counted in short runs of their own.

Servers listen on free ports of 127.0.0.1, keep their files in a temporary directory and are ended, by process id, also on Ctrl-C."
)]
#[command(after_help = "Examples:
  shortwire bench sockets                              all rows, 5 rounds of 2 s each: about 20 minutes
  shortwire bench sockets --quick                      the main rows, short, without the copying device
  shortwire bench sockets --only pingpong,redis --json > new.json
  shortwire bench sockets --only few --pin one --busy 8 --congestion reno
                                                       a few connections, on one processor, beside load
  shortwire bench sockets --html page.html             the same tables and plots as a page for a browser
  shortwire bench sockets --compare old.json           measure, and tell what moved since that record
  shortwire bench sockets --from new.json --compare old.json --html page.html
                                                       of records, without measuring
  shortwire bench sockets --list                       the names that --only takes

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
    #[arg(long, value_name = "ROW,...", value_delimiter = ',')]
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
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Tell how far each row moved since this record (written with --json)
    #[arg(long, value_name = "OLD.json")]
    pub compare: Option<PathBuf>,
    /// Show records instead of measuring; several, of different rows on one machine, as one
    #[arg(long, value_name = "FILE.json,...", value_delimiter = ',', conflicts_with_all = ["only", "quick", "seconds", "repeat"])]
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
  shortwire bench seed-table                           3 rounds of 2 s each: about 2 minutes
  shortwire bench seed-table --json > seed.json
  shortwire bench seed-table --from seed.json          the table of a record, also of one of `bench sockets`")]
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
    #[arg(long, value_name = "FILE.json,...", value_delimiter = ',', conflicts_with_all = ["seconds", "repeat"])]
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
