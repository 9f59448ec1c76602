//! The Decline: stay with TCP, and why.

use crate::reason::{self, Reason};

use super::frame::{Frame, Paths, TRAILER_LEN, emit};
use super::wire::{self, Malformed};
use super::{Full, Kind, Os, PathType, Version};

/// Further diagnosis words of version 2.
const EXTRA: usize = 4;

#[rustfmt::skip]
mod field {
    use core::ops::Range;

    pub const PEER_ID: Range<usize>   = 8..16;
    pub const DIAGNOSIS: Range<usize> = 16..20;
    pub const OS: usize               = 20;
    /// End of version 1, before its trailer.
    pub const V1_END: usize           = 24;
    pub const EXTRA: Range<usize>     = 24..40;
    /// End of version 2, before its trailer.
    pub const V2_END: usize           = 40;
    pub const WORD: usize             = 4;
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decline {
    /// Name of the sender, zero for SMC-D.
    pub peer_id: [u8; 8],
    /// Why.
    pub diagnosis: Reason,
    /// The two ends disagree about the link group; the receiver must give it up.
    pub out_of_sync: bool,
    /// What only version 2 has.
    pub v2: Option<DeclineV2>,
}

/// What version 2 adds to a Decline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeclineV2 {
    /// Operating system of the sender.
    pub os: Os,
    /// Further diagnosis, zero from Linux.
    pub extra: [u32; EXTRA],
}

impl Decline {
    /// A refusal as Linux would send it.
    pub fn new(version: Version, diagnosis: Reason) -> Decline {
        let v2 = match version {
            Version::V1 => None,
            Version::V2 => Some(DeclineV2 { os: Os::LINUX, ..DeclineV2::default() }),
        };
        Decline { peer_id: [0; 8], diagnosis, out_of_sync: diagnosis == reason::SYNC_ERR, v2 }
    }

    /// Version of the message.
    pub fn version(&self) -> Version {
        if self.v2.is_some() { Version::V2 } else { Version::V1 }
    }

    pub(super) fn decode(frame: &Frame<'_>) -> Result<Decline, Malformed> {
        let body = frame.body;
        let v2 = match frame.header.version {
            Version::V1 => {
                frame.exactly(field::V1_END + TRAILER_LEN)?;
                None
            }
            Version::V2 => {
                frame.exactly(field::V2_END + TRAILER_LEN)?;
                let mut extra = [0; EXTRA];
                let words = wire::items(body, field::EXTRA.start, EXTRA)?;
                for (word, bytes) in extra.iter_mut().zip(words) {
                    *word = u32::from_be_bytes(*bytes);
                }
                Some(DeclineV2 { os: Os::new(wire::byte(body, field::OS)? >> 4), extra })
            }
        };
        // No check of the trailer: receivers take a Decline without one, and to be refused is
        // harmless.
        Ok(Decline {
            peer_id: wire::get(body, field::PEER_ID)?,
            diagnosis: Reason(wire::be32(body, field::DIAGNOSIS)?),
            out_of_sync: frame.header.flag(),
            v2,
        })
    }

    pub(super) fn encode(&self, out: &mut [u8]) -> Result<usize, Full> {
        let end = if self.v2.is_some() { field::V2_END } else { field::V1_END };
        let length = end + TRAILER_LEN;
        let paths = Paths::Chosen { path: PathType::SmcR, flag: self.out_of_sync };
        let mut message = emit(out, Kind::Decline, self.version(), paths, length)?;

        message.put(field::PEER_ID, &self.peer_id)?;
        message.put(field::DIAGNOSIS, &self.diagnosis.code().to_be_bytes())?;
        if let Some(v2) = self.v2 {
            message.set(field::OS, v2.os.number() << 4)?;
            for (i, word) in v2.extra.iter().enumerate() {
                let at = field::EXTRA.start + i * field::WORD;
                message.put(at..at + field::WORD, &word.to_be_bytes())?;
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clc::Message;
    use crate::clc::fixtures::{self, hex};

    fn decode(bytes: &[u8]) -> Result<Decline, Malformed> {
        match Message::decode(bytes)? {
            Message::Decline(decline) => Ok(decline),
            other => panic!("{other:?}"),
        }
    }

    fn encode(decline: &Decline) -> Vec<u8> {
        let mut bytes = [0xaa; 64];
        let len = decline.encode(&mut bytes).unwrap();
        bytes[..len].to_vec()
    }

    /// Example E of the facts.
    #[test]
    fn version_2() {
        let bytes = hex(fixtures::DECLINE_V2);
        let decline = decode(&bytes).unwrap();
        assert_eq!(bytes.len(), 44);
        assert_eq!((decline.peer_id, decline.diagnosis), ([0; 8], reason::NO_SMCD2_DEV));
        assert_eq!(decline.v2, Some(DeclineV2 { os: Os::LINUX, extra: [0; 4] }));
        assert!(!decline.out_of_sync);
        assert_eq!(encode(&decline), bytes);
        assert_eq!(Decline::new(Version::V2, reason::NO_SMCD2_DEV), decline);
    }

    /// Example E of the facts.
    #[test]
    fn version_1_out_of_sync() {
        let bytes = hex(fixtures::DECLINE_V1);
        let decline = decode(&bytes).unwrap();
        assert_eq!(bytes.len(), 28);
        assert_eq!((decline.diagnosis, decline.v2), (reason::SYNC_ERR, None));
        assert!(decline.out_of_sync);
        assert_eq!(encode(&decline), bytes);
        assert_eq!(Decline::new(Version::V1, reason::SYNC_ERR), decline);
    }

    #[test]
    fn length_is_exact_and_the_trailer_is_not_looked_at() {
        let mut bytes = hex(fixtures::DECLINE_V2);
        bytes[43] = 0;
        assert!(decode(&bytes).is_ok());
        bytes[7] = 0x10;
        assert_eq!(decode(&bytes), Err(Malformed::Length));
        let mut bytes = hex(fixtures::DECLINE_V1);
        bytes[7] = 0x28;
        assert_eq!(decode(&bytes), Err(Malformed::Length));
    }

    #[test]
    fn further_words_are_kept() {
        let mut decline = Decline::new(Version::V2, Reason(0x1234_5678));
        decline.v2 = Some(DeclineV2 { os: Os::ZOS, extra: [1, 2, 3, u32::MAX] });
        assert_eq!(decode(&encode(&decline)), Ok(decline));
    }
}
