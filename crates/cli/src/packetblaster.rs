//! `shortwire packetblaster`: many packets, fast.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::engine::arena;
use ::engine::clock::monotonic;
use ::engine::pcap::is_same_file;
use ::engine::stop::Signals;
use anyhow::{Context, Result, anyhow, bail};
use toml::{Table, Value};

mod args;
mod budget;
pub mod frames;
pub mod port;
mod rate;
mod reel;
pub mod shown;
mod summary;
mod xdp;

pub use args::Packetblaster;
use args::{Blast, Output};
pub use budget::Budget;
use frames::ON_WIRE;
use port::Port;
pub use rate::{Rate, parse_rate};
pub use reel::{BATCH, Reel};
use shown::{Shown, passed};
use summary::{Progress, Summary};
use xdp::Transmitter;

/// How long packets that are under way at the end may take.
const SETTLE: Duration = Duration::from_millis(300);

pub fn run(args: &Packetblaster) -> Result<ExitCode> {
    let (frames, output, once) = match &args.command {
        Blast::Replay(args) => {
            if let Some(pcap) = args.output.pcap.as_deref()
                && is_same_file(pcap, &args.file)
            {
                let (pcap, file) = (pcap.display(), args.file.display());
                bail!("--pcap {pcap} would empty {file}, which is replayed: give another file");
            }
            (frames::load(&args.file)?, &args.output, args.no_loop)
        }
        Blast::Synth(args) => (frames::synth(&args.frames)?, &args.output, false),
    };
    arena::set_slots(arena::DEFAULT_SLOTS.max(2 * frames.len() + 16384))?;
    output.models.apply();
    let signals = Signals::catch().context("cannot catch signals")?;
    let blast = Plan::new(&frames, output, once)?;
    let lengths: Vec<usize> = frames.iter().map(Vec::len).collect();
    let target = target(output);
    // A queue of an interface has one socket, which then does both.
    let both = output.receive.as_ref() == Some(&target);
    let receiver = output.receive.as_deref().filter(|_| !both).map(Receiver::start).transpose()?;
    let endless = blast.is_endless();
    let kind = kind(output);
    let shown = Shown::open("packetblaster", Some((&target, kind)), None);
    let done = match &output.interface {
        Some(interface) if !both => {
            let transmitter = Transmitter::open(interface, output.queue, &frames)?;
            blast.transmit(&signals, transmitter, &frames, shown)?
        }
        Some(interface) => {
            blast.through(&signals, Port::xdp(interface, output.queue)?, &frames, shown)?
        }
        None => blast.through(&signals, open(output, kind, endless)?, &frames, shown)?,
    };
    let mut summary = Summary::new(target, done.seconds, done.sent, &lengths);
    if let Some(at) = &output.receive {
        std::thread::sleep(SETTLE);
        summary.add_received(at, receiver.map_or(Ok(done.received), Receiver::finish)?);
    }
    summary.print(output.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Packets per second at which the mean frame makes the rate.
pub fn packets_per_second(rate: Rate, frames: &[Vec<u8>]) -> f64 {
    match rate {
        Rate::Packets(rate) => rate,
        Rate::Bits(rate) => {
            let mean = frames.iter().map(|frame| frame.len() + ON_WIRE).sum::<usize>() as f64
                / frames.len() as f64;
            rate / (mean * 8.0)
        }
    }
}

fn target(output: &Output) -> String {
    let names = [&output.interface, &output.raw, &output.tap, &output.pci]
        .into_iter()
        .flatten()
        .next()
        .cloned();
    let file = output.pcap.as_deref().map(|path| path.display().to_string());
    names.or(file).unwrap_or_else(|| "memory".into())
}

/// The kind of app that takes packets.
fn kind(output: &Output) -> &'static str {
    match output {
        Output { interface: Some(_), .. } => "XDP",
        Output { pci: Some(_), .. } => "Intel82599",
        Output { raw: Some(_), .. } => "RawSocket",
        Output { tap: Some(_), .. } => "Tap",
        Output { pcap: Some(_), .. } => "PcapWriter",
        _ => "Sink",
    }
}

/// It, where it is not AF_XDP.
fn open(output: &Output, kind: &str, endless: bool) -> Result<Port> {
    let one = |key: &str, value: &str| Table::from_iter([(key.to_string(), Value::from(value))]);
    let text =
        |path: &Path| path.to_str().map(str::to_string).context("the file's name is not UTF-8");
    match output {
        Output { pci: Some(address), .. } => Port::open(kind, one("pciaddr", address)),
        Output { raw: Some(interface), .. } => Port::open(kind, one("interface", interface)),
        Output { tap: Some(interface), .. } => Port::open(kind, one("interface", interface)),
        Output { pcap: Some(path), .. } => {
            if endless {
                bail!("a file that grows for ever: give --count or --duration");
            }
            Port::open(kind, one("file", &text(path)?))
        }
        _ => Port::open(kind, Table::new()),
    }
}

/// Seconds since a time in nanoseconds.
fn since(began: u64) -> f64 {
    (monotonic() - began) as f64 / 1e9
}

/// What became of a [`Plan`].
struct Done {
    sent: u64,
    /// At the port that sent.
    received: u64,
    seconds: f64,
}

/// How much to send, and when to end.
struct Plan {
    budget: Budget,
    count: Option<u64>,
    duration: Option<Duration>,
    receives: bool,
}

impl Plan {
    fn new(frames: &[Vec<u8>], output: &Output, once: bool) -> Result<Plan> {
        let all = frames.len() as u64;
        let count = if once {
            Some(output.count.map_or(all, |count| count.min(all)))
        } else {
            output.count
        };
        let rate = output.rate.map(|rate| packets_per_second(rate, frames));
        let duration = output.duration.map(Duration::from_secs_f64);
        Ok(Plan {
            budget: Budget::new(rate, count),
            count,
            duration,
            receives: output.receive.is_some(),
        })
    }

    fn is_endless(&self) -> bool {
        self.count.is_none() && self.duration.is_none()
    }

    /// Both are nanoseconds.
    fn is_over(&self, signals: &Signals, began: u64, now: u64) -> bool {
        let late =
            self.duration.is_some_and(|duration| u128::from(now - began) >= duration.as_nanos());
        late || self.budget.is_spent() || signals.stop_requested()
    }

    fn transmit(
        mut self,
        signals: &Signals,
        mut transmitter: Transmitter,
        frames: &[Vec<u8>],
        mut shown: Shown,
    ) -> Result<Done> {
        // Frames go in turn: their mean is right to less than a turn.
        let mean = frames.iter().map(Vec::len).sum::<usize>() as f64 / frames.len() as f64;
        let mut progress = Progress::new(self.count);
        let began = monotonic();
        loop {
            let now = monotonic();
            if self.is_over(signals, began, now) {
                break;
            }
            let room = transmitter.room();
            let count = self.budget.grant(now, room);
            transmitter.send(count)?;
            progress.show(now, || transmitter.sent());
            shown.turn(now, || {
                let sent = transmitter.sent();
                [passed(sent, (sent as f64 * mean) as u64)]
            });
        }
        transmitter.settle(SETTLE);
        progress.finish();
        Ok(Done { sent: transmitter.sent(), received: 0, seconds: since(began) })
    }

    fn through(
        mut self,
        signals: &Signals,
        mut port: Port,
        frames: &[Vec<u8>],
        mut shown: Shown,
    ) -> Result<Done> {
        let mut reel = Reel::new(frames).context("not enough memory for packets")?;
        let mut progress = Progress::new(self.count);
        let began = monotonic();
        let mut settled = None;
        loop {
            let now = monotonic();
            if self.is_over(signals, began, now) {
                // What waits is still sent, if that does not take long.
                let end = *settled.get_or_insert(now + SETTLE.as_nanos() as u64);
                if port.waiting() == 0 || now >= end {
                    break;
                }
            } else {
                let granted = self.budget.grant(now, BATCH.min(port.room()));
                let queued = port.queue(reel.upcoming(granted));
                self.budget.give_back(granted - queued);
                reel.advance(queued);
            }
            if let Some(notice) = port.step(now) {
                bail!("{notice}");
            }
            port.received().discard();
            progress.show(now, || port.sent());
            shown.turn(now, || [port.to_send().stats()]);
        }
        progress.finish();
        let seconds = since(began);
        let sent = port.sent();
        let end = Instant::now() + SETTLE;
        while self.receives && Instant::now() < end {
            port.step(monotonic());
            port.received().discard();
        }
        let received = port.received().received();
        port.close()?;
        Ok(Done { sent, received, seconds })
    }
}

/// Counts what arrives at an interface, on a thread of its own.
struct Receiver {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Receiver {
    /// Returns when the interface is ready.
    fn start(interface: &str) -> Result<Receiver> {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (name, stopped, counted) =
            (interface.to_string(), Arc::clone(&stop), Arc::clone(&count));
        let body = move || {
            let mut port = Port::xdp(&name, 0)?;
            let _ = ready.send(());
            while !stopped.load(Ordering::Relaxed) {
                if let Some(notice) = port.step(monotonic()) {
                    bail!("{notice}");
                }
                if port.received().discard() == 0 {
                    std::thread::sleep(Duration::from_micros(20));
                }
                counted.store(port.received().received(), Ordering::Relaxed);
            }
            port.close()
        };
        let thread = std::thread::Builder::new().name("receiver".into()).spawn(body)?;
        let receiver = Receiver { stop, count, thread };
        match is_ready.recv() {
            Ok(()) => Ok(receiver),
            Err(_) => receiver.finish().and(Err(anyhow!("cannot receive at {interface}"))),
        }
    }

    fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the receiver crashed"))??;
        Ok(self.count.load(Ordering::Relaxed))
    }
}
