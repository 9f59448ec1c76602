//! `shortwire rstream`: what librdmacm's rstream and riostream measure, over rsockets, TCP and the bare machine.

mod limits;
mod measure;
mod report;
mod serve;
mod wire;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use measure::{Case, Client};
use report::Report;
use wire::Wire;

use crate::args::{Rstream, Transport};
use crate::bench::machine::Machine;
use crate::bench::progress::Progress;
use crate::bench::session::two_cpus;
use crate::sys;

pub fn run(args: &Rstream) -> Result<()> {
    if args.listen {
        return serve::run(args);
    }
    sys::catch_interrupts();
    match &args.server {
        Some(server) => elsewhere(args, server),
        None => here(args),
    }
}

/// A server on another processor, and the client that is connected to it.
struct Pair {
    client: Client,
    server: Child,
}

impl Pair {
    fn start(args: &Rstream, transport: Transport, cpu: Option<usize>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["rstream", "--listen", "--port", "0", "--beside", &cpu.unwrap_or(usize::MAX).to_string()]);
        command.args(["--transport", if transport == Transport::Tcp { "tcp" } else { "rsocket" }]);
        command.args(["--mode", wire::name(args.mode)]);
        args.fork.then(|| command.arg("--fork"));
        args.buffer.map(|bytes| command.args(["--buffer", &bytes.to_string()]));
        sys::at_start(&mut command, cpu);
        let mut server = command.stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        let mut connect = || -> Result<Client> {
            let mut line = String::new();
            BufReader::new(server.stdout.take().context("no output")?).read_line(&mut line)?;
            let port = line.trim().rsplit(' ').next().and_then(|port| port.parse().ok());
            let port: u16 = port.context("the server did not start")?;
            Ok(Client::new(Wire::connect(("127.0.0.1", port), transport, args)?))
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
        ensure!(status.success() || sys::interrupted(), "the server failed: {status}");
        Ok(())
    }
}

fn here(args: &Rstream) -> Result<()> {
    let cpus = two_cpus();
    let cases = Case::list(args, !args.fork);
    let mut report = Report::new(args, Machine::describe(cpus), &cases);
    let progress = Progress::new(args.repeat as usize);
    let mut pairs = [Transport::Rsocket, Transport::Tcp]
        .map(|transport| Pair::start(args, transport, cpus.map(|(server, _)| server)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    if let Some((_, client)) = cpus {
        sys::run_on(&[client])?;
    }
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
            if sys::interrupted() {
                progress.finish();
                anyhow::bail!("interrupted");
            }
        }
        progress.end(&format!("round {}", round + 1), "done");
    }
    progress.finish();
    report.print()?;
    pairs.into_iter().try_for_each(Pair::end)
}

fn elsewhere(args: &Rstream, server: &str) -> Result<()> {
    let cases = Case::list(args, args.transport == Transport::Rsocket && !args.fork);
    let mut report = Report::new(args, Machine::describe(None), &cases);
    let mut client = Client::new(Wire::connect((server, args.port), args.transport, args)?);
    let path = if args.transport == Transport::Tcp { report::Path::Tcp } else { report::Path::Rsocket };
    for _ in 0..args.repeat {
        for (i, case) in cases.iter().enumerate() {
            report.add(i, path, client.run(case, Duration::from_secs_f64(args.seconds))?);
            ensure!(!sys::interrupted(), "interrupted");
        }
    }
    report.print()
}
