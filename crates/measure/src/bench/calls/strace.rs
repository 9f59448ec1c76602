//! Counting by a tracer, where perf is not allowed. The server then takes ten times as long for
//! each call, so that its peer sleeps more often than it would: calls that wake a sleeper are
//! counted too many.

use std::ffi::OsString;
use std::fs;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Calls;
use crate::bench::tools;

/// For strace to write what it counted once the server has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to put before a server. The tracer is the grandchild, so that the process we started is the
/// server; and it is in a group of its own, so that it outlives the end of the server's.
pub fn prefix(counts: &FilePath) -> Result<Vec<OsString>> {
    let strace = tools::located("strace")?;
    let options = ["-DD", "-f", "-c", "-o"].map(OsString::from);
    Ok([strace.into()].into_iter().chain(options).chain([counts.into()]).collect())
}

pub fn read(counts: &FilePath) -> Result<Calls> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(counts).unwrap_or_default();
        if let Some(calls) = table(&text) {
            return Ok(calls);
        }
        ensure!(Instant::now() < deadline, "strace counted nothing; is tracing allowed here?");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Of a whole table of strace -c: its columns are time, seconds, usecs per call, calls, errors if
/// any, name.
fn table(text: &str) -> Option<Calls> {
    text.lines().last()?.ends_with("total").then_some(())?;
    let rows = text.lines().filter(|line| !line.ends_with("total"));
    let calls = rows.filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        Some((fields.last()?.to_string(), fields.get(3)?.parse().ok()?))
    });
    Some(calls.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000300           3       100           epoll_wait
 40.00    0.000200           2        90        10 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.000500           2       190        10 total
";

    #[test]
    fn tables_of_strace() {
        let calls = table(TABLE).unwrap();
        assert_eq!(calls, Calls::from([("epoll_wait".into(), 100.0), ("read".into(), 90.0)]));
        assert_eq!(table(""), None);
        assert_eq!(table(&TABLE[..200]), None, "not whole yet");
    }
}
