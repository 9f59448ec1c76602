//! Classic pcap: a header of 24 bytes, then records of a header of 16 bytes and the packet.

use std::io::Read;

use crate::pcap::LONGEST;
use crate::pcap::read::{Bytes, Damage, Order, PcapError, Record};

pub(super) const MICROSECONDS: u32 = 0xa1b2_c3d4;
pub(super) const NANOSECONDS: u32 = 0xa1b2_3c4d;

pub(super) struct Classic {
    order: Order,
    /// Nanoseconds per unit of the second time field.
    unit: u64,
    pub link_type: u32,
}

impl Classic {
    pub fn open<R: Read>(bytes: &mut Bytes<R>, magic: [u8; 4]) -> Result<Self, PcapError> {
        let known = [(false, u32::from_le_bytes(magic)), (true, u32::from_be_bytes(magic))];
        let found = known.into_iter().find_map(|(big, magic)| match magic {
            MICROSECONDS => Some((Order { big }, 1000)),
            NANOSECONDS => Some((Order { big }, 1)),
            _ => None,
        });
        let Some((order, unit)) = found else { return Err(bytes.damaged(Damage::Magic)) };
        bytes.more(20, "the file's header")?;
        let (major, minor) = (order.u16(&bytes.buffer, 4), order.u16(&bytes.buffer, 6));
        if major != 2 {
            return Err(bytes.damaged(Damage::Version(major, minor)));
        }
        // The upper bits say whether and how long a check sequence follows each packet.
        let link_type = order.u32(&bytes.buffer, 20) & 0x03ff_ffff;
        Ok(Self { order, unit, link_type })
    }

    pub fn next<'a, R: Read>(
        &self,
        bytes: &'a mut Bytes<R>,
    ) -> Result<Option<Record<'a>>, PcapError> {
        if !bytes.fill(16, "a packet's header")? {
            return Ok(None);
        }
        let field = |at| self.order.u32(&bytes.buffer, at);
        let (seconds, fraction, length, original) = (field(0), field(4), field(8), field(12));
        if length > LONGEST {
            return Err(bytes.damaged(Damage::TooLong(length)));
        }
        bytes.more(length as usize, "a packet")?;
        let time = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.unit;
        Ok(Some(Record { time, original, link_type: self.link_type, data: &bytes.buffer[16..] }))
    }
}
