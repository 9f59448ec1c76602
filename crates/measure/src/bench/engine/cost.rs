//! What checksums cost beside all else: processor time per KB of frames of the app that checks them,
//! and of the whole path of an engine that takes frames from one interface to another.
//!
//! Counted are breaths in which frames came: an engine that is faster than its traffic looks in vain
//! between them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::engine::xdp::live_frames::drop_all;
use ::engine::{Config, Engine, Options};
use anyhow::{Result, ensure};

use super::interfaces::{WARM_UP, beside, index, needs, under_load_of};
use super::namespace::with_cables;
use super::{Rates, Run};

/// Lengths of frames: the shortest, and the longest of an Ethernet link.
const SIZES: [usize; 2] = [60, 1514];

/// The names of the rows for frames of each size: the app that checks, and the whole path.
pub fn rows() -> impl Iterator<Item = [String; 2]> {
    SIZES.into_iter().map(names)
}

fn names(size: usize) -> [String; 2] {
    ["Checksum", "XDP -> Checksum -> XDP"]
        .map(|what| format!("time per KB: {what}, {size} B on interfaces"))
}

pub fn runs() -> Result<Vec<Run>> {
    needs()?;
    let run = |size| {
        let name = format!("time per KB, {size} B on interfaces");
        Run::several(name, move |seconds| with_cables(|| cost(size, seconds))).in_unit("ns")
    };
    Ok(SIZES.map(run).into())
}

fn cost(size: usize, seconds: f64) -> Result<Rates> {
    let _sink = drop_all(index("b0")?)?;
    let (network, spent) = (network()?, Mutex::new(None));
    let work = |stop: &AtomicBool| {
        let found = measure(&network, stop)?;
        *spent.lock().unwrap_or_else(|held| held.into_inner()) = Some(found);
        Ok(())
    };
    let pause = WARM_UP + Duration::from_secs_f64(seconds);
    let body = || {
        std::thread::sleep(pause);
        Ok(())
    };
    beside(work, || under_load_of(udp(size), body))?;
    let spent = spent.into_inner().unwrap_or_else(|held| held.into_inner());
    let spent = spent.filter(|spent| spent.frames > 0);
    let Some(Spent { frames, checksum, whole }) = spent else {
        anyhow::bail!("no frame came");
    };
    let kilobytes = frames as f64 * size as f64 / 1e3;
    Ok(names(size).into_iter().zip([checksum, whole].map(|ns| ns as f64 / kilobytes)).collect())
}

/// Frames that were checked, and the nanoseconds of the app and of all.
struct Spent {
    frames: u64,
    checksum: u64,
    whole: u64,
}

fn network() -> Result<Config> {
    let mut config = Config::new();
    for (interface, receive) in [("a1", true), ("b1", false)] {
        let args: [(String, toml::Value); 2] =
            [("interface".into(), interface.into()), ("receive".into(), receive.into())];
        config.app(interface, "XDP", toml::Table::from_iter(args))?;
    }
    let args: [(String, toml::Value); 1] = [("mode".into(), "verify".into())];
    config.app("checksum", "Checksum", toml::Table::from_iter(args))?;
    config.link("a1.tx -> checksum.input")?;
    config.link("checksum.output -> b1.rx")?;
    Ok(config)
}

fn measure(config: &Config, stop: &AtomicBool) -> Result<Spent> {
    let mut engine = Engine::new(Options::default());
    engine.configure(config)?;
    // Of the link to the app and of the one behind it: links come in the order of their names.
    let passed = |engine: &Engine| {
        let mut links = engine.links().map(|(_, stats)| stats.txpackets);
        [links.next().unwrap_or(0), links.next().unwrap_or(0)]
    };
    let checksum = |engine: &Engine| {
        engine.app_times().find(|(name, _)| *name == "checksum").map_or(0, |(_, time)| time)
    };
    let warm = Instant::now();
    let (mut began, mut whole, mut last) = (None, 0, passed(&engine));
    while !stop.load(Ordering::Relaxed) {
        if began.is_none() && warm.elapsed() >= WARM_UP {
            began = Some((last, checksum(&engine)));
            whole = 0;
        }
        let start = Instant::now();
        engine.breathe();
        let spent = start.elapsed().as_nanos() as u64;
        let now = passed(&engine);
        whole += if now == last { 0 } else { spent };
        last = now;
    }
    let ([before, _], time) = began.unwrap_or((last, 0));
    let spent = Spent { frames: last[0] - before, checksum: checksum(&engine) - time, whole };
    let all = last == [last[0]; 2];
    engine.stop()?;
    ensure!(all, "frames with wrong checksums came");
    Ok(spent)
}

/// A frame with a UDP packet whose checksums are right.
fn udp(size: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
    let (ip, udp) = ((size - 14) as u16, (size - 34) as u16);
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14..34]
        .copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[16..18].copy_from_slice(&ip.to_be_bytes());
    frame[38..40].copy_from_slice(&udp.to_be_bytes());
    checksum::packet::fill(&mut frame[14..]).expect("an IPv4 packet");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_right_checksums() {
        for size in SIZES {
            let frame = udp(size);
            assert_eq!(frame.len(), size);
            assert_eq!(
                checksum::packet::verify(&frame[14..]),
                Ok(checksum::packet::Outcome::Complete)
            );
        }
    }
}
