use std::fs;
use std::path::Path as FilePath;

use anyhow::{Context, Result, ensure};

use super::{located, number_after, words};
use crate::bench::case::Path;
use crate::bench::session::{Launch, Session, free_port, is_listening};

/// The size of nginx's own welcome page.
const PAGE: usize = 612;

/// Requests per second and the 99th percentile in microseconds, keep-alive, nothing pinned: all threads want all cpus.
pub fn run(session: &Session, path: Path) -> Result<Vec<f64>> {
    let port_number = free_port()?;
    let prefix = session.fresh_path("nginx");
    fs::create_dir(&prefix)
        .and_then(|()| fs::write(prefix.join("index.html"), "x".repeat(PAGE)))
        .context("cannot write the page for nginx")?;
    let configuration = prefix.join("nginx.conf");
    fs::write(&configuration, configure(&prefix, port_number)).context("cannot write the configuration of nginx")?;
    let (prefix, configuration) = (prefix.display().to_string(), configuration.display().to_string());
    let error_log = format!("{prefix}/error.log");
    let mut server = session.start(Launch {
        name: "nginx",
        program: located("nginx")?,
        arguments: words(["-p", &prefix, "-e", &error_log, "-c", &configuration]),
        path,
        cpu: None,
        options: &[],
    })?;
    server.wait_until(|_| Ok(is_listening(port_number)?.then_some(())))?;
    let duration = format!("{}s", session.whole_seconds());
    let client = session.start(Launch {
        name: "wrk",
        program: located("wrk")?,
        arguments: words([
            "-t",
            "2",
            "-c",
            "100",
            "-d",
            &duration,
            "--latency",
            &format!("http://127.0.0.1:{port_number}/"),
        ]),
        path,
        cpu: None,
        options: &[],
    })?;
    figures(&session.finish_client("nginx-wrk", path, client, session.whole_seconds() as f64)?)
}

fn configure(prefix: &FilePath, port: u16) -> String {
    let prefix = prefix.display();
    let user = if rustix::process::getuid().is_root() { format!("user {};\n", worker_user()) } else { String::new() };
    format!(
        "{user}daemon off;
worker_processes 2;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  client_body_temp_path {prefix}/body;
  proxy_temp_path {prefix}/proxy;
  fastcgi_temp_path {prefix}/fastcgi;
  uwsgi_temp_path {prefix}/uwsgi;
  scgi_temp_path {prefix}/scgi;
  server {{ listen 127.0.0.1:{port}; location / {{ root {prefix}; }} }}
}}
"
    )
}

/// As a distribution would run the workers: another user than the client's, so that the peer check is exercised too.
fn worker_user() -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let has_own_group = users.lines().any(|line| line.starts_with("www-data:"));
    if has_own_group { "www-data".into() } else { "root root".into() }
}

fn figures(output: &str) -> Result<Vec<f64>> {
    ensure!(!output.contains("Non-2xx"), "wrk got answers that are errors: {}", output.trim());
    ensure!(!output.contains("Socket errors"), "wrk had socket errors: {}", output.trim());
    Ok(vec![number_after(output, "Requests/sec:")?, percentile(output)?])
}

/// `     99%    4.30ms` in the section that --latency adds.
fn percentile(output: &str) -> Result<f64> {
    let value = output.lines().filter_map(|line| line.trim().strip_prefix("99%")).map(str::trim).next_back();
    let value = value.context("wrk printed no 99th percentile")?;
    let split = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let factor = match &value[split..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => anyhow::bail!("wrk printed a 99th percentile of {value}"),
    };
    Ok(value[..split].parse::<f64>()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 1s test @ http://127.0.0.1:1/
  Thread Stats   Avg      Stdev     Max   +/- Stdev
  Latency Distribution
     50%  940.00us
     99%    4.30ms
  96290 requests in 1.00s
Requests/sec:  96290.11
";

    #[test]
    fn wrk_output() {
        assert_eq!(figures(OUTPUT).unwrap(), [96_290.11, 4_300.0]);
        assert!(figures(&format!("{OUTPUT}  Non-2xx or 3xx responses: 3\n")).is_err());
        assert!(figures(&format!("  Socket errors: connect 0, read 1, write 0, timeout 0\n{OUTPUT}")).is_err());
    }
}
