//! The card as a whole: reset, link, filters, spreading over queues, and the quiet end. Section
//! numbers are those of the data sheet.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::registers::*;
use super::statistics::Statistics;
use crate::nic::bar::Bar;
use crate::nic::dma::DmaSpace;

mod setup;

pub use setup::{LONGEST, RSS_KEY};

/// What is behind the registers: keeps the device open, and owns the memory that it reaches.
pub trait Backing: Send {
    /// The memory that the device reaches.
    fn dma(&mut self) -> &mut dyn DmaSpace;

    /// Lets the device reach memory. After it was reset.
    fn start(&mut self) -> Result<(), CardError>;

    /// How it is reached, for reports.
    fn way(&self) -> String;
}

/// Why a card does not work.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// What it did not do in time.
    #[error("the card does not {0}; it may need a power cycle, or is not what it says it is")]
    Stuck(&'static str),
    /// Its PCI device could not be opened.
    #[error(transparent)]
    Pci(#[from] crate::nic::pci::PciError),
    /// Memory could not be made reachable for it.
    #[error(transparent)]
    Dma(#[from] crate::nic::dma::DmaError),
    /// Number of the queue.
    #[error("queue {0} is in use by another app; each app needs its own rxq and txq")]
    QueueInUse(u32),
    /// See [`Settings`].
    #[error(
        "the card is open with other settings; apps that share it must agree on all but rxq, txq and ring"
    )]
    OtherSettings,
}

/// What all queues of a card share.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Takes packets for all addresses.
    pub promiscuous: bool,
    /// Instead of the address in the EEPROM.
    pub mac: Option<[u8; 6]>,
    /// Takes packets of this VLAN only; tags go on and off in the card.
    pub vlan: Option<u16>,
    /// Obeys and sends pause frames.
    pub flow_control: bool,
}

/// State of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// Frames can go through.
    pub up: bool,
    /// In Mbit/s; 0 without a link.
    pub speed: u32,
}

/// A card at work. Queues of several apps may share it.
pub struct Card<B: Bar> {
    bar: B,
    settings: Settings,
    shared: Mutex<Shared>,
}

struct Shared {
    backing: Box<dyn Backing>,
    /// Queues in use, by bits.
    rx: u32,
    tx: u32,
    statistics: Statistics,
}

impl<B: Bar> Card<B> {
    /// Resets the card and sets up what its queues share. It receives and sends nothing until there
    /// are queues.
    pub fn open(bar: B, backing: Box<dyn Backing>, settings: Settings) -> Result<Self, CardError> {
        let shared =
            Mutex::new(Shared { backing, rx: 0, tx: 0, statistics: Statistics::default() });
        let card = Self { bar, settings, shared };
        card.reset()?;
        card.lock().backing.start()?;
        card.start_link();
        card.set_filters();
        card.set_up_receive();
        card.set_up_transmit();
        // Reading clears what a predecessor left.
        Statistics::default().take(&card.bar);
        Ok(card)
    }

    /// Its registers.
    pub fn bar(&self) -> &B {
        &self.bar
    }

    /// What it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `body` with the memory that the card reaches.
    pub fn with_dma<R>(&self, body: impl FnOnce(&mut dyn DmaSpace) -> R) -> R {
        body(self.lock().backing.dma())
    }

    /// How it is reached, for reports: [`Backing::way`].
    pub fn way(&self) -> String {
        self.lock().backing.way()
    }

    /// Looks until `done`, for at most `most`.
    pub(super) fn wait(
        &self,
        what: &'static str,
        most: Duration,
        done: impl Fn(&B) -> bool,
    ) -> Result<(), CardError> {
        const STEP: Duration = Duration::from_micros(50);
        for _ in 0..most.as_micros() / STEP.as_micros() {
            if done(&self.bar) {
                return Ok(());
            }
            self.bar.settle(STEP);
        }
        if done(&self.bar) { Ok(()) } else { Err(CardError::Stuck(what)) }
    }

    /// 4.2.1.6.1 and 4.6.3: no interrupts, no requests to memory, reset, EEPROM read, DMA ready.
    fn reset(&self) -> Result<(), CardError> {
        let bar = &self.bar;
        bar.write32(EIMC, EIMC_ALL);
        self.disable_master();
        bar.change32(CTRL, 0, CTRL_RST | CTRL_LRST);
        bar.settle(Duration::from_millis(1));
        self.wait("end its reset", Duration::from_secs(1), |bar| {
            bar.read32(CTRL) & (CTRL_RST | CTRL_LRST) == 0
        })?;
        // The data sheet wants this time before anything else.
        bar.settle(Duration::from_millis(10));
        bar.write32(EIMC, EIMC_ALL);
        bar.read32(EICR);
        let second = Duration::from_secs(1);
        self.wait("read its EEPROM", second, |bar| bar.read32(EEC) & EEC_AUTO_READ_DONE != 0)?;
        self.wait("get its DMA ready", second, |bar| {
            bar.read32(RDRXCTL) & RDRXCTL_DMA_INIT_DONE != 0
        })
    }

    /// 5.2.5.3.2. Whether requests to memory have ended; a reset follows in any case.
    fn disable_master(&self) -> bool {
        self.bar.change32(CTRL, 0, CTRL_MASTER_DISABLE);
        let idle = |bar: &B| bar.read32(STATUS) & STATUS_MASTER_ENABLED == 0;
        self.wait("end its requests", Duration::from_millis(100), idle).is_ok()
    }

    /// Marks queues as used.
    pub(super) fn claim(&self, rx: u32, tx: u32) -> Result<(), CardError> {
        let mut shared = self.lock();
        if shared.rx & 1 << rx != 0 {
            return Err(CardError::QueueInUse(rx));
        }
        if shared.tx & 1 << tx != 0 {
            return Err(CardError::QueueInUse(tx));
        }
        shared.rx |= 1 << rx;
        shared.tx |= 1 << tx;
        Ok(())
    }

    pub(super) fn release(&self, rx: u32, tx: u32) {
        let mut shared = self.lock();
        shared.rx &= !(1 << rx);
        shared.tx &= !(1 << tx);
    }

    /// 4.6.7: with the path halted meanwhile.
    pub(super) fn enable_receive(&self, enable: bool) -> Result<(), CardError> {
        let bar = &self.bar;
        bar.change32(SECRXCTRL, 0, SECRXCTRL_RX_DIS);
        let ready = |bar: &B| bar.read32(SECRXSTAT) & SECRXSTAT_READY != 0;
        let halted = self.wait("halt its receive path", Duration::from_millis(10), ready);
        bar.change32(RXCTRL, RXCTRL_ENABLE, if enable { RXCTRL_ENABLE } else { 0 });
        bar.change32(SECRXCTRL, SECRXCTRL_RX_DIS, 0);
        halted
    }

    /// 7.1.2.8: the table that leads from hashes to queues names those in use, in turn, but not the
    /// one that is about to go.
    pub(super) fn spread(&self, going: Option<u32>) {
        let queues = self.lock().rx & !going.map_or(0, |queue| 1 << queue);
        let used: Vec<u32> = (0..QUEUES).filter(|n| queues & 1 << n != 0).collect();
        for word in 0..32 {
            let entry = |place: u32| {
                used.get((4 * word + place) as usize % used.len().max(1)).copied().unwrap_or(0)
            };
            self.bar
                .write32(reta(word), entry(0) | entry(1) << 8 | entry(2) << 16 | entry(3) << 24);
        }
    }

    /// As the LINKS register tells it now.
    pub fn link(&self) -> LinkState {
        let links = self.bar.read32(LINKS);
        if links & LINKS_UP == 0 {
            return LinkState { up: false, speed: 0 };
        }
        let speed = [0, 100, 1000, 10_000][(links >> LINKS_SPEED_SHIFT & 3) as usize];
        LinkState { up: true, speed }
    }

    /// The address that the card answers to.
    pub fn mac(&self) -> [u8; 6] {
        let (low, high) =
            (self.bar.read32(ral(0)).to_le_bytes(), self.bar.read32(rah(0)).to_le_bytes());
        [low[0], low[1], low[2], low[3], high[0], high[1]]
    }

    /// What was counted since the card was opened.
    pub fn statistics(&self) -> Statistics {
        let mut shared = self.lock();
        shared.statistics.take(&self.bar);
        shared.statistics.clone()
    }

    /// Ends all requests to memory, for a card whose queues do not stop. Whether they ended.
    pub(super) fn halt(&self) -> bool {
        self.disable_master()
    }

    /// Makes the card quiet: it receives, sends, interrupts and asks memory for nothing until it is
    /// opened again.
    fn stop(&self) {
        if self.bar.read32(STATUS) == u32::MAX {
            // It is gone from the bus.
            return;
        }
        // Whatever a broken card does not do, the others may help.
        let _ = self.enable_receive(false);
        self.bar.change32(DMATXCTL, DMATXCTL_ENABLE, 0);
        let _ = self.reset();
        self.disable_master();
    }
}

impl<B: Bar> Drop for Card<B> {
    fn drop(&mut self) {
        self.stop();
    }
}
