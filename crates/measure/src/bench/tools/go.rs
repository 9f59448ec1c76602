//! Programs in Go, built with the C library (cgo) and without, and servers that are written in Go.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::nginx::{Load, wrk, wrk_by};
use super::{located, words};
use crate::bench::case::Path;
use crate::bench::outcome::{Latency, Outcome};
use crate::bench::session::{Launch, Session, free_port, is_listening};

const SOURCE: &str = include_str!("echo/echo.go");
const MESSAGE: u32 = 64;
const PAGE: usize = 612;
/// Programs without the C library are followed only where that is asked for.
const FOLLOW: &[&str] = &["--raw", "auto"];
/// A value that etcd gives back, and the question for it, in its JSON.
const PUT: &str = r#"{"key":"a2V5","value":"eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="}"#;
const RANGE: &str = r#"{"key":"a2V5"}"#;

/// Messages per second on that many connections between two programs in Go, and their 99th
/// percentile in microseconds.
pub fn echo<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    between(session, path, CONNECTIONS, false)
}

/// The same of programs that have the C library.
pub fn echo_cgo<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    between(session, path, CONNECTIONS, true)
}

fn between(session: &Session, path: Path, connections: u32, has_libc: bool) -> Result<Outcome> {
    let program = built(session, has_libc)?;
    let launch =
        |what, arguments| Launch::new(what, program.clone(), arguments, path).options(FOLLOW);
    let address = session.fresh_address().to_string();
    let mut server = session.serve(launch("Go echo", words(["echo", &address])))?;
    let address = server.wait_until(|server| server.first_line())?;
    let (count, size) = (connections.to_string(), MESSAGE.to_string());
    let length = (session.seconds * 1e3).round().to_string();
    let arguments = words(["ask", &address, &count, &size, &length]);
    let client = session.start(launch("Go client", arguments))?;
    let finished = session.finish_client(path, &[&server], client, session.seconds)?;
    let figures: Value = serde_json::from_str(&finished.output)
        .with_context(|| format!("the Go client printed no figures but: {}", finished.output))?;
    let number = |at: &str| {
        let found = figures.pointer(at).and_then(Value::as_f64);
        found.with_context(|| format!("the Go client printed no {at}"))
    };
    let values = vec![number("/messages_per_second")?, number("/latency_us/p99")?];
    let outcome = Outcome::new(values, finished.cpu).latency(Latency::of_peers(&figures));
    Ok(outcome.requests(number("/messages")?))
}

/// Pages of Go's net/http on connections that live as long as the run: requests per second, and the
/// 99th percentile.
pub fn pages<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    let arguments = words(["pages", &session.fresh_address().to_string()]);
    let launch = Launch::new("Go pages", built(session, false)?, arguments, path);
    let mut server = session.serve(launch.options(FOLLOW))?;
    let address = server.wait_until(|server| server.first_line())?;
    wrk(session, path, &[&server], &address, load(CONNECTIONS))
}

/// Requests per second for a file of Caddy's, and the 99th percentile.
pub fn caddy<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    let port = free_port()?;
    let address = format!("{}:{port}", session.fresh_address());
    let root = session.fresh_path("caddy");
    fs::create_dir(&root)
        .and_then(|()| fs::write(root.join("index.html"), "x".repeat(PAGE)))
        .context("cannot write the page for Caddy")?;
    let root = root.display().to_string();
    // Its own format cannot say that what it last ran with is not to be kept for the user.
    let state = format!("{root}/state");
    let site = json!({
        "listen": [address],
        "automatic_https": { "disable": true },
        "routes": [{ "handle": [{ "handler": "file_server", "root": root }] }],
    });
    let text = json!({
        "admin": { "disabled": true, "config": { "persist": false } },
        "storage": { "module": "file_system", "root": state },
        "apps": { "http": { "servers": { "pages": site } } },
    });
    let file = format!("{root}/caddy.json");
    fs::write(&file, text.to_string()).context("cannot write the configuration of Caddy")?;
    let arguments = words(["run", "--config", &file]);
    let launch = Launch::new("caddy", located("caddy")?, arguments, path).options(FOLLOW);
    let mut server = session.serve(launch)?;
    server.wait_until(|_| Ok(is_listening(port)?.then_some(())))?;
    wrk(session, path, &[&server], &address, load(CONNECTIONS))
}

/// Values that etcd gives, asked for in JSON, per second, and the 99th percentile. Its gateway asks
/// etcd itself, over a connection of its own that is in shared memory too.
pub fn etcd<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    let (port, peers) = (free_port()?, free_port()?);
    let host = session.fresh_address();
    let address = format!("{host}:{port}");
    let (clients, peers) = (format!("http://{address}"), format!("http://{host}:{peers}"));
    let data = session.fresh_path("etcd").display().to_string();
    let cluster = format!("default={peers}");
    let arguments = words([
        "--data-dir",
        &data,
        "--listen-client-urls",
        &clients,
        "--advertise-client-urls",
        &clients,
        "--listen-peer-urls",
        &peers,
        "--initial-advertise-peer-urls",
        &peers,
        "--initial-cluster",
        &cluster,
        "--log-level",
        "error",
    ]);
    let launch = Launch::new("etcd", located("etcd")?, arguments, path).options(FOLLOW);
    let mut server = session.serve(launch)?;
    server.wait_until(|_| Ok(put(&address).then_some(())))?;
    let script = session.fresh_path("range.lua");
    fs::write(&script, format!("wrk.method = \"POST\"\nwrk.body = '{RANGE}'\n"))
        .context("cannot write the script for wrk")?;
    let script = script.display().to_string();
    let url = format!("http://{address}/v3/kv/range");
    wrk_by(session, path, &[&server], &url, load(CONNECTIONS), &["-s", &script])
}

/// Whether etcd has taken the value: it listens before it has a leader.
fn put(address: &str) -> bool {
    use std::io::{Read, Write};
    let said = std::net::TcpStream::connect(address).and_then(|mut stream| {
        let len = PUT.len();
        let head = format!(
            "POST /v3/kv/put HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{PUT}"
        );
        stream.write_all(head.as_bytes())?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    });
    said.is_ok_and(|said| said.starts_with("HTTP/1.1 200"))
}

fn load(connections: u32) -> Load {
    Load { threads: connections.min(2), connections, close: false }
}

/// The program, built once for all rows.
fn built(session: &Session, has_libc: bool) -> Result<PathBuf> {
    let program = session.directory().join(if has_libc { "go-echo-cgo" } else { "go-echo" });
    if program.exists() {
        return Ok(program);
    }
    let source = session.directory().join("echo.go");
    fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
    let mut build = Command::new(located("go")?);
    build.args(["build", "-o"]).arg(&program).arg(&source).current_dir(session.directory());
    build.envs([("GOFLAGS", ""), ("CGO_ENABLED", if has_libc { "1" } else { "0" })]);
    let said = build.output().context("cannot start go")?;
    ensure!(said.status.success(), "go build: {}", String::from_utf8_lossy(&said.stderr).trim());
    Ok(program)
}
