//! Networks that touch nothing but memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ::engine::config::LinkSpec;
use ::engine::{Config, Engine, Options, Pace, Registry, Threads};
use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use toml::{Table, Value};

use super::Run;
use crate::processors::{pinned, two_cpus};

/// Time before a measurement, in which caches and the processor's clock settle.
const WARM_UP: f64 = 0.1;
/// An app that looks at nothing.
pub const HOP: &str = "Join";

pub fn shapes() -> Vec<Run> {
    let mut runs = Vec::new();
    for size in [60, 1500] {
        runs.push(Run::new(format!("copy of {size} B"), move |seconds| {
            pinned(|| copies(size, seconds))
        }));
        for (name, hops) in [("Source -> Sink", 0), ("one hop", 1), ("five hops", 5)] {
            runs.push(Run::new(format!("{name}, {size} B"), move |seconds| {
                run(move |config| chain(config, size, 0, &[HOP; 5][..hops]), seconds)
            }));
        }
        runs.push(Run::new(format!("Source -> Tee -> 2 Sinks, {size} B"), move |seconds| {
            run(|c| tee(c, size), seconds)
        }));
        runs.push(Run::new(format!("two memory shunts, {size} B"), move |seconds| {
            run(|config| (0..2).try_for_each(|number| chain(config, size, number, &[HOP])), seconds)
        }));
    }
    runs
}

pub fn threads() -> Result<Vec<Run>> {
    two_cpus().context("needs two processors")?;
    Ok([60, 1500]
        .into_iter()
        .map(|size| Run::new(format!("two threads, {size} B"), move |s| two(size, s)))
        .collect())
}

/// Millions of packets per second that leave the links of the sources.
pub fn run(network: impl Fn(&mut Config) -> Result<()>, seconds: f64) -> Result<f64> {
    let mut config = Config::new();
    network(&mut config)?;
    rate(&config, |link| link.from.app.starts_with("src"), seconds)
}

/// Millions of packets per second that leave the links which `counted` picks.
pub fn rate(config: &Config, counted: fn(&LinkSpec) -> bool, seconds: f64) -> Result<f64> {
    pinned(move || {
        let mut engine = Engine::new(Options::default());
        engine.configure(config)?;
        let count = |engine: &Engine| -> u64 {
            engine.links().filter(|(link, _)| counted(link)).map(|(_, stats)| stats.rxpackets).sum()
        };
        breathe(&mut engine, WARM_UP);
        let (before, began) = (count(&engine), Instant::now());
        breathe(&mut engine, seconds);
        Ok((count(&engine) - before) as f64 / began.elapsed().as_secs_f64() / 1e6)
    })?
}

fn breathe(engine: &mut Engine, seconds: f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        (0..100).for_each(|_| engine.breathe());
        if Instant::now() >= until {
            break;
        }
    }
}

fn two(size: usize, seconds: f64) -> Result<f64> {
    let mut config = Config::new();
    config
        .app_on(0, "src", "Source", args(size))?
        .app_on(1, "sink", "Sink", ())?
        .link("src.output -> sink.input")?;
    let mut threads = Threads::new(
        Options { pace: Pace::Busy, ..Options::default() },
        Registry::standard().clone(),
    );
    threads.configure(&config)?;
    let received =
        |threads: &mut Threads| threads.links().values().map(|stats| stats.rxpackets).sum::<u64>();
    std::thread::sleep(Duration::from_secs_f64(WARM_UP));
    let (before, began) = (received(&mut threads), Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let rate = (received(&mut threads) - before) as f64 / began.elapsed().as_secs_f64() / 1e6;
    threads.stop()?;
    Ok(rate)
}

fn args(size: usize) -> Table {
    Table::from_iter([("size".to_string(), Value::Integer(size as i64))])
}

/// A source, hops and a sink.
pub fn chain(config: &mut Config, size: usize, number: usize, hops: &[&str]) -> Result<()> {
    config.app(&format!("src{number}"), "Source", args(size))?;
    let mut from = format!("src{number}.output");
    for (hop, kind) in hops.iter().enumerate() {
        let name = format!("hop{number}_{hop}");
        config.app(&name, kind, ())?.link(&format!("{from} -> {name}.input"))?;
        from = format!("{name}.output");
    }
    let sink = format!("sink{number}");
    config.app(&sink, "Sink", ())?.link(&format!("{from} -> {sink}.input"))?;
    Ok(())
}

fn tee(config: &mut Config, size: usize) -> Result<()> {
    config
        .app("src", "Source", args(size))?
        .app("tee", "Tee", ())?
        .link("src.output -> tee.input")?;
    for number in 0..2 {
        let sink = format!("sink{number}");
        config.app(&sink, "Sink", ())?.link(&format!("tee.output{number} -> {sink}.input"))?;
    }
    Ok(())
}

/// What any engine that fills packets from a template must do at least.
fn copies(size: usize, seconds: f64) -> f64 {
    const PACKETS: usize = 128;
    const SLOT: usize = 2048;
    let template = vec![1u8; size];
    let mut memory = vec![0u8; PACKETS * SLOT];
    let round = || {
        let template = black_box(&template[..]);
        memory
            .chunks_exact_mut(SLOT)
            .for_each(|slot| slot[..template.len()].copy_from_slice(template));
        black_box(&mut memory);
    };
    counted(round, PACKETS, seconds)
}

/// A network that runs so many rounds when it is called, and says how many packets that were.
pub type Rounds = Box<dyn FnMut(usize) -> u64>;

/// An engine as such.
pub fn rounds_of(config: &Config, counted: fn(&LinkSpec) -> bool) -> Result<Rounds> {
    let mut engine = Engine::new(Options::default());
    engine.configure(config)?;
    let count = move |engine: &Engine| -> u64 {
        engine.links().filter(|(link, _)| counted(link)).map(|(_, stats)| stats.rxpackets).sum()
    };
    Ok(Box::new(move |rounds| {
        let before = count(&engine);
        (0..rounds).for_each(|_| engine.breathe());
        count(&engine) - before
    }))
}

/// Millions of packets per second of each, all on this thread and in turns of a millisecond: what
/// changes the processor's pace meets all of them alike. After each change come some rounds that do
/// not count, in which the caches settle. Of the turns of each the median is taken, by the thread's
/// own time, so that it does not matter who else ran meanwhile.
pub fn in_turns(mut networks: Vec<Rounds>, seconds: f64) -> Vec<f64> {
    const TURN: f64 = 1e-3;
    const SETTLE: usize = 20;
    let own_time = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    // Packets, and seconds.
    let timed = |network: &mut Rounds, rounds: usize| {
        let began = own_time();
        let packets = network(rounds);
        (packets as f64, own_time() - began)
    };
    let rounds: Vec<usize> = networks
        .iter_mut()
        .map(|network| {
            network(SETTLE);
            (TURN / timed(network, SETTLE).1 * SETTLE as f64) as usize + 1
        })
        .collect();
    let mut turns = vec![Vec::new(); networks.len()];
    let began = Instant::now();
    loop {
        for ((network, &rounds), turns) in networks.iter_mut().zip(&rounds).zip(&mut turns) {
            network(SETTLE);
            let (packets, time) = timed(network, rounds);
            turns.push(packets / time / 1e6);
        }
        if began.elapsed().as_secs_f64() >= seconds {
            turns.iter_mut().for_each(|turns| turns.sort_by(f64::total_cmp));
            return turns.iter().map(|turns| turns[turns.len() / 2]).collect();
        }
    }
}

pub fn counted(mut round: impl FnMut(), packets: usize, seconds: f64) -> f64 {
    let mut rate = 0.0;
    for seconds in [WARM_UP, seconds] {
        let (began, until, mut rounds) = (Instant::now(), Duration::from_secs_f64(seconds), 0u64);
        while began.elapsed() < until {
            (0..100).for_each(|_| round());
            rounds += 100;
        }
        rate = (rounds * packets as u64) as f64 / began.elapsed().as_secs_f64() / 1e6;
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_networks_run() {
        // Beside other work a thread of a network may not get a processor for that long.
        let runs = |run: &Run, seconds| {
            (run.measure)(seconds).unwrap().iter().all(|(_, rate)| *rate > 0.0)
        };
        for run in shapes().into_iter().chain(threads().unwrap_or_default()) {
            assert!([0.01, 0.1, 1.0, 10.0].into_iter().any(|s| runs(&run, s)), "{}", run.name);
        }
    }
}
