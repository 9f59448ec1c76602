//! The Proposal: everything the client can do, for both versions in one message.
//!
//! ```text
//! 0 header | 8 SMC-R v1 | 40 SMC-D v1, offset of A | 80 IP area
//! A v2 extension, EIDs | SEID, devices | trailer
//! ```
//!
//! Parts that are not offered are not on the wire. As the length must be exact, an offset can have
//! only one value for given counts; any other would make parts overlap and is refused.

use super::frame::{Frame, Paths, TRAILER_LEN, emit};
use super::offer_v1::{MAX_IP_AREA_LEN, NativeIsm, OfferV1};
use super::offer_v2::{Eids, FEATURE_EMULATED_ISM, OfferV2, SmcDOffer};
use super::wire::{self, Malformed};
use super::{Devices, Eid, Full, IpArea, Kind, PathType, Version};

#[rustfmt::skip]
mod field {
    use core::ops::Range;

    pub const PEER_ID: Range<usize>     = 8..16;
    pub const ROCE_GID: Range<usize>    = 16..32;
    pub const ROCE_MAC: Range<usize>    = 32..38;
    pub const IP_OFFSET: Range<usize>   = 38..40;
    pub const NATIVE_GID: Range<usize>  = 40..48;
    pub const NATIVE_CHID: Range<usize> = 48..50;
    pub const EXT_OFFSET: Range<usize>  = 50..52;
    /// Where the offset of the IP area counts from.
    pub const IP_BASE: usize            = IP_OFFSET.end;
    /// Where the offset of the v2 extension counts from.
    pub const EXT_BASE: usize           = EXT_OFFSET.end;
    /// End of the SMC-D block, which the IP area follows.
    pub const BLOCK_END: usize          = 80;
}

const MAX_IP_OFFSET: u16 = (field::BLOCK_END - field::IP_BASE) as u16;
const MAX_EXT_OFFSET: u16 = (field::BLOCK_END + MAX_IP_AREA_LEN - field::EXT_BASE) as u16;

/// What a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Version of the header. A version 1 header carries no offer for version 2 and needs one for
    /// version 1; where that does not hold, version 2 is written.
    pub version: Version,
    /// The SMC-R v1 fields, zero if it isn't offered.
    pub roce: RoceV1,
    /// What is offered for version 1.
    pub v1: Option<OfferV1>,
    /// What is offered for version 2.
    pub v2: Option<OfferV2>,
}

/// The SMC-R v1 fields of a Proposal, opaque to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoceV1 {
    /// Instance and MAC that name the sender.
    pub peer_id: [u8; 8],
    /// GID of its RDMA port.
    pub gid: [u8; 16],
    /// MAC of its RDMA port.
    pub mac: [u8; 6],
}

impl Proposal {
    /// An offer of SMC-D version 2 and nothing else.
    pub fn smcd(release: u8, eids: Eids, seid: Option<Eid>, devices: Devices) -> Proposal {
        let v2 = OfferV2 {
            release,
            eids,
            smcd: Some(SmcDOffer { seid, devices }),
            features: FEATURE_EMULATED_ISM,
            ..OfferV2::default()
        };
        Proposal { version: Version::V2, roce: RoceV1::default(), v1: None, v2: Some(v2) }
    }

    /// What is offered for version 1.
    pub fn typev1(&self) -> PathType {
        self.v1.map_or(PathType::Neither, |v1| PathType::of(v1.smcr, v1.native.is_some()))
    }

    /// What is offered for version 2.
    pub fn typev2(&self) -> PathType {
        self.v2.map_or(PathType::Neither, |v2| PathType::of(v2.smcr, v2.smcd.is_some()))
    }

    /// What is offered for `version`.
    pub fn offered(&self, version: Version) -> PathType {
        match version {
            Version::V1 => self.typev1(),
            Version::V2 => self.typev2(),
        }
    }

    /// The offer for version 1, if it offers anything.
    pub(super) fn offer_v1(&self) -> Option<&OfferV1> {
        self.v1.as_ref().filter(|_| self.typev1() != PathType::Neither)
    }

    /// The offer for version 2, if it offers anything.
    pub(super) fn offer_v2(&self) -> Option<&OfferV2> {
        self.v2.as_ref().filter(|_| self.typev2() != PathType::Neither)
    }

    pub(super) fn decode(frame: &Frame<'_>) -> Result<Proposal, Malformed> {
        let body = frame.body;
        let ip_offset = wire::be16(body, field::IP_OFFSET)?;
        if ip_offset > MAX_IP_OFFSET {
            return Err(Malformed::Offset);
        }
        let roce = RoceV1 {
            peer_id: wire::get(body, field::PEER_ID)?,
            gid: wire::get(body, field::ROCE_GID)?,
            mac: wire::get(body, field::ROCE_MAC)?,
        };
        let typev1 = frame.header.typev1();
        if typev1 == PathType::Neither && frame.header.version == Version::V1 {
            return Err(Malformed::Path);
        }
        // Only an old sender of nothing but SMC-R leaves the SMC-D block out.
        let needs_block = typev1.smcd() || frame.header.version == Version::V2;
        if typev1 != PathType::Neither && needs_block && ip_offset != MAX_IP_OFFSET {
            return Err(Malformed::Offset);
        }
        let mut end = field::BLOCK_END;
        let mut v1 = None;
        if typev1 != PathType::Neither {
            let at = field::IP_BASE + usize::from(ip_offset);
            let ip = IpArea::decode(wire::part(body, at)?)?;
            end = at + ip.wire_len();
            let native = match typev1.smcd() {
                true => Some(NativeIsm {
                    gid: wire::be64(body, field::NATIVE_GID)?,
                    chid: wire::be16(body, field::NATIVE_CHID)?,
                }),
                false => None,
            };
            v1 = Some(OfferV1 { smcr: typev1.smcr(), native, ip });
        }
        let mut v2 = None;
        if frame.header.version == Version::V2 {
            let ext_offset = wire::be16(body, field::EXT_OFFSET)?;
            if ext_offset > MAX_EXT_OFFSET {
                return Err(Malformed::Offset);
            }
            let typev2 = frame.header.typev2();
            if typev2 != PathType::Neither {
                if field::EXT_BASE + usize::from(ext_offset) != end {
                    return Err(Malformed::Offset);
                }
                let (offer, len) = OfferV2::decode(wire::part(body, end)?, typev2)?;
                end += len;
                v2 = Some(offer);
            }
        }
        frame.exactly(end + TRAILER_LEN)?;
        frame.check_trailer()?;
        Ok(Proposal { version: frame.header.version, roce, v1, v2 })
    }

    pub(super) fn encode(&self, out: &mut [u8]) -> Result<usize, Full> {
        let (v1, v2) = (self.offer_v1(), self.offer_v2());
        let version = match (self.version, v1, v2) {
            (Version::V1, Some(_), None) => Version::V1,
            _ => Version::V2,
        };
        let with_block = version == Version::V2 || self.typev1().smcd();
        let ip_at = if with_block { field::BLOCK_END } else { field::IP_BASE };
        let ext_at = ip_at + v1.map_or(0, |v1| v1.ip.wire_len());
        let length = ext_at + v2.map_or(0, OfferV2::wire_len) + TRAILER_LEN;
        // In a version 1 header the bits of `typev2` are reserved.
        let typev2 = if version == Version::V1 { PathType::SmcR } else { self.typev2() };
        let paths = Paths::Offered { v1: self.typev1(), v2: typev2 };
        let mut message = emit(out, Kind::Proposal, version, paths, length)?;

        message.put(field::PEER_ID, &self.roce.peer_id)?;
        message.put(field::ROCE_GID, &self.roce.gid)?;
        message.put(field::ROCE_MAC, &self.roce.mac)?;
        if let Some(v1) = v1 {
            message.put(field::IP_OFFSET, &wire::offset(ip_at, field::IP_BASE)?)?;
            v1.ip.encode(&mut message.part(ip_at)?)?;
            if let Some(native) = v1.native {
                message.put(field::NATIVE_GID, &native.gid.to_be_bytes())?;
                message.put(field::NATIVE_CHID, &native.chid.to_be_bytes())?;
            }
        }
        if let Some(v2) = v2 {
            message.put(field::EXT_OFFSET, &wire::offset(ext_at, field::EXT_BASE)?)?;
            v2.encode(&mut message.part(ext_at)?)?;
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
