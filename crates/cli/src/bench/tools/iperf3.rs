use anyhow::{Context, Result};
use serde_json::Value;

use super::{located, words};
use crate::bench::case::Path;
use crate::bench::session::{Launch, Session, free_port, is_listening};

/// Bits per second that the receiver counted.
pub fn run(session: &Session, path: Path, streams: u32) -> Result<Vec<f64>> {
    let program = located("iperf3")?;
    let port_number = free_port()?;
    let (port, seconds, streams_text) =
        (port_number.to_string(), session.whole_seconds().to_string(), streams.to_string());
    // One stream is a pair of busy threads; four need all cpus there are.
    let pinned = streams == 1;
    let mut server = session.start(Launch {
        name: "iperf3 server",
        program: program.clone(),
        arguments: words(["-s", "-B", "127.0.0.1", "-p", &port, "-1"]),
        path,
        cpu: session.server_cpu().filter(|_| pinned),
        options: &[],
    })?;
    server.wait_until(|_| Ok(is_listening(port_number)?.then_some(())))?;
    let client = session.start(Launch {
        name: "iperf3 client",
        program,
        arguments: words(["-c", "127.0.0.1", "-p", &port, "-t", &seconds, "-P", &streams_text, "-l", "64K", "-J"]),
        path,
        cpu: session.client_cpu().filter(|_| pinned),
        options: &[],
    })?;
    let case = if streams == 1 { "iperf3-1" } else { "iperf3-4" };
    let output = session.finish_client(case, path, client, session.whole_seconds() as f64)?;
    Ok(vec![received(&output)?])
}

fn received(output: &str) -> Result<f64> {
    let report: Value = serde_json::from_str(output).context("iperf3 printed no JSON")?;
    if let Some(error) = report.get("error").and_then(Value::as_str) {
        anyhow::bail!("iperf3: {error}");
    }
    let rate = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    rate.context("iperf3 printed no sum of what was received")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports() {
        assert_eq!(received(r#"{"end":{"sum_received":{"bits_per_second":3.5e10}}}"#).unwrap(), 3.5e10);
        assert!(
            received(r#"{"end":{},"error":"unable to connect"}"#)
                .unwrap_err()
                .to_string()
                .contains("unable to connect")
        );
        assert!(received("").is_err());
    }
}
