//! The decisions of the handshake, as functions over decoded messages.
//!
//! The server takes the first device of the *client's* list that it can reach and set up
//! ([`candidates`]); the client checks that it was given what it asked for ([`check_accept`]), and
//! so does the server with the answer ([`check_confirm`]). Only SMC-D version 2 is negotiated here.

use crate::reason::{self, Reason};

use super::{
    Accept, Confirm, Device, Eid, Gid, List, MAX_ENTRIES, OfferV2, PathType, Proposal, SmcDLevel,
    SmcDOffer, SmcDv2, Version,
};

/// The release of version 2 that this codec speaks.
pub const RELEASE: u8 = 1;

/// Candidates of a proposal, at most: the native device and the listed ones.
pub const MAX_CANDIDATES: usize = 1 + MAX_ENTRIES;

/// What a server may choose; see [`candidates`].
pub type Candidates = List<Selection, MAX_CANDIDATES>;

/// What the server has to offer.
#[derive(Clone, Copy)]
pub struct Local<'a> {
    /// Its devices.
    pub devices: &'a [Device],
    /// Whether the device with this position in `devices` reaches this GID of the client. An equal
    /// CHID only says that it might.
    pub reachable: &'a dyn Fn(usize, Gid) -> bool,
    /// Its user-defined EIDs.
    pub ueids: &'a [Eid],
    /// Its system EID, if that is enabled.
    pub seid: Option<Eid>,
    /// The release it speaks, see [`RELEASE`].
    pub release: u8,
}

/// A device of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proposed {
    /// The one for version 1.
    #[default]
    Native,
    /// The one with this position in the list of devices.
    Listed(usize),
}

/// What the server may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Position of the server's device in [`Local::devices`].
    pub device: usize,
    /// The client's device that it reaches.
    pub proposed: Proposed,
    /// GID of the client's device.
    pub gid: Gid,
    /// CHID of both.
    pub chid: u16,
    /// The EID in common.
    pub eid: Eid,
    /// The lower release of the two.
    pub release: u8,
    /// Version of the protocol.
    pub version: Version,
}

impl Default for Selection {
    fn default() -> Selection {
        Selection {
            device: 0,
            proposed: Proposed::Native,
            gid: Gid::default(),
            chid: 0,
            eid: Eid::default(),
            release: 0,
            version: Version::V2,
        }
    }
}

/// The server's first choice; see [`candidates`].
pub fn select(proposal: &Proposal, local: &Local<'_>) -> Result<Selection, Reason> {
    candidates(proposal, local)?.first().copied().ok_or(reason::NO_SMCD2_DEV)
}

/// What the server may choose, in the client's order and at least one.
///
/// The first one that can be set up is to be accepted; if none can, the Decline has the reason for
/// which the first one failed. An error is the diagnosis for a Decline.
pub fn candidates(proposal: &Proposal, local: &Local<'_>) -> Result<Candidates, Reason> {
    let offer = proposal.offer_v2().ok_or(match proposal.typev1() {
        PathType::Neither => reason::PEER_NO_SMC,
        _ => reason::NO_V2_EXT,
    })?;
    if local.devices.is_empty() {
        return Err(reason::NO_ISM2_SUPP);
    }
    let smcd = offer.smcd.as_ref().ok_or(reason::NO_V2D_EXT)?;
    if offer.eids.is_empty() && smcd.seid.is_none() {
        return Err(reason::NO_UEID);
    }
    let release = offer.release.min(local.release);

    let mut matches = Candidates::new();
    for (proposed, theirs) in proposed_devices(proposal) {
        // Each of our devices stands for one candidate only, as in Linux.
        let taken = |device| matches.iter().any(|earlier| earlier.device == device);
        let ours = local.devices.iter().enumerate().position(|(device, ours)| {
            ours.chid == theirs.chid && !taken(device) && (local.reachable)(device, theirs.gid)
        });
        let Some(device) = ours else { continue };
        let selection = Selection {
            device,
            proposed,
            gid: theirs.gid,
            chid: theirs.chid,
            eid: Eid::default(),
            release,
            version: Version::V2,
        };
        // There is room for the native device and a full list.
        let _ = matches.push(selection);
    }
    if matches.is_empty() {
        return Err(reason::NO_SMCD2_DEV);
    }

    let eid = common_eid(offer, smcd, local).ok_or_else(|| no_common_eid(proposal, smcd, local))?;
    let mut candidates = List::new();
    for found in &matches {
        let _ = candidates.push(Selection { eid, ..*found });
    }
    Ok(candidates)
}

/// The client's devices in its order, the native one first.
fn proposed_devices(proposal: &Proposal) -> impl Iterator<Item = (Proposed, Device)> {
    let native = proposal.offer_v1().and_then(|v1| v1.native).filter(|native| native.chid != 0);
    let native = native.map(|native| {
        (Proposed::Native, Device { gid: Gid { hi: native.gid, lo: 0 }, chid: native.chid })
    });
    let smcd = proposal.offer_v2().and_then(|v2| v2.smcd.as_ref());
    let listed = smcd.map_or(&[][..], |smcd| smcd.devices.as_slice());
    let listed = listed.iter().enumerate().map(|(i, device)| (Proposed::Listed(i), *device));
    native.into_iter().chain(listed)
}

/// The system EID if it is the same, else the first user-defined EID of the client that the server
/// has.
fn common_eid(offer: &OfferV2, smcd: &SmcDOffer, local: &Local<'_>) -> Option<Eid> {
    match (smcd.seid, local.seid) {
        (Some(theirs), Some(ours)) if theirs == ours => Some(ours),
        _ => offer.eids.iter().find(|eid| local.ueids.contains(eid)).copied(),
    }
}

/// Linux has no reason of its own for EIDs that differ: what it ends with is that it found no
/// device. Only if a system EID was all that could have matched, the older and clearer reason is
/// given.
fn no_common_eid(proposal: &Proposal, smcd: &SmcDOffer, local: &Local<'_>) -> Reason {
    if smcd.seid.is_none() && local.seid.is_some() && local.ueids.is_empty() {
        reason::NO_SEID
    } else if proposal.typev1().smcr() || proposal.typev2().smcr() {
        reason::NO_SMC_DEV
    } else {
        reason::NO_SMCD_DEV
    }
}

/// What the server has accepted, in the client's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The client's device.
    pub proposed: Proposed,
    /// The EID in common, if the server named one.
    pub eid: Option<Eid>,
    /// The release to be spoken; `None` in version 1, and where a link group is reused that knows
    /// it.
    pub release: Option<u8>,
    /// Version of the protocol.
    pub version: Version,
    /// The server made a new link group.
    pub first_contact: bool,
}

/// Checks that the client was given what it asked for.
///
/// Whether the server's GID can be reached is for the device to say. An error is the diagnosis for
/// a Decline; [`reason::VIOLATION`] means that the server names what was never offered.
pub fn check_accept(proposal: &Proposal, accept: &Accept) -> Result<Accepted, Reason> {
    let (offered, path) = (proposal.offered(accept.version()), accept.path());
    if path.smcd() && !offered.smcd() || path.smcr() && !offered.smcr() {
        return Err(reason::MODE_UNSUPP);
    }
    let Accept::SmcD(smcd) = accept else {
        return Err(reason::NO_SMCR_DEV);
    };
    let SmcDLevel::V2(v2) = smcd.level else {
        return Ok(Accepted {
            proposed: Proposed::Native,
            eid: None,
            release: None,
            version: Version::V1,
            first_contact: smcd.first_contact(),
        });
    };
    let offer = proposal.offer_v2().ok_or(reason::MODE_UNSUPP)?;
    let (proposed, _) = proposed_devices(proposal)
        .find(|(_, device)| device.chid == v2.chid)
        .ok_or(reason::VIOLATION)?;
    if v2.eid.is_some_and(|eid| !was_offered(offer, eid)) {
        return Err(reason::VIOLATION);
    }
    let release = v2.first_contact.map(|first| first.release);
    if release.is_some_and(|release| release > offer.release) {
        return Err(reason::RELEASE_ERR);
    }
    Ok(Accepted {
        proposed,
        eid: v2.eid,
        release,
        version: Version::V2,
        first_contact: smcd.first_contact(),
    })
}

fn was_offered(offer: &OfferV2, eid: Eid) -> bool {
    offer.eids.contains(&eid) || offer.smcd.is_some_and(|smcd| smcd.seid == Some(eid))
}

/// Checks that the client confirms what the server accepted.
pub fn check_confirm(selection: &Selection, confirm: &Confirm) -> Result<(), Reason> {
    let Accept::SmcD(smcd) = confirm else {
        return Err(reason::VIOLATION);
    };
    let SmcDLevel::V2(SmcDv2 { chid, eid, first_contact }) = smcd.level else {
        return Err(reason::VIOLATION);
    };
    if chid != selection.chid
        || smcd.gid != selection.gid
        || eid.unwrap_or_default() != selection.eid
    {
        return Err(reason::VIOLATION);
    }
    match first_contact {
        Some(first) if first.release != selection.release => Err(reason::RELEASE_ERR),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
