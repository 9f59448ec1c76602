//! Accept and Confirm: one layout, in which each side names its receive buffer.
//!
//! For SMC-D a message has 48 bytes in version 1 and 78 in version 2; on first contact the
//! extension makes it 114 (release 0) or 130.

use super::first_contact::FirstContact;
use super::frame::{Frame, Paths, TRAILER_LEN, emit};
use super::smcr::SmcR;
use super::wire::{self, Malformed};
use super::{Eid, Full, Gid, Kind, PathType, SizeCode, Version, is_emulated};

#[rustfmt::skip]
mod field {
    use core::ops::Range;

    pub const GID: Range<usize>     = 8..16;
    pub const TOKEN: Range<usize>   = 16..24;
    pub const INDEX: usize          = 24;
    pub const SIZE: usize           = 25;
    pub const LINK_ID: Range<usize> = 28..32;
    /// End of version 1, before its trailer.
    pub const V1_END: usize         = 44;
    pub const CHID: Range<usize>    = 32..34;
    pub const EID: Range<usize>     = 34..66;
    pub const GID_EXT: Range<usize> = 66..74;
    /// End of version 2, before the first contact extension or the trailer.
    pub const V2_END: usize         = 74;
}

/// What the server chose, and its receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// SMC-D was chosen.
    SmcD(SmcD),
    /// SMC-R was chosen.
    SmcR(SmcR),
}

/// The client's receive buffer, for what the server chose.
pub type Confirm = Accept;

/// Accept or Confirm for SMC-D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmcD {
    /// Address of the sender's device; `lo` is on the wire for an emulated device of version 2
    /// only.
    pub gid: Gid,
    /// Token of the sender's receive buffer (DMB).
    pub token: u64,
    /// Element of the buffer that belongs to the connection; Linux has one element per buffer, 0.
    pub index: u8,
    /// Size of the element.
    pub size: SizeCode,
    /// The sender's name for its link group, opaque to the receiver.
    pub link_id: [u8; 4],
    /// What depends on the version.
    pub level: SmcDLevel,
}

/// The part of an Accept or Confirm for SMC-D that depends on the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmcDLevel {
    /// Version 1.
    V1 {
        /// The sender made a new link group.
        first_contact: bool,
    },
    /// Version 2.
    V2(SmcDv2),
}

/// What version 2 adds to an Accept or Confirm for SMC-D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmcDv2 {
    /// CHID of the chosen device.
    pub chid: u16,
    /// The negotiated EID.
    pub eid: Option<Eid>,
    /// There if the sender made a new link group.
    pub first_contact: Option<FirstContact>,
}

impl Accept {
    /// Version of the protocol that was chosen.
    pub fn version(&self) -> Version {
        match self {
            Accept::SmcD(smcd) => smcd.version(),
            Accept::SmcR(smcr) => smcr.version(),
        }
    }

    /// SMC-R or SMC-D.
    pub fn path(&self) -> PathType {
        match self {
            Accept::SmcD(_) => PathType::SmcD,
            Accept::SmcR(_) => PathType::SmcR,
        }
    }

    /// Whether the sender made a new link group.
    pub fn first_contact(&self) -> bool {
        match self {
            Accept::SmcD(smcd) => smcd.first_contact(),
            Accept::SmcR(smcr) => smcr.first_contact(),
        }
    }

    pub(super) fn decode(frame: &Frame<'_>) -> Result<Accept, Malformed> {
        let accept = match frame.header.typev1() {
            PathType::SmcD => Accept::SmcD(SmcD::decode(frame)?),
            PathType::SmcR => Accept::SmcR(SmcR::decode(frame)?),
            PathType::Neither | PathType::Both => return Err(Malformed::Path),
        };
        frame.check_trailer()?;
        Ok(accept)
    }

    pub(super) fn encode(&self, kind: Kind, out: &mut [u8]) -> Result<usize, Full> {
        match self {
            Accept::SmcD(smcd) => smcd.encode(kind, out),
            Accept::SmcR(smcr) => smcr.encode(kind, out),
        }
    }
}

impl SmcD {
    /// Version of the protocol that was chosen.
    pub fn version(&self) -> Version {
        match self.level {
            SmcDLevel::V1 { .. } => Version::V1,
            SmcDLevel::V2(_) => Version::V2,
        }
    }

    /// Whether the sender made a new link group.
    pub fn first_contact(&self) -> bool {
        match self.level {
            SmcDLevel::V1 { first_contact } => first_contact,
            SmcDLevel::V2(v2) => v2.first_contact.is_some(),
        }
    }

    fn decode(frame: &Frame<'_>) -> Result<SmcD, Malformed> {
        let body = frame.body;
        let first_contact = frame.header.flag();
        let mut gid = Gid { hi: wire::be64(body, field::GID)?, lo: 0 };
        let level = match frame.header.version {
            Version::V1 => {
                frame.exactly(field::V1_END + TRAILER_LEN)?;
                SmcDLevel::V1 { first_contact }
            }
            Version::V2 => {
                frame.at_least(field::V2_END + TRAILER_LEN)?;
                let chid = wire::be16(body, field::CHID)?;
                if is_emulated(chid) {
                    gid.lo = wire::be64(body, field::GID_EXT)?;
                }
                let first_contact = match first_contact {
                    true => Some(FirstContact::decode(wire::part(body, field::V2_END)?, false)?),
                    false => None,
                };
                let eid = Eid(wire::get(body, field::EID)?).present();
                SmcDLevel::V2(SmcDv2 { chid, eid, first_contact })
            }
        };
        Ok(SmcD {
            gid,
            token: wire::be64(body, field::TOKEN)?,
            index: wire::byte(body, field::INDEX)?,
            size: SizeCode::from_high_nibble(wire::byte(body, field::SIZE)?),
            link_id: wire::get(body, field::LINK_ID)?,
            level,
        })
    }

    fn encode(&self, kind: Kind, out: &mut [u8]) -> Result<usize, Full> {
        let end = match self.level {
            SmcDLevel::V1 { .. } => field::V1_END,
            SmcDLevel::V2(v2) => {
                field::V2_END + v2.first_contact.map_or(0, |first| first.smcd_len())
            }
        };
        let length = end + TRAILER_LEN;
        let paths = Paths::Chosen { path: PathType::SmcD, flag: self.first_contact() };
        let mut message = emit(out, kind, self.version(), paths, length)?;

        message.put(field::GID, &self.gid.hi.to_be_bytes())?;
        message.put(field::TOKEN, &self.token.to_be_bytes())?;
        message.set(field::INDEX, self.index)?;
        message.set(field::SIZE, self.size.high_nibble())?;
        message.put(field::LINK_ID, &self.link_id)?;
        if let SmcDLevel::V2(v2) = self.level {
            message.put(field::CHID, &v2.chid.to_be_bytes())?;
            message.put(field::EID, &v2.eid.unwrap_or_default().0)?;
            if is_emulated(v2.chid) {
                message.put(field::GID_EXT, &self.gid.lo.to_be_bytes())?;
            }
            if let Some(first) = v2.first_contact {
                first.encode(false, &mut message.part(field::V2_END)?)?;
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
