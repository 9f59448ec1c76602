//! The part of a Proposal that is for version 2: EIDs, and the devices of SMC-D.

use super::eid::EID_LEN;
use super::wire::{self, Emit, Malformed};
use super::{Devices, Eid, Full, List, MAX_ENTRIES, PathType};

/// User-defined EIDs in a Proposal, at most.
pub const MAX_EIDS: usize = 8;

/// The user-defined EIDs of a Proposal.
pub type Eids = List<Eid, MAX_EIDS>;

/// Feature bit: emulated ISM devices, with 128-bit GIDs, are understood.
pub const FEATURE_EMULATED_ISM: u16 = 0x0001;

/// The v2 extension.
#[rustfmt::skip]
mod field {
    use core::ops::Range;

    pub const EID_COUNT: usize          = 0;
    pub const ENTRY_COUNT: usize        = 1;
    pub const FLAGS: usize              = 3;
    pub const SMCD_OFFSET: Range<usize> = 6..8;
    pub const ROCE_GID: Range<usize>    = 8..24;
    pub const MAX_CONNS: usize          = 24;
    pub const MAX_LINKS: usize          = 25;
    pub const FEATURES: Range<usize>    = 26..28;
    pub const END: usize                = 40;
    /// Where the offset of the SMC-Dv2 extension counts from.
    pub const SMCD_BASE: usize          = SMCD_OFFSET.end;
}

/// The SMC-Dv2 extension.
#[rustfmt::skip]
mod smcd {
    use core::ops::Range;

    pub const SEID: Range<usize> = 0..32;
    pub const END: usize         = 48;
}

/// Bit of the flags that says a SEID is there; the release is in the high half.
const SEID_PRESENT: u8 = 0x01;

const MAX_SMCD_OFFSET: u16 = (field::END + MAX_EIDS * EID_LEN - field::SMCD_BASE) as u16;

/// An offer for version 2; one of neither SMC-R nor SMC-D counts as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferV2 {
    /// Release of version 2 that the client speaks, 0 to 15.
    pub release: u8,
    /// User-defined EIDs.
    pub eids: Eids,
    /// SMC-D is offered.
    pub smcd: Option<SmcDOffer>,
    /// SMC-R is offered.
    pub smcr: bool,
    /// SMC-R: GID of the RDMA port, zero if it isn't offered.
    pub roce_gid: [u8; 16],
    /// SMC-R: connections per link group.
    pub max_conns: u8,
    /// SMC-R: links per link group.
    pub max_links: u8,
    /// Feature mask, see [`FEATURE_EMULATED_ISM`].
    pub features: u16,
}

/// The SMC-D part of an offer for version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmcDOffer {
    /// System EID.
    pub seid: Option<Eid>,
    /// Devices besides the native one.
    pub devices: Devices,
}

impl OfferV2 {
    fn eids_end(&self) -> usize {
        field::END + self.eids.len() * EID_LEN
    }

    /// Length on the wire.
    pub(super) fn wire_len(&self) -> usize {
        self.eids_end() + self.smcd.map_or(0, |smcd| smcd::END + smcd.devices.wire_len())
    }

    /// Reads the offer at the start of `bytes`, and says how many bytes it took. That may be more
    /// than the length of the decoded offer, which has no lone entries.
    pub(super) fn decode(bytes: &[u8], path: PathType) -> Result<(OfferV2, usize), Malformed> {
        let eid_count = wire::count(bytes, field::EID_COUNT, MAX_EIDS)?;
        let entries = wire::count(bytes, field::ENTRY_COUNT, MAX_ENTRIES)?;
        let smcd_offset = wire::be16(bytes, field::SMCD_OFFSET)?;
        if smcd_offset > MAX_SMCD_OFFSET {
            return Err(Malformed::Offset);
        }
        let flags = wire::byte(bytes, field::FLAGS)?;
        let mut offer = OfferV2 {
            release: flags >> 4,
            smcr: path.smcr(),
            roce_gid: wire::get(bytes, field::ROCE_GID)?,
            max_conns: wire::byte(bytes, field::MAX_CONNS)?,
            max_links: wire::byte(bytes, field::MAX_LINKS)?,
            features: wire::be16(bytes, field::FEATURES)?,
            ..OfferV2::default()
        };
        for eid in wire::items(bytes, field::END, eid_count)? {
            offer.eids.push(Eid(*eid)).map_err(|Full| Malformed::Count)?;
        }
        let at = offer.eids_end();
        let mut len = at;
        if path.smcd() {
            if field::SMCD_BASE + usize::from(smcd_offset) != at {
                return Err(Malformed::Offset);
            }
            let block = wire::part(bytes, at)?;
            let seid = Eid(wire::get(block, smcd::SEID)?);
            let seid = (flags & SEID_PRESENT != 0).then_some(seid);
            let list = wire::part(block, smcd::END)?;
            offer.smcd = Some(SmcDOffer { seid, devices: Devices::decode(list, entries)? });
            len += smcd::END + Devices::entries_len(entries);
        }
        Ok((offer, len))
    }

    /// Writes the offer at the start of `out`.
    pub(super) fn encode(&self, out: &mut Emit<'_>) -> Result<(), Full> {
        let mut flags = (self.release & 0x0f) << 4;
        out.set(field::EID_COUNT, wire::small(self.eids.len())?)?;
        out.put(field::ROCE_GID, &self.roce_gid)?;
        out.set(field::MAX_CONNS, self.max_conns)?;
        out.set(field::MAX_LINKS, self.max_links)?;
        out.put(field::FEATURES, &self.features.to_be_bytes())?;
        for (i, eid) in self.eids.iter().enumerate() {
            let at = field::END + i * EID_LEN;
            out.put(at..at + EID_LEN, &eid.0)?;
        }
        if let Some(offer) = &self.smcd {
            let at = self.eids_end();
            out.set(field::ENTRY_COUNT, wire::small(offer.devices.entries())?)?;
            out.put(field::SMCD_OFFSET, &wire::offset(at, field::SMCD_BASE)?)?;
            let mut block = out.part(at)?;
            if let Some(seid) = &offer.seid {
                flags |= SEID_PRESENT;
                block.put(smcd::SEID, &seid.0)?;
            }
            offer.devices.encode(&mut block.part(smcd::END)?)?;
        }
        out.set(field::FLAGS, flags)
    }
}
