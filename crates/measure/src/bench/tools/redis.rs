use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit};

use super::{located, words};
use crate::bench::calls::Counter;
use crate::bench::case::Path;
use crate::bench::outcome::{Latency, Outcome};
use crate::bench::peers;
use crate::bench::process::Process;
use crate::bench::session::{Finished, Launch, Session, free_port, is_listening};

/// Requests for each second that a run should take: this tool counts requests, not time.
const REQUESTS_A_SECOND: f64 = 120_000.0;
/// The same under strace, which slows the server down.
const REQUESTS_TRACED: f64 = 5_000.0;
const IDLE: u32 = 10_000;
/// Descriptors that the server and the library need beside those of the idle connections.
const OTHERS: u64 = 2_000;

struct Redis {
    server: Process,
    port: String,
    socket: PathBuf,
}

/// GET requests per second over 50 connections.
pub fn run(session: &Session, path: Path, pipeline: u32) -> Result<Outcome> {
    let redis = start(session, path)?;
    let (finished, count) = benchmark(session, path, &redis, pipeline, 50)?;
    let (rate, latency) = figures(&finished.output)?;
    Ok(Outcome::new(vec![rate], finished.cpu).latency(latency).requests(count))
}

/// The same on a few connections, and its 99th percentile in microseconds.
pub fn few<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    let redis = start(session, path)?;
    let (finished, count) = benchmark(session, path, &redis, 1, CONNECTIONS)?;
    let (rate, latency) = figures(&finished.output)?;
    let p99 = latency.p99.context("this redis-benchmark tells no percentiles")?;
    Ok(Outcome::new(vec![rate, p99], finished.cpu).latency(latency).requests(count))
}

/// The same while connections rest that had been in use, and its ratio to without them, by the same
/// server.
pub fn beside_idle(session: &Session, path: Path) -> Result<Outcome> {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    anyhow::ensure!(
        limit >= u64::from(IDLE) + OTHERS,
        "the hard limit on open files is {limit}; {} are needed (ulimit -Hn)",
        u64::from(IDLE) + OTHERS
    );
    let redis = start(session, path)?;
    let (without, _) = figures(&benchmark(session, path, &redis, 1, 50)?.0.output)?;
    let idle = peers::rest(session, path, &format!("127.0.0.1:{}", redis.port), IDLE)?;
    let (finished, _) = benchmark(session, path, &redis, 1, 50)?;
    drop(idle);
    let (beside, latency) = figures(&finished.output)?;
    Ok(Outcome::new(vec![beside, beside / without], finished.cpu).latency(latency))
}

fn start(session: &Session, path: Path) -> Result<Redis> {
    let port_number = free_port()?;
    let port = port_number.to_string();
    let socket = session.fresh_path("redis.sock");
    let (socket_text, directory) =
        (socket.display().to_string(), session.directory().display().to_string());
    let mut arguments = words([
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--unixsocket",
        &socket_text,
        "--dir",
        &directory,
    ]);
    arguments.extend(words(["--save", "", "--appendonly", "no", "--daemonize", "no"]));
    arguments.extend(words(["--maxclients", &(IDLE + 100).to_string()]));
    let launch = Launch::new("redis-server", located("redis-server")?, arguments, path)
        .on(session.server_cpu());
    let mut server = session.serve(launch)?;
    server.wait_until(|_| Ok((is_listening(port_number)? && socket.exists()).then_some(())))?;
    Ok(Redis { server, port, socket })
}

/// What it printed, and how many requests that were.
fn benchmark(
    session: &Session,
    path: Path,
    redis: &Redis,
    pipeline: u32,
    connections: u32,
) -> Result<(Finished, f64)> {
    let speed = if pipeline > 1 { 10.0 } else { f64::from(connections.min(8)) / 8.0 };
    let traced = matches!(session.counter, Some(Counter::Strace(_)));
    let speed = speed * if traced { REQUESTS_TRACED } else { REQUESTS_A_SECOND };
    let count = (session.seconds * speed).round();
    let (count_text, pipeline_text) = (count.to_string(), pipeline.to_string());
    let mut arguments = if path == Path::Unix {
        words(["-s", &redis.socket.display().to_string()])
    } else {
        words(["-h", "127.0.0.1", "-p", &redis.port])
    };
    arguments.extend(words([
        "-t",
        "get",
        "-c",
        &connections.to_string(),
        "-n",
        &count_text,
        "-P",
        &pipeline_text,
        "--csv",
    ]));
    let program = located("redis-benchmark")?;
    let launch = Launch::new("redis-benchmark", program, arguments, path).on(session.client_cpu());
    let finished =
        session.finish_client(path, &[&redis.server], session.start(launch)?, session.seconds)?;
    Ok((finished, count))
}

/// `"GET","127877.24",...`: the rate, then from version 6.2 on average, least, p50, p95, p99 and
/// greatest latency in ms.
fn figures(output: &str) -> Result<(f64, Latency)> {
    let line = output
        .lines()
        .find(|line| line.starts_with("\"GET\""))
        .context("redis-benchmark printed no line for GET")?;
    let fields: Vec<Option<f64>> =
        line.split(',').map(|field| field.trim_matches('"').parse().ok()).collect();
    let rate =
        fields.get(1).copied().flatten().context("redis-benchmark printed no rate for GET")?;
    let us = |column: usize| fields.get(column).copied().flatten().map(|ms| ms * 1e3);
    let latency = Latency { p50: us(4), p99: us(6), max: us(7), ..Latency::default() };
    Ok((rate, if fields.len() == 8 { latency } else { Latency::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_of_versions_5_to_7() {
        assert_eq!(figures("\"GET\",\"127877.24\"\n").unwrap(), (127_877.24, Latency::default()));
        let of_7 = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                    \"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"127877.24\",\"0.210\",\"0.1\",\"0.200\",\"0.4\",\"0.500\",\"2.000\"\n";
        let (rate, latency) = figures(of_7).unwrap();
        assert_eq!((rate, latency.p50, latency.p90), (127_877.24, Some(200.0), None));
        assert_eq!((latency.p99, latency.max), (Some(500.0), Some(2000.0)));
        assert!(figures("Could not connect to Redis").is_err());
    }
}
