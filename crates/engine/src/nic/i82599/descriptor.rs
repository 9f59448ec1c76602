//! Advanced descriptors of the 82599 (data sheet 7.1.6 and 7.2.3): the words that the card reads
//! and writes back.

use crate::nic::ring::{Layout, Received};

/// Of a transmit descriptor: types, and bits of the command.
pub const TYPE: u64 = 0xf << 20;
pub const TYPE_CONTEXT: u64 = 2 << 20;
pub const TYPE_DATA: u64 = 3 << 20;
pub const END_OF_PACKET: u64 = 1 << 24;
pub const INSERT_CRC: u64 = 1 << 25;
pub const REPORT_STATUS: u64 = 1 << 27;
pub const EXTENSION: u64 = 1 << 29;
/// Insert the VLAN tag of the context.
pub const VLAN_INSERT: u64 = 1 << 30;
/// Use the context of the number in bit 36.
pub const CHECK_CONTEXT: u64 = 1 << 39;
/// Where the length of the buffer and that of the packet are.
pub const BUFFER_LENGTH: u64 = 0xffff;
pub const PACKET_LENGTH_SHIFT: u32 = 46;
/// Written back: the packet was sent.
pub const TX_DONE: u64 = 1 << 32;

/// Of a receive descriptor that was written back.
pub const RX_DONE: u64 = 1;
pub const RX_END_OF_PACKET: u64 = 1 << 1;
/// The tag was taken out and is in the descriptor.
pub const RX_VLAN: u64 = 1 << 3;
/// An error of the frame itself.
pub const RX_ERROR: u64 = 1 << 29;
pub const RX_LENGTH_SHIFT: u32 = 32;
pub const RX_VLAN_SHIFT: u32 = 48;

/// The rings of an 82599.
pub struct Advanced;

impl Layout for Advanced {
    #[inline(always)]
    fn received(word: u64) -> Option<Received> {
        if word & RX_DONE == 0 {
            return None;
        }
        let good = word & (RX_END_OF_PACKET | RX_ERROR) == RX_END_OF_PACKET;
        Some(Received { length: (word >> RX_LENGTH_SHIFT) as u16, good })
    }

    #[inline(always)]
    fn transmit(length: u16, report: bool) -> u64 {
        let fixed = TYPE_DATA | END_OF_PACKET | INSERT_CRC | EXTENSION;
        let report = if report { REPORT_STATUS } else { 0 };
        fixed | report | u64::from(length) | u64::from(length) << PACKET_LENGTH_SHIFT
    }

    #[inline(always)]
    fn sent(word: u64) -> bool {
        word & TX_DONE != 0
    }
}

/// The words of a context descriptor for tags of this VLAN.
pub fn vlan_context(vlan: u16) -> [u64; 2] {
    /// Length of the Ethernet header, and VLAN, in the first word.
    const MAC_LENGTH: u64 = 14 << 9;
    [MAC_LENGTH | u64::from(vlan) << 16, TYPE_CONTEXT | EXTENSION]
}
