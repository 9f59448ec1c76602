use anyhow::{Context, Result};

use super::{located, words};
use crate::bench::case::Path;
use crate::bench::session::{Launch, Session, free_port, is_listening};

/// Requests for each second that a run should take: this tool counts requests, not time.
const REQUESTS_A_SECOND: f64 = 120_000.0;

/// GET requests per second over 50 connections.
pub fn run(session: &Session, path: Path, pipeline: u32) -> Result<Vec<f64>> {
    let port_number = free_port()?;
    let port = port_number.to_string();
    let socket = session.fresh_path("redis.sock");
    let (socket_text, directory) = (socket.display().to_string(), session.directory().display().to_string());
    let mut arguments =
        words(["--port", &port, "--bind", "127.0.0.1", "--unixsocket", &socket_text, "--dir", &directory]);
    arguments.extend(words(["--save", "", "--appendonly", "no", "--daemonize", "no"]));
    let mut server = session.start(Launch {
        name: "redis-server",
        program: located("redis-server")?,
        arguments,
        path,
        cpu: session.server_cpu(),
        options: &[],
    })?;
    server.wait_until(|_| Ok((is_listening(port_number)? && socket.exists()).then_some(())))?;

    let speed = if pipeline > 1 { 10.0 } else { 1.0 };
    let count = ((session.seconds * REQUESTS_A_SECOND * speed) as u64).to_string();
    let pipeline_text = pipeline.to_string();
    let mut arguments =
        if path == Path::Unix { words(["-s", &socket_text]) } else { words(["-h", "127.0.0.1", "-p", &port]) };
    arguments.extend(words(["-t", "get", "-c", "50", "-n", &count, "-P", &pipeline_text, "--csv"]));
    let client = session.start(Launch {
        name: "redis-benchmark",
        program: located("redis-benchmark")?,
        arguments,
        path,
        cpu: session.client_cpu(),
        options: &[],
    })?;
    let case = if pipeline == 1 { "redis-get" } else { "redis-get-p16" };
    let output = session.finish_client(case, path, client, session.seconds)?;
    Ok(vec![rate(&output)?])
}

/// `"GET","127877.24",...`, whatever the columns behind the rate.
fn rate(output: &str) -> Result<f64> {
    let line =
        output.lines().find(|line| line.starts_with("\"GET\"")).context("redis-benchmark printed no line for GET")?;
    let field = line.split(',').nth(1).map(|field| field.trim_matches('"'));
    field.and_then(|field| field.parse().ok()).context("redis-benchmark printed no rate for GET")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_of_versions_5_to_7() {
        assert_eq!(rate("\"GET\",\"127877.24\"\n").unwrap(), 127_877.24);
        let with_header = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"127877.24\",\"0.210\"\n";
        assert_eq!(rate(with_header).unwrap(), 127_877.24);
        assert!(rate("Could not connect to Redis").is_err());
    }
}
