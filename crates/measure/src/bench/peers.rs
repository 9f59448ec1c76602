//! Rows by this project's own pair of ordinary programs, `shortwire-peers`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::case::Path;
use super::helper;
use super::outcome::{Cpu, Latency, Outcome};
use super::process::Process;
use super::session::{Launch, Session, unsupported};

/// For thousands of connections to be made and used, one after the other.
const REST_LIMIT: Duration = Duration::from_secs(60);
const NEVER: &[&str] = &["--after", "4294967295", "--after-bytes", "1000000G"];

/// What shortwire-peers is asked to do.
#[derive(Clone, Copy)]
struct Task {
    mode: &'static str,
    more: &'static [&'static str],
    options: &'static [&'static str],
    cpus: Option<(usize, usize)>,
    connections: Option<u32>,
}

pub fn pingpong(session: &Session, path: Path) -> Result<Outcome> {
    let task = session.task("pingpong");
    let (figures, cpu) = run(session, path, task)?;
    let values = vec![number(&figures, "/latency_us/avg")?, number(&figures, "/latency_us/p99")?];
    counted(Outcome::new(values, cpu), &figures)
}

pub fn roundtrip(session: &Session, path: Path) -> Result<Outcome> {
    rate(session, path, Task { more: &["--size", "100"], ..session.task("pingpong") })
}

pub fn one_cpu(session: &Session, path: Path) -> Result<Outcome> {
    let cpus = session.cpus.map(|(first, _)| (first, first));
    let (figures, cpu) = run(session, path, Task { cpus, ..session.task("pingpong") })?;
    counted(Outcome::new(vec![number(&figures, "/latency_us/avg")?], cpu), &figures)
}

pub fn stream(session: &Session, path: Path) -> Result<Outcome> {
    let (figures, cpu) = run(session, path, session.task("stream"))?;
    Ok(Outcome::new(vec![number(&figures, "/bytes_per_second")?], cpu)
        .bytes(number(&figures, "/bytes")?))
}

pub fn rr(session: &Session, path: Path) -> Result<Outcome> {
    let (figures, cpu) = run(session, path, session.task("rr"))?;
    let values =
        vec![number(&figures, "/messages_per_second")?, number(&figures, "/latency_us/p99")?];
    counted(Outcome::new(values, cpu), &figures)
}

/// So many requests at a time, on 500 connections in turn, nothing pinned.
pub fn active(session: &Session, path: Path, more: &'static [&'static str]) -> Result<Outcome> {
    let task = Task { cpus: None, connections: Some(500), more, ..session.task("rr") };
    let (figures, cpu) = run(session, path, task)?;
    let values =
        vec![number(&figures, "/messages_per_second")?, number(&figures, "/latency_us/p99")?];
    counted(Outcome::new(values, cpu), &figures)
}

/// Requests on a few connections, nothing pinned.
pub fn few<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    let task = Task { cpus: None, connections: Some(CONNECTIONS), ..session.task("rr") };
    let (figures, cpu) = run(session, path, task)?;
    let values =
        vec![number(&figures, "/messages_per_second")?, number(&figures, "/latency_us/p99")?];
    counted(Outcome::new(values, cpu), &figures)
}

pub fn short(session: &Session, path: Path) -> Result<Outcome> {
    rate(session, path, session.task("short"))
}

/// Connections with a few requests each, by the connection.
pub fn pool(session: &Session, path: Path) -> Result<Outcome> {
    rate(session, path, Task { more: &["--requests", "8"], ..session.task("short") })
}

pub fn never(session: &Session, path: Path) -> Result<Outcome> {
    let never = |mode| Task { options: NEVER, ..session.task(mode) };
    let latency = number(&run(session, path, never("pingpong"))?.0, "/latency_us/avg")?;
    let (figures, cpu) = run(session, path, never("rr"))?;
    Ok(Outcome::new(vec![latency, number(&figures, "/messages_per_second")?], cpu))
}

pub fn busy(session: &Session, path: Path, threads: u32) -> Result<Outcome> {
    let _others = busy_threads(session, threads)?;
    rate(session, path, Task { cpus: None, ..session.task("rr") })
}

/// Threads that only compute, until the caller drops them.
pub fn busy_threads(session: &Session, threads: u32) -> Result<Process> {
    let arguments = words(&["busy", "--threads", &threads.to_string()]);
    // Over TCP: it has no connections and wants none of the library.
    let mut others =
        session.start(Launch::new("busy threads", program()?, arguments, Path::Tcp).anywhere())?;
    others.wait_until(|others| others.first_line())?;
    Ok(others)
}

/// Requests of `size` bytes to a server of somebody else's, which is at `address`: how many a
/// second, and the 99th percentile in microseconds.
#[expect(clippy::too_many_arguments, reason = "each is a word of the command line")]
pub fn ask(
    session: &Session,
    path: Path,
    server: &Process,
    address: &str,
    protocol: &str,
    size: u32,
    connections: u32,
    seconds: f64,
) -> Result<Outcome> {
    let (size, length, connections) =
        (size.to_string(), seconds.to_string(), connections.to_string());
    let mut arguments = words(&[
        "client",
        "--mode",
        "rr",
        "--connections",
        &connections,
        "--json",
        "--connect",
        address,
    ]);
    arguments.extend(words(&["--protocol", protocol, "--size", &size, "--seconds", &length]));
    let launch =
        Launch::new("shortwire-peers client", program()?, arguments, path).on(session.client_cpu());
    let finished = session.finish_client(path, &[server], session.start(launch)?, seconds)?;
    let figures = parse(&finished.output)?;
    let values =
        vec![number(&figures, "/messages_per_second")?, number(&figures, "/latency_us/p99")?];
    counted(Outcome::new(values, finished.cpu), &figures)
}

/// Connections that say something and then rest, from the caller's point of view until it drops
/// them.
pub fn rest(session: &Session, path: Path, address: &str, connections: u32) -> Result<Process> {
    let count = connections.to_string();
    let arguments =
        words(&["idle", "--protocol", "redis", "--connections", &count, "--connect", address]);
    let arguments = [arguments, words(&["--messages", "8"])].concat();
    let mut idle =
        session.start(Launch::new("shortwire-peers idle", program()?, arguments, path))?;
    idle.wait_at_most(REST_LIMIT, |idle| idle.first_line())?;
    Ok(idle)
}

impl Session {
    fn task(&self, mode: &'static str) -> Task {
        Task { mode, more: &[], options: &[], cpus: self.cpus, connections: None }
    }
}

fn rate(session: &Session, path: Path, task: Task) -> Result<Outcome> {
    let (figures, cpu) = run(session, path, task)?;
    counted(Outcome::new(vec![number(&figures, "/messages_per_second")?], cpu), &figures)
}

fn run(session: &Session, path: Path, task: Task) -> Result<(Value, Cpu)> {
    let seconds = session.seconds.to_string();
    if path == Path::BareRing {
        let mut arguments =
            words(&["bare-ring", "--mode", task.mode, "--seconds", &seconds, "--json"]);
        arguments.extend(words(task.more));
        if let Some((server, client)) = task.cpus {
            arguments.extend(words(&["--cpus", &format!("{server},{client}")]));
        }
        // It pins its two processes itself; a pinned parent could not.
        let process =
            session.start(Launch::new("shortwire-peers bare-ring", program()?, arguments, path))?;
        let finished = session.finish_client(path, &[], process, session.seconds)?;
        return Ok((parse(&finished.output)?, finished.cpu));
    }
    let listen = match path {
        Path::Tcp | Path::Shortwire | Path::Copy => format!("{}:0", session.fresh_address()),
        Path::Unix => format!("unix:{}", session.fresh_path("socket").display()),
        Path::BareRing => return unsupported(path),
    };
    let arguments = words(&["server", "--mode", task.mode, "--listen", &listen]);
    let launch =
        Launch::new("shortwire-peers server", program()?, arguments, path).options(task.options);
    let mut server = session.serve(launch.on(task.cpus.map(|(server, _)| server)))?;
    let address = server.wait_until(|server| server.first_line())?;
    let mut arguments = words(&[
        "client",
        "--mode",
        task.mode,
        "--connect",
        &address,
        "--seconds",
        &seconds,
        "--json",
    ]);
    arguments.extend(words(task.more));
    if let Some(connections) = task.connections {
        arguments.extend(words(&["--connections", &connections.to_string()]));
    }
    let launch =
        Launch::new("shortwire-peers client", program()?, arguments, path).options(task.options);
    let client = session.start(launch.on(task.cpus.map(|(_, client)| client)))?;
    let finished = session.finish_client(path, &[&server], client, session.seconds)?;
    Ok((parse(&finished.output)?, finished.cpu))
}

fn program() -> Result<PathBuf> {
    helper::locate("shortwire-peers")
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn parse(output: &str) -> Result<Value> {
    serde_json::from_str(output)
        .with_context(|| format!("shortwire-peers printed no figures but: {output}"))
}

fn number(figures: &Value, at: &str) -> Result<f64> {
    figures
        .pointer(at)
        .and_then(Value::as_f64)
        .with_context(|| format!("shortwire-peers printed no {at}"))
}

fn counted(outcome: Outcome, figures: &Value) -> Result<Outcome> {
    Ok(outcome.latency(Latency::of_peers(figures)).requests(number(figures, "/messages")?))
}
