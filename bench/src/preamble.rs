//! The first 16 bytes of each connection: what the client is going to do on it.

use crate::args::Mode;
use crate::failure::{Failure, Result};

pub const LENGTH: usize = 16;
const MAGIC: [u8; 4] = *b"peer";
/// Of a message: the server allocates buffers of this size on a stranger's word.
const LARGEST: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    pub mode: Mode,
    pub size: usize,
    /// Which of the client's connections this is: part of what each message contains.
    pub id: u32,
    /// After so many the server ends the connection; 0: it goes on.
    pub requests: u16,
}

impl Preamble {
    pub fn encode(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.mode as u8;
        bytes[6..8].copy_from_slice(&self.requests.to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.size as u32).to_be_bytes());
        bytes[12..].copy_from_slice(&self.id.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; LENGTH], served: Mode) -> Result<Preamble> {
        if bytes[..4] != MAGIC {
            return Err(Failure::Protocol(
                "the client is not shortwire-peers (its first bytes are others)".into(),
            ));
        }
        if bytes[4] != served as u8 {
            return Err(Failure::Protocol(format!(
                "the client runs another mode; start it with --mode {}",
                served.name()
            )));
        }
        let size = word(&bytes[8..12]) as usize;
        if size == 0 || size > LARGEST {
            return Err(Failure::Protocol(format!(
                "the client asks for messages of {size} bytes; 1 to {LARGEST} are possible"
            )));
        }
        Ok(Preamble {
            mode: served,
            size,
            id: word(&bytes[12..]),
            requests: word(&bytes[6..8]) as u16,
        })
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let preamble = Preamble { mode: Mode::Rr, size: 64_000, id: 63, requests: 513 };
        assert_eq!(Preamble::decode(&preamble.encode(), Mode::Rr).unwrap(), preamble);
    }

    #[test]
    fn strangers_other_modes_and_absurd_sizes_are_refused() {
        let good = Preamble { mode: Mode::Rr, size: 1, id: 0, requests: 0 };
        assert!(Preamble::decode(b"GET / HTTP/1.1\r\n", Mode::Rr).is_err());
        assert!(Preamble::decode(&good.encode(), Mode::Stream).is_err());
        assert!(Preamble::decode(&Preamble { size: 0, ..good }.encode(), Mode::Rr).is_err());
        assert!(
            Preamble::decode(&Preamble { size: LARGEST + 1, ..good }.encode(), Mode::Rr).is_err()
        );
    }
}
