//! Intel 82574, a gigabit card, and what QEMU emulates as `e1000e`: the driver, in user space.
//!
//! Received frames are written by the card straight into slots of the packet memory, and sent from
//! there. One queue, no interrupts. Frames up to 1518 bytes; no checksums are left to the card.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bar::MappedBar;
use super::pci;
use super::ring::{RxRing, TxRing};
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::vnet;
use crate::args::ArgError;
use crate::batch::Batch;
use crate::packet::Packet;
use crate::registry::Registry;

mod card;
mod registers;

use card::{Card, CardError, Setup, Statistics};
use registers::Legacy;

pub(crate) fn register(registry: &mut Registry) {
    registry.register::<Intel82574>();
}

/// Vendor and device: 82574L, and the same chip with other settings.
const IDS: [(u16, u16); 2] = [(0x8086, 0x10d3), (0x8086, 0x10f6)];
const WHAT: &str = "an Intel 82574";
/// Longest frame of a network without jumbo frames, with a VLAN tag and without its checksum.
const LONGEST: usize = 1518;
const ETHERNET_HEADER: usize = 14;
/// Between two looks at link and statistics, in nanoseconds.
const LOOK: u64 = 100_000_000;

/// Arguments of [`Intel82574`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Intel82574Args {
    /// Address on the PCI bus, as in `lspci -D`.
    pub pciaddr: String,
    /// Descriptors of each ring: a power of two from 64 to 4096.
    #[serde(default = "default_ring")]
    pub ring: u32,
    /// Receive packets for other MAC addresses, too.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Seconds to wait for a link before the first packet.
    #[serde(default = "default_linkup_wait")]
    pub linkup_wait: u32,
}

fn default_ring() -> u32 {
    1024
}

fn yes() -> bool {
    true
}

fn default_linkup_wait() -> u32 {
    5
}

/// A card at work.
pub struct Intel82574 {
    card: Card<MappedBar>,
    receive: RxRing<Legacy>,
    transmit: TxRing<Legacy>,
    /// None once the card is given up.
    device: Option<pci::Device>,
    address: pci::Address,
    way: &'static str,
    statistics: Statistics,
    link: Option<u32>,
    tx_dropped: u64,
    rx_broken: u64,
    next_look: u64,
    notice: Option<String>,
}

impl Intel82574 {
    fn open(args: &Intel82574Args) -> Result<Self, AppError> {
        let address: pci::Address = args.pciaddr.parse().map_err(failed)?;
        let of_card = |error: CardError| AppError::new(format!("{address}: {error}"));
        let mut device = pci::Device::open(address, &IDS, WHAT).map_err(failed)?;
        let card = Card::new(device.bar(0).map_err(failed)?);
        card.reset().map_err(of_card)?;
        let receive = RxRing::new(device.dma(), args.ring).map_err(failed)?;
        let transmit = TxRing::new(device.dma(), args.ring).map_err(failed)?;
        let setup = Setup {
            receive: receive.address(),
            transmit: transmit.address(),
            descriptors: args.ring,
            promiscuous: args.promiscuous,
        };
        // Only now: before the reset the card may still have had another driver's addresses.
        device.set_bus_master().map_err(failed)?;
        let mut this = Self {
            card,
            receive,
            transmit,
            address,
            way: device.way(),
            device: Some(device),
            statistics: Statistics::default(),
            link: None,
            tx_dropped: 0,
            rx_broken: 0,
            next_look: 0,
            notice: None,
        };
        this.card.start(&setup).map_err(of_card)?;
        // What was counted before us.
        this.card.count(&mut Statistics::default());
        this.refill();
        this.link = this.await_link(args.linkup_wait).map_err(of_card)?;
        Ok(this)
    }

    /// Negotiation takes a gigabit link two or three seconds.
    fn await_link(&self, seconds: u32) -> Result<Option<u32>, CardError> {
        let end = Instant::now() + Duration::from_secs(seconds.into());
        loop {
            let link = self.card.link()?;
            if link.is_some() || Instant::now() >= end {
                return Ok(link);
            }
            sleep(Duration::from_millis(10));
        }
    }

    #[inline]
    fn refill(&mut self) {
        if let Some(tail) = self.receive.refill() {
            self.card.set_receive_tail(tail);
        }
    }

    #[cold]
    fn look(&mut self) {
        self.card.count(&mut self.statistics);
        let link = self.card.link().unwrap_or(None);
        if link != self.link {
            self.link = link;
            self.notice = Some(match link {
                Some(speed) => format!("the link is up: {speed} Mb/s"),
                None => "the link is down; what is sent there waits".into(),
            });
        }
    }

    /// Lets the card send what it was given, then stops it and gives it up. Only then are the slots
    /// free for others.
    fn quiet(&mut self) -> Result<(), CardError> {
        let Some(device) = self.device.take() else { return Ok(()) };
        let end = Instant::now() + Duration::from_millis(100);
        while self.link.is_some() && self.transmit.pending() > 0 && Instant::now() < end {
            self.transmit.complete();
            sleep(Duration::from_micros(50));
        }
        self.card.count(&mut self.statistics);
        let result = self.card.reset();
        drop(device);
        self.receive.clear();
        self.transmit.clear();
        result
    }
}

fn failed(error: impl fmt::Display) -> AppError {
    AppError::new(error.to_string())
}

/// What the card cannot finish is finished here; what is no frame for this network is refused.
#[inline(always)]
fn prepare(packet: &mut Packet) -> bool {
    vnet::finish(packet);
    (ETHERNET_HEADER..=LONGEST).contains(&packet.length())
}

impl Kind for Intel82574 {
    const NAME: &'static str = "Intel82574";
    const ABOUT: &'static str = "an Intel 82574 gigabit card (QEMU's e1000e), driven in user space";
    const INPUTS: Ports = Ports::Named(&["rx"]);
    const OUTPUTS: Ports = Ports::Named(&["tx"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] =
        &["rx_packets", "tx_packets", "rx_dropped", "rx_errors", "tx_dropped"];
    type Args = Intel82574Args;

    fn check(args: &Intel82574Args) -> Result<(), ArgError> {
        if !args.ring.is_power_of_two() || !(64..=4096).contains(&args.ring) {
            return Err(ArgError::wrong(
                "ring",
                format!("{} is not a power of two from 64 to 4096", args.ring),
            ));
        }
        let parsed = args.pciaddr.parse::<pci::Address>();
        parsed.map(drop).map_err(|error| ArgError::wrong("pciaddr", error.to_string()))
    }

    fn new(args: Intel82574Args, _context: &Context) -> Result<Self, AppError> {
        Self::open(&args)
    }
}

impl App for Intel82574 {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0) else { return };
        let mut batch = Batch::new();
        self.rx_broken += self.receive.receive(output.room(), &mut batch);
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        self.refill();
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let mut refused = 0;
        let tail = self.transmit.send(input, |packet| {
            let good = prepare(packet);
            refused += u64::from(!good);
            good
        });
        self.tx_dropped += refused;
        if let Some(tail) = tail {
            self.card.set_transmit_tail(tail);
        }
    }

    fn tick(&mut self, io: &Io) {
        // Slots of the last packets before a pause come back, too.
        self.transmit.complete();
        if io.now() >= self.next_look {
            self.next_look = io.now() + LOOK;
            self.look();
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    fn counters(&self, values: &mut [u64]) {
        let Statistics { received, sent, missed, errors } = self.statistics;
        values.copy_from_slice(&[
            received,
            sent,
            missed,
            errors.max(self.rx_broken),
            self.tx_dropped,
        ]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Statistics { received, sent, missed, errors } = self.statistics;
        write!(out, "{} by {}, ", self.address, self.way)?;
        match self.link {
            Some(speed) => writeln!(out, "link up at {speed} Mb/s")?,
            None => writeln!(out, "link down")?,
        }
        writeln!(
            out,
            "the card counts {received} received, {missed} missed, {errors} broken, {sent} sent"
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        let address = self.address;
        self.quiet().map_err(|error| AppError::new(format!("{address}: {error}")))
    }
}

impl Drop for Intel82574 {
    fn drop(&mut self) {
        // Also when it was never started whole. There is nobody left to tell about a failure.
        let _ = self.quiet();
    }
}
