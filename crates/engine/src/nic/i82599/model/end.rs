//! One card of a wire: its registers, rings, and the time that its steps take.

use std::sync::atomic::AtomicU64;

use super::memory::Reach;
use super::{Fault, Faults, Registers, queue_register};
use crate::nic::dma::Buffer;
use crate::nic::i82599::registers::*;

/// Time in nanoseconds of the model, from the start of a reset: until its bits clear, and until the
/// EEPROM is read.
const RESET: u64 = 1_000_000;
const EEPROM: u64 = 5_000_000;
/// Interrupt causes that the model knows: link change, and a PCI exception.
const EICR_LINK: u32 = 1 << 20;
pub(super) const EICR_ERROR: u32 = 1 << 21;

/// A ring that is switched on.
pub(super) struct Ring {
    pub descriptors: Buffer,
    pub size: u32,
    pub head: u32,
}

impl Ring {
    /// The words of the descriptor at `place`.
    #[inline(always)]
    pub fn words(&self, place: u32) -> &[AtomicU64; 2] {
        let cells = self.descriptors.cells::<AtomicU64>();
        let (pair, _) =
            cells[2 * place as usize..].split_first_chunk().expect("inside of the ring");
        pair
    }

    #[inline(always)]
    pub fn next(&self, place: u32) -> u32 {
        if place + 1 == self.size { 0 } else { place + 1 }
    }
}

/// What is counted between two looks at the registers.
#[derive(Default)]
pub(super) struct Counts {
    pub packets: u32,
    pub bytes: u64,
    pub multicast: u32,
    pub broadcast: u32,
}

/// A card.
pub(super) struct End {
    pub reach: Reach,
    pub rx: [Option<Ring>; QUEUES as usize],
    pub tx: [Option<Ring>; QUEUES as usize],
    /// VLANs of transmit contexts.
    pub contexts: [[u16; 2]; QUEUES as usize],
    /// Reports that wait for their threshold, by queue: places in the ring.
    pub reports: [Vec<u32>; QUEUES as usize],
    pub received: Counts,
    pub sent: Counts,
    pub faults: Faults,
    pub found: Vec<Fault>,
    /// The time of this card, and of the last reset.
    now: u64,
    reset_at: u64,
    pub mac: [u8; 6],
}

impl End {
    pub fn new(number: u32) -> Self {
        let [a, b, c, d] = number.to_be_bytes();
        Self {
            reach: Reach::new(),
            rx: Default::default(),
            tx: Default::default(),
            contexts: Default::default(),
            reports: Default::default(),
            received: Counts::default(),
            sent: Counts::default(),
            faults: Faults::default(),
            found: Vec::new(),
            now: EEPROM,
            reset_at: 0,
            // A locally administered address.
            mac: [0x02, 0x82, a ^ 0x59, b ^ 0x99, c, d],
        }
    }

    pub fn pass(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// A read takes about a microsecond on the bus.
    pub fn read(&mut self, registers: &Registers, offset: u32, link: bool) -> u32 {
        if self.faults.gone {
            return u32::MAX;
        }
        self.now += 1000;
        self.age(registers);
        match offset {
            LINKS if link => LINKS_UP | 3 << LINKS_SPEED_SHIFT,
            LINKS => 0,
            // Clear on read; the halves of a wide counter go together.
            EICR => registers.take(offset),
            GORCH | GOTCH => {
                registers.set(offset - 4, 0);
                registers.take(offset)
            }
            GORCL | GOTCL => registers.get(offset),
            CRCERRS..=MAXFRS | MPC | GPRC..=BPTC if is_counter(offset) => registers.take(offset),
            _ if is_queue_counter(offset) => registers.take(offset),
            _ => registers.get(offset),
        }
    }

    /// Bits that clear or appear by themselves.
    fn age(&mut self, registers: &Registers) {
        let since = self.now - self.reset_at;
        if since >= RESET && !self.faults.stuck_reset {
            registers.change(CTRL, CTRL_RST | CTRL_LRST, 0);
        }
        if since >= EEPROM && !self.faults.no_eeprom && registers.get(EEC) & EEC_AUTO_READ_DONE == 0
        {
            registers.change(EEC, 0, EEC_AUTO_READ_DONE);
            registers.change(RDRXCTL, 0, RDRXCTL_DMA_INIT_DONE);
            let [a, b, c, d, e, f] = self.mac;
            registers.set(ral(0), u32::from_le_bytes([a, b, c, d]));
            registers.set(rah(0), u32::from(u16::from_le_bytes([e, f])) | RAH_VALID);
        }
    }

    /// Takes a register write; everything but tails comes here.
    pub fn write(&mut self, registers: &Registers, offset: u32, value: u32) {
        if self.faults.gone {
            return;
        }
        match offset {
            CTRL if value & (CTRL_RST | CTRL_LRST) != 0 => self.reset(registers),
            CTRL => {
                registers.set(CTRL, value);
                let enabled =
                    if value & CTRL_MASTER_DISABLE == 0 { STATUS_MASTER_ENABLED } else { 0 };
                registers.change(STATUS, STATUS_MASTER_ENABLED, enabled);
            }
            // Read only.
            STATUS | LINKS | SECRXSTAT => {}
            EIMC => registers.change(EIMS, value, 0),
            EIMS => registers.change(EIMS, 0, value),
            EICR => registers.change(EICR, value, 0),
            AUTOC if value & AUTOC_RESTART != 0 => {
                registers.set(AUTOC, value & !AUTOC_RESTART);
                registers.change(EICR, 0, EICR_LINK);
            }
            SECRXCTRL => {
                registers.set(SECRXCTRL, value);
                registers.set(
                    SECRXSTAT,
                    if value & SECRXCTRL_RX_DIS != 0 { SECRXSTAT_READY } else { 0 },
                );
            }
            RDRXCTL => registers.set(
                RDRXCTL,
                value & !RDRXCTL_DMA_INIT_DONE | registers.get(RDRXCTL) & RDRXCTL_DMA_INIT_DONE,
            ),
            _ => self.write_queue(registers, offset, value),
        }
    }

    fn write_queue(&mut self, registers: &Registers, offset: u32, value: u32) {
        let rx = queue_register(offset, rx_queue(0)).filter(|(_, distance)| *distance == DCTL);
        let tx = queue_register(offset, tx_queue(0)).filter(|(_, distance)| *distance == DCTL);
        let before = registers.get(offset);
        if (rx.is_some() || tx.is_some()) && self.faults.stuck_queues {
            return registers.set(offset, value & !DCTL_ENABLE | before & DCTL_ENABLE);
        }
        registers.set(offset, value);
        let switched = (before ^ value) & DCTL_ENABLE != 0;
        let on = value & DCTL_ENABLE != 0;
        if let (Some((queue, _)), true) = (rx, switched) {
            self.rx[queue as usize] =
                if on { self.ring(registers, rx_queue(queue), queue) } else { None };
            self.refuse(registers, offset, on && self.rx[queue as usize].is_none());
        } else if let (Some((queue, _)), true) = (tx, switched) {
            self.tx[queue as usize] =
                if on { self.ring(registers, tx_queue(queue), queue) } else { None };
            self.reports[queue as usize].clear();
            self.refuse(registers, offset, on && self.tx[queue as usize].is_none());
        }
        if tx.is_some() && value & TXDCTL_FLUSH != 0 {
            registers.change(offset, TXDCTL_FLUSH, 0);
        }
    }

    /// A queue that cannot be switched on stays off.
    fn refuse(&self, registers: &Registers, offset: u32, refused: bool) {
        if refused {
            registers.change(offset, DCTL_ENABLE, 0);
        }
    }

    /// The ring that the registers of a queue describe.
    fn ring(&mut self, registers: &Registers, queue: u32, number: u32) -> Option<Ring> {
        let address =
            u64::from(registers.get(queue + BAL)) | u64::from(registers.get(queue + BAH)) << 32;
        let length = registers.get(queue + LEN);
        if length == 0 || !length.is_multiple_of(128) || !address.is_multiple_of(128) {
            self.fault(registers, Fault::Ring { queue: number, length });
            return None;
        }
        let Some(descriptors) = self.reach.ring(address, length.into()) else {
            self.fault(registers, Fault::Address { queue: number, address });
            return None;
        };
        Some(Ring { descriptors, size: length / 16, head: registers.get(queue + HEAD) })
    }

    pub fn fault(&mut self, registers: &Registers, fault: Fault) {
        registers.change(EICR, 0, EICR_ERROR);
        self.found.push(fault);
    }

    /// Forgets everything but what is burnt in.
    pub fn reset(&mut self, registers: &Registers) {
        registers.reset();
        registers.set(CTRL, CTRL_RST | CTRL_LRST);
        self.reset_at = self.now;
        self.rx = Default::default();
        self.tx = Default::default();
        self.contexts = Default::default();
        self.reports.iter_mut().for_each(Vec::clear);
    }

    /// Whether anything could still make this card touch memory.
    pub fn is_quiet(&self, registers: &Registers) -> bool {
        let masked = registers.get(EIMS) == 0 && registers.get(STATUS) & STATUS_MASTER_ENABLED == 0;
        let off = self.rx.iter().chain(&self.tx).all(Option::is_none);
        masked
            && off
            && registers.get(RXCTRL) & RXCTRL_ENABLE == 0
            && registers.get(DMATXCTL) & DMATXCTL_ENABLE == 0
    }

    /// Whether requests to memory are allowed.
    pub fn is_master(&self, registers: &Registers) -> bool {
        !self.faults.gone && registers.get(STATUS) & STATUS_MASTER_ENABLED != 0
    }

    /// Moves what was counted to the registers.
    pub fn settle_counts(&mut self, registers: &Registers) {
        let put = |counts: &mut Counts, packets, low, multicast, broadcast| {
            registers.add(packets, counts.packets);
            registers.add(multicast, counts.multicast);
            registers.add(broadcast, counts.broadcast);
            let sum = (u64::from(registers.get(low)) | u64::from(registers.get(low + 4)) << 32)
                + counts.bytes;
            registers.set(low, sum as u32);
            registers.set(low + 4, (sum >> 32) as u32 & 0xf);
            *counts = Counts::default();
        };
        put(&mut self.received, GPRC, GORCL, MPRC, BPRC);
        put(&mut self.sent, GPTC, GOTCL, MPTC, BPTC);
    }
}

fn is_counter(offset: u32) -> bool {
    const COUNTERS: [u32; 15] = [
        CRCERRS, ILLERRC, ERRBC, RLEC, MPC, GPRC, BPRC, MPRC, GPTC, RUC, RFC, ROC, RJC, MPTC, BPTC,
    ];
    COUNTERS.contains(&offset)
}

fn is_queue_counter(offset: u32) -> bool {
    let rx = queue_register(offset, qprc(0)).or(queue_register(offset, qprdc(0)));
    let tx = queue_register(offset, qptc(0));
    rx.or(tx).is_some_and(|(_, distance)| distance == 0)
}
