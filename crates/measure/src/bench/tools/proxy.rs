use std::fs;

use anyhow::{Context, Result};

use super::nginx::{self, Load};
use super::{located, words};
use crate::bench::case::Path;
use crate::bench::outcome::Outcome;
use crate::bench::session::{Launch, Session, free_port, is_listening};

const LOAD: Load = Load { threads: 2, connections: 100, close: false };

/// A proxy for HTTP, with one thread.
struct Proxy {
    program: &'static str,
    /// Name of its configuration file, whose end tells the format.
    file: &'static str,
    arguments: &'static [&'static str],
    /// Before the name of the file.
    option: &'static str,
    configure: fn(&str, &str) -> String,
}

const HAPROXY: Proxy = Proxy {
    program: "haproxy",
    file: "haproxy.cfg",
    arguments: &[],
    option: "-f",
    configure: configure_haproxy,
};

const ENVOY: Proxy = Proxy {
    program: "envoy",
    file: "envoy.yaml",
    // Without a base id of its own a second Envoy on the machine would be in the way.
    arguments: &["--concurrency", "1", "--use-dynamic-base-id", "-l", "error"],
    option: "-c",
    configure: configure_envoy,
};

/// Requests per second through haproxy: two connections in a row, both over `path`.
pub fn haproxy(session: &Session, path: Path) -> Result<Outcome> {
    let outcome = through(session, path, LOAD, &HAPROXY)?;
    Ok(Outcome { values: vec![outcome.values[0]], ..outcome })
}

/// The same on a few connections that live as long as the run, and the 99th percentile in
/// microseconds.
pub fn few_haproxy<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    through(session, path, Load { threads: 1, connections: CONNECTIONS, close: false }, &HAPROXY)
}

/// See `few_haproxy`.
pub fn few_envoy<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    through(session, path, Load { threads: 1, connections: CONNECTIONS, close: false }, &ENVOY)
}

fn through(session: &Session, path: Path, load: Load, proxy: &Proxy) -> Result<Outcome> {
    let (backend, behind) = nginx::start(session, path)?;
    let port = free_port()?;
    let address = format!("{}:{port}", session.fresh_address());
    let configuration = session.fresh_path(proxy.file);
    fs::write(&configuration, (proxy.configure)(&address, &behind))
        .with_context(|| format!("cannot write the configuration of {}", proxy.program))?;
    let mut arguments: Vec<_> = proxy.arguments.iter().map(Into::into).collect();
    arguments.extend(words([proxy.option, &configuration.display().to_string()]));
    let mut process =
        session.serve(Launch::new(proxy.program, located(proxy.program)?, arguments, path))?;
    process.wait_until(|_| Ok(is_listening(port)?.then_some(())))?;
    nginx::wrk(session, path, &[&backend, &process], &address, load)
}

fn configure_haproxy(front: &str, behind: &str) -> String {
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

fn configure_envoy(front: &str, behind: &str) -> String {
    let address = |at: &str| {
        let (host, port) = at.rsplit_once(':').unwrap_or((at, "0"));
        format!("{{ socket_address: {{ address: {host}, port_value: {port} }} }}")
    };
    format!(
        r#"static_resources:
  listeners:
  - address: {}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: nginx }} }}] }}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: nginx
    type: STATIC
    connect_timeout: 5s
    load_assignment:
      cluster_name: nginx
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {} }} }}] }}]
"#,
        address(front),
        address(behind)
    )
}
