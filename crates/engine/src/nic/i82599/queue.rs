//! One pair of queues of a card: the data path of an app.

use std::sync::Arc;
use std::time::Duration;

use super::card::{Card, CardError};
use super::descriptor::{self, Advanced};
use super::registers::*;
use crate::batch::Batch;
use crate::link::Link;
use crate::nic::bar::Bar;
use crate::nic::ring::{RxRing, TxRing};
use crate::packet::Packet;

/// Shortest frame that the card takes; it fills up to 60 bytes by itself.
const SHORTEST: usize = 17;
const ETHERNET_HEADER: usize = 14;

/// A receive and a transmit queue.
pub struct Queue<B: Bar> {
    card: Arc<Card<B>>,
    rxq: u32,
    txq: u32,
    /// None once it is closed.
    rings: Option<Rings>,
    /// Frames with errors that the card delivered nevertheless.
    pub broken: u64,
    /// Packets that were too short to be sent.
    pub too_short: u64,
}

struct Rings {
    rx: RxRing<Advanced>,
    tx: TxRing<Advanced>,
}

impl<B: Bar> Queue<B> {
    /// Opens receive queue `rxq` and transmit queue `txq` with `size` descriptors each.
    pub fn open(card: Arc<Card<B>>, rxq: u32, txq: u32, size: u32) -> Result<Self, CardError> {
        card.claim(rxq, txq)?;
        let mut queue = Self { card, rxq, txq, rings: None, broken: 0, too_short: 0 };
        let rings = queue.card.with_dma(|dma| {
            Ok::<_, CardError>(Rings { rx: RxRing::new(dma, size)?, tx: TxRing::new(dma, size)? })
        });
        let rings = match rings {
            Ok(rings) => queue.rings.insert(rings),
            Err(error) => {
                queue.card.release(rxq, txq);
                return Err(error);
            }
        };
        let (rx, tx) = (rings.rx.address(), rings.tx.address());
        // From here on dropping the queue closes it.
        queue.start_receive(rx, size)?;
        queue.start_transmit(tx, size)?;
        queue.start_tags();
        queue.card.spread(None);
        queue.card.enable_receive(true)?;
        queue.refill();
        Ok(queue)
    }

    /// The card that it belongs to.
    pub fn card(&self) -> &Card<B> {
        &self.card
    }

    fn bar(&self) -> &B {
        self.card.bar()
    }

    fn describe_ring(&self, queue: u32, address: u64, size: u32) {
        let bar = self.bar();
        bar.write32(queue + BAL, address as u32);
        bar.write32(queue + BAH, (address >> 32) as u32);
        bar.write32(queue + LEN, size * 16);
        bar.write32(queue + HEAD, 0);
        bar.write32(queue + TAIL, 0);
    }

    /// 4.6.7.1.
    fn start_receive(&self, address: u64, size: u32) -> Result<(), CardError> {
        let (bar, queue) = (self.bar(), rx_queue(self.rxq));
        self.describe_ring(queue, address, size);
        bar.write32(queue + SRRCTL, SRRCTL_2K | SRRCTL_ADVANCED | SRRCTL_DROP);
        bar.change32(queue + DCA_RXCTRL, DCA_RXCTRL_RESERVED, 0);
        let strip = if self.card.settings().vlan.is_some() { RXDCTL_STRIP_VLAN } else { 0 };
        bar.change32(queue + DCTL, RXDCTL_STRIP_VLAN, DCTL_ENABLE | strip);
        let enabled = |bar: &B| bar.read32(queue + DCTL) & DCTL_ENABLE != 0;
        self.card.wait("enable a receive queue", Duration::from_millis(10), enabled)
    }

    /// 4.6.8.1. Descriptors are fetched by 8 when fewer than 36 are at hand; every report is
    /// written back at once, because only one of a batch asks for it.
    fn start_transmit(&self, address: u64, size: u32) -> Result<(), CardError> {
        let (bar, queue) = (self.bar(), tx_queue(self.txq));
        self.describe_ring(queue, address, size);
        bar.write32(queue + DCTL, DCTL_ENABLE | 36 | 8 << TXDCTL_HTHRESH_SHIFT);
        let enabled = |bar: &B| bar.read32(queue + DCTL) & DCTL_ENABLE != 0;
        self.card.wait("enable a transmit queue", Duration::from_millis(10), enabled)
    }

    /// The card keeps the tag in a context that is sent once, ahead of all packets.
    fn start_tags(&mut self) {
        let (Some(rings), Some(vlan)) = (&mut self.rings, self.card.settings().vlan) else {
            return;
        };
        rings.tx.set_marks(descriptor::VLAN_INSERT | descriptor::CHECK_CONTEXT);
        if let Some(tail) = rings.tx.command(descriptor::vlan_context(vlan)) {
            self.bar().write32(tx_queue(self.txq) + TAIL, tail);
        }
    }

    /// Moves what was received to the link, and gives the card new buffers.
    #[inline]
    pub fn receive(&mut self, output: &Link) {
        let Some(rings) = &mut self.rings else { return };
        let mut batch = Batch::new();
        self.broken += rings.rx.receive(output.room(), &mut batch);
        if !batch.is_empty() {
            output.transmit_batch(&mut batch);
        }
        self.refill();
    }

    /// Takes what was received out of the card and drops it, for an app without an output.
    pub fn discard(&mut self) {
        let Some(rings) = &mut self.rings else { return };
        self.broken += rings.rx.receive(crate::batch::BATCH, &mut Batch::new());
        self.refill();
    }

    #[inline]
    fn refill(&mut self) {
        let Some(rings) = &mut self.rings else { return };
        if let Some(tail) = rings.rx.refill() {
            self.bar().write32(rx_queue(self.rxq) + TAIL, tail);
        }
    }

    /// Sends what waits, as far as the ring has room; the rest stays in the link.
    #[inline]
    pub fn send(&mut self, input: &Link) {
        let Some(rings) = &mut self.rings else { return };
        let too_short = &mut self.too_short;
        let tail = rings.tx.send(input, |packet| {
            let plain =
                packet.length() >= SHORTEST && packet.flags & crate::packet::NEEDS_CHECKSUM == 0;
            plain || prepare(packet, too_short)
        });
        if let Some(tail) = tail {
            self.bar().write32(tx_queue(self.txq) + TAIL, tail);
        }
    }

    /// Takes back packets that were sent, also when none waits to be.
    #[inline]
    pub fn complete(&mut self) {
        if let Some(rings) = &mut self.rings {
            rings.tx.complete();
        }
    }

    /// Packets that the card has and did not report as sent.
    pub fn pending(&self) -> u32 {
        self.rings.as_ref().map_or(0, |rings| rings.tx.pending())
    }

    /// Whether the queues are still on: a card that was reset by somebody else has forgotten them.
    pub fn is_enabled(&self) -> bool {
        let on = |queue| self.bar().read32(queue + DCTL) & DCTL_ENABLE != 0;
        on(rx_queue(self.rxq)) && on(tx_queue(self.txq))
    }

    /// Whether the card is there at all: a device that is gone reads as all ones.
    pub fn is_present(&self) -> bool {
        self.bar().read32(STATUS) != u32::MAX
    }

    fn close(&mut self) {
        let Some(mut rings) = self.rings.take() else { return };
        if !self.is_present() || self.quiet(&mut rings) {
            rings.rx.clear();
            rings.tx.clear();
        } else {
            // A device that may still write to these packets keeps them.
            std::mem::forget(rings);
        }
        self.card.release(self.rxq, self.txq);
    }

    /// Lets what was sent leave, and switches the queues off. Whether the card leaves their memory
    /// alone now.
    fn quiet(&self, rings: &mut Rings) -> bool {
        let (bar, rx, tx) = (self.card.bar(), rx_queue(self.rxq), tx_queue(self.txq));
        self.card.spread(Some(self.rxq));
        for _ in 0..200 {
            rings.tx.complete();
            if rings.tx.pending() == 0 || !self.card.link().up {
                break;
            }
            bar.settle(Duration::from_micros(500));
        }
        bar.change32(rx + DCTL, DCTL_ENABLE, 0);
        bar.change32(tx + DCTL, DCTL_ENABLE, 0);
        let off = |bar: &B| (bar.read32(rx + DCTL) | bar.read32(tx + DCTL)) & DCTL_ENABLE == 0;
        let quiet = self.card.wait("stop its queues", Duration::from_millis(100), off).is_ok()
            || self.card.halt();
        // 4.6.7.1.2: packets on their way to memory arrive within this time.
        bar.settle(Duration::from_micros(100));
        quiet
    }
}

impl<B: Bar> Drop for Queue<B> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Finishes what the card would not take as it is. False: not a packet.
#[cold]
fn prepare(packet: &mut Packet, too_short: &mut u64) -> bool {
    if packet.length() < ETHERNET_HEADER {
        *too_short += 1;
        return false;
    }
    crate::apps::vnet::finish(packet);
    packet.resize(packet.length().max(SHORTEST))
}
