//! One rate for some time: a thread sends, another one receives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::engine::Batch;
use ::engine::clock::monotonic;
use ::engine::histogram::Histogram;
use ::engine::link::LinkStats;
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use terminal::units::engineering;

use super::Loadtest;
use crate::packetblaster::frames::{stamp, stamped};
use crate::packetblaster::port::Port;
use crate::packetblaster::shown::{Shown, passed};
use crate::packetblaster::{BATCH, Budget, Reel};

/// Between two packets that carry the time, in nanoseconds.
const PROBE: u64 = 100_000;
/// How long packets may take from one interface to the other.
const SETTLE: Duration = Duration::from_millis(200);

#[derive(Serialize, Clone)]
pub struct Trial {
    /// What was asked for, in packets per second; null: as much as possible.
    pub asked: Option<f64>,
    /// What was sent.
    pub rate: f64,
    pub sent: u64,
    pub received: u64,
    pub loss_percent: f64,
    pub latency_us: Option<Latency>,
}

#[derive(Serialize, Clone, Copy)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// What the receiver has seen.
#[derive(Default)]
struct Seen {
    packets: u64,
    latency: Histogram,
    /// Packets and bytes over all trials.
    all: (u64, u64),
}

/// Both interfaces, open over all trials.
pub struct Bed {
    /// With what it sends.
    sender: Mutex<(Port, Reel, Shown)>,
    offset: usize,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    receiver: JoinHandle<Result<()>>,
}

impl Bed {
    pub fn open(args: &Loadtest, frames: &[Vec<u8>], offset: usize) -> Result<Bed> {
        let reel = Reel::new(frames).context("not enough memory for packets")?;
        let (seen, stop) =
            (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let (name, told, stopped) = (args.to.clone(), Arc::clone(&seen), Arc::clone(&stop));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let body = move || {
            let mut port = Port::xdp(&name, 0)?;
            let _ = ready.send(());
            while !stopped.load(Ordering::Relaxed) {
                receive(&mut port, offset, &told)?;
            }
            port.close()
        };
        let receiver = std::thread::Builder::new().name("receiver".into()).spawn(body)?;
        if is_ready.recv().is_err() {
            receiver.join().map_err(|_| anyhow!("the receiver crashed"))??;
            bail!("cannot receive at {}", args.to);
        }
        let shown = Shown::open("loadtest", Some((&args.from, "XDP")), Some((&args.to, "XDP")));
        let sender = Mutex::new((Port::xdp(&args.from, 0)?, reel, shown));
        Ok(Bed { sender, offset, seen, stop, receiver })
    }

    pub fn trial(&self, rate: f64, seconds: f64) -> Result<Trial> {
        {
            let mut seen = lock(&self.seen);
            *seen = Seen { all: seen.all, ..Seen::default() };
        }
        let asked = (rate < super::UNLIMITED).then_some(rate);
        let (sent, took) = self.send(Budget::new(asked, None), seconds)?;
        std::thread::sleep(SETTLE);
        let seen = lock(&self.seen);
        let microseconds = |part| Some(seen.latency.quantile(part)? as f64 / 1e3);
        let latency = || {
            Some(Latency {
                p50: microseconds(0.5)?,
                p99: microseconds(0.99)?,
                max: microseconds(1.0)?,
            })
        };
        if sent == 0 {
            bail!("nothing could be sent: is the interface up?");
        }
        let lost = sent.saturating_sub(seen.packets);
        Ok(Trial {
            asked,
            rate: sent as f64 / took,
            sent,
            received: seen.packets,
            loss_percent: lost as f64 * 100.0 / sent as f64,
            latency_us: latency(),
        })
    }

    /// What came in so far, in all trials.
    fn received(&self) -> LinkStats {
        let seen = lock(&self.seen);
        passed(seen.all.0, seen.all.1)
    }

    /// Gives how many packets were sent, and how long it took.
    fn send(&self, mut budget: Budget, seconds: f64) -> Result<(u64, f64)> {
        let mut sender = lock(&self.sender);
        let (port, reel, shown) = &mut *sender;
        let (before, began) = (port.sent(), monotonic());
        let end = began + (seconds * 1e9) as u64;
        let mut probe = began;
        loop {
            let now = monotonic();
            if now >= end {
                break;
            }
            let granted = budget.grant(now, BATCH.min(port.room()));
            let upcoming = reel.upcoming(granted);
            let mut queued = 0;
            // Only a packet that leaves at once tells how long it takes from there.
            if granted > 0 && now >= probe && port.waiting() == 0 {
                probe = now + PROBE;
                if let Some(mut packet) = upcoming[0].duplicate() {
                    stamp(&mut packet[self.offset..], now);
                    port.queue_one(packet);
                    queued = 1;
                }
            }
            queued += port.queue(&upcoming[queued..]);
            budget.give_back(granted - queued);
            reel.advance(queued);
            if let Some(notice) = port.step(now) {
                bail!("{notice}");
            }
            port.received().discard();
            shown.turn(now, || [port.to_send().stats(), self.received()]);
        }
        let took = (monotonic() - began) as f64 / 1e9;
        while port.waiting() > 0 && monotonic() < end + SETTLE.as_nanos() as u64 {
            port.step(monotonic());
            port.received().discard();
        }
        Ok((port.sent() - before, took))
    }

    pub fn close(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.receiver.join().map_err(|_| anyhow!("the receiver crashed"))??;
        let (port, ..) = self.sender.into_inner().unwrap_or_else(PoisonError::into_inner);
        port.close()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(port: &mut Port, offset: usize, seen: &Mutex<Seen>) -> Result<()> {
    let now = monotonic();
    if let Some(notice) = port.step(now) {
        bail!("{notice}");
    }
    let mut batch = Batch::new();
    if port.received().receive_batch(&mut batch) == 0 {
        std::thread::sleep(Duration::from_micros(5));
        return Ok(());
    }
    let mut seen = lock(seen);
    for packet in batch.iter() {
        seen.all.0 += 1;
        seen.all.1 += packet.length() as u64;
        match packet.get(offset..).and_then(stamped) {
            // Somebody else's packet.
            None => {}
            Some(0) => seen.packets += 1,
            Some(sent) => {
                seen.packets += 1;
                seen.latency.record(now.saturating_sub(sent));
            }
        }
    }
    Ok(())
}

impl Trial {
    /// Fewer packets were offered than asked for, by more than this share and the packet that was
    /// about to go. What passed then says nothing of the rate asked for.
    pub fn fell_short(&self, share: f64) -> bool {
        self.asked.is_some_and(|asked| {
            let due = asked * self.sent as f64 / self.rate;
            (self.sent as f64) < due * (1.0 - share) - 1.0
        })
    }

    pub fn sentence(&self) -> String {
        let latency = self.latency_us.map_or_else(String::new, |latency| {
            format!(", latency {:.0} / {:.0} / {:.0} us", latency.p50, latency.p99, latency.max)
        });
        let asked = self
            .asked
            .map_or_else(|| "no limit".into(), |rate| format!("{}pps", engineering(rate)));
        format!(
            "asked {asked}: sent {}pps, loss {:.3}%{latency}",
            engineering(self.rate),
            self.loss_percent
        )
    }
}
