//! The command line of all subcommands. Man page and completions are generated from these definitions.

mod checksum;

use std::ffi::OsString;
use std::path::PathBuf;

pub use checksum::{Checksum, Tune, TuneChecksum, TuneCommand};
use clap::builder::FalseyValueParser;
use clap::{Parser, Subcommand, ValueEnum};

mod packets;
pub use packets::*;
mod rstream;
pub use rstream::{Mode, Rstream, Transport};

#[cfg(feature = "lua")]
mod shunt;
#[cfg(feature = "lua")]
pub use shunt::BenchShunt;

use crate::units::{parse_dmb_size, parse_seconds, parse_size};

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
#[command(about = "Run a program so that its TCP connections can move to shared memory")]
#[command(override_usage = "shortwire run [OPTIONS] -- PROG [ARGS]...")]
#[command(
    long_about = "Runs PROG with the Shortwire library loaded into it. The program becomes this process: its process id, signals, \
terminal and exit status are its own. Connections to programs that also run under `shortwire run` on this machine move to shared \
memory; all others stay plain TCP.

Each option has an environment variable that the library reads, so a setting can also be made once for a whole session."
)]
#[command(after_help = "Examples:
  shortwire run -- nginx -g 'daemon off;'
  shortwire run --dmb-size 256K -- iperf3 -s
  SHORTWIRE_SPIN=0 shortwire run -- ./server     never busy-wait
  shortwire run --disable -- ./server            load the library but change nothing
  shortwire run --rsocket -- rstream             a program for rsockets, without RDMA hardware

Exit status: that of PROG; 125 if shortwire itself failed, 126 if PROG cannot be executed, 127 if it is not found.

Programs that cannot take part, and run as plain TCP with a warning: statically linked ones, setuid ones, Go programs \
(they do not call the C library).")]
pub struct Run {
    /// Upgrade a connection after this many sends and receives on it
    #[arg(long, value_name = "K", env = "SHORTWIRE_AFTER", hide_env_values = true)]
    #[arg(
        long_help = "Upgrade a connection after this many sends and receives on it (library default: 4). Short connections never reach it and cost nothing."
    )]
    pub after: Option<u32>,
    /// ... or after this many bytes, whichever comes first
    #[arg(long, value_name = "BYTES", env = "SHORTWIRE_AFTER_BYTES", hide_env_values = true, value_parser = parse_size)]
    #[arg(long_help = "Upgrade after this many bytes if that comes first (library default: 64K).")]
    pub after_bytes: Option<u64>,
    /// Size of the receive buffer of each connection: 16K to 16M, a power of two
    #[arg(long, value_name = "SIZE", env = "SHORTWIRE_DMB_SIZE", hide_env_values = true, value_parser = parse_dmb_size)]
    #[arg(
        long_help = "Size of the receive buffer of each connection: 16K to 16M, a power of two. If not said: 4M for the first four of a process, 1M up to sixteen, 256K up to 1024, 64K beyond."
    )]
    pub dmb_size: Option<u64>,
    /// Memory that the receive buffers of all connections may take together
    #[arg(long, value_name = "SIZE", env = "SHORTWIRE_MAX_MEMORY", hide_env_values = true, value_parser = parse_size)]
    #[arg(
        long_help = "Memory that the receive buffers of a process may take together (library default: a quarter of the machine's). Connections beyond it stay TCP. Only what is used counts as memory to the system; a connection at rest uses a page."
    )]
    pub max_memory: Option<u64>,
    /// Memory that the receive buffers of all of a user's programs may take together
    #[arg(long, value_name = "SIZE", env = "SHORTWIRE_MAX_MEMORY_USER", hide_env_values = true, value_parser = parse_size)]
    #[arg(
        long_help = "Memory that the receive buffers of all processes of this user may take together, those that were started with this option and see the same $SHORTWIRE_RUN_DIR or, without that, /dev/shm. Connections beyond it stay TCP. What a process had counts no more once it has ended, however it ended."
    )]
    pub max_memory_user: Option<u64>,
    /// Longest busy wait before sleeping, in microseconds (0: never)
    #[arg(long, value_name = "USEC", env = "SHORTWIRE_SPIN", hide_env_values = true, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: Option<u32>,
    /// Which processes to share memory with
    #[arg(long, value_name = "POLICY", env = "SHORTWIRE_PEER_POLICY", hide_env_values = true, value_enum)]
    pub peer_policy: Option<PeerPolicy>,
    /// Order in which to offer devices
    #[arg(
        long,
        value_name = "DEVICE,...",
        env = "SHORTWIRE_PREFER",
        hide_env_values = true,
        value_enum,
        value_delimiter = ','
    )]
    #[arg(
        long_help = "Order in which to offer devices: a comma-separated list of ism, loopback, verbs. Of these, only loopback exists today; the others are skipped. With --rsocket, verbs is RDMA through libibverbs and librdmacm: alone, or before loopback for where there is no RDMA device."
    )]
    pub prefer: Vec<Device>,
    /// User-defined enterprise ID that both ends must share (may be given up to 4 times)
    #[arg(long, value_name = "UEID", env = "SHORTWIRE_UEID", hide_env_values = true, value_delimiter = ',', value_parser = crate::run::parse_ueid)]
    #[arg(
        long_help = "User-defined enterprise ID: 1 to 32 of A-Z 0-9 . - ; up to 4, separated by commas. Two ends that share one, or the system's own ID, can talk."
    )]
    pub ueid: Vec<String>,
    /// Load the library but change nothing
    #[arg(long, env = "SHORTWIRE_DISABLE", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub disable: bool,
    /// What a program that uses io_uring gets
    #[arg(long, value_name = "MODE", env = "SHORTWIRE_IO_URING", hide_env_values = true, value_enum)]
    pub io_uring: Option<IoUring>,
    /// Copy through the device instead of sharing buffers
    #[arg(long, env = "SHORTWIRE_COPY", hide_env_values = true, value_parser = FalseyValueParser::new())]
    #[arg(
        long_help = "Move data with a copy through the device (move_data) even where buffers could be shared: to compare, or to suspect the sharing."
    )]
    pub copy: bool,
    /// Load the rsockets library, for a program that is linked to librdmacm
    #[arg(long)]
    #[arg(
        long_help = "Load the rsockets library (libshortwire_rsocket.so) in place of the one for TCP: PROG's calls of rsocket, rconnect, ... then \
go through shared memory, without an RDMA device. Both ends must run so. Of the other options, only --prefer has an effect on it."
    )]
    pub rsocket: bool,
    /// Print no warnings
    #[arg(short, long, env = "SHORTWIRE_QUIET", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(value_name = "PROG", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PeerPolicy {
    /// With nobody: every connection stays TCP
    Off,
    /// With processes of the same user
    SameUid,
    /// With processes whose user the kernel confirms to own the other end of the connection (default)
    Verified,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Device {
    /// Copies across a partition
    Ism,
    /// No copy, within the machine
    Loopback,
    /// RDMA
    Verbs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum IoUring {
    /// All its connections stay TCP (default)
    Stay,
    /// A refusal, so that programs which can do without use ordinary calls
    Deny,
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
#[command(about = "Show the devices that connections can use")]
pub struct Devices {
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
