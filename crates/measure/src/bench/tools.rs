//! Rows by programs that others wrote, where they are installed.

pub mod echo;
pub mod go;
pub mod iperf3;
pub mod memcached;
pub mod nginx;
pub mod postgres;
pub mod proxy;
pub mod redis;
pub mod sockperf;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// In PATH, and where distributions put servers, which is not in everybody's PATH.
pub fn locate(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories =
        env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    let directories = directories.chain(of_postgres());
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// Debian keeps the server's programs by version.
fn of_postgres() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut directories: Vec<PathBuf> = entries.map(|entry| entry.path().join("bin")).collect();
    directories.sort();
    directories.reverse();
    directories
}

pub fn located(program: &str) -> Result<PathBuf> {
    locate(program).with_context(|| format!("{program} is not installed"))
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

/// The first number behind `marker`.
fn number_after(text: &str, marker: &str) -> Result<f64> {
    let found = text.split_once(marker).map(|(_, rest)| rest.trim_start());
    let digits = found.map(|rest| {
        rest.find(|c: char| !c.is_ascii_digit() && c != '.').map_or(rest, |end| &rest[..end])
    });
    digits
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("no number after \"{marker}\" in its output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_output() {
        assert_eq!(number_after("Summary: Latency is 9.750 usec", "Latency is").unwrap(), 9.75);
        assert_eq!(number_after("Requests/sec:  96290.11\n", "Requests/sec:").unwrap(), 96_290.11);
        assert!(number_after("nothing", "Latency is").is_err());
        assert!(number_after("Latency is low", "Latency is").is_err());
    }
}
