use anyhow::{Context, Result};
use serde_json::Value;

use super::{located, words};
use crate::bench::case::Path;
use crate::bench::outcome::Outcome;
use crate::bench::session::{Launch, Session, free_port, is_listening};

/// Bits per second that the receiver counted.
pub fn run(session: &Session, path: Path, streams: u32, length: Option<&str>) -> Result<Outcome> {
    let program = located("iperf3")?;
    let port_number = free_port()?;
    let (port, seconds, streams_text) =
        (port_number.to_string(), session.whole_seconds().to_string(), streams.to_string());
    // One stream is a pair of busy threads; four need all cpus there are.
    let pinned = streams == 1;
    let arguments = words(["-s", "-B", "127.0.0.1", "-p", &port, "-1"]);
    let launch = Launch::new("iperf3 server", program.clone(), arguments, path);
    let mut server = session.serve(launch.on(session.server_cpu().filter(|_| pinned)))?;
    server.wait_until(|_| Ok(is_listening(port_number)?.then_some(())))?;
    let mut arguments =
        words(["-c", "127.0.0.1", "-p", &port, "-t", &seconds, "-P", &streams_text, "-J"]);
    if let Some(length) = length {
        arguments.extend(words(["-l", length]));
    }
    let launch = Launch::new("iperf3 client", program, arguments, path);
    let client = session.start(launch.on(session.client_cpu().filter(|_| pinned)))?;
    let finished =
        session.finish_client(path, &[&server], client, session.whole_seconds() as f64)?;
    let (rate, bytes) = received(&finished.output)?;
    Ok(Outcome::new(vec![rate], finished.cpu).bytes(bytes))
}

/// Bits per second, and bytes.
fn received(output: &str) -> Result<(f64, f64)> {
    let report: Value = serde_json::from_str(output).context("iperf3 printed no JSON")?;
    if let Some(error) = report.get("error").and_then(Value::as_str) {
        anyhow::bail!("iperf3: {error}");
    }
    let number =
        |name: &str| report.pointer(&format!("/end/sum_received/{name}")).and_then(Value::as_f64);
    number("bits_per_second")
        .zip(number("bytes"))
        .context("iperf3 printed no sum of what was received")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports() {
        let report = r#"{"end":{"sum_received":{"bits_per_second":3.5e10,"bytes":7}}}"#;
        assert_eq!(received(report).unwrap(), (3.5e10, 7.0));
        let error = received(r#"{"end":{},"error":"unable to connect"}"#).unwrap_err().to_string();
        assert!(error.contains("unable to connect"));
        assert!(received("").is_err());
    }
}
