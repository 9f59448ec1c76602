//! dpdk-testpmd on devices in memory: what users of kernel bypass would run otherwise.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::engine::Config;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use terminal::signals;
use toml::{Table, Value};

use super::memory;
use super::{Run, instances};
use crate::bench::tools;
use crate::processors::two_cpus;
use crate::sys;

/// It prints figures once per second, the first after its start.
const PERIODS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);

pub const NULL: &str = "testpmd: null devices with copy";
pub const RINGS: &str = "testpmd: csum over rings";
/// Packets that circle between two apps, each of which fills their checksums in.
pub const LOOP: &str = "Checksum -> Checksum in a loop, 60 B";
/// The same work as in [`RINGS`]: the packets that testpmd starts with have no UDP checksum, and it
/// leaves that so.
pub const HEADERS: &str = "Checksum -> Checksum in a loop, IP header alone, 60 B";
/// A protocol without a checksum that we know: the first for experiments.
const EXPERIMENT: u8 = 253;
const PROTOCOL_AT: usize = 23;

pub const MEMIF_DPDK: &str = "testpmd: two net_memif joined";
/// Ours to [`MEMIF_DPDK`], with one more copy, of the source.
pub const MEMIF: &str = "Source -> Memif, Memif -> Sink, 60 B";

/// Both ports together, of which each receives what the other sends: the packets that our sources
/// send, or our apps take.
pub fn testpmd() -> Result<Vec<Run>> {
    let mut runs = vec![
        Run::new(LOOP, |seconds| looped(&instances::datagram()?, seconds)),
        Run::new(HEADERS, |seconds| {
            let mut frame = instances::datagram()?;
            frame[PROTOCOL_AT] = EXPERIMENT;
            looped(&frame, seconds)
        }),
        Run::new(MEMIF, memif),
    ];
    let program = tools::locate("dpdk-testpmd").context(
        "dpdk-testpmd is not installed (packages dpdk-dev, librte-net-null23, librte-net-ring23, librte-net-memif23)",
    )?;
    let (first, second) = two_cpus().context("needs two processors")?;
    for (name, devices, mode) in [
        (
            NULL,
            ["--vdev=net_null0,size=60,copy=1", "--vdev=net_null1,size=60,copy=1"],
            &["--forward-mode=io"][..],
        ),
        (RINGS, ["--vdev=net_ring0", "--vdev=net_ring1"], &["--forward-mode=csum", "--tx-first"]),
    ] {
        let program = program.clone();
        runs.push(Run::new(name, move |_| measure(&program, first, second, devices, mode)));
    }
    runs.push(Run::new(MEMIF_DPDK, move |_| {
        let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
        let path = folder.path().join("memif");
        let port = |number: usize, role: &str| {
            let socket = path.display();
            format!("--vdev=net_memif{number},role={role},socket={socket},socket-abstract=no")
        };
        let devices = [port(0, "server"), port(1, "client")];
        let devices = [devices[0].as_str(), devices[1].as_str()];
        measure(&program, first, second, devices, &["--forward-mode=io", "--tx-first"])
    }));
    Ok(runs)
}

/// As many packets circle as in testpmd: a burst of 32 each way.
fn looped(frame: &[u8], seconds: f64) -> Result<f64> {
    const CIRCLING: usize = 64;
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let file = folder.path().join("seed.pcap");
    instances::write(&file, frame, CIRCLING)?;
    let mut config = Config::new();
    let file = Value::String(file.display().to_string());
    config.app("reader", "PcapReader", Table::from_iter([("file".to_string(), file)]))?.app(
        "ring",
        "Join",
        (),
    )?;
    for name in ["one", "two"] {
        config.app(name, "Checksum", Table::from_iter([("mode".to_string(), "fill".into())]))?;
    }
    let links = [
        "reader.output -> ring.seed",
        "ring.output -> one.input",
        "one.output -> two.input",
        "two.output -> ring.back",
    ];
    links.iter().try_for_each(|link| config.link(link).map(drop))?;
    memory::rate(&config, |link| matches!(link.to.app.as_str(), "one" | "two"), seconds)
}

/// Two apps of one engine with shared memory between them: a packet is copied into it and out of it.
fn memif(seconds: f64) -> Result<f64> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let path = Value::String(folder.path().join("memif").display().to_string());
    let mut config = Config::new();
    for (name, listen) in [("one", false), ("two", true)] {
        let args = [("path".to_string(), path.clone()), ("listen".to_string(), listen.into())];
        config.app(name, "Memif", Table::from_iter(args))?;
    }
    config.app("src", "Source", Table::from_iter([("size".to_string(), Value::Integer(60))]))?;
    config.app("sink", "Sink", ())?.link("src.output -> one.rx")?.link("two.tx -> sink.input")?;
    let rate = memory::rate(&config, |link| link.from.app == "two", seconds)?;
    anyhow::ensure!(rate > 0.0, "nothing came through the shared memory");
    Ok(rate)
}

fn measure(
    program: &Path,
    main: usize,
    worker: usize,
    devices: [&str; 2],
    mode: &[&str],
) -> Result<f64> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let output = folder.path().join("output");
    let mut command = Command::new(program);
    command.arg(format!("--lcores=0@{main},1@{worker}"));
    command.arg(format!("--file-prefix=shortwire-bench-{}", std::process::id()));
    command.args(["--no-huge", "-m", "1024", "--no-pci", "--no-telemetry"]);
    command.args(devices).arg("--");
    command.args(["--stats-period=1", "--total-num-mbufs=16384", "--nb-cores=1"]).args(mode);
    let file = fs::File::create(&output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    sys::at_start(&mut command, None);
    let mut child = command.spawn().context("cannot start dpdk-testpmd")?;
    let end = Instant::now() + PATIENCE;
    let rates = loop {
        std::thread::sleep(Duration::from_millis(100));
        let text = fs::read_to_string(&output).unwrap_or_default();
        let rates = periods(&text);
        let ended = child.try_wait()?.is_some();
        if rates.len() >= PERIODS || ended || Instant::now() > end || signals::interrupted() {
            break rates;
        }
    };
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        let _ = kill_process(pid, Signal::INT);
    }
    child.wait()?;
    match rates.last() {
        Some(rate) if rates.len() >= PERIODS => Ok(rate / 1e6),
        _ => {
            let text = fs::read_to_string(&output).unwrap_or_default();
            bail!("it printed no figures: {}", text.lines().last().unwrap_or("nothing at all"))
        }
    }
}

/// Packets per second of each period, both ports together.
fn periods(text: &str) -> Vec<f64> {
    let figures = text
        .split("Rx-pps:")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let ports: Vec<f64> = figures.collect();
    ports.chunks_exact(2).map(|pair| pair[0] + pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_up() {
        let text =
            "Rx-pps:     10  Rx-bps: 3\nRx-pps: 20\nx\n  Rx-pps:  1 \n Rx-pps: 2\n Rx-pps: 7";
        assert_eq!(periods(text), [30.0, 3.0]);
    }
}
