//! Real interfaces: AF_XDP apps on veth pairs, beside the barest loop over an AF_XDP socket, which
//! is what the kernel's path to user space gives, and beside what the kernel moves without user
//! space.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::engine::netdev::Netdev;
use ::engine::xdp::live_frames::{Source, drop_all, forward_all, pass_all};
use ::engine::{Config, Engine, Options};
use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use terminal::signals;

use super::Run;
use super::bare;
use super::namespace::{received, with_cables};
use super::snabb::{self, HugePages};
use crate::processors::{run_on, two_cpus};

pub const WARM_UP: Duration = Duration::from_millis(150);

/// Forwarding by three programs: ours by AF_XDP and by packet sockets, and Snabb's.
pub const XDP: &str = "forward: XDP -> XDP";
pub const RAW_SOCKET: &str = "forward: RawSocket -> RawSocket";
pub const SNABB: &str = "forward: Snabb's XDP -> XDP";

pub fn runs() -> Result<Vec<Run>> {
    needs()?;
    let row = |name: &str, measure: fn(f64) -> Result<f64>| {
        Run::new(name, move |s| with_cables(|| measure(s)))
    };
    Ok(vec![
        row("receive: kernel alone (XDP_DROP)", |seconds| {
            let _sink = drop_all(index("a1")?)?;
            under_load(|| rate("a1", seconds))
        }),
        row("receive: bare AF_XDP loop", |seconds| counting(seconds, bare::receive)),
        row("receive: XDP -> Sink", |seconds| {
            let network = network(&[("XDP", "a1", true)], &["a1.tx -> sink.input"])?;
            counting(seconds, move |stop, count| breathe(&network, stop, count))
        }),
        row("transmit: bare AF_XDP loop", |seconds| {
            let _sink = drop_all(index("a0")?)?;
            beside(bare::transmit, || rate("a0", seconds))
        }),
        row("transmit: Source -> XDP", |seconds| {
            let _sink = drop_all(index("a0")?)?;
            let network = network(&[("XDP", "a1", false)], &["source.output -> a1.rx"])?;
            beside(move |stop| breathe(&network, stop, &AtomicU64::new(0)), || rate("a0", seconds))
        }),
        row("forward: kernel alone (XDP_REDIRECT)", |seconds| {
            let _sink = drop_all(index("b0")?)?;
            let _forward = forward_all(index("a1")?, index("b1")?)?;
            under_load(|| rate("b0", seconds))
        }),
        row("forward: bare AF_XDP loop", |seconds| {
            let _sink = drop_all(index("b0")?)?;
            beside(bare::forward, || under_load(|| rate("b0", seconds)))
        }),
        row(XDP, |seconds| forward("XDP", seconds)),
        row(RAW_SOCKET, |seconds| {
            // The generator's frames arrive only at an interface with a program.
            let _pass = pass_all(index("a1")?)?;
            forward("RawSocket", seconds)
        }),
    ])
}

/// The row of Snabb's AF_XDP apps between the same interfaces: its program is `snabb`.
pub fn snabb(snabb: Option<&Path>) -> Result<Vec<Run>> {
    let program =
        snabb.context("--snabb, or SHORTWIRE_SNABB_PROGRAM, does not name its program")?;
    needs()?;
    let program = program.canonicalize().with_context(|| format!("{}", program.display()))?;
    Ok(vec![Run::new(SNABB, move |seconds| {
        with_cables(|| {
            let _sink = drop_all(index("b0")?)?;
            let _running = Snabb::start(&program)?;
            under_load(|| {
                let patience = Instant::now() + START;
                while received("b0")? == 0 {
                    ensure!(Instant::now() < patience, "Snabb forwards nothing");
                    ensure!(!signals::interrupted(), "interrupted");
                    std::thread::sleep(Duration::from_millis(10));
                }
                rate("b0", seconds)
            })
        })
    })])
}

/// How long Snabb may take to start: it pins 800 MB for each interface.
const START: Duration = Duration::from_secs(60);

/// What it is to do, as its users write it.
const SHUNT: &str = "local xdp = require('apps.xdp.xdp')
xdp.snabb_enable_xdp()
local c = config.new()
config.app(c, 'a1', xdp.XDP, { ifname = 'a1' })
config.app(c, 'b1', xdp.XDP, { ifname = 'b1' })
config.link(c, 'a1.output -> b1.input')
engine.configure(c)
engine.busywait = true
engine.main({ duration = 600, no_report = true })
";

/// A running Snabb, with the files of its own.
struct Snabb {
    child: Child,
    _folder: TempDir,
    _pages: HugePages,
}

impl Snabb {
    fn start(program: &Path) -> Result<Snabb> {
        let pages = HugePages::new()?;
        let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
        let script = folder.path().join("shunt.lua");
        std::fs::write(&script, SHUNT)?;
        // It looks for interfaces in /sys and pins its programs there: those of this namespace.
        let mounts = "mount -t sysfs sysfs /sys && mount -t bpf bpf /sys/fs/bpf && ";
        let words = snabb::command(program, &script, mounts);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        crate::sys::at_start(&mut command, two_cpus().map(|(_, second)| second));
        let child = command.spawn().context("cannot run unshare (package util-linux)")?;
        Ok(Snabb { child, _folder: folder, _pages: pages })
    }
}

impl Drop for Snabb {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// What measurements on interfaces cannot do without.
pub fn needs() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "needs root, to make network namespaces and attach XDP programs"
    );
    two_cpus().context("needs two processors: one for the generator")?;
    Ok(())
}

pub fn index(name: &str) -> Result<u32> {
    Ok(Netdev::find(name)?.index())
}

fn forward(kind: &'static str, seconds: f64) -> Result<f64> {
    let _sink = drop_all(index("b0")?)?;
    let network = network(&[(kind, "a1", true), (kind, "b1", false)], &["a1.tx -> b1.rx"])?;
    beside(
        move |stop| breathe(&network, stop, &AtomicU64::new(0)),
        || under_load(|| rate("b0", seconds)),
    )
}

/// Ports, and the apps `source` and `sink` where links name them.
fn network(ports: &[(&str, &str, bool)], links: &[&str]) -> Result<Config> {
    let mut config = Config::new();
    for (kind, interface, receive) in ports {
        let mut args = toml::Table::from_iter([("interface".into(), (*interface).into())]);
        if *kind == "XDP" {
            args.insert("receive".into(), (*receive).into());
        }
        config.app(interface, kind, args)?;
    }
    for link in links {
        for (name, kind) in [("source", "Source"), ("sink", "Sink")] {
            if link.contains(name) {
                config.app(name, kind, ())?;
            }
        }
        config.link(link)?;
    }
    Ok(config)
}

fn breathe(config: &Config, stop: &AtomicBool, count: &AtomicU64) -> Result<()> {
    let mut engine = Engine::new(Options::default());
    engine.configure(config)?;
    while !stop.load(Ordering::Relaxed) {
        (0..100).for_each(|_| engine.breathe());
        count.store(engine.links().map(|(_, stats)| stats.rxpackets).sum(), Ordering::Relaxed);
    }
    Ok(engine.stop()?)
}

/// Runs `body` beside `work` on the second processor, until `body` is done.
pub fn beside<R>(
    work: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    body: impl FnOnce() -> Result<R>,
) -> Result<R> {
    aside(1, work, body)
}

/// Runs `body` while the kernel sends from the first processor into a0, which arrives at a1.
fn under_load<R>(body: impl FnOnce() -> Result<R>) -> Result<R> {
    under_load_of(frame(), body)
}

/// The same with frames of one's own.
pub fn under_load_of<R>(frame: Vec<u8>, body: impl FnOnce() -> Result<R>) -> Result<R> {
    let to = index("a0")?;
    aside(0, move |stop| Ok(Source::new(to, &frame)?.run(stop)?), body)
}

fn aside<R>(
    place: usize,
    work: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    body: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let (first, second) = two_cpus().context("needs two processors")?;
    let cpu = if place == 0 { first } else { second };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            run_on(cpu)?;
            work(&stop)
        });
        let result = body();
        stop.store(true, Ordering::Relaxed);
        worker.join().map_err(|_| anyhow!("the measurement crashed"))??;
        result
    })
}

pub fn frame() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

/// Millions of packets per second that arrive at an interface.
fn rate(interface: &str, seconds: f64) -> Result<f64> {
    per_second(seconds, || received(interface))
}

/// Millions of packets per second that `work` counts while the kernel sends.
fn counting(
    seconds: f64,
    work: impl FnOnce(&AtomicBool, &AtomicU64) -> Result<()> + Send,
) -> Result<f64> {
    let count = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&count);
    let body = || under_load(|| per_second(seconds, || Ok(count.load(Ordering::Relaxed))));
    beside(move |stop| work(stop, &told), body)
}

fn per_second(seconds: f64, count: impl Fn() -> Result<u64>) -> Result<f64> {
    std::thread::sleep(WARM_UP);
    let (before, began) = (count()?, Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    Ok((count()? - before) as f64 / began.elapsed().as_secs_f64() / 1e6)
}
