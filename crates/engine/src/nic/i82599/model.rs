//! A software model of the 82599: its registers, and what it does to memory.
//!
//! It stands where hardware is missing. A driver finds the same registers, with bits that clear by
//! themselves and counters that clear when they are read, the same descriptors, and the same
//! refusals; it cannot tell the two apart. Two models are joined by a cable, or a model is fed from
//! a file or a generator ([`Spec`]). What it measures is a descriptor path in software and says
//! nothing about a card's speed.
//!
//! By default the model works inside of the register write that gives it work: in the driver's
//! thread, the same way every time. With `thread` it polls its registers in a thread of its own.
//! [`Wire`] is what both ends of a cable share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::registers::*;
use crate::nic::bar::Bar;
use crate::nic::dma::{DmaError, DmaSpace};

mod end;
mod faults;
mod feed;
mod memory;
mod names;
mod receive;
mod spec;
mod transmit;
mod wire;
mod worker;

pub use faults::{Fault, Faults};
pub use names::{alias, generated, open, resolve};
pub use spec::{Spec, SpecError};
pub use wire::{Wire, WireStats};

/// The registers of one model, for a driver.
pub struct ModelBar {
    wire: Arc<Wire>,
    end: usize,
}

/// The memory of one model, for a driver.
pub struct ModelMemory {
    wire: Arc<Wire>,
    end: usize,
    packets: crate::nic::dma::PacketMap,
}

/// The register file: what reading and writing do at once. What takes time is in [`end::End`].
pub(super) struct Registers(Box<[AtomicU32]>);

impl Registers {
    fn new() -> Self {
        let registers = Self((0..REGION / 4).map(|_| AtomicU32::new(0)).collect());
        registers.reset();
        registers
    }

    /// Values after a reset, as far as a driver looks at them.
    fn reset(&self) {
        self.0.iter().for_each(|register| register.store(0, Ordering::Relaxed));
        self.set(STATUS, STATUS_MASTER_ENABLED);
        self.set(SECRXSTAT, 0);
        self.set(HLREG0, HLREG0_TX_CRC | HLREG0_TX_PAD | HLREG0_RX_CRC_STRIP);
        self.set(MAXFRS, 1518 << 16);
        self.set(RXCTRL, 0);
        self.set(VLNCTRL, VLAN_TYPE);
        for queue in 0..QUEUES {
            self.set(rx_queue(queue) + SRRCTL, SRRCTL_2K);
            self.set(rx_queue(queue) + DCA_RXCTRL, DCA_RXCTRL_RESERVED);
        }
    }

    #[inline(always)]
    fn get(&self, offset: u32) -> u32 {
        // SYNC: registers. A tail is stored after the descriptors that it tells of, which are read
        // behind this load.
        self.0[offset as usize / 4].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set(&self, offset: u32, value: u32) {
        // SYNC: registers.
        self.0[offset as usize / 4].store(value, Ordering::Release);
    }

    fn change(&self, offset: u32, clear: u32, set: u32) {
        self.set(offset, self.get(offset) & !clear | set);
    }

    /// For counters, which only one side changes at a time.
    fn add(&self, offset: u32, more: u32) {
        self.set(offset, self.get(offset).wrapping_add(more));
    }

    fn take(&self, offset: u32) -> u32 {
        self.0[offset as usize / 4].swap(0, Ordering::AcqRel)
    }
}

/// The part of a queue's register space that `offset` is in: which queue, and the distance.
fn queue_register(offset: u32, first: u32) -> Option<(u32, u32)> {
    let distance = offset.checked_sub(first)?;
    (distance < 0x40 * QUEUES).then_some((distance / 0x40, distance % 0x40))
}

impl Bar for ModelBar {
    fn read32(&self, offset: u32) -> u32 {
        self.wire.read(self.end, offset)
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        self.wire.write(self.end, offset, value);
    }

    /// The model's own time passes, at once.
    fn settle(&self, time: Duration) {
        self.wire.settle(self.end, time);
    }
}

impl DmaSpace for ModelMemory {
    fn packets(&self) -> &crate::nic::dma::PacketMap {
        &self.packets
    }

    fn buffer(&mut self, bytes: usize) -> Result<crate::nic::dma::Buffer, DmaError> {
        self.wire.buffer(self.end, bytes)
    }
}

impl super::Backing for ModelMemory {
    fn dma(&mut self) -> &mut dyn DmaSpace {
        self
    }

    fn start(&mut self) -> Result<(), super::CardError> {
        Ok(())
    }

    fn way(&self) -> String {
        "software model, not a network card".into()
    }
}

impl Drop for ModelMemory {
    fn drop(&mut self) {
        self.wire.release(self.end);
    }
}
