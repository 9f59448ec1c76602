//! Small servers in languages with a runtime of their own.

use std::fs;

use anyhow::{Context, Result};

use super::{located, words};
use crate::bench::case::Path;
use crate::bench::outcome::Outcome;
use crate::bench::peers;
use crate::bench::session::{Launch, Session};

pub struct Language {
    program: &'static str,
    file: &'static str,
    source: &'static str,
    /// Whether it is one thread; the others of a virtual machine are left to the kernel.
    pinned: bool,
}

pub const NODE: Language = Language {
    program: "node",
    file: "echo.js",
    source: include_str!("echo/echo.js"),
    pinned: true,
};
pub const JAVA: Language = Language {
    program: "java",
    file: "Echo.java",
    source: include_str!("echo/Echo.java"),
    pinned: false,
};

/// Before it counts, for compilers at run time.
const WARM_UP: f64 = 1.0;
const MESSAGE: u32 = 128;

/// Messages per second on 50 connections.
pub fn run(session: &Session, path: Path, language: Language) -> Result<Outcome> {
    let outcome = on_connections(session, path, language, 50)?;
    Ok(Outcome { values: vec![outcome.values[0]], ..outcome })
}

/// The same on a few connections, and their 99th percentile in microseconds.
pub fn few_node<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    on_connections(session, path, NODE, CONNECTIONS)
}

/// See `few_node`.
pub fn few_java<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    on_connections(session, path, JAVA, CONNECTIONS)
}

fn on_connections(
    session: &Session,
    path: Path,
    language: Language,
    connections: u32,
) -> Result<Outcome> {
    let source = session.directory().join(language.file);
    fs::write(&source, language.source)
        .with_context(|| format!("cannot write {}", source.display()))?;
    let arguments = words([&source.display().to_string(), &session.fresh_address().to_string()]);
    let launch = Launch::new(language.program, located(language.program)?, arguments, path);
    let mut server = session.serve(launch.on(session.server_cpu().filter(|_| language.pinned)))?;
    let address = server.wait_until(|server| server.first_line())?;
    let ask = |server: &_, seconds| {
        peers::ask(session, path, server, &address, "echo", MESSAGE, connections, seconds)
    };
    ask(&server, WARM_UP)?;
    server.forget_cpu();
    ask(&server, session.seconds)
}
