//! `shortwire capture` and `trace-packets`: the packets of an engine that runs.

use ::engine::counters::{Process, processes, run_root};
use anyhow::{Context, Result, bail};

pub mod capture;
mod changes;
pub mod ways;

/// The engine of this process.
fn find(pid: u32) -> Result<Process> {
    let root = run_root()?;
    let found = match processes(&root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other.with_context(|| format!("cannot read {}", root.display()))?,
    };
    let process = found.into_iter().find(|process| process.pid == pid && process.alive);
    process.with_context(|| {
        format!("process {pid} runs no packet engine; `shortwire ps` lists those that do")
    })
}

/// The link that these words name: all of its name, or a part that no other has.
fn link(process: &Process, word: &str) -> Result<String> {
    let tree = process
        .read()
        .with_context(|| format!("cannot read the counters of process {}", process.pid))?;
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let word = plain(word);
    let all: Vec<String> = tree.links.into_keys().collect();
    if all.contains(&word) {
        return Ok(word);
    }
    let like: Vec<&String> = all.iter().filter(|link| link.contains(&word)).collect();
    match (&like[..], all.is_empty()) {
        ([one], _) => Ok((*one).clone()),
        (_, true) => bail!("process {} has no links", process.pid),
        ([], _) => bail!("no link is called '{word}'; there are\n  {}", all.join("\n  ")),
        (some, _) => {
            let some: Vec<&str> = some.iter().map(|link| link.as_str()).collect();
            bail!(
                "'{word}' stands in several links; give more of its name:\n  {}",
                some.join("\n  ")
            )
        }
    }
}

/// The same moment in both clocks: nanoseconds to be added to CLOCK_MONOTONIC for time since 1970.
fn since_1970() -> i128 {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
    now - i128::from(::engine::clock::monotonic())
}
