//! The command line.

use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};

use crate::address::Address;

#[derive(Parser)]
#[command(
    name = "shortwire-peers",
    version,
    about = "Ordinary socket programs to measure with, and the bare shared-memory ring as the limit"
)]
#[command(after_help = "Examples:
  shortwire-peers server --mode pingpong --listen 127.0.0.1:0     prints the address that it got, then serves
  shortwire-peers client --mode pingpong --connect 127.0.0.1:40123 --seconds 2
  shortwire-peers server --mode rr --listen unix:/tmp/rr.sock
  shortwire-peers client --mode rr --protocol memcached --connect 127.0.0.1:11211
  shortwire-peers idle --protocol redis --connect 127.0.0.1:6379 --connections 10000
  shortwire-peers bare-ring --mode stream --seconds 2

Client and server check every byte that they receive and end with status 1 and a message when one is wrong.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Listen and serve until ended (or until --accept connections have ended)
    Server(Server),
    /// Connect, run for --seconds, print figures
    Client(Client),
    /// Open connections, exchange a few messages on each, print a line, and keep them open until
    /// ended
    Idle(Idle),
    /// Compute on some threads until ended
    Busy(Busy),
    /// Two processes over a ring in shared memory, both spinning: the limit for a socket
    BareRing(BareRing),
    #[command(hide = true)]
    BareRingPeer(BareRingPeer),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Mode {
    /// One connection, one message back and forth
    Pingpong,
    /// One connection, one direction, as fast as it goes; the server reports what arrived
    Stream,
    /// Many connections, one request under way on each; both ends are one thread with a
    /// level-triggered epoll set
    Rr,
    /// Connect, one request, one response, close; over and over
    Short,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// A server of this program
    Peers,
    /// Any server that sends back what it gets
    Echo,
    /// GET of one value of --size bytes
    Memcached,
    /// PING
    Redis,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Pingpong => "pingpong",
            Mode::Stream => "stream",
            Mode::Rr => "rr",
            Mode::Short => "short",
        }
    }

    fn default_size(self) -> usize {
        match self {
            Mode::Pingpong => 14,
            Mode::Stream => 64_000,
            Mode::Rr | Mode::Short => 128,
        }
    }
}

#[derive(clap::Args)]
pub struct Server {
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// Where to listen: ADDRESS:PORT (port 0: any free one) or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: Address,
    /// End once this many connections have come and gone (0: never)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub accept: u64,
}

#[derive(clap::Args)]
pub struct Client {
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// The server's address, as it printed it
    #[arg(long, value_name = "ADDR")]
    pub connect: Address,
    /// How long to run
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = positive_seconds)]
    pub seconds: f64,
    /// End after this many messages, if that comes first
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    pub count: u64,
    /// Bytes per message [default: pingpong 14, stream 64000, rr and short 128]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4 << 20))]
    pub size: Option<u32>,
    /// Connections (rr only)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub connections: u32,
    /// Requests under way at a time, on one connection after the other (rr only) [default: one on
    /// each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub active: Option<u32>,
    /// Requests on each connection (short only)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: u16,
    /// What the server speaks (rr only)
    #[arg(long, value_enum, default_value = "peers")]
    pub protocol: Protocol,
    /// Print one JSON object instead of a line of text
    #[arg(long)]
    pub json: bool,
}

impl Client {
    pub fn size(&self) -> usize {
        self.size.map_or(self.mode.default_size(), |size| size as usize)
    }

    /// Starts the clock: everything after this call counts.
    pub fn start(&self) -> Span {
        Span::new(self.seconds)
    }
}

#[derive(clap::Args)]
pub struct Idle {
    /// The server's address
    #[arg(long, value_name = "ADDR")]
    pub connect: Address,
    #[arg(long, value_enum, default_value = "peers")]
    pub protocol: Protocol,
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub connections: u32,
    /// Requests on each connection before it rests
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub messages: u64,
    /// Bytes per message
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4 << 20))]
    pub size: u32,
}

#[derive(clap::Args)]
pub struct Busy {
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
}

#[derive(clap::Args)]
pub struct BareRing {
    /// pingpong or stream
    #[arg(long, value_enum)]
    pub mode: Mode,
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = positive_seconds)]
    pub seconds: f64,
    /// Bytes per message [default: pingpong 14, stream 64000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4 << 20))]
    pub size: Option<u32>,
    /// Bytes of each ring, a power of two
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub ring: usize,
    /// Pin the echoing or receiving process to the first and this one to the second of two cpus
    #[arg(long, value_name = "CPU,CPU", value_parser = two_cpus)]
    pub cpus: Option<(usize, usize)>,
    /// Print one JSON object instead of a line of text
    #[arg(long)]
    pub json: bool,
}

impl BareRing {
    pub fn size(&self) -> usize {
        self.size.map_or(self.mode.default_size(), |size| size as usize)
    }
}

#[derive(clap::Args)]
pub struct BareRingPeer {
    #[arg(long, value_enum)]
    pub mode: Mode,
    #[arg(long)]
    pub fd: i32,
    #[arg(long)]
    pub ring: usize,
    #[arg(long)]
    pub size: usize,
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// A stretch of time that is being measured.
pub struct Span {
    pub began: Instant,
    pub deadline: Instant,
}

impl Span {
    pub fn new(seconds: f64) -> Span {
        let began = Instant::now();
        Span { began, deadline: began + Duration::from_secs_f64(seconds) }
    }
}

fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("give a number of seconds above 0 and up to 86400, such as 2 or 0.5".into()),
    }
}

fn two_cpus(text: &str) -> Result<(usize, usize), String> {
    let pair = text
        .split_once(',')
        .and_then(|(first, second)| Some((first.parse().ok()?, second.parse().ok()?)));
    pair.ok_or_else(|| "give two cpu numbers with a comma between, such as 0,1".into())
}
