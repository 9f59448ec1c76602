//! pcapng: blocks with their length at both ends, in sections of one byte order each.

use std::io::Read;

use crate::pcap::LONGEST;
use crate::pcap::read::{Bytes, Damage, Order, PcapError, Record};

pub(super) const SECTION: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(super) const STATISTICS: u32 = 5;
pub(super) const ENHANCED_PACKET: u32 = 6;
pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Option of an interface: the unit of its times.
pub(super) const IF_TSRESOL: u16 = 9;

/// No block that is kept is longer; others are read and forgotten up to the same length.
const LONGEST_BLOCK: u32 = 16 << 20;

pub(super) struct Ng {
    order: Order,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy)]
struct Interface {
    link_type: u32,
    snap: u32,
    /// `if_tsresol`: a power of 10, or of 2 with the top bit set.
    resolution: u8,
}

/// Where a packet lies in its block.
struct Found {
    interface: usize,
    time: u64,
    original: u32,
    start: usize,
    length: u32,
}

impl Ng {
    /// The file's first four bytes, a section's block type, are the present piece.
    pub fn open<R: Read>(bytes: &mut Bytes<R>) -> Result<Self, PcapError> {
        let mut ng = Self { order: Order { big: false }, interfaces: Vec::new() };
        bytes.more(8, "a section header")?;
        ng.section(bytes)?;
        Ok(ng)
    }

    /// Reads on from the first twelve bytes of a section header, which end with the byte order
    /// mark.
    fn section<R: Read>(&mut self, bytes: &mut Bytes<R>) -> Result<(), PcapError> {
        let orders = [false, true].map(|big| Order { big });
        let order = orders.into_iter().find(|order| order.u32(&bytes.buffer, 8) == BYTE_ORDER);
        self.order = order.ok_or_else(|| bytes.damaged(Damage::ByteOrder))?;
        self.rest(bytes, 28)?;
        let (major, minor) = (self.order.u16(&bytes.buffer, 12), self.order.u16(&bytes.buffer, 14));
        if major != 1 {
            return Err(bytes.damaged(Damage::Version(major, minor)));
        }
        self.interfaces.clear();
        Ok(())
    }

    /// Reads the block whose first bytes are there to its end and checks its lengths.
    fn rest<R: Read>(&self, bytes: &mut Bytes<R>, least: u32) -> Result<(), PcapError> {
        let length = self.order.u32(&bytes.buffer, 4);
        if length < least || !length.is_multiple_of(4) || length > LONGEST_BLOCK {
            return Err(bytes.damaged(Damage::BlockLength(length)));
        }
        bytes.more(length as usize - bytes.buffer.len(), "a block")?;
        let trailer = self.order.u32(&bytes.buffer, length as usize - 4);
        if trailer != length {
            return Err(bytes.damaged(Damage::Trailer(length, trailer)));
        }
        Ok(())
    }

    pub fn next<'a, R: Read>(
        &mut self,
        bytes: &'a mut Bytes<R>,
    ) -> Result<Option<Record<'a>>, PcapError> {
        loop {
            if !bytes.fill(8, "a block's header")? {
                return Ok(None);
            }
            // The mark of a section reads the same in both orders.
            let kind = self.order.u32(&bytes.buffer, 0);
            let least = match kind {
                SECTION => {
                    bytes.more(4, "a section header")?;
                    self.section(bytes)?;
                    continue;
                }
                INTERFACE => 20,
                SIMPLE_PACKET => 16,
                ENHANCED_PACKET | OLD_PACKET => 32,
                _ => 12,
            };
            self.rest(bytes, least)?;
            let found = match kind {
                INTERFACE => {
                    self.interfaces.push(self.interface(&bytes.buffer));
                    continue;
                }
                SIMPLE_PACKET => self.simple(&bytes.buffer),
                ENHANCED_PACKET | OLD_PACKET => self.packet(&bytes.buffer, kind == OLD_PACKET),
                _ => continue,
            };
            return self.record(bytes, &found).map(Some);
        }
    }

    fn interface(&self, block: &[u8]) -> Interface {
        let mut interface = Interface {
            link_type: self.order.u16(block, 8).into(),
            snap: self.order.u32(block, 12),
            resolution: 6,
        };
        let mut at = 16;
        // Options: code, length, value, filled up to a multiple of 4. The block's trailer ends
        // them.
        while at + 8 <= block.len() {
            let (code, length) =
                (self.order.u16(block, at), usize::from(self.order.u16(block, at + 2)));
            if code == 0 {
                break;
            }
            if code == IF_TSRESOL && length == 1 {
                interface.resolution = block[at + 4];
            }
            at += 4 + length.next_multiple_of(4);
        }
        interface
    }

    fn simple(&self, block: &[u8]) -> Found {
        let original = self.order.u32(block, 8);
        let snap = self.interfaces.first().map_or(0, |interface| interface.snap);
        let length = if snap == 0 { original } else { original.min(snap) };
        Found { interface: 0, time: 0, original, start: 12, length }
    }

    fn packet(&self, block: &[u8], old: bool) -> Found {
        let field = |at| self.order.u32(block, at);
        // The old form has a count of drops beside a short interface number.
        let interface = if old { u32::from(self.order.u16(block, 8)) } else { field(8) };
        let time = u64::from(field(12)) << 32 | u64::from(field(16));
        Found {
            interface: interface as usize,
            time,
            original: field(24),
            start: 28,
            length: field(20),
        }
    }

    fn record<'a, R: Read>(
        &self,
        bytes: &'a Bytes<R>,
        found: &Found,
    ) -> Result<Record<'a>, PcapError> {
        let Some(interface) = self.interfaces.get(found.interface) else {
            return Err(bytes.damaged(Damage::Interface(found.interface as u32)));
        };
        if found.length > LONGEST {
            return Err(bytes.damaged(Damage::TooLong(found.length)));
        }
        let room = &bytes.buffer[found.start..bytes.buffer.len() - 4];
        let Some(data) = room.get(..found.length as usize) else {
            return Err(bytes.damaged(Damage::PacketInBlock(found.length)));
        };
        let time = nanoseconds(found.time, interface.resolution);
        Ok(Record { time, original: found.original, link_type: interface.link_type, data })
    }
}

/// A time in units of a resolution, as nanoseconds.
fn nanoseconds(time: u64, resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7f);
    let units = if resolution & 0x80 == 0 {
        10u128.checked_pow(exponent)
    } else {
        1u128.checked_shl(exponent)
    };
    // Units too small for 128 bits never add up to a nanosecond.
    units.map_or(0, |units| (u128::from(time) * 1_000_000_000 / units.max(1)) as u64)
}
