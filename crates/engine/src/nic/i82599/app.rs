//! `Intel82599`, the app: queues of a card, or of its model, as ports of the network.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use super::model::{self, ModelBar};
use super::{Backing, Card, CardError, IDS, LinkState, Queue, Settings, Statistics};
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::presence::{Port, Presence};
use crate::args::ArgError;
use crate::nic::bar::{Bar, MappedBar};
use crate::nic::dma::DmaSpace;
use crate::nic::pci;
use crate::registry::Registry;

pub(crate) fn register(registry: &mut Registry) {
    registry.register::<Intel82599>();
}

mod args;

pub use args::Intel82599Args;

const WHAT: &str = "an Intel 82599";
/// Looks at a card (ten a second) without progress of its transmit queue until it counts as hung.
const HUNG: u32 = 20;

/// Cards that are open, so that apps can share one.
static CARDS: LazyLock<Cards<MappedBar>> = LazyLock::new(Cards::default);
static MODELS: LazyLock<Cards<ModelBar>> = LazyLock::new(Cards::default);

struct Cards<B: Bar>(Mutex<BTreeMap<String, Weak<Card<B>>>>);

impl<B: Bar> Default for Cards<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Bar> Cards<B> {
    /// The card of that name, opened if nobody has it. The flag says that it was.
    fn open<F>(
        &self,
        name: String,
        settings: Settings,
        open: F,
    ) -> Result<(Arc<Card<B>>, bool), AppError>
    where
        F: FnOnce() -> Result<(B, Box<dyn Backing>), AppError>,
    {
        let failed = |error: CardError| AppError::new(format!("{name}: {error}"));
        let mut cards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(card) = cards.get(&name).and_then(Weak::upgrade) {
            return if *card.settings() == settings {
                Ok((card, false))
            } else {
                Err(failed(CardError::OtherSettings))
            };
        }
        let (bar, backing) = open()?;
        let card = Arc::new(Card::open(bar, backing, settings).map_err(failed)?);
        cards.insert(name, Arc::downgrade(&card));
        Ok((card, true))
    }
}

impl Backing for pci::Device {
    fn dma(&mut self) -> &mut dyn DmaSpace {
        self.dma()
    }

    fn start(&mut self) -> Result<(), CardError> {
        Ok(self.set_bus_master()?)
    }

    fn way(&self) -> String {
        self.way().to_string()
    }
}

/// A pair of queues of hardware or of a model: two types, so that the data path of each is its own.
enum Queues {
    Hardware(Queue<MappedBar>),
    Model(Queue<ModelBar>),
}

/// The open half of the app.
struct Open {
    queues: Queues,
    name: String,
    /// Counts for the card: the app that opened it.
    first: bool,
    link: LinkState,
    statistics: Statistics,
    /// What was pending at the last looks, and for how many.
    pending: (u32, u32),
    /// What the operator should hear.
    news: Option<String>,
}

/// Runs the same code on either kind of queue.
macro_rules! each {
    ($queues:expr, $queue:ident => $body:expr) => {
        match $queues {
            Queues::Hardware($queue) => $body,
            Queues::Model($queue) => $body,
        }
    };
}

impl Port for Open {
    type Args = Intel82599Args;

    fn open(args: &Intel82599Args) -> Result<Self, AppError> {
        let settings = args.settings()?;
        let (rxq, txq, ring) = (args.rxq, args.txq, args.ring);
        let (queues, name, first) = match model::resolve(&args.pciaddr) {
            Some(spec) => {
                let spec = spec.map_err(|error| AppError::new(error.to_string()))?;
                let (card, first) = MODELS.open(spec.to_string(), settings, || {
                    let (bar, memory) = model::open(&spec)?;
                    Ok((bar, Box::new(memory)))
                })?;
                (Queue::open(card, rxq, txq, ring).map(Queues::Model), spec.to_string(), first)
            }
            None => {
                let pci = |error: pci::PciError| {
                    AppError::new(match error {
                        pci::PciError::Absent { address, .. } => {
                            format!(
                                "{error}; `--model {address}=model:0,packets=64` lets a software model stand in"
                            )
                        }
                        error => error.to_string(),
                    })
                };
                let address: pci::Address = args.pciaddr.parse().map_err(pci)?;
                let (card, first) = CARDS.open(address.to_string(), settings, || {
                    let device = pci::Device::open(address, IDS, WHAT).map_err(pci)?;
                    Ok((device.bar(0).map_err(pci)?, Box::new(device)))
                })?;
                (
                    Queue::open(card, rxq, txq, ring).map(Queues::Hardware),
                    address.to_string(),
                    first,
                )
            }
        };
        let queues = queues.map_err(|error| AppError::new(format!("{name}: {error}")))?;
        let link = each!(&queues, queue => queue.card().link());
        Ok(Self {
            queues,
            name,
            first,
            link,
            statistics: Statistics::default(),
            pending: (0, 0),
            news: None,
        })
    }

    fn lost(&mut self) -> Option<String> {
        let (present, enabled) =
            each!(&self.queues, queue => (queue.is_present(), queue.is_enabled()));
        let name = &self.name;
        if !present {
            return Some(format!("{name} has left the bus"));
        }
        if !enabled {
            return Some(format!("{name} was reset by somebody else, and is set up again"));
        }
        let (pending, pauses) =
            each!(&self.queues, queue => (queue.pending(), queue.card().settings().flow_control));
        self.pending = match self.pending {
            // A peer may pause us for as long as it likes.
            (before, times) if before == pending && pending != 0 && self.link.up && !pauses => {
                (pending, times + 1)
            }
            _ => (pending, 0),
        };
        (self.pending.1 >= HUNG).then(|| format!("{name} has stopped sending, and is set up again"))
    }
}

impl Open {
    /// What is slow: link and statistics.
    fn look(&mut self) {
        let link = each!(&self.queues, queue => queue.card().link());
        if link != self.link {
            self.news = Some(match link {
                LinkState { up: true, speed } => {
                    format!("{}: the link is up, {speed} Mbit/s", self.name)
                }
                _ => format!("{}: the link is down; what is sent there waits", self.name),
            });
            self.link = link;
        }
        if self.first {
            self.statistics = each!(&self.queues, queue => queue.card().statistics());
        }
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (way, mac) = each!(&self.queues, queue => (queue.card().way(), queue.card().mac()));
        let [a, b, c, d, e, f] = mac;
        write!(
            out,
            "{} ({way}), address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, link ",
            self.name
        )?;
        match self.link {
            LinkState { up: true, speed } => writeln!(out, "up, {speed} Mbit/s"),
            _ => writeln!(out, "down"),
        }
    }
}

/// A card, or a pair of its queues.
pub struct Intel82599 {
    args: Intel82599Args,
    presence: Presence<Open>,
    /// What the card counted before it was lost.
    earlier: Statistics,
    statistics: Statistics,
    rx_broken: u64,
    tx_dropped: u64,
}

impl Kind for Intel82599 {
    const NAME: &'static str = "Intel82599";
    const ABOUT: &'static str =
        "an Intel 82599 10-gigabit card, driven in user space, or its software model";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] = &[
        "rx_packets",
        "rx_bytes",
        "rx_multicast",
        "rx_broadcast",
        "rx_dropped",
        "rx_errors",
        "tx_packets",
        "tx_bytes",
        "tx_multicast",
        "tx_broadcast",
        "tx_dropped",
        "reopened",
    ];
    type Args = Intel82599Args;

    fn check(args: &Intel82599Args) -> Result<(), ArgError> {
        args.check()
    }

    fn new(args: Intel82599Args, _context: &Context) -> Result<Self, AppError> {
        let presence = Presence::open(&args)?;
        let (earlier, statistics) = Default::default();
        Ok(Self { args, presence, earlier, statistics, rx_broken: 0, tx_dropped: 0 })
    }
}

impl App for Intel82599 {
    fn pull(&mut self, io: &Io) {
        let Some(open) = self.presence.port() else { return };
        match (&mut open.queues, io.output(0)) {
            (Queues::Hardware(queue), Some(output)) => queue.receive(output),
            (Queues::Model(queue), Some(output)) => queue.receive(output),
            (queues, None) => each!(queues, queue => queue.discard()),
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        match self.presence.port() {
            Some(open) => each!(&mut open.queues, queue => queue.send(input)),
            None => self.tx_dropped += input.discard() as u64,
        }
    }

    fn tick(&mut self, io: &Io) {
        let (statistics, earlier) = (&mut self.statistics, &mut self.earlier);
        let (rx_broken, tx_dropped) = (&mut self.rx_broken, &mut self.tx_dropped);
        if let Some(open) = self.presence.port() {
            each!(&mut open.queues, queue => queue.complete());
        } else {
            earlier.clone_from(statistics);
        }
        self.presence.tick(io.now(), &self.args, |open| {
            open.look();
            *statistics = earlier.clone() + open.statistics.clone();
            each!(&mut open.queues, queue => {
                *rx_broken += std::mem::take(&mut queue.broken);
                *tx_dropped += std::mem::take(&mut queue.too_short);
            });
        });
    }

    fn notice(&mut self) -> Option<String> {
        self.presence.notice().or_else(|| self.presence.port()?.news.take())
    }

    fn counters(&self, values: &mut [u64]) {
        let s = &self.statistics;
        values.copy_from_slice(&[
            s.rx_packets,
            s.rx_bytes,
            s.rx_multicast,
            s.rx_broadcast,
            s.rx_dropped,
            s.rx_errors + self.rx_broken,
            s.tx_packets,
            s.tx_bytes,
            s.tx_multicast,
            s.tx_broadcast,
            self.tx_dropped,
            self.presence.reopened,
        ]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.presence.describe(out, Open::describe)?;
        let s = &self.statistics;
        writeln!(
            out,
            "received: {} packets, {} without a buffer, {} broken",
            s.rx_packets, s.rx_dropped, s.rx_errors
        )?;
        writeln!(out, "sent: {} packets, {} dropped", s.tx_packets, self.tx_dropped)
    }

    fn stop(&mut self) -> Result<(), AppError> {
        self.presence.stop();
        Ok(())
    }
}
