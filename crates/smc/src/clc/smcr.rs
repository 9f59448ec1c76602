//! Accept and Confirm for SMC-R, decoded so far that a correct answer can be given.

use super::first_contact::{self, FirstContact};
use super::frame::{Frame, Paths, TRAILER_LEN, emit};
use super::wire::{self, Malformed};
use super::{Eid, Full, Kind, List, PathType, SizeCode, Version};

#[rustfmt::skip]
mod field {
    use core::ops::Range;

    pub const PEER_ID: Range<usize>     = 8..16;
    pub const GID: Range<usize>         = 16..32;
    pub const MAC: Range<usize>         = 32..38;
    pub const QPN: Range<usize>         = 38..41;
    pub const RKEY: Range<usize>        = 41..45;
    pub const INDEX: usize              = 45;
    pub const ALERT_TOKEN: Range<usize> = 46..50;
    pub const SIZE_MTU: usize           = 50;
    pub const VADDR: Range<usize>       = 52..60;
    pub const PSN: Range<usize>         = 61..64;
    /// End of version 1, before its trailer.
    pub const V1_END: usize             = 64;
    pub const EID: Range<usize>         = 64..96;
    /// End of version 2, before the first contact extension or the trailer.
    pub const V2_END: usize             = 104;

    /// The GID list after the extension, in a Confirm only.
    pub mod gids {
        pub const COUNT: usize          = 0;
        pub const LIST: usize           = 4;
        pub const GID: usize            = 16;
    }
}

/// GIDs in a Confirm, at most. Linux sends no more than two.
const MAX_GIDS: usize = 8;

/// Accept or Confirm for SMC-R.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmcR {
    /// Instance and MAC that name the sender.
    pub peer_id: [u8; 8],
    /// GID of its RDMA port.
    pub gid: [u8; 16],
    /// MAC of its RDMA port.
    pub mac: [u8; 6],
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Key of the receive buffer.
    pub rkey: u32,
    /// Element of the buffer that belongs to the connection, from 1.
    pub index: u8,
    /// The sender's name for the connection.
    pub alert_token: u32,
    /// Size of the element.
    pub size: SizeCode,
    /// Path MTU as the RDMA enumeration has it, four bits.
    pub mtu: u8,
    /// Virtual address of the receive buffer.
    pub vaddr: u64,
    /// First packet sequence number, 24 bits.
    pub psn: u32,
    /// What depends on the version.
    pub level: SmcRLevel,
}

/// The part of an Accept or Confirm for SMC-R that depends on the version.
// A box for the larger variant would need the heap.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmcRLevel {
    /// Version 1.
    V1 {
        /// The sender made a new link group.
        first_contact: bool,
    },
    /// Version 2.
    V2(SmcRv2),
}

/// What version 2 adds to an Accept or Confirm for SMC-R.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmcRv2 {
    /// The negotiated EID.
    pub eid: Option<Eid>,
    /// There if the sender made a new link group.
    pub first_contact: Option<FirstContact>,
    /// GIDs of the client; on the wire in a Confirm on first contact only.
    pub gids: List<[u8; 16], MAX_GIDS>,
}

impl SmcR {
    /// Version of the protocol that was chosen.
    pub fn version(&self) -> Version {
        match self.level {
            SmcRLevel::V1 { .. } => Version::V1,
            SmcRLevel::V2(_) => Version::V2,
        }
    }

    /// Whether the sender made a new link group.
    pub fn first_contact(&self) -> bool {
        match self.level {
            SmcRLevel::V1 { first_contact } => first_contact,
            SmcRLevel::V2(v2) => v2.first_contact.is_some(),
        }
    }

    pub(super) fn decode(frame: &Frame<'_>) -> Result<SmcR, Malformed> {
        let body = frame.body;
        let level = match frame.header.version {
            Version::V1 => {
                frame.exactly(field::V1_END + TRAILER_LEN)?;
                SmcRLevel::V1 { first_contact: frame.header.flag() }
            }
            Version::V2 => {
                frame.at_least(field::V2_END + TRAILER_LEN)?;
                SmcRLevel::V2(SmcRv2::decode(frame)?)
            }
        };
        let size_mtu = wire::byte(body, field::SIZE_MTU)?;
        Ok(SmcR {
            peer_id: wire::get(body, field::PEER_ID)?,
            gid: wire::get(body, field::GID)?,
            mac: wire::get(body, field::MAC)?,
            qpn: wire::be24(body, field::QPN)?,
            rkey: wire::be32(body, field::RKEY)?,
            index: wire::byte(body, field::INDEX)?,
            alert_token: wire::be32(body, field::ALERT_TOKEN)?,
            size: SizeCode::from_high_nibble(size_mtu),
            mtu: size_mtu & 0x0f,
            vaddr: wire::be64(body, field::VADDR)?,
            psn: wire::be24(body, field::PSN)?,
            level,
        })
    }

    pub(super) fn encode(&self, kind: Kind, out: &mut [u8]) -> Result<usize, Full> {
        let end = match &self.level {
            SmcRLevel::V1 { .. } => field::V1_END,
            SmcRLevel::V2(v2) => field::V2_END + v2.extension_len(kind),
        };
        let length = end + TRAILER_LEN;
        let paths = Paths::Chosen { path: PathType::SmcR, flag: self.first_contact() };
        let mut message = emit(out, kind, self.version(), paths, length)?;

        message.put(field::PEER_ID, &self.peer_id)?;
        message.put(field::GID, &self.gid)?;
        message.put(field::MAC, &self.mac)?;
        message.put24(field::QPN, self.qpn)?;
        message.put(field::RKEY, &self.rkey.to_be_bytes())?;
        message.set(field::INDEX, self.index)?;
        message.put(field::ALERT_TOKEN, &self.alert_token.to_be_bytes())?;
        message.set(field::SIZE_MTU, self.size.high_nibble() | self.mtu & 0x0f)?;
        message.put(field::VADDR, &self.vaddr.to_be_bytes())?;
        message.put24(field::PSN, self.psn)?;
        if let SmcRLevel::V2(v2) = &self.level {
            message.put(field::EID, &v2.eid.unwrap_or_default().0)?;
            if let Some(first) = v2.first_contact {
                let mut extension = message.part(field::V2_END)?;
                first.encode(true, &mut extension)?;
                if kind == Kind::Confirm {
                    let mut list = extension.part(first_contact::LONG_LEN)?;
                    list.set(field::gids::COUNT, wire::small(v2.gids.len())?)?;
                    for (i, gid) in v2.gids.iter().enumerate() {
                        let at = field::gids::LIST + i * field::gids::GID;
                        list.put(at..at + field::gids::GID, gid)?;
                    }
                }
            }
        }
        Ok(length)
    }
}

impl SmcRv2 {
    fn decode(frame: &Frame<'_>) -> Result<SmcRv2, Malformed> {
        let mut v2 =
            SmcRv2 { eid: Eid(wire::get(frame.body, field::EID)?).present(), ..SmcRv2::default() };
        if frame.header.flag() {
            let bytes = wire::part(frame.body, field::V2_END)?;
            v2.first_contact = Some(FirstContact::decode(bytes, true)?);
            let list = bytes.get(first_contact::LONG_LEN..).unwrap_or_default();
            if frame.header.kind == Kind::Confirm && !list.is_empty() {
                let count = wire::count(list, field::gids::COUNT, MAX_GIDS)?;
                for gid in wire::items(list, field::gids::LIST, count)? {
                    v2.gids.push(*gid).map_err(|Full| Malformed::Count)?;
                }
            }
        }
        Ok(v2)
    }

    fn extension_len(&self, kind: Kind) -> usize {
        match (self.first_contact, kind) {
            (None, _) => 0,
            (Some(_), Kind::Confirm) => {
                let list = field::gids::LIST + self.gids.len() * field::gids::GID;
                first_contact::LONG_LEN + list
            }
            (Some(_), _) => first_contact::LONG_LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clc::fixtures::{self, hex};
    use crate::clc::{Accept, MAX_LEN, Message};

    fn smcr(bytes: &[u8]) -> Result<SmcR, Malformed> {
        match Message::decode(bytes)? {
            Message::Accept(Accept::SmcR(smcr)) | Message::Confirm(Accept::SmcR(smcr)) => Ok(smcr),
            other => panic!("{other:?}"),
        }
    }

    fn encode(kind: Kind, smcr: &SmcR) -> Vec<u8> {
        let mut bytes = [0xaa; MAX_LEN];
        let len = smcr.encode(kind, &mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    #[test]
    fn version_1_has_68_bytes() {
        let bytes = hex(&fixtures::smcr_accept_v1());
        let given = smcr(&bytes).unwrap();
        assert_eq!(bytes.len(), 68);
        assert_eq!((given.qpn, given.rkey, given.index), (0x0a0b0c, 0x1234_5678, 1));
        assert_eq!((given.alert_token, given.size.bytes(), given.mtu), (0x99, 65536, 5));
        assert_eq!((given.vaddr, given.psn), (0xffff_8000_0000_1000, 0x070809));
        assert_eq!((given.peer_id[0], given.gid[0], given.mac[0]), (0xa1, 0xb1, 0xc1));
        assert!(given.first_contact());
        assert_eq!(encode(Kind::Accept, &given), bytes);
    }

    #[test]
    fn version_2_has_at_least_108_bytes() {
        let bytes = hex(&fixtures::smcr_accept());
        let mut given = smcr(&bytes).unwrap();
        assert_eq!(bytes.len(), 108);
        assert_eq!(encode(Kind::Accept, &given), bytes);
        let mut v2 = SmcRv2 { first_contact: Some(FirstContact::default()), ..SmcRv2::default() };
        v2.gids.push([7; 16]).unwrap();
        given.level = SmcRLevel::V2(v2);
        assert_eq!(encode(Kind::Accept, &given).len(), 160);
        let confirm = encode(Kind::Confirm, &given);
        assert_eq!(confirm.len(), 180);
        assert_eq!(smcr(&confirm), Ok(given));
        let mut cut = confirm.clone();
        cut[156] = 2;
        assert_eq!(smcr(&cut), Err(Malformed::Length));
        cut[156] = 9;
        assert_eq!(smcr(&cut), Err(Malformed::Count));
    }
}
