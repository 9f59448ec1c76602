use std::ffi::OsString;

use anyhow::Result;

use super::{located, number_after, words};
use crate::bench::case::Path;
use crate::bench::session::{Launch, Session, free_port, is_listening};

/// Half a round trip, as this tool counts: average and 99th percentile, in microseconds.
pub fn ping_pong(session: &Session, path: Path) -> Result<Vec<f64>> {
    // Without a rate sockperf has room for 600,000 round trips a second and ends with "_seqN > m_maxSequenceNo" beyond it.
    latencies(&run(session, path, "sockperf-pp", &["pp", "--mps", "4000000"], "14")?)
}

/// Messages per second.
pub fn throughput(session: &Session, path: Path) -> Result<Vec<f64>> {
    Ok(vec![number_after(&run(session, path, "sockperf-tp", &["tp"], "64000")?, "Message Rate is")?])
}

fn run(session: &Session, path: Path, case: &'static str, mode: &[&str], size: &str) -> Result<String> {
    let program = located("sockperf")?;
    let port_number = free_port()?;
    let (port, seconds) = (port_number.to_string(), session.whole_seconds().to_string());
    let mut server = session.start(Launch {
        name: "sockperf server",
        program: program.clone(),
        arguments: words(["sr", "--tcp", "-i", "127.0.0.1", "-p", &port]),
        path,
        cpu: session.server_cpu(),
        options: &[],
    })?;
    server.wait_until(|_| Ok(is_listening(port_number)?.then_some(())))?;
    let options = ["--tcp", "-i", "127.0.0.1", "-p", &port, "--msg-size", size, "-t", &seconds];
    let client = session.start(Launch {
        name: "sockperf client",
        program,
        arguments: mode.iter().chain(&options).map(OsString::from).collect(),
        path,
        cpu: session.client_cpu(),
        options: &[],
    })?;
    session.finish_client(case, path, client, session.whole_seconds() as f64)
}

fn latencies(output: &str) -> Result<Vec<f64>> {
    Ok(vec![number_after(output, "Latency is")?, number_after(output, "percentile 99.000 =")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_version_3() {
        let output = "sockperf: ====> avg-latency=9.750 (std-dev=1.1)\nsockperf: Summary: Latency is 9.750 usec\n\
                      sockperf: ---> percentile 99.900 =   23.1\nsockperf: ---> percentile 99.000 =   16.500\n";
        assert_eq!(latencies(output).unwrap(), [9.75, 16.5]);
        assert!(latencies("sockperf: ERROR: Connection refused").is_err());
    }
}
