use std::ffi::OsString;
use std::fs;
use std::path::Path as FilePath;

use anyhow::{Context, Result, bail, ensure};

use super::{located, number_after, words};
use crate::bench::case::Path;
use crate::bench::outcome::{Latency, Outcome};
use crate::bench::process::Process;
use crate::bench::session::{Finished, Launch, Session, free_port, is_listening};

/// The size of nginx's own welcome page.
const PAGE: usize = 612;

/// What wrk is to do.
#[derive(Clone, Copy)]
pub struct Load {
    pub threads: u32,
    pub connections: u32,
    /// Whether each request gets a connection of its own.
    pub close: bool,
}

/// Requests per second and the 99th percentile in microseconds, nothing pinned: all threads want
/// all cpus.
pub fn run(session: &Session, path: Path, load: Load) -> Result<Outcome> {
    let (server, address) = start(session, path)?;
    wrk(session, path, &[&server], &address, load)
}

/// A few connections that live as long as the run.
pub fn few<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    run(session, path, Load { threads: 1, connections: CONNECTIONS, close: false })
}

/// With two workers; gives where it listens.
pub fn start(session: &Session, path: Path) -> Result<(Process, String)> {
    let port = free_port()?;
    let address = format!("{}:{port}", session.fresh_address());
    let prefix = session.fresh_path("nginx");
    fs::create_dir(&prefix)
        .and_then(|()| fs::write(prefix.join("index.html"), "x".repeat(PAGE)))
        .context("cannot write the page for nginx")?;
    let configuration = prefix.join("nginx.conf");
    fs::write(&configuration, configure(&prefix, &address))
        .context("cannot write the configuration of nginx")?;
    let (prefix, configuration) =
        (prefix.display().to_string(), configuration.display().to_string());
    let error_log = format!("{prefix}/error.log");
    let arguments = words(["-p", &prefix, "-e", &error_log, "-c", &configuration]);
    let mut server = session.serve(Launch::new("nginx", located("nginx")?, arguments, path))?;
    server.wait_until(|_| Ok(is_listening(port)?.then_some(())))?;
    Ok((server, address))
}

pub fn wrk(
    session: &Session,
    path: Path,
    servers: &[&Process],
    address: &str,
    load: Load,
) -> Result<Outcome> {
    wrk_by(session, path, servers, &format!("http://{address}/"), load, &[])
}

/// For any address, with more words for wrk.
pub fn wrk_by(
    session: &Session,
    path: Path,
    servers: &[&Process],
    url: &str,
    load: Load,
    more: &[&str],
) -> Result<Outcome> {
    let duration = format!("{}s", session.whole_seconds());
    let (threads, connections) = (load.threads.to_string(), load.connections.to_string());
    let mut arguments = words(["-t", &threads, "-c", &connections, "-d", &duration, "--latency"]);
    if load.close {
        arguments.extend(words(["-H", "Connection: close"]));
    }
    arguments.extend(more.iter().map(OsString::from));
    arguments.extend(words([url]));
    let client = session.start(Launch::new("wrk", located("wrk")?, arguments, path))?;
    let finished = session.finish_client(path, servers, client, session.whole_seconds() as f64)?;
    figures(finished)
}

fn configure(prefix: &FilePath, address: &str) -> String {
    let prefix = prefix.display();
    let user = if rustix::process::getuid().is_root() {
        format!("user {};\n", worker_user())
    } else {
        String::new()
    };
    format!(
        "{user}daemon off;
worker_processes 2;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  keepalive_requests 1000000000;
  client_body_temp_path {prefix}/body;
  proxy_temp_path {prefix}/proxy;
  fastcgi_temp_path {prefix}/fastcgi;
  uwsgi_temp_path {prefix}/uwsgi;
  scgi_temp_path {prefix}/scgi;
  server {{ listen {address}; location / {{ root {prefix}; }} }}
}}
"
    )
}

/// As a distribution would run the workers: another user than the client's, so that the peer check
/// is exercised too.
fn worker_user() -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let has_own_group = users.lines().any(|line| line.starts_with("www-data:"));
    if has_own_group { "www-data".into() } else { "root root".into() }
}

fn figures(finished: Finished) -> Result<Outcome> {
    let output = &finished.output;
    ensure!(!output.contains("Non-2xx"), "wrk got answers that are errors: {}", output.trim());
    if let Some(errors) = output.lines().find(|line| line.contains("Socket errors")) {
        bail!("wrk had errors: {}", errors.trim());
    }
    let p99 = percentile(output, "99%").context("wrk printed no 99th percentile")?;
    let latency = Latency {
        p50: percentile(output, "50%"),
        p90: percentile(output, "90%"),
        p99: Some(p99),
        p999: None,
        max: field_after(output, "Latency ", 2),
    };
    let count = output
        .lines()
        .find(|line| line.contains(" requests in "))
        .and_then(|line| line.split_whitespace().next());
    let count =
        count.and_then(|count| count.parse().ok()).context("wrk printed no number of requests")?;
    let values = vec![number_after(output, "Requests/sec:")?, p99];
    Ok(Outcome::new(values, finished.cpu).latency(latency).requests(count))
}

/// `     99%    4.30ms` in the section that --latency adds.
fn percentile(output: &str, share: &str) -> Option<f64> {
    field_after(output, share, 0)
}

/// Microseconds in a field of the last line that begins with `label`.
fn field_after(output: &str, label: &str, field: usize) -> Option<f64> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix(label));
    lines.filter_map(|rest| microseconds(rest.split_whitespace().nth(field)?)).next_back()
}

fn microseconds(value: &str) -> Option<f64> {
    let split = value.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let factor = match &value[split..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(value[..split].parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::outcome::{Cpu, Work};

    const OUTPUT: &str = "Running 1s test @ http://127.0.0.1:1/
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.05ms    1.20ms  30.11ms   90.01%
    Req/Sec    48.10k     2.00k   50.00k    60.00%
  Latency Distribution
     50%  940.00us
     90%    2.00ms
     99%    4.30ms
  96290 requests in 1.00s, 70.00MB read
Requests/sec:  96290.11
";

    fn read(output: &str) -> Result<Outcome> {
        figures(Finished { output: output.into(), cpu: Cpu::default() })
    }

    #[test]
    fn wrk_output() {
        let outcome = read(OUTPUT).unwrap();
        assert_eq!(outcome.values, [96_290.11, 4_300.0]);
        assert_eq!(outcome.work, Some(Work::Requests(96_290.0)));
        let latency = outcome.latency;
        assert_eq!(
            (latency.p50, latency.p90, latency.max),
            (Some(940.0), Some(2_000.0), Some(30_110.0))
        );
        assert!(read(&format!("{OUTPUT}  Non-2xx or 3xx responses: 3\n")).is_err());
        assert!(
            read(&format!("  Socket errors: connect 0, read 1, write 0, timeout 0\n{OUTPUT}"))
                .is_err()
        );
    }
}
