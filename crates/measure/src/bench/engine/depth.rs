//! What a further app of a script costs, and a further term of a filter.

use anyhow::{Context, Result};
use engine::Config;
use engine::batch::BATCH;
use toml::{Table, Value};

use super::instances::{datagram, write};
use super::{Run, memory};

/// Terms of filters.
pub const TERMS: [usize; 3] = [1, 6, 18];

pub fn filter_name(terms: usize) -> String {
    format!("filter of {terms} terms")
}

/// Without a filter.
pub const UNFILTERED: &str = "the same packets without a filter";

pub fn runs() -> Result<Vec<Run>> {
    let mut runs = vec![Run::new(UNFILTERED, |seconds| filtered(None, seconds))];
    for terms in TERMS {
        let run = move |seconds| filtered(Some(&expression(terms)), seconds);
        runs.push(Run::new(filter_name(terms), run));
    }
    #[cfg(feature = "lua")]
    runs.extend(scripts::runs());
    Ok(runs)
}

/// The last term is fulfilled by the datagram, and none before it.
pub fn expression(terms: usize) -> String {
    let mut all: Vec<String> = (1..terms)
        .map(|number| match number % 3 {
            0 => format!("tcp dst port {number}"),
            1 => format!("host 10.0.0.{number}"),
            _ => format!("udp port {}", 1000 + number),
        })
        .collect();
    all.push("udp dst port 7".to_string());
    all.join(" or ")
}

fn filtered(filter: Option<&str>, seconds: f64) -> Result<f64> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let file = folder.path().join("datagrams.pcap");
    write(&file, &datagram()?, BATCH)?;
    let text = |key: &str, value: &str| {
        Table::from_iter([(key.to_string(), Value::String(value.to_string()))])
    };
    let mut config = Config::new();
    config
        .app("reader", "PcapReader", text("file", &file.display().to_string()))?
        .app("src", "Repeater", ())?
        .app("sink", "Sink", ())?
        .link("reader.output -> src.input")?;
    let to = match filter {
        Some(filter) => {
            config.app("filter", "PcapFilter", text("filter", filter))?;
            config.link("filter.output -> sink.input")?;
            "filter"
        }
        None => "sink",
    };
    config.link(&format!("src.output -> {to}.input"))?;
    memory::rate(&config, |link| link.to.app == "sink", seconds)
}

/// Rows of apps in Lua: how many, entered by one call; and one by one.
pub const CHAINS: [usize; 4] = [1, 4, 8, 16];

pub fn chain_name(apps: usize, together: bool) -> String {
    let apps = if apps == 1 { "one app in Lua".to_string() } else { format!("{apps} apps in Lua") };
    if together { apps } else { format!("{apps}, one by one") }
}

#[cfg(feature = "lua")]
mod scripts {
    use std::time::Instant;

    use anyhow::{Result, ensure};
    use engine::Options;
    use engine::lua::{Session, Settings};

    use super::{CHAINS, chain_name};
    use crate::bench::engine::Run;
    use crate::processors::pinned;

    /// Time before a measurement, in which the compiler records its traces.
    const WARM_UP: f64 = 0.3;

    pub fn runs() -> Vec<Run> {
        let cases = CHAINS.into_iter().flat_map(|apps| [(apps, true), (apps, false)]);
        // One alone is entered by itself.
        let cases = cases.filter(|case| *case != (1, false));
        cases
            .map(|(apps, together)| {
                Run::new(chain_name(apps, together), move |seconds| {
                    pinned(move || rate(apps, together, seconds))?
                })
            })
            .collect()
    }

    fn rate(apps: usize, together: bool, seconds: f64) -> Result<f64> {
        let engine = Options { together, ..Options::default() };
        let session = Session::new(Settings { engine, ..Settings::default() })?;
        session.run_code(include_str!("chain.lua"), &[apps.to_string()])?;
        let breathe = |seconds: f64| {
            session.run_code(
                &format!("engine.main({{ duration = {seconds}, no_report = true }})"),
                &[],
            )
        };
        breathe(WARM_UP)?;
        let passed = || {
            session.with_engine(|engine| {
                let arrived = engine.links().find(|(link, _)| link.to.app == "sink");
                arrived.map_or(0, |(_, stats)| stats.rxpackets)
            })
        };
        let (before, began) = (passed(), Instant::now());
        breathe(seconds)?;
        let rate = (passed() - before) as f64 / began.elapsed().as_secs_f64() / 1e6;
        ensure!(session.failures() == 0 && rate > 0.0, "no packet passed");
        Ok(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_run() {
        for run in runs().unwrap() {
            assert!(
                (run.measure)(0.01).unwrap().iter().all(|(_, rate)| *rate > 0.0),
                "{}",
                run.name
            );
        }
    }
}
