use std::ffi::OsString;

use anyhow::Result;

use super::{located, number_after, words};
use crate::bench::case::Path;
use crate::bench::outcome::{Latency, Outcome};
use crate::bench::session::{Finished, Launch, Session, free_port, is_listening};

// Without a rate sockperf has room for 600,000 round trips a second and ends with "_seqN >
// m_maxSequenceNo" beyond it.
const PING_PONG: &[&str] = &["pp", "--mps", "4000000"];

/// Half a round trip, as this tool counts: average and 99th percentile, in microseconds.
pub fn ping_pong(session: &Session, path: Path) -> Result<Outcome> {
    latencies(run(session, path, PING_PONG, 14, session.cpus)?)
}

/// The average of the same.
pub fn one_cpu(session: &Session, path: Path) -> Result<Outcome> {
    let cpus = session.cpus.map(|(first, _)| (first, first));
    let outcome = latencies(run(session, path, PING_PONG, 14, cpus)?)?;
    Ok(Outcome { values: vec![outcome.values[0]], ..outcome })
}

/// Messages per second.
pub fn throughput(session: &Session, path: Path, size: u32) -> Result<Outcome> {
    let finished = run(session, path, &["tp"], size, session.cpus)?;
    let rate = number_after(&finished.output, "Message Rate is")?;
    let sent = number_after(&finished.output, "Total of")?;
    Ok(Outcome::new(vec![rate], finished.cpu).bytes(sent * f64::from(size)))
}

fn run(
    session: &Session,
    path: Path,
    mode: &[&str],
    size: u32,
    cpus: Option<(usize, usize)>,
) -> Result<Finished> {
    let program = located("sockperf")?;
    let port_number = free_port()?;
    let (port, seconds, size) =
        (port_number.to_string(), session.whole_seconds().to_string(), size.to_string());
    let arguments = words(["sr", "--tcp", "-i", "127.0.0.1", "-p", &port]);
    let launch = Launch::new("sockperf server", program.clone(), arguments, path);
    let mut server = session.serve(launch.on(cpus.map(|(server, _)| server)))?;
    server.wait_until(|_| Ok(is_listening(port_number)?.then_some(())))?;
    let options = ["--tcp", "-i", "127.0.0.1", "-p", &port, "--msg-size", &size, "-t", &seconds];
    let arguments = mode.iter().chain(&options).map(OsString::from).collect();
    let launch = Launch::new("sockperf client", program, arguments, path);
    let client = session.start(launch.on(cpus.map(|(_, client)| client)))?;
    session.finish_client(path, &[&server], client, session.whole_seconds() as f64)
}

fn latencies(finished: Finished) -> Result<Outcome> {
    let output = &finished.output;
    let percentile = |share: &str| number_after(output, &format!("percentile {share} ="));
    let values = vec![number_after(output, "Latency is")?, percentile("99.000")?];
    let latency = Latency {
        p50: percentile("50.000").ok(),
        p90: percentile("90.000").ok(),
        p99: Some(values[1]),
        p999: percentile("99.900").ok(),
        max: number_after(output, "<MAX> observation =").ok(),
    };
    // The first is that of the whole run, as the processor time is.
    let round_trips = number_after(output, "ReceivedMessages=")?;
    Ok(Outcome::new(values, finished.cpu).latency(latency).requests(round_trips))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::outcome::{Cpu, Work};

    fn finished(output: &str) -> Finished {
        Finished { output: output.into(), cpu: Cpu::default() }
    }

    #[test]
    fn output_of_version_3() {
        let output = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=51; ReceivedMessages=50\n\
                      sockperf: ====> avg-latency=9.750 (std-dev=1.1)\nsockperf: Summary: Latency is 9.750 usec\n\
                      sockperf: ---> <MAX> observation =  100.500\nsockperf: ---> percentile 99.900 =   23.1\n\
                      sockperf: ---> percentile 99.000 =   16.500\nsockperf: ---> percentile 50.000 =    9.5\n";
        let outcome = latencies(finished(output)).unwrap();
        assert_eq!(outcome.values, [9.75, 16.5]);
        assert_eq!(outcome.work, Some(Work::Requests(50.0)));
        let latency = outcome.latency;
        assert_eq!(
            (latency.p50, latency.p90, latency.p999, latency.max),
            (Some(9.5), None, Some(23.1), Some(100.5))
        );
        assert!(latencies(finished("sockperf: ERROR: Connection refused")).is_err());
    }
}
