use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{located, number_after, words};
use crate::bench::case::Path;
use crate::bench::outcome::Outcome;
use crate::bench::session::{Launch, Session, free_port, is_listening};

const SCALE: &str = "10";
const SET_UP_LIMIT: Duration = Duration::from_secs(120);

/// Transactions per second of `pgbench -S`, nothing pinned: the server is a process for each
/// connection.
pub fn run(session: &Session, path: Path) -> Result<Outcome> {
    let directory = database(session)?;
    let user = server_user()?;
    let port_number = free_port()?;
    let port = port_number.to_string();
    let launch =
        Launch::new("postgres", located("postgres")?, server_arguments(&directory, &port), path);
    let mut server = session.serve(launch.user(user))?;
    server.wait_until(|server| {
        Ok((is_listening(port_number)? && server.says("ready to accept")).then_some(()))
    })?;
    let seconds = session.whole_seconds().to_string();
    let host =
        if path == Path::Unix { directory.display().to_string() } else { "127.0.0.1".into() };
    let mut arguments =
        words(["-h", &host, "-p", &port, "-U", "postgres", "-n", "-S", "-c", "10", "-j", "2"]);
    arguments.extend(words(["-T", &seconds, "postgres"]));
    let client = session.start(Launch::new("pgbench", located("pgbench")?, arguments, path))?;
    let finished =
        session.finish_client(path, &[&server], client, session.whole_seconds() as f64)?;
    let (rate, count) = figures(&finished.output)?;
    Ok(Outcome::new(vec![rate], finished.cpu).requests(count))
}

/// The same through PgBouncer, and the 99th percentile of the transactions in microseconds.
pub fn few_pooled<const CONNECTIONS: u32>(session: &Session, path: Path) -> Result<Outcome> {
    let directory = database(session)?;
    let user = server_user()?;
    let (behind, front) = (free_port()?, free_port()?);
    let launch = Launch::new(
        "postgres",
        located("postgres")?,
        server_arguments(&directory, &behind.to_string()),
        path,
    );
    let mut server = session.serve(launch.user(user))?;
    server.wait_until(|server| {
        Ok((is_listening(behind)? && server.says("ready to accept")).then_some(()))
    })?;
    let configuration = session.fresh_path("pgbouncer.ini");
    let connections = CONNECTIONS.to_string();
    let text = format!(
        "[databases]\npostgres = host=127.0.0.1 port={behind} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {front}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
         log_connections = 0\nlog_disconnections = 0\nlog_pooler_errors = 0\nlog_stats = 0\n"
    );
    fs::write(&configuration, text).context("cannot write the configuration of PgBouncer")?;
    let arguments = words(["-q", &configuration.display().to_string()]);
    let mut pooler = session
        .serve(Launch::new("pgbouncer", located("pgbouncer")?, arguments, path).user(user))?;
    pooler.wait_until(|_| Ok(is_listening(front)?.then_some(())))?;
    let (port, seconds) = (front.to_string(), session.whole_seconds().to_string());
    let mut arguments =
        words(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-n", "-S", "-c", &connections]);
    let log = session.fresh_path("transactions");
    arguments.extend(words([
        "-j",
        "1",
        "-l",
        "--log-prefix",
        &log.display().to_string(),
        "-T",
        &seconds,
        "postgres",
    ]));
    let client = session.start(Launch::new("pgbench", located("pgbench")?, arguments, path))?;
    let finished =
        session.finish_client(path, &[&server, &pooler], client, session.whole_seconds() as f64)?;
    let (rate, count) = figures(&finished.output)?;
    Ok(Outcome::new(vec![rate, percentile_of_logs(&log)?], finished.cpu).requests(count))
}

/// The 99th percentile of the latencies in the files that pgbench writes beside `prefix`, one for
/// each of its threads: in each line, behind the client and the transaction's number.
fn percentile_of_logs(prefix: &std::path::Path) -> Result<f64> {
    let directory = prefix.parent().context("a file in a directory")?;
    let name = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let mut latencies = Vec::new();
    for entry in fs::read_dir(directory).context("cannot list the log of pgbench")?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&name) {
            let text =
                fs::read_to_string(entry.path()).context("cannot read the log of pgbench")?;
            latencies.extend(
                text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u32>().ok()),
            );
            let _ = fs::remove_file(entry.path());
        }
    }
    ensure!(!latencies.is_empty(), "pgbench has logged no transaction");
    latencies.sort_unstable();
    Ok(f64::from(latencies[(latencies.len() - 1) * 99 / 100]))
}

fn server_arguments(directory: &std::path::Path, port: &str) -> Vec<OsString> {
    let sockets = format!("unix_socket_directories={}", directory.display());
    let mut arguments = words(["-D", &directory.join("data").display().to_string(), "-p", port]);
    arguments.extend(words([
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        &sockets,
        "-c",
        "fsync=off",
    ]));
    arguments.extend(words(["-c", "shared_buffers=256MB"]));
    arguments
}

/// PostgreSQL refuses to run as root.
fn server_user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::getuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let fields: Vec<&str> = users
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .unwrap_or_default()
        .split(':')
        .collect();
    let id = |at: usize| fields.get(at).and_then(|id| id.parse().ok());
    let user = id(2)
        .zip(id(3))
        .context("PostgreSQL does not run as root, and there is no user postgres")?;
    Ok(Some(user))
}

/// Made once for all runs of a bench, over a Unix socket and without Shortwire.
fn database(session: &Session) -> Result<PathBuf> {
    let directory = session.directory().join("postgres");
    if directory.exists() {
        return Ok(directory);
    }
    fs::create_dir(&directory).context("cannot make a directory for PostgreSQL")?;
    let made = fill(session, &directory);
    if made.is_err() {
        let _ = fs::remove_dir_all(&directory);
    }
    made.map(|()| directory)
}

fn fill(session: &Session, directory: &std::path::Path) -> Result<()> {
    let user = server_user()?;
    if let Some((user, group)) = user {
        chown(directory, Some(user), Some(group))
            .context("cannot give a directory to the user postgres")?;
    }
    let data = directory.join("data").display().to_string();
    let mut arguments =
        words(["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8"]);
    arguments.extend(words(["--no-locale"]));
    let initdb = Launch::new("initdb", located("initdb")?, arguments, Path::Tcp).user(user);
    session.start(initdb)?.finish(SET_UP_LIMIT, |_| None)?;
    let port = free_port()?.to_string();
    let launch = Launch::new(
        "postgres",
        located("postgres")?,
        server_arguments(directory, &port),
        Path::Tcp,
    );
    let mut server = session.start(launch.user(user))?;
    server.wait_until(|server| Ok(server.says("ready to accept").then_some(())))?;
    let host = directory.display().to_string();
    let arguments =
        words(["-h", &host, "-p", &port, "-U", "postgres", "-i", "-q", "-s", SCALE, "postgres"]);
    let filler = Launch::new("pgbench -i", located("pgbench")?, arguments, Path::Tcp);
    session.start(filler)?.finish(SET_UP_LIMIT, |_| None)?;
    Ok(())
}

/// Transactions per second, and how many.
fn figures(output: &str) -> Result<(f64, f64)> {
    let failed = number_after(output, "number of failed transactions:").unwrap_or(0.0);
    ensure!(failed == 0.0, "pgbench had transactions that failed: {}", output.trim());
    Ok((
        number_after(output, "tps =")?,
        number_after(output, "number of transactions actually processed:")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_version_15() {
        let output = "number of transactions actually processed: 110736\nnumber of failed transactions: 0 (0.000%)\n\
                      latency average = 0.180 ms\ntps = 55368.123 (without initial connection time)\n";
        assert_eq!(figures(output).unwrap(), (55_368.123, 110_736.0));
        assert!(figures(&output.replace("transactions: 0", "transactions: 3")).is_err());
        assert!(figures("pgbench: error: connection refused").is_err());
    }
}
