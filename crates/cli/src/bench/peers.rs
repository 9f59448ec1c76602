//! Rows by this project's own pair of ordinary programs, `shortwire-peers`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use serde_json::Value;

use super::case::Path;
use super::helper;
use super::session::{Launch, Session, unsupported};

const NEVER: &[&str] = &["--after", "4294967295", "--after-bytes", "1000000G"];

pub fn pingpong(session: &Session, path: Path) -> Result<Vec<f64>> {
    let figures = run(session, "pingpong", "pingpong", path, &[])?;
    Ok(vec![number(&figures, "/latency_us/avg")?, number(&figures, "/latency_us/p99")?])
}

pub fn stream(session: &Session, path: Path) -> Result<Vec<f64>> {
    Ok(vec![number(&run(session, "stream", "stream", path, &[])?, "/bytes_per_second")?])
}

pub fn rr(session: &Session, path: Path) -> Result<Vec<f64>> {
    let figures = run(session, "rr", "rr", path, &[])?;
    Ok(vec![number(&figures, "/messages_per_second")?, number(&figures, "/latency_us/p99")?])
}

pub fn short(session: &Session, path: Path) -> Result<Vec<f64>> {
    Ok(vec![number(&run(session, "short", "short", path, &[])?, "/messages_per_second")?])
}

pub fn never(session: &Session, path: Path) -> Result<Vec<f64>> {
    let latency = number(&run(session, "never", "pingpong", path, NEVER)?, "/latency_us/avg")?;
    let rate = number(&run(session, "never", "rr", path, NEVER)?, "/messages_per_second")?;
    Ok(vec![latency, rate])
}

fn run(session: &Session, case: &'static str, mode: &str, path: Path, options: &[&str]) -> Result<Value> {
    let program = helper::locate("shortwire-peers")?;
    let seconds = session.seconds.to_string();
    let client = |arguments: Vec<OsString>, path| Launch {
        name: "shortwire-peers client",
        program: program.clone(),
        arguments,
        path,
        cpu: session.client_cpu(),
        options,
    };
    if path == Path::BareRing {
        let mut arguments = words(&["bare-ring", "--mode", mode, "--seconds", &seconds, "--json"]);
        if let Some((server, client)) = session.cpus {
            arguments.extend(words(&["--cpus", &format!("{server},{client}")]));
        }
        // It pins its two processes itself; a pinned parent could not.
        let process = session.start(Launch { cpu: None, ..client(arguments, path) })?;
        return parse(&session.finish_client(case, path, process, session.seconds)?);
    }
    let listen = match path {
        Path::Tcp | Path::Shortwire => format!("{}:0", session.fresh_address()),
        Path::Unix => format!("unix:{}", session.fresh_path("socket").display()),
        Path::BareRing => return unsupported(path),
    };
    let mut server = session.start(Launch {
        name: "shortwire-peers server",
        program: program.clone(),
        arguments: words(&["server", "--mode", mode, "--listen", &listen]),
        path,
        cpu: session.server_cpu(),
        options,
    })?;
    let address = server.wait_until(|server| server.first_line())?;
    let arguments = words(&["client", "--mode", mode, "--connect", &address, "--seconds", &seconds, "--json"]);
    let process = session.start(client(arguments, path))?;
    parse(&session.finish_client(case, path, process, session.seconds)?)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn parse(output: &str) -> Result<Value> {
    serde_json::from_str(output).with_context(|| format!("shortwire-peers printed no figures but: {output}"))
}

fn number(figures: &Value, at: &str) -> Result<f64> {
    figures.pointer(at).and_then(Value::as_f64).with_context(|| format!("shortwire-peers printed no {at}"))
}
