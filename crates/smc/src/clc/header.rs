//! The header that every message begins with.

use super::wire::{self, Malformed};

/// Length of the header; enough of a message to know how much more to read.
pub const HEADER_LEN: usize = 8;

/// Length of the shortest message, a version 1 Decline.
pub const MIN_LEN: usize = 28;

/// Length of the longest message, a Proposal with all its lists full.
pub const MAX_LEN: usize = 652;

pub(super) mod field {
    use core::ops::Range;

    pub const EYECATCHER: Range<usize> = 0..4;
    pub const TYPE: usize = 4;
    pub const LENGTH: Range<usize> = 5..7;
    pub const VERSION: usize = 7;
}

/// "SMCR" in EBCDIC.
pub(super) const EYECATCHER_SMCR: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
/// "SMCD" in EBCDIC.
pub(super) const EYECATCHER_SMCD: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xc4];

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Client to server.
    Proposal = 1,
    /// Server to client.
    Accept = 2,
    /// Client to server.
    Confirm = 3,
    /// Either way.
    Decline = 4,
}

/// Version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// Version 1.
    V1 = 1,
    /// Version 2, of any release.
    V2 = 2,
}

/// What is offered for a version, or was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathType {
    /// SMC-R only.
    SmcR = 0,
    /// SMC-D only.
    SmcD = 1,
    /// Neither.
    Neither = 2,
    /// Both SMC-R and SMC-D.
    Both = 3,
}

impl PathType {
    /// The type that stands for an offer.
    pub const fn of(smcr: bool, smcd: bool) -> PathType {
        match (smcr, smcd) {
            (true, false) => PathType::SmcR,
            (false, true) => PathType::SmcD,
            (false, false) => PathType::Neither,
            (true, true) => PathType::Both,
        }
    }

    /// Whether SMC-R is part of it.
    pub const fn smcr(self) -> bool {
        matches!(self, PathType::SmcR | PathType::Both)
    }

    /// Whether SMC-D is part of it.
    pub const fn smcd(self) -> bool {
        matches!(self, PathType::SmcD | PathType::Both)
    }

    const fn from_bits(bits: u8) -> PathType {
        match bits & 0b11 {
            0 => PathType::SmcR,
            1 => PathType::SmcD,
            2 => PathType::Neither,
            _ => PathType::Both,
        }
    }
}

/// "First contact" or "out of sync", in the bits of `typev2`.
pub(super) const FLAG: u8 = 0x08;

/// The first eight bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which message it is.
    pub kind: Kind,
    /// Length of the message from its first byte to the end of its trailer; at least [`MIN_LEN`].
    pub length: u16,
    /// Version of the protocol.
    pub version: Version,
    bits: u8,
}

impl Header {
    /// Checks and reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let bytes = bytes.get(..HEADER_LEN).ok_or(Malformed::Short)?;
        if !is_eyecatcher(wire::get(bytes, field::EYECATCHER)?) {
            return Err(Malformed::Eyecatcher);
        }
        let bits = wire::byte(bytes, field::VERSION)?;
        let version = match bits >> 4 {
            1 => Version::V1,
            2 => Version::V2,
            _ => return Err(Malformed::Version),
        };
        let kind = match wire::byte(bytes, field::TYPE)? {
            1 => Kind::Proposal,
            2 => Kind::Accept,
            3 => Kind::Confirm,
            4 => Kind::Decline,
            _ => return Err(Malformed::Type),
        };
        let length = wire::be16(bytes, field::LENGTH)?;
        if usize::from(length) < MIN_LEN {
            return Err(Malformed::Length);
        }
        Ok(Header { kind, length, version, bits })
    }

    /// In a Proposal, what is offered for version 1; in Accept and Confirm, what was chosen.
    pub fn typev1(&self) -> PathType {
        PathType::from_bits(self.bits)
    }

    /// In a version 2 Proposal, what is offered for version 2.
    pub fn typev2(&self) -> PathType {
        PathType::from_bits(self.bits >> 2)
    }

    /// In Accept and Confirm "first contact", in a Decline "out of sync".
    pub fn flag(&self) -> bool {
        self.bits & FLAG != 0
    }
}

/// Whether these bytes are one of the two.
pub(super) fn is_eyecatcher(bytes: [u8; 4]) -> bool {
    bytes == EYECATCHER_SMCR || bytes == EYECATCHER_SMCD
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPOSAL: [u8; 8] = [0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 0xe0, 0x26];

    fn with(at: usize, value: u8) -> Result<Header, Malformed> {
        let mut bytes = PROPOSAL;
        bytes[at] = value;
        Header::parse(&bytes)
    }

    #[test]
    fn reads_the_first_eight_bytes() {
        let header = Header::parse(&PROPOSAL).unwrap();
        assert_eq!(
            (header.kind, header.length, header.version),
            (Kind::Proposal, 224, Version::V2)
        );
        assert_eq!((header.typev1(), header.typev2()), (PathType::Neither, PathType::SmcD));
        assert_eq!(with(3, 0xc4), Ok(header), "either eyecatcher will do");
        assert!(with(7, 0x29).unwrap().flag());
        assert!(!with(7, 0x21).unwrap().flag());
    }

    #[test]
    fn refuses_what_is_no_header() {
        assert_eq!(Header::parse(&PROPOSAL[..7]), Err(Malformed::Short));
        assert_eq!(with(0, 0), Err(Malformed::Eyecatcher));
        assert_eq!(with(4, 0), Err(Malformed::Type));
        assert_eq!(with(4, 5), Err(Malformed::Type));
        assert_eq!(with(6, 27), Err(Malformed::Length));
        assert_eq!(with(7, 0x06), Err(Malformed::Version));
        assert_eq!(with(7, 0x36), Err(Malformed::Version));
    }

    #[test]
    fn path_types_are_sets() {
        for path in [PathType::SmcR, PathType::SmcD, PathType::Neither, PathType::Both] {
            assert_eq!(PathType::of(path.smcr(), path.smcd()), path);
            assert_eq!(PathType::from_bits(path as u8), path);
        }
    }
}
