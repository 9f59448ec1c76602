//! `shortwire rstream`: what librdmacm's rstream and riostream measure, over rsockets, TCP and the
//! bare machine.

mod limits;
mod measure;
mod pump;
mod report;
mod serve;
mod wire;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use measure::{Case, Client};
use report::Report;
use terminal::signals;
use terminal::units::{parse_seconds, parse_size};

use crate::bench::machine::Machine;
use crate::bench::progress::Progress;
use crate::processors::{run_on, two_cpus};
use crate::sys;

#[derive(clap::Args)]
#[command(about = "Measure rsockets: latency, bandwidth, message rate")]
#[command(
    long_about = "Measures what librdmacm's rstream and riostream do, over rsockets and over TCP in turn: latency (half a round trip) \
and bandwidth over message sizes, one way and both ways at once, of one stream and of several, the rate of small messages, and direct writes into memory of the peer (riowrite), beside the limits of this \
machine: a bare ring in shared memory with one copy in and one copy out, and memcpy.

Without --listen and --server both ends run here, each on a processor of its own. The server ends with this process, also on Ctrl-C."
)]
#[command(after_help = "Examples:
  shortwire rstream                         both ends here: every measure
                                            against TCP and the limits
  shortwire rstream --size 64 --mode block  one size, sleeping instead of
                                            polling
  shortwire rstream --verify --size all     check every byte (slower)
  shortwire rstream --listen                a server; on the other side:
  shortwire rstream --server 10.0.0.2       its client
  shortwire rstream --listen --transport tcp
      a server for the client's --transport tcp

A ratio is the median over the rounds of rsockets against the other in the same round; above 1 rsockets are better. A bar is what the \
project promises. Nothing else should run meanwhile.")]
pub struct Rstream {
    /// Serve clients until interrupted
    #[arg(short, long, conflicts_with = "server")]
    pub listen: bool,
    /// Measure with a server that runs elsewhere
    #[arg(short, long, value_name = "ADDRESS")]
    pub server: Option<String>,
    /// Address to listen on
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1", requires = "listen")]
    pub bind: String,
    /// Port of the server (0: any, which it prints)
    #[arg(short, long, default_value_t = 7471)]
    pub port: u16,
    /// Over what, with --listen or --server
    #[arg(long, value_enum, default_value = "rsocket")]
    pub transport: Transport,
    /// How both ends wait
    #[arg(long, value_enum, default_value = "polling")]
    pub mode: Mode,
    /// Message sizes, separated by commas, or all
    #[arg(short = 'S', long, value_name = "BYTES,...", default_value = "64,64K,1M")]
    pub size: Sizes,
    /// Connections of the measures that use several (1: without these): one thread at each end
    /// serves them all. A server elsewhere takes the further ones at a port that the system gives
    /// it
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub streams: u8,
    /// The server forks a process for each client; without riowrite, whose target must not be a
    /// child's
    #[arg(long)]
    pub fork: bool,
    /// Check every byte that arrives
    #[arg(long)]
    pub verify: bool,
    /// Size of the send and receive buffers
    #[arg(short = 'B', long, value_name = "BYTES", value_parser = parse_size)]
    pub buffer: Option<u64>,
    /// How long each run takes
    #[arg(long, value_name = "N", default_value = "0.2", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds: each runs every measure once per transport
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Serve one client only, on this processor, and end with the parent
    #[arg(long, hide = true)]
    pub beside: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Transport {
    Rsocket,
    Tcp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Mode {
    /// Nonblocking calls, again and again
    Polling,
    /// Blocking calls
    Block,
    /// Nonblocking calls, and poll when there is nothing to do
    Async,
}

#[derive(Clone, Debug)]
pub struct Sizes(pub Vec<u64>);

impl std::str::FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self((0..=11).map(|i| 1 << (2 * i)).collect()));
        }
        let sizes: Vec<u64> = text.split(',').map(parse_size).collect::<Result<_, _>>()?;
        if sizes.iter().any(|size| *size == 0 || *size > 1 << 30) {
            return Err("give sizes from 1 byte to 1G".into());
        }
        Ok(Self(sizes))
    }
}

pub fn run(args: &Rstream) -> Result<()> {
    if args.listen {
        return serve::run(args);
    }
    signals::catch_interrupts();
    let outcome = match &args.server {
        Some(server) => elsewhere(args, server),
        None => here(args),
    };
    // Ctrl-C reaches the server as well: what fails for want of it is no failure.
    if outcome.is_err() {
        signals::go_on_unless_interrupted("")?;
    }
    outcome
}

/// A server on another processor, and the client that is connected to it.
struct Pair<'a> {
    client: Client<'a>,
    server: Child,
}

impl<'a> Pair<'a> {
    fn start(args: &'a Rstream, transport: Transport, cpu: Option<usize>) -> Result<Self> {
        let mut command =
            Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args([
            "rstream",
            "--listen",
            "--port",
            "0",
            "--beside",
            &cpu.unwrap_or(usize::MAX).to_string(),
        ]);
        command.args(["--transport", if transport == Transport::Tcp { "tcp" } else { "rsocket" }]);
        command.args(["--mode", wire::name(args.mode)]);
        args.fork.then(|| command.arg("--fork"));
        args.buffer.map(|bytes| command.args(["--buffer", &bytes.to_string()]));
        sys::at_start(&mut command, cpu);
        let mut server =
            command.stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        let mut connect = || -> Result<Client<'a>> {
            let mut line = String::new();
            BufReader::new(server.stdout.take().context("no output")?).read_line(&mut line)?;
            let port = line.trim().rsplit(' ').next().and_then(|port| port.parse().ok());
            let port: u16 = port.context("the server did not start")?;
            Client::new(args, "127.0.0.1", port, transport)
        };
        match connect() {
            Ok(client) => Ok(Self { client, server }),
            Err(e) => {
                let _ = server.kill();
                let _ = server.wait();
                Err(e)
            }
        }
    }

    fn end(mut self) -> Result<()> {
        drop(self.client);
        let status = self.server.wait()?;
        ensure!(status.success() || signals::interrupted(), "the server failed: {status}");
        Ok(())
    }
}

fn here(args: &Rstream) -> Result<()> {
    let cpus = two_cpus();
    let cases = Case::list(args, !args.fork);
    let mut report = Report::new(args, Machine::describe(cpus).warned(), &cases);
    let progress = Progress::new(args.repeat as usize);
    let mut pairs = [Transport::Rsocket, Transport::Tcp]
        .map(|transport| Pair::start(args, transport, cpus.map(|(server, _)| server)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    if let Some((_, client)) = cpus {
        run_on(client)?;
    }
    let measured = rounds(args, cpus, &cases, &mut pairs, &mut report, &progress);
    progress.finish();
    measured?;
    report.print()?;
    pairs.into_iter().try_for_each(Pair::end)
}

/// All measures, again and again.
fn rounds(
    args: &Rstream,
    cpus: Option<(usize, usize)>,
    cases: &[Case],
    pairs: &mut [Pair<'_>],
    report: &mut Report,
    progress: &Progress,
) -> Result<()> {
    let time = Duration::from_secs_f64(args.seconds);
    for round in 0..args.repeat {
        progress.begin(&format!("round {}", round + 1));
        if let Some(cpus) = cpus {
            report.add_crossing(limits::crossing(cpus)?);
        }
        for (i, case) in cases.iter().enumerate() {
            for (pair, path) in pairs.iter_mut().zip([report::Path::Rsocket, report::Path::Tcp]) {
                if path == report::Path::Rsocket || case.has_tcp() {
                    report.add(i, path, pair.client.run(case, time)?);
                }
            }
            if let Some(limit) = limits::run(case, time, cpus)? {
                report.add(i, report::Path::Limit, limit);
            }
            signals::go_on_unless_interrupted("")?;
        }
        progress.end(&format!("round {}", round + 1), "done");
    }
    Ok(())
}

fn elsewhere(args: &Rstream, server: &str) -> Result<()> {
    let cases = Case::list(args, args.transport == Transport::Rsocket && !args.fork);
    let mut report = Report::new(args, Machine::describe(None).warned(), &cases);
    let connected = Client::new(args, server, args.port, args.transport);
    let mut client = connected.with_context(|| {
        let port = args.port;
        format!(
            "cannot connect to {server}, port {port}: does `shortwire rstream --listen` run there?"
        )
    })?;
    let path =
        if args.transport == Transport::Tcp { report::Path::Tcp } else { report::Path::Rsocket };
    for _ in 0..args.repeat {
        for (i, case) in cases.iter().enumerate() {
            report.add(i, path, client.run(case, Duration::from_secs_f64(args.seconds))?);
            signals::go_on_unless_interrupted("")?;
        }
    }
    report.print()
}
