//! The card: from whatever state it is in to moving packets, and back to silence.

use std::time::{Duration, Instant};

use super::registers::*;
use crate::nic::bar::Bar;

/// What the card is to do.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Addresses of the descriptors on the bus, and how many there are.
    pub receive: u64,
    pub transmit: u64,
    pub descriptors: u32,
    /// Frames for all addresses.
    pub promiscuous: bool,
}

/// What the card counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    pub received: u64,
    pub sent: u64,
    /// Good frames for which there was no room.
    pub missed: u64,
    /// Broken frames.
    pub errors: u64,
}

/// Why the card does not obey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    #[error(
        "the card does not answer: all its registers read as ones; is it powered, and not lost from the bus?"
    )]
    Gone,
    #[error("the card does not {0}; power the machine off and on")]
    Stuck(&'static str),
}

/// The registers of an 82574.
pub struct Card<B> {
    bar: B,
}

impl<B: Bar> Card<B> {
    pub fn new(bar: B) -> Self {
        Self { bar }
    }

    /// Ends all activity, and puts all registers to what they are after power on. Allowed in any
    /// state; the card moves nothing from here on.
    pub fn reset(&self) -> Result<(), CardError> {
        if self.bar.read32(STATUS) == GONE {
            return Err(CardError::Gone);
        }
        self.silence()?;
        self.own_physical_layer();
        self.bar.change32(CTRL, 0, CTRL_RESET);
        // Section 4.6.3.2: the registers must not be touched for a while.
        std::thread::sleep(Duration::from_millis(10));
        self.until("come back from its reset", || self.bar.read32(CTRL) & CTRL_RESET == 0)?;
        self.until("read its EEPROM", || self.bar.read32(EECD) & EECD_AUTO_READ_DONE != 0)?;
        self.bar.change32(EXTCNF_CTRL, EXTCNF_CTRL_SOFTWARE_OWNS, 0);
        self.no_interrupts();
        Ok(())
    }

    /// Section 5.2.1.1 and 3.1.3.10: no new requests, then wait until those on the bus have ended.
    fn silence(&self) -> Result<(), CardError> {
        self.no_interrupts();
        self.bar.write32(RCTL, 0);
        self.bar.write32(TCTL, TCTL_PAD_SHORT);
        self.bar.change32(CTRL, 0, CTRL_GIO_MASTER_DISABLE);
        self.until("end its accesses to memory", || {
            self.bar.read32(STATUS) & STATUS_GIO_MASTER_ENABLE == 0
        })
    }

    fn no_interrupts(&self) {
        self.bar.write32(IMC, u32::MAX);
        self.bar.read32(ICR);
    }

    /// Firmware that never lets go of it must not keep us from the reset, which ends its claim,
    /// too.
    fn own_physical_layer(&self) {
        let _ = self.until("share its physical layer", || {
            self.bar.change32(EXTCNF_CTRL, 0, EXTCNF_CTRL_SOFTWARE_OWNS);
            self.bar.read32(EXTCNF_CTRL) & EXTCNF_CTRL_SOFTWARE_OWNS != 0
        });
    }

    /// Sets a card that was reset up, with both directions at work on empty rings.
    pub fn start(&self, setup: &Setup) -> Result<(), CardError> {
        let bar = &self.bar;
        bar.change32(CTRL_EXT, 0, CTRL_EXT_DRIVER_LOADED);
        for register in FLOW_CONTROL.into_iter().chain(DELAYS).chain([RXCSUM, RFCTL, MRQC]) {
            bar.write32(register, 0);
        }
        for word in 0..128 {
            bar.write32(MTA + 4 * word, 0);
        }
        let off = CTRL_FORCE_SPEED
            | CTRL_FORCE_DUPLEX
            | CTRL_FLOW_CONTROL
            | CTRL_VLAN_MODE
            | CTRL_GIO_MASTER_DISABLE;
        bar.change32(CTRL, off, CTRL_SET_LINK_UP);
        self.negotiate()?;
        self.ring(RECEIVE, setup.receive, setup.descriptors, RXDCTL);
        self.ring(TRANSMIT, setup.transmit, setup.descriptors, TXDCTL);
        bar.write32(TIPG, TIPG_COPPER);
        bar.write32(TCTL, TCTL_ENABLE | TCTL_PAD_SHORT | TCTL_COLLISIONS | TCTL_MULTIPLE_REQUESTS);
        let all = if setup.promiscuous {
            RCTL_UNICAST_PROMISCUOUS | RCTL_MULTICAST_PROMISCUOUS
        } else {
            0
        };
        // Buffers of 2048 bytes, the size for 0. A slot has less room than that; but without long
        // packets (bit 5) the card receives nothing above 1522 bytes.
        bar.write32(RCTL, RCTL_ENABLE | RCTL_BROADCAST | RCTL_STRIP_CRC | all);
        Ok(())
    }

    /// A kernel driver leaves the physical layer without power when its interface is down.
    fn negotiate(&self) -> Result<(), CardError> {
        self.own_physical_layer();
        self.bar.write32(MDIC, MDIC_WRITE | MDIC_PHY_1 | PHY_CONTROL_NEGOTIATE);
        let done = self.until("reach its physical layer", || {
            self.bar.read32(MDIC) & (MDIC_READY | MDIC_ERROR) != 0
        });
        self.bar.change32(EXTCNF_CTRL, EXTCNF_CTRL_SOFTWARE_OWNS, 0);
        done
    }

    fn ring(&self, first: u32, address: u64, descriptors: u32, control: u32) {
        self.bar.write32(first + BASE_LOW, address as u32);
        self.bar.write32(first + BASE_HIGH, (address >> 32) as u32);
        self.bar.write32(first + LENGTH, descriptors * 16);
        self.bar.write32(first + HEAD, 0);
        self.bar.write32(first + TAIL, 0);
        self.bar.write32(first + CONTROL, control);
    }

    #[inline(always)]
    pub fn set_receive_tail(&self, tail: u32) {
        self.bar.write32(RECEIVE + TAIL, tail);
    }

    #[inline(always)]
    pub fn set_transmit_tail(&self, tail: u32) {
        self.bar.write32(TRANSMIT + TAIL, tail);
    }

    /// Whether there is a link, and its speed in Mb/s.
    pub fn link(&self) -> Result<Option<u32>, CardError> {
        let status = self.bar.read32(STATUS);
        if status == GONE {
            return Err(CardError::Gone);
        }
        let speed = [10, 100, 1000, 1000][(status >> 6) as usize & 3];
        Ok((status & STATUS_LINK_UP != 0).then_some(speed))
    }

    /// Adds what was counted since the last call.
    pub fn count(&self, to: &mut Statistics) {
        let read = |register| match self.bar.read32(register) {
            GONE => 0,
            value => u64::from(value),
        };
        to.received += read(GPRC);
        to.sent += read(GPTC);
        to.missed += read(MPC);
        to.errors += read(CRCERRS) + read(RXERRC) + LENGTH_ERRORS.map(read).iter().sum::<u64>();
    }

    /// Waits for up to a tenth of a second. What takes longer does not come: the data sheet's times
    /// are below that.
    fn until(&self, what: &'static str, mut done: impl FnMut() -> bool) -> Result<(), CardError> {
        let end = Instant::now() + Duration::from_millis(100);
        loop {
            // Looked at before the time, so that a thread that was put aside for long still gets
            // its answer.
            let late = Instant::now() >= end;
            if done() {
                return Ok(());
            }
            if late {
                return Err(if self.bar.read32(STATUS) == GONE {
                    CardError::Gone
                } else {
                    CardError::Stuck(what)
                });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Registers that hold what is written, but for those by which the card answers.
    #[derive(Default)]
    struct Fake {
        registers: RefCell<BTreeMap<u32, u32>>,
        written: RefCell<Vec<u32>>,
        /// Does not end its accesses to memory; does not come back from a reset.
        busy: bool,
        hung: bool,
    }

    impl Bar for Fake {
        fn read32(&self, offset: u32) -> u32 {
            let value = |offset| self.registers.borrow().get(&offset).copied().unwrap_or(0);
            match offset {
                STATUS if self.busy || value(CTRL) & CTRL_GIO_MASTER_DISABLE == 0 => {
                    STATUS_GIO_MASTER_ENABLE | STATUS_LINK_UP | 2 << 6
                }
                STATUS => STATUS_LINK_UP,
                EECD => EECD_AUTO_READ_DONE,
                MDIC => value(MDIC) | MDIC_READY,
                GPRC => self.registers.borrow_mut().remove(&GPRC).unwrap_or(0),
                offset => value(offset),
            }
        }

        fn write32(&self, offset: u32, value: u32) {
            self.written.borrow_mut().push(offset);
            let reset = offset == CTRL && value & CTRL_RESET != 0 && !self.hung;
            if reset {
                self.registers.borrow_mut().clear();
            } else {
                self.registers.borrow_mut().insert(offset, value);
            }
        }
    }

    struct Gone;

    impl Bar for Gone {
        fn read32(&self, _offset: u32) -> u32 {
            GONE
        }

        fn write32(&self, _offset: u32, _value: u32) {}
    }

    #[test]
    fn a_card_that_does_not_obey_is_named() {
        assert_eq!(Card::new(Gone).reset(), Err(CardError::Gone));
        assert_eq!(Card::new(Gone).link(), Err(CardError::Gone));
        let busy = Card::new(Fake { busy: true, ..Fake::default() });
        assert_eq!(busy.reset(), Err(CardError::Stuck("end its accesses to memory")));
        let hung = Card::new(Fake { hung: true, ..Fake::default() });
        assert_eq!(hung.reset(), Err(CardError::Stuck("come back from its reset")));
    }

    #[test]
    fn nothing_moves_before_the_rings_are_known() {
        let card = Card::new(Fake::default());
        card.reset().unwrap();
        let setup = Setup {
            receive: 0x12_3456_7000,
            transmit: 0x12_3456_8000,
            descriptors: 256,
            promiscuous: true,
        };
        card.start(&setup).unwrap();
        let register = |offset| card.bar.read32(offset);
        assert_eq!(
            (register(RECEIVE + BASE_HIGH), register(RECEIVE + BASE_LOW)),
            (0x12, 0x3456_7000)
        );
        assert_eq!((register(TRANSMIT + LENGTH), register(RECEIVE + LENGTH)), (4096, 4096));
        assert_ne!(register(RCTL) & RCTL_UNICAST_PROMISCUOUS, 0);
        assert_eq!(register(CTRL) & CTRL_GIO_MASTER_DISABLE, 0);
        let written = card.bar.written.borrow();
        let last = |offset| written.iter().rposition(|written| *written == offset);
        assert!(last(RCTL) > last(RECEIVE + CONTROL) && last(TCTL) > last(TRANSMIT + CONTROL));
        assert_eq!(card.link(), Ok(Some(1000)));
    }

    #[test]
    fn counts_add_up() {
        let card = Card::new(Fake::default());
        let mut sum = Statistics::default();
        for received in [5, 7, 0] {
            card.bar.write32(GPRC, received);
            card.count(&mut sum);
        }
        assert_eq!(sum, Statistics { received: 12, ..Statistics::default() });
    }
}
