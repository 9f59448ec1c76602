//! Registers and descriptors of the 82574, by the names of its data sheet (Intel 82574 GbE
//! Controller Family, sections 7 and 10).

use crate::nic::ring::{Layout, Received};

/// Device control.
pub const CTRL: u32 = 0x0000;
pub const CTRL_GIO_MASTER_DISABLE: u32 = 1 << 2;
pub const CTRL_SET_LINK_UP: u32 = 1 << 6;
pub const CTRL_FORCE_SPEED: u32 = 1 << 11;
pub const CTRL_FORCE_DUPLEX: u32 = 1 << 12;
pub const CTRL_RESET: u32 = 1 << 26;
/// Pause frames, received and sent.
pub const CTRL_FLOW_CONTROL: u32 = 1 << 27 | 1 << 28;
/// Take VLAN tags out of received frames.
pub const CTRL_VLAN_MODE: u32 = 1 << 30;

/// Device status.
pub const STATUS: u32 = 0x0008;
pub const STATUS_LINK_UP: u32 = 1 << 1;
pub const STATUS_GIO_MASTER_ENABLE: u32 = 1 << 19;
/// What a read gives when the device is gone.
pub const GONE: u32 = u32::MAX;

/// EEPROM control: the card has read its settings after a reset.
pub const EECD: u32 = 0x0010;
pub const EECD_AUTO_READ_DONE: u32 = 1 << 9;

/// Extended device control: a driver is there, for the card's management firmware.
pub const CTRL_EXT: u32 = 0x0018;
pub const CTRL_EXT_DRIVER_LOADED: u32 = 1 << 28;

/// Access to the registers of the physical layer (IEEE 802.3 clause 22).
pub const MDIC: u32 = 0x0020;
pub const MDIC_WRITE: u32 = 1 << 26;
pub const MDIC_PHY_1: u32 = 1 << 21;
pub const MDIC_READY: u32 = 1 << 28;
pub const MDIC_ERROR: u32 = 1 << 30;
/// Register 0, basic control: negotiate, and begin now. All else off, the power-down bit among it.
pub const PHY_CONTROL_NEGOTIATE: u32 = 1 << 12 | 1 << 9;

/// Flow control: addresses, type, and time of pause frames.
pub const FLOW_CONTROL: [u32; 4] = [0x0028, 0x002c, 0x0030, 0x0170];

/// Interrupt causes (clear on read) and mask clear.
pub const ICR: u32 = 0x00c0;
pub const IMC: u32 = 0x00d8;

/// Receive control.
pub const RCTL: u32 = 0x0100;
pub const RCTL_ENABLE: u32 = 1 << 1;
pub const RCTL_UNICAST_PROMISCUOUS: u32 = 1 << 3;
pub const RCTL_MULTICAST_PROMISCUOUS: u32 = 1 << 4;
pub const RCTL_BROADCAST: u32 = 1 << 15;
pub const RCTL_STRIP_CRC: u32 = 1 << 26;

/// Transmit control. Collisions matter to half duplex only; the values are the data sheet's.
pub const TCTL: u32 = 0x0400;
pub const TCTL_ENABLE: u32 = 1 << 1;
pub const TCTL_PAD_SHORT: u32 = 1 << 3;
pub const TCTL_COLLISIONS: u32 = 0x0f << 4 | 0x3f << 12;
pub const TCTL_MULTIPLE_REQUESTS: u32 = 1 << 28;
/// Gap between frames.
pub const TIPG: u32 = 0x0410;
pub const TIPG_COPPER: u32 = 8 | 8 << 10 | 6 << 20;

/// Ownership of the physical layer, shared with the firmware.
pub const EXTCNF_CTRL: u32 = 0x0f00;
pub const EXTCNF_CTRL_SOFTWARE_OWNS: u32 = 1 << 5;

/// Registers of a descriptor ring, relative to its first one.
pub const RECEIVE: u32 = 0x2800;
pub const TRANSMIT: u32 = 0x3800;
pub const BASE_LOW: u32 = 0x00;
pub const BASE_HIGH: u32 = 0x04;
pub const LENGTH: u32 = 0x08;
pub const HEAD: u32 = 0x10;
pub const TAIL: u32 = 0x18;
pub const CONTROL: u32 = 0x28;
/// Thresholds count descriptors; prefetch from 31 on, write back each.
pub const RXDCTL: u32 = 1 << 24 | 1 << 16 | 0x1f;
/// The same, with bit 22 as the data sheet asks for.
pub const TXDCTL: u32 = 1 << 24 | 1 << 22 | 1 << 16 | 1 << 8 | 0x1f;
/// Interrupt delays of the two rings.
pub const DELAYS: [u32; 4] = [0x2820, 0x282c, 0x3820, 0x382c];

/// Checksums of received packets, and the receive filter (0: descriptors in the legacy layout).
pub const RXCSUM: u32 = 0x5000;
pub const RFCTL: u32 = 0x5008;
/// Multicast table, 128 words.
pub const MTA: u32 = 0x5200;
/// Several receive queues.
pub const MRQC: u32 = 0x5818;

/// Statistics; each is cleared when it is read.
pub const CRCERRS: u32 = 0x4000;
pub const RXERRC: u32 = 0x400c;
/// Missed: no room in the card.
pub const MPC: u32 = 0x4010;
/// Good packets received and sent.
pub const GPRC: u32 = 0x4074;
pub const GPTC: u32 = 0x4080;
/// Too short, fragments, too long, jabber.
pub const LENGTH_ERRORS: [u32; 4] = [0x40a4, 0x40a8, 0x40ac, 0x40b0];

/// Legacy descriptors, sections 7.1.4 and 7.2.10.1.
pub struct Legacy;

const DONE: u64 = 1 << 32;
const RECEIVED_END: u64 = 1 << 33;
/// Errors but those of IP and TCP checksums, which are the packet's own matter.
const RECEIVED_ERRORS: u64 = 0x97 << 40;
const COMMAND_END: u64 = 1 << 24;
const COMMAND_INSERT_CRC: u64 = 1 << 25;
const COMMAND_REPORT: u64 = 1 << 27;

impl Layout for Legacy {
    #[inline(always)]
    fn received(word: u64) -> Option<Received> {
        let good = word & (RECEIVED_END | RECEIVED_ERRORS) == RECEIVED_END;
        (word & DONE != 0).then_some(Received { length: word as u16, good })
    }

    #[inline(always)]
    fn transmit(length: u16, report: bool) -> u64 {
        let report = if report { COMMAND_REPORT } else { 0 };
        u64::from(length) | COMMAND_END | COMMAND_INSERT_CRC | report
    }

    #[inline(always)]
    fn sent(word: u64) -> bool {
        word & DONE != 0
    }
}
