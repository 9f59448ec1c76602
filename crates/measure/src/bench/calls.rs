//! System calls of a server per request, counted in short runs of their own, because counting costs
//! time.
//!
//! A run of one second and one of three; what the longer adds, in calls and in requests. So what
//! starting, connecting and upgrading takes is not in it.

mod perf;
mod strace;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::case::{Case, Path};
use super::outcome::Work;
use super::process::Process;
use super::session::Session;
use super::{cpu, tools};

const SHORT: f64 = 1.0;
const LONG: f64 = 3.0;

/// Who counts, and where it writes what it counted.
#[derive(Clone)]
pub enum Counter {
    Perf(PathBuf),
    Strace(PathBuf),
}

/// Counting that is under way.
pub struct Attached(Process);

impl Counter {
    /// The better one of those that are here; none if neither is.
    pub fn find(session: &Session) -> Option<Counter> {
        if perf::works() {
            Some(Counter::Perf(session.fresh_path("calls")))
        } else if tools::locate("strace").is_some() {
            Some(Counter::Strace(session.fresh_path("calls")))
        } else {
            None
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Counter::Perf(_) => "perf",
            Counter::Strace(_) => "strace",
        }
    }

    /// What goes before a server.
    pub fn prefix(&self) -> Result<Vec<OsString>> {
        match self {
            Counter::Perf(_) => Ok(Vec::new()),
            Counter::Strace(counts) => strace::prefix(counts),
        }
    }

    /// When servers are ready and the client has begun.
    pub fn attach(&self, servers: &[&Process]) -> Result<Option<Attached>> {
        match self {
            Counter::Perf(counts) => {
                let pids: Vec<u32> =
                    servers.iter().flat_map(|server| cpu::tree(server.group())).collect();
                perf::attach(counts, &pids).map(|process| Some(Attached(process)))
            }
            Counter::Strace(_) => Ok(None),
        }
    }

    fn read(&self) -> Result<Calls> {
        match self {
            Counter::Perf(counts) => perf::read(counts),
            Counter::Strace(counts) => strace::read(counts),
        }
    }
}

impl Attached {
    pub fn stop(self) -> Result<()> {
        self.0.interrupt()
    }
}

/// By name.
pub type Calls = BTreeMap<String, f64>;

/// Calls of the server for each request.
pub fn per_request(session: &mut Session, case: &Case, path: Path) -> Result<Calls> {
    let (few_calls, few) = count(session, case, path, SHORT)?;
    let (many_calls, many) = count(session, case, path, LONG)?;
    ensure!(many > few, "{many} requests in {LONG} s, {few} in {SHORT} s");
    Ok(difference(&few_calls, many_calls, many - few))
}

/// What fewer requests needed too is not theirs.
fn difference(few: &Calls, many: Calls, requests: f64) -> Calls {
    let more = |(name, count): (String, f64)| {
        let more = count - few.get(&name).copied().unwrap_or(0.0);
        (name, more.max(0.0) / requests)
    };
    many.into_iter().map(more).filter(|(_, each)| *each > 0.0).collect()
}

fn count(session: &mut Session, case: &Case, path: Path, seconds: f64) -> Result<(Calls, f64)> {
    let counter = Counter::find(session);
    let usual = std::mem::replace(&mut session.seconds, seconds);
    session.counter = counter;
    let outcome = (case.run)(session, path);
    let counter = session.counter.take();
    session.seconds = usual;
    let Some(Work::Requests(requests)) = outcome?.work else {
        bail!("this row does not count requests");
    };
    Ok((counter.context("neither perf nor strace counts here")?.read()?, requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starting_needs_is_not_a_request_s() {
        let few = Calls::from([("openat".into(), 40.0), ("read".into(), 110.0)]);
        let many =
            Calls::from([("openat".into(), 40.0), ("read".into(), 310.0), ("write".into(), 50.0)]);
        let each = difference(&few, many, 100.0);
        assert_eq!(each, Calls::from([("read".into(), 2.0), ("write".into(), 0.5)]));
    }
}
