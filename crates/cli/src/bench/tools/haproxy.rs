use std::fs;

use anyhow::{Context, Result};

use super::nginx::{self, Load};
use super::{located, words};
use crate::bench::case::Path;
use crate::bench::outcome::Outcome;
use crate::bench::session::{Launch, Session, free_port, is_listening};

const LOAD: Load = Load { threads: 2, connections: 100, close: false };

/// Requests per second through a proxy: two connections in a row, both over `path`.
pub fn run(session: &Session, path: Path) -> Result<Outcome> {
    let (backend, behind) = nginx::start(session, path)?;
    let port = free_port()?;
    let address = format!("{}:{port}", session.fresh_address());
    let configuration = session.fresh_path("haproxy.cfg");
    fs::write(&configuration, configure(&address, &behind)).context("cannot write the configuration of haproxy")?;
    let arguments = words(["-f", &configuration.display().to_string()]);
    let mut proxy = session.serve(Launch::new("haproxy", located("haproxy")?, arguments, path))?;
    proxy.wait_until(|_| Ok(is_listening(port)?.then_some(())))?;
    let outcome = nginx::wrk(session, path, &[&backend, &proxy], &address, LOAD)?;
    Ok(Outcome { values: vec![outcome.values[0]], ..outcome })
}

fn configure(front: &str, behind: &str) -> String {
    format!(
        "global
  maxconn 1000
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend in
  bind {front}
  default_backend out
backend out
  server nginx {behind}
"
    )
}
