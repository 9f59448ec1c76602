//! System calls of a server per request, counted in short runs of their own, because counting slows it down.
//!
//! A run of one second and one of three; what the longer adds, in calls and in requests. So what starting, connecting and
//! upgrading takes is not in it.

use std::ffi::OsString;
use std::fs;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::case::{Case, Path};
use super::outcome::Work;
use super::session::Session;
use super::tools;

const SHORT: f64 = 1.0;
const LONG: f64 = 3.0;
/// For strace to write what it counted once the server has ended.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn is_possible() -> bool {
    tools::locate("strace").is_some()
}

/// What to put before a server. The tracer is the grandchild, so that the process we started is the server; and it is
/// in a group of its own, so that it outlives the end of the server's.
pub fn under_strace(counts: &FilePath) -> Result<Vec<OsString>> {
    let strace = tools::located("strace")?;
    let options = ["-DD", "-f", "-c", "-o"].map(OsString::from);
    Ok([strace.into()].into_iter().chain(options).chain([counts.into()]).collect())
}

/// Calls of the server for each request.
pub fn per_request(session: &mut Session, case: &Case, path: Path) -> Result<f64> {
    let (few_calls, few) = count(session, case, path, SHORT)?;
    let (many_calls, many) = count(session, case, path, LONG)?;
    ensure!(many > few, "{many} requests in {LONG} s, {few} in {SHORT} s");
    Ok(((many_calls - few_calls) / (many - few)).max(0.0))
}

fn count(session: &mut Session, case: &Case, path: Path, seconds: f64) -> Result<(f64, f64)> {
    let counts = session.fresh_path("strace");
    let usual = std::mem::replace(&mut session.seconds, seconds);
    session.trace = Some(counts.clone());
    let outcome = (case.run)(session, path);
    session.trace = None;
    session.seconds = usual;
    let Some(Work::Requests(requests)) = outcome?.work else {
        bail!("this row does not count requests");
    };
    Ok((written(&counts)?, requests))
}

fn written(counts: &FilePath) -> Result<f64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(counts).unwrap_or_default();
        if let Some(calls) = sum(&text) {
            return Ok(calls);
        }
        ensure!(Instant::now() < deadline, "strace counted nothing; is tracing allowed here?");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Of a whole table of strace -c: its columns are time, seconds, usecs per call, calls, errors if any, name. Whether the last
/// line has a third column depends on the version.
fn sum(text: &str) -> Option<f64> {
    text.lines().last()?.ends_with("total").then_some(())?;
    let calls = |line: &str| line.split_whitespace().nth(3)?.parse::<f64>().ok();
    let rows = text.lines().filter(|line| !line.ends_with("total"));
    Some(rows.filter_map(calls).sum())
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
        assert_eq!(sum(TABLE), Some(190.0));
        assert_eq!(
            sum(&TABLE.replace("100.00    0.000500           2 ", "100.00    0.000500             ")),
            Some(190.0)
        );
        assert_eq!(sum(""), None);
        assert_eq!(sum(&TABLE[..200]), None, "not whole yet");
    }
}
