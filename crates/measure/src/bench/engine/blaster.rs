//! The packet blaster on a capture of one packet, beside the same packet 256 times: how long a
//! capture is must not matter.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::interfaces::index;
use super::namespace::with_cables;
use super::{Rates, Run, instances};
use crate::processors::two_cpus;
use crate::sys;

const MANY: usize = 256;

/// Ways out, with the words of the command for each.
const MEMORY: [(&str, &str); 2] =
    [("memory", "--sink"), ("82599 model", "0000:82:00.1 --model 0000:82:00.1=model:0")];
const INTERFACES: [(&str, &str); 3] =
    [("TAP", "--tap t0"), ("packet socket", "--raw a1"), ("AF_XDP", "--if a1")];

/// The names of the rows, each with what it is compared with.
pub fn rows() -> impl Iterator<Item = [String; 2]> {
    MEMORY.into_iter().chain(INTERFACES).map(|(name, _)| names(name))
}

fn names(output: &str) -> [String; 2] {
    [1, MANY].map(|packets| format!("packetblaster, capture of {packets}: {output}"))
}

pub fn in_memory() -> Result<Vec<Run>> {
    let program = program()?;
    let run = |(name, words): (&'static str, &'static str)| {
        let program = program.clone();
        Run::several(format!("packetblaster: {name}"), move |seconds| {
            both(&program, name, words, seconds)
        })
    };
    Ok(MEMORY.map(run).into())
}

pub fn to_interfaces() -> Result<Vec<Run>> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "packetblaster on interfaces needs root, to make network namespaces"
    );
    let program = program()?;
    let run = |(name, words): (&'static str, &'static str)| {
        let program = program.clone();
        Run::several(format!("packetblaster: {name}"), move |seconds| {
            with_cables(|| {
                // What arrives is dropped where it costs least.
                let _sink = ::engine::xdp::live_frames::drop_all(index("a0")?)?;
                both(&program, name, words, seconds)
            })
        })
    };
    Ok(INTERFACES.map(run).into())
}

/// The command, which this program is.
fn program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let is_command = program.file_name().is_some_and(|name| name == "shortwire");
    ensure!(is_command, "packetblaster is a subcommand of shortwire, which this program is not");
    Ok(program)
}

fn both(program: &Path, output: &str, words: &str, seconds: f64) -> Result<Rates> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let frame = instances::datagram()?;
    let file = folder.path().join("capture.pcap");
    [1, MANY]
        .into_iter()
        .zip(names(output))
        .map(|(packets, name)| {
            instances::write(&file, &frame, packets)?;
            Ok((name, blast(program, &file, words, seconds)?))
        })
        .collect()
}

/// What the command says of itself.
#[derive(Deserialize)]
struct Summary {
    packets_per_second: f64,
}

/// Millions of packets per second.
fn blast(program: &Path, capture: &Path, words: &str, seconds: f64) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(["packetblaster", "replay", "--json", "--duration"]).arg(format!("{seconds}s"));
    command.arg(capture).args(words.split(' ')).stdin(Stdio::null());
    sys::at_start(&mut command, two_cpus().map(|(_, second)| second));
    let said = command.output().context("cannot start packetblaster")?;
    if !said.status.success() {
        bail!("packetblaster {words}: {}", String::from_utf8_lossy(&said.stderr).trim());
    }
    let summary: Summary = serde_json::from_slice(&said.stdout).context("packetblaster's JSON")?;
    Ok(summary.packets_per_second / 1e6)
}
