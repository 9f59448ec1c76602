//! The command line of the packet engine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::units::{parse_cpus, parse_rate, parse_seconds};

#[derive(clap::Args)]
#[command(about = "Run a network of packet apps described by a file")]
#[command(
    long_about = "Runs the apps and links of CONFIG until Ctrl-C, then prints what passed each link. On SIGHUP the file is read again and \
the difference is applied: apps and links that are the same keep their state, packets and counters. A file with mistakes is \
refused with all of them, and the network that runs goes on."
)]
#[command(after_help = "A file names apps by kind, with their arguments, and joins their ports:

  links = [\"if1.tx -> if2.rx\", \"if2.tx -> if1.rx\"]
  [apps.if1]
  kind = \"XDP\"
  interface = \"eth1\"
  [apps.if2]
  kind = \"XDP\"
  interface = \"eth2\"
  thread = 1               # optional: another engine on another processor
  [engine]
  busywait = true          # optional; also hz, maxsleep, tick, packets, cycles, latency

Examples:
  shortwire engine shunt.toml                     until Ctrl-C
  shortwire engine shunt.toml --duration 10 --busywait
  shortwire engine shunt.toml --check             validate only
  shortwire engine shunt.toml --graph | dot -Tsvg > shunt.svg
  shortwire engine --kinds                        which kinds of apps there are
  kill -HUP PID                                   apply an edited file
  shortwire top                                   watch it

Exit status: 0 after a clean stop, 1 if the network could not start or an app failed to stop, 2 for a wrong command line.")]
pub struct Engine {
    /// The file that describes the network
    #[arg(value_name = "CONFIG.toml", required_unless_present = "kinds", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    /// End when no app has anything more to send, such as after the last packet of a capture
    #[arg(long)]
    pub until_finished: bool,
    /// What to print at the end
    #[arg(long, value_name = "PART,...", value_enum, value_delimiter = ',', default_value = "load,links")]
    pub report: Vec<Report>,
    /// Serve all counters as Prometheus text over HTTP
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Never sleep, whatever the file says
    #[arg(long)]
    pub busywait: bool,
    /// Processors to run on, such as 1 or 2-5,8: thread N of the file gets the N-th of them
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub cpu: Option<Cpus>,
    #[command(flatten)]
    pub models: crate::models::Models,
    /// Only say whether the file is right
    #[arg(long, conflicts_with_all = ["graph", "kinds"])]
    pub check: bool,
    /// Print the network as a Graphviz graph
    #[arg(long, conflicts_with = "kinds")]
    pub graph: bool,
    /// Print the kinds of apps, their ports and counters
    #[arg(long)]
    pub kinds: bool,
}

/// Processor numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Report {
    /// Packets per second, bits, sleep
    Load,
    /// What was sent on each link, and the loss
    Links,
    /// What the apps have to say
    Apps,
    /// Nothing
    None,
}

#[derive(clap::Args)]
#[command(about = "List the processes that run a packet engine")]
#[command(
    after_help = "Counters of processes that were killed are removed from the run directory ($SHORTWIRE_RUN_DIR, /run/shortwire or \
$XDG_RUNTIME_DIR/shortwire) and named on the way."
)]
pub struct Ps {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Watch packet engines: rates per link and app, cycles per packet, drops, latency")]
#[command(after_help = "Keys: q quit, space pause, t table or tree, +/- interval, arrows scroll, n next engine.

Reads the counters that engines publish in shared memory; it costs them nothing.

Examples:
  shortwire top                 all engines of this machine
  shortwire top 1234            one process
  shortwire top --once          one interval, as text
  shortwire top --json | jq '.processes[].links'")]
pub struct Top {
    /// Only this process
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
    /// Time between two looks
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = parse_seconds)]
    pub interval: f64,
    /// Print one interval as text and end
    #[arg(long)]
    pub once: bool,
    /// Start with the tree of apps and links
    #[arg(long)]
    pub tree: bool,
    /// Print one interval as one JSON object and end
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Send packets as fast as an interface takes them, or at a rate")]
#[command(
    long_about = "Builds all frames once, in the memory that the interface sends from; while it runs only indices move. Ctrl-C ends it with a \
summary. Packet sockets, TAP interfaces and 82599 cards get copies. With --receive it also counts what comes back and reports the loss."
)]
pub struct Packetblaster {
    #[command(subcommand)]
    pub command: Blast,
}

#[derive(Subcommand)]
pub enum Blast {
    #[command(about = "Send the packets of a capture file, again and again")]
    #[command(after_help = "Examples:
  shortwire packetblaster replay 64.pcap --if eth1
  shortwire packetblaster replay web.pcapng --if eth1 --no-loop --rate 1Gb/s
  shortwire packetblaster replay 64.pcap 0000:82:00.1
  shortwire packetblaster replay 64.pcap --sink --duration 5")]
    Replay(Replay),
    #[command(about = "Send made-up UDP packets")]
    #[command(after_help = "Examples:
  shortwire packetblaster synth --if eth1 --sizes 64
  shortwire packetblaster synth --if eth1 --imix --flows 1000 --rate 2Mpps
  shortwire packetblaster synth --if eth1 --receive eth2 --count 1000000
  shortwire packetblaster synth --pcap out.pcap --sizes 64,512,1518 --count 1000

Sizes count the frame check sequence of 4 bytes, which the hardware adds: --sizes 64 makes frames of 60 bytes.")]
    Synth(Synth),
}

#[derive(clap::Args)]
pub struct Replay {
    /// The capture: pcap or pcapng, Ethernet
    #[arg(value_name = "FILE.pcap", value_hint = clap::ValueHint::FilePath)]
    pub file: PathBuf,
    /// Send the capture once
    #[arg(long)]
    pub no_loop: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(clap::Args)]
pub struct Synth {
    #[command(flatten)]
    pub frames: Frames,
    #[command(flatten)]
    pub output: Output,
}

/// What made-up packets look like; `loadtest` takes the same.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Packets")]
pub struct Frames {
    /// Sizes with frame check sequence, one after the other
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u16).range(64..=1796))]
    pub sizes: Vec<u16>,
    /// The Internet mix: 7 packets of 64 bytes, 4 of 594, 1 of 1518
    #[arg(long, conflicts_with = "sizes")]
    pub imix: bool,
    /// Source MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:01", value_parser = crate::units::parse_mac)]
    pub src_mac: [u8; 6],
    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02", value_parser = crate::units::parse_mac)]
    pub dst_mac: [u8; 6],
    /// Source address, IPv4 or IPv6
    #[arg(long, value_name = "IP", default_value = "198.18.0.1")]
    pub src: std::net::IpAddr,
    /// Destination address of the same family
    #[arg(long, value_name = "IP", default_value = "198.19.0.1")]
    pub dst: std::net::IpAddr,
    /// UDP source port of the first flow
    #[arg(long, value_name = "PORT", default_value_t = 1024)]
    pub sport: u16,
    /// UDP destination port
    #[arg(long, value_name = "PORT", default_value_t = 9)]
    pub dport: u16,
    /// Flows: source ports, then source addresses, count up
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,
}

/// Where packets go, how fast, and for how long.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
#[command(group = clap::ArgGroup::new("to").required(true).args(["pci", "interface", "raw", "tap", "pcap", "sink"]))]
pub struct Output {
    /// To an Intel 82599 in the hands of this command (doc/82599.md), such as 0000:82:00.1; interfaces of the kernel: --if
    #[arg(value_name = "PCIADDR", value_parser = parse_pci)]
    pub pci: Option<String>,
    /// To an interface by AF_XDP, the fastest way
    #[arg(long = "if", value_name = "NAME")]
    pub interface: Option<String>,
    /// To an interface by a packet socket
    #[arg(long, value_name = "NAME")]
    pub raw: Option<String>,
    /// To a TAP interface, which is made if need be: its kernel side receives
    #[arg(long, value_name = "NAME")]
    pub tap: Option<String>,
    /// Into a capture file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub pcap: Option<PathBuf>,
    /// Through a link of an engine in memory, where they are discarded: the limit of this program
    #[arg(long)]
    pub sink: bool,
    /// Transmit queue of the interface
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub queue: u32,
    /// Count what arrives at this interface (may be that of --if) and report the loss
    #[arg(long, value_name = "NAME")]
    pub receive: Option<String>,
    /// Packets or bits per second, such as 2Mpps, 500kpps, 1Gb/s (bits with preamble and gap, as on a wire)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<Rate>,
    /// End after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    #[command(flatten)]
    pub models: crate::models::Models,
    /// Print the summary as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The driver says whether there is such a card.
fn parse_pci(word: &str) -> Result<String, String> {
    match word.parse::<engine::nic::pci::Address>() {
        Ok(_) => Ok(word.to_string()),
        Err(_) if word.starts_with("model:") => Ok(word.to_string()),
        Err(error) => Err(format!("{error}; an interface of the kernel is named by --if")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    Packets(f64),
    Bits(f64),
}

#[derive(clap::Args)]
#[command(about = "Find the highest rate that passes between two interfaces with little loss")]
#[command(
    long_about = "Sends made-up packets into one interface and counts them at another, through whatever lies between. Bisects the rate for the \
highest one whose loss is at most the limit (RFC 2544 section 26.1), and measures the latency at each rate by packets that carry the \
time at which they were sent."
)]
#[command(after_help = "Examples:
  shortwire loadtest --from eth1 --to eth2
  shortwire loadtest --from eth1 --to eth2 --max 10Gb/s --loss 0.1 --sizes 512 --plot load.svg

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

#[derive(clap::Args)]
#[command(about = "Measure the packet engine: in memory, on interfaces, and beside others")]
#[command(
    long_about = "Measures networks of apps in memory (in millions of packets per second that sources send), one app alone and beside others, and \
interfaces in a network namespace of its own beside what the kernel itself can move there. dpdk-testpmd runs in the same round where it \
is installed."
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
    /// AF_XDP on veth pairs beside the kernel's own ceiling
    Interfaces,
    /// dpdk-testpmd with devices in memory
    Rivals,
}
