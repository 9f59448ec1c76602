//! Which frames a card takes (data sheet 7.1.1), and what it does to their tags.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::{Frame, Registers, bytes, copy};
use crate::nic::i82599::registers::*;

/// What the filter registers say.
pub(super) struct Filter {
    /// Longest frame with its checksum.
    pub longest: usize,
    control: u32,
    vlan: bool,
    /// With all of these on, nothing needs to be looked at.
    open: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    Unicast,
    Multicast,
    Broadcast,
}

impl Filter {
    pub fn new(registers: &Registers) -> Self {
        let jumbo = registers.get(HLREG0) & HLREG0_JUMBO != 0;
        let longest = if jumbo { registers.get(MAXFRS) >> 16 } else { 1518 } as usize;
        let control = registers.get(FCTRL);
        let all = FCTRL_UNICAST_PROMISCUOUS | FCTRL_MULTICAST_PROMISCUOUS | FCTRL_BROADCAST;
        let vlan = registers.get(VLNCTRL) & VLNCTRL_FILTER != 0;
        Self { longest, control, vlan, open: control & all == all && !vlan }
    }

    /// None: not for us.
    #[inline]
    pub fn takes(
        &self,
        registers: &Registers,
        data: &[u8],
        tag: Option<u16>,
    ) -> Option<Destination> {
        let destination = match data[0] & 1 {
            0 => Destination::Unicast,
            _ if data[..6] == [0xff; 6] => Destination::Broadcast,
            _ => Destination::Multicast,
        };
        if self.open {
            return Some(destination);
        }
        let (bit, known) = match destination {
            Destination::Unicast => (FCTRL_UNICAST_PROMISCUOUS, is_ours(registers, data)),
            Destination::Multicast => (FCTRL_MULTICAST_PROMISCUOUS, false),
            Destination::Broadcast => (FCTRL_BROADCAST, false),
        };
        if self.control & bit == 0 && !known {
            return None;
        }
        if self.vlan {
            let id = u32::from(tag.or(tag_of(data))? & 0xfff);
            if registers.get(vfta(id / 32)) & 1 << (id % 32) == 0 {
                return None;
            }
        }
        Some(destination)
    }
}

fn is_ours(registers: &Registers, data: &[u8]) -> bool {
    (0..ADDRESSES).any(|n| {
        let high = registers.get(rah(n));
        high & RAH_VALID != 0
            && data[4..6] == high.to_le_bytes()[..2]
            && data[..4] == registers.get(ral(n)).to_le_bytes()
    })
}

/// The tag of IEEE 802.1Q among the bytes.
fn tag_of(data: &[u8]) -> Option<u16> {
    let header = data.get(12..16)?;
    (header[..2] == [0x81, 0x00]).then(|| u16::from_be_bytes([header[2], header[3]]))
}

/// Stores a frame whose tag comes, goes or stays. Returns the length, and the tag if it was taken
/// out.
pub(super) fn store_tagged(
    frame: Frame,
    tag: Option<u16>,
    strip: bool,
    target: NonNull<u8>,
) -> (usize, Option<u16>) {
    // SAFETY: the sender's descriptor holds the frame still until it is reported.
    let data = unsafe { bytes(frame.data, frame.length) };
    let within = tag_of(data);
    let (head, rest) = data.split_at(12);
    let mut whole = Vec::with_capacity(frame.length + 4);
    whole.extend_from_slice(head);
    match (tag, within, strip) {
        (Some(_), _, true) | (None, None, _) => whole.extend_from_slice(rest),
        (None, Some(_), true) => whole.extend_from_slice(&rest[4..]),
        (None, Some(_), false) => whole.extend_from_slice(rest),
        (Some(tag), _, false) => {
            whole.extend_from_slice(&[0x81, 0x00]);
            whole.extend_from_slice(&tag.to_be_bytes());
            whole.extend_from_slice(rest);
        }
    }
    let padded = whole.len().max(60);
    // SAFETY: `target` has room for the longest frame, which the caller compared with this one;
    // `whole` is our own.
    unsafe { copy(NonNull::from(whole.as_slice()).cast(), whole.len(), target, padded) };
    (padded, if strip { tag.or(within) } else { None })
}
