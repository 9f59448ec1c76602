//! CLC, connection layer control: the handshake messages of SMC.
//!
//! A client proposes devices, the server accepts one, the client confirms; either may decline
//! instead. [`Message::decode`] checks a message completely, [`Message::encode`] writes the
//! canonical form of it, and [`negotiate`] holds the decisions between the two. Layouts are those
//! of Linux 6.12 and of its version 2.1 of the protocol, byte for byte, so a packet dissector reads
//! them.
//!
//! The codec runs inside the hooks of a preloaded library: it owns no heap memory, and no input
//! makes it panic. Reserved fields are written as zero and ignored when read.

mod accept;
mod decline;
mod eid;
mod first_contact;
mod frame;
mod header;
mod identity;
mod list;
pub mod negotiate;
mod offer_v1;
mod offer_v2;
mod proposal;
mod size;
mod smcr;
mod syn;
mod wire;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod strategies;

pub use accept::{Accept, Confirm, SmcD, SmcDLevel, SmcDv2};
pub use decline::{Decline, DeclineV2};
pub use eid::{EID_LEN, Eid, EidError};
pub use first_contact::{FirstContact, Hostname, Os};
pub use header::{HEADER_LEN, Header, Kind, MAX_LEN, MIN_LEN, PathType, Version};
pub use identity::{Device, Devices, Gid, MAX_ENTRIES, Skipped, is_emulated};
pub use list::List;
pub use offer_v1::{IpArea, Ipv6Prefix, NativeIsm, OfferV1};
pub use offer_v2::{Eids, FEATURE_EMULATED_ISM, MAX_EIDS, OfferV2, SmcDOffer};
pub use proposal::{Proposal, RoceV1};
pub use size::SizeCode;
pub use smcr::{SmcR, SmcRLevel, SmcRv2};
pub use syn::{SYN_OPTION, signals_smc};
pub use wire::{Full, Malformed};

use frame::Frame;

// Functions of their own also in the compiled code: an Accept is read where the stack is deepest, which has
// no room for a Proposal beside it.
#[inline(never)]
fn proposal(frame: &Frame<'_>) -> Result<Message, Malformed> {
    Proposal::decode(frame).map(Message::Proposal)
}

#[inline(never)]
fn accept(frame: &Frame<'_>, of: fn(Accept) -> Message) -> Result<Message, Malformed> {
    Accept::decode(frame).map(of)
}

/// A CLC message.
// The largest variant is a proposal; a box for it would need the heap.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client to server: what the client can do.
    Proposal(Proposal),
    /// Server to client: what the server chose.
    Accept(Accept),
    /// Client to server: the client's half of what was chosen.
    Confirm(Confirm),
    /// Either way: stay with TCP.
    Decline(Decline),
}

impl Message {
    /// Decodes the message at the start of `bytes`; what follows it is ignored.
    ///
    /// Of a message longer than [`MAX_LEN`], which a later minor release may send, the first
    /// [`MAX_LEN`] bytes suffice.
    pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let frame = Frame::parse(bytes)?;
        match frame.header.kind {
            Kind::Proposal => proposal(&frame),
            Kind::Accept => accept(&frame, Message::Accept),
            Kind::Confirm => accept(&frame, Message::Confirm),
            Kind::Decline => Ok(Message::Decline(Decline::decode(&frame)?)),
        }
    }

    /// Encodes the message at the start of `out` and returns its length, at most [`MAX_LEN`].
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, Full> {
        match self {
            Message::Proposal(proposal) => proposal.encode(out),
            Message::Accept(accept) => accept.encode(Kind::Accept, out),
            Message::Confirm(confirm) => confirm.encode(Kind::Confirm, out),
            Message::Decline(decline) => decline.encode(out),
        }
    }

    /// Which of the four it is.
    pub fn kind(&self) -> Kind {
        match self {
            Message::Proposal(_) => Kind::Proposal,
            Message::Accept(_) => Kind::Accept,
            Message::Confirm(_) => Kind::Confirm,
            Message::Decline(_) => Kind::Decline,
        }
    }
}
