//! Snabb on the networks of `depth`: the same script, and the same filters, in a process of its own.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Run;
use super::depth::{CHAINS, TERMS, chain_name, expression, filter_name};
use super::instances::{datagram, write};
use crate::bench::process::Process;
use crate::processors::two_cpus;
use engine::batch::BATCH;

/// What it is called beside the row of the same network.
pub fn name(row: &str) -> String {
    format!("Snabb: {row}")
}

/// Snabb's own time to start and to end, beside what it measures.
const PATIENCE: Duration = Duration::from_secs(60);

/// Behind a network whose last app is `sink`: its rate, once the compiler has recorded its traces.
const RATE: &str = r"
local function arrived ()
   for name, link in pairs(engine.link_table) do
      if name:match('sink%.input$') then
         return tonumber(require('core.link').stats(link).rxpackets)
      end
   end
end
engine.main({ duration = 0.3, no_report = true })
local began, before = engine.now(), arrived()
engine.main({ duration = SECONDS, no_report = true })
print((arrived() - before) / (engine.now() - began) / 1e6)
";

const FILTERED: &str = r"
local basic = require('apps.basic.basic_apps')
local c = config.new()
config.app(c, 'reader', require('apps.pcap.pcap').PcapReader, 'FILE')
config.app(c, 'src', basic.Repeater)
config.app(c, 'filter', require('apps.packet_filter.pcap_filter').PcapFilter, { filter = [[FILTER]] })
config.app(c, 'sink', basic.Sink)
config.link(c, 'reader.output -> src.input')
config.link(c, 'src.output -> filter.input')
config.link(c, 'filter.output -> sink.input')
engine.configure(c)
engine.busywait = true
";

pub fn runs(program: Option<&Path>) -> Result<Vec<Run>> {
    let program =
        program.context("--snabb, or SHORTWIRE_SNABB_PROGRAM, does not name its program")?;
    let program = program.canonicalize().with_context(|| format!("{}", program.display()))?;
    ensure!(rustix::process::geteuid().is_root(), "Snabb needs root");
    let mut runs = Vec::new();
    for terms in TERMS {
        let program = program.clone();
        let filter = move |seconds| {
            let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
            let file = folder.path().join("datagrams.pcap");
            write(&file, &datagram()?, BATCH)?;
            in_microseconds(&file)?;
            let text = FILTERED.replace("FILE", &file.display().to_string());
            rate(&program, &text.replace("FILTER", &expression(terms)), seconds)
        };
        runs.push(Run::new(name(&filter_name(terms)), filter));
    }
    for apps in CHAINS {
        let program = program.clone();
        let chain = include_str!("chain.lua");
        let text = format!("assert(loadstring([==[{chain}]==]))('{apps}')");
        let row = name(&chain_name(apps, true));
        runs.push(Run::new(row, move |seconds| rate(&program, &text, seconds)));
    }
    Ok(runs)
}

/// Snabb reads no captures whose times are in nanoseconds. The times of this one are all 0, so its magic number is all that differs.
fn in_microseconds(file: &Path) -> Result<()> {
    const MAGIC: u32 = 0xa1b2_c3d4;
    let mut file = OpenOptions::new().write(true).open(file)?;
    Ok(file.write_all(&MAGIC.to_ne_bytes())?)
}

/// Huge pages that the system had before: Snabb reserves more of them, and leaves them to the next one.
pub struct HugePages {
    before: String,
}

/// Where Snabb keeps all that.
const FOLDER: &str = "/var/run/snabb";
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    pub fn new() -> Result<Self> {
        let before = fs::read_to_string(HUGE_PAGES).context("Snabb needs huge pages")?;
        Ok(Self { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(HUGE_PAGES, &self.before);
        // Ours, if it is empty: what was mounted there is gone.
        let _ = fs::remove_dir(FOLDER);
    }
}

/// What runs a script in Snabb behind some more `mounts`. Its counters and logs are in memory, where on a disk the last of them
/// takes minutes to go, and so are its huge pages; all that ends with it, however it ends.
pub fn command(program: &Path, script: &Path, mounts: &str) -> Vec<OsString> {
    let mounts = format!(
        "{mounts}mkdir -p {FOLDER} && mount -t tmpfs snabb {FOLDER} && exec env -u SNABB_SHM_ROOT \"$@\""
    );
    let unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &mounts, "sh"];
    let snabb = [program.as_os_str(), OsStr::new("snsh"), script.as_os_str()];
    unshared.map(OsStr::new).into_iter().chain(snabb).map(OsStr::to_os_string).collect()
}

fn rate(program: &Path, network: &str, seconds: f64) -> Result<f64> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let _pages = HugePages::new()?;
    let script = folder.path().join("network.lua");
    fs::write(&script, [network, &RATE.replace("SECONDS", &seconds.to_string())].concat())?;
    let command = command(program, &script, "");
    let base = folder.path().join("said");
    let cpu = two_cpus().map(|(_, second)| second);
    let process = Process::start("Snabb".into(), &command, cpu, None, &base)?;
    let said = process.finish(PATIENCE + Duration::from_secs_f64(seconds), |_| None)?.output;
    let rate = said.lines().last().and_then(|line| line.parse().ok());
    let rate = rate.with_context(|| format!("Snabb told no rate: {said}"))?;
    ensure!(rate > 0.0, "no packet passed");
    Ok(rate)
}
