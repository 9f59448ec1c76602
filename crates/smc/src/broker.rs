//! What is said between a process and the broker of another guest, so that the two ends of a
//! connection between the guests find each other.
//!
//! The end that calls opens a TCP connection to the broker at the other end's address, names the
//! connection, and both show that they know the secret in the bar. Then the broker asks for the end
//! that listens under the connection's name, as a process of its own guest would, and hands it the
//! TCP connection, over which the handshake follows.

use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::inet::Addr;

/// Port of a broker, if no other is said.
pub const PORT: u16 = 7480;

static PORT_NOW: AtomicU16 = AtomicU16::new(PORT);

/// The port at which brokers are called, here and in all guests.
pub fn port() -> u16 {
    PORT_NOW.load(Relaxed)
}

pub(crate) fn set_port(port: u64) {
    PORT_NOW.store(port as u16, Relaxed);
}

const MAGIC: &[u8; 8] = b"SHORTWB1";
/// Bytes of each message: magic, kind, bar, two words, and the addresses of the connection.
pub const LEN: usize = 72;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Caller: which bar, which connection; two words made up.
    Hello = 1,
    /// Broker: a word made up, and the proof that it knows the secret.
    Challenge = 2,
    /// Caller: the same proof.
    Proof = 3,
    /// Broker: the other end has the channel now.
    Go = 4,
    /// Broker: the other end has not come.
    Nobody = 5,
    /// Broker: another bar, a wrong proof, or an address that is not the caller's.
    Refused = 6,
    /// The other end to its broker: descriptors are welcome.
    Ready = 7,
    /// The broker to the other end: with the channel.
    Handed = 8,
}

/// One message. What it does not need is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// First half of the GIDs in it.
    pub bar: u64,
    /// Made up, or a proof.
    pub words: [u64; 2],
    /// Address and port of the end that calls, and of the end that is called.
    pub ends: [[u8; 18]; 2],
}

impl Message {
    /// One without content.
    pub fn new(kind: Kind) -> Message {
        Message { kind, bar: 0, words: [0; 2], ends: [[0; 18]; 2] }
    }

    /// As it is sent.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&(self.kind as u32).to_be_bytes());
        out[12..20].copy_from_slice(&self.bar.to_be_bytes());
        out[20..28].copy_from_slice(&self.words[0].to_be_bytes());
        out[28..36].copy_from_slice(&self.words[1].to_be_bytes());
        out[36..54].copy_from_slice(&self.ends[0]);
        out[54..].copy_from_slice(&self.ends[1]);
        out
    }

    /// None of anything else.
    pub fn decode(raw: &[u8]) -> Option<Message> {
        use Kind::*;
        let raw: &[u8; LEN] = raw.try_into().ok()?;
        let number = u32::from_be_bytes(raw[8..12].try_into().ok()?);
        let kinds = [Hello, Challenge, Proof, Go, Nobody, Refused, Ready, Handed];
        let kind = kinds.into_iter().find(|&kind| kind as u32 == number)?;
        let word = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().unwrap_or_default());
        let ends = [raw[36..54].try_into().ok()?, raw[54..].try_into().ok()?];
        (raw[..8] == *MAGIC).then(|| Message {
            kind,
            bar: word(12),
            words: [word(20), word(28)],
            ends,
        })
    }
}

/// What only somebody can say who reads the bar: `kind` of it, to this Hello and the challenge's
/// word.
pub fn proof(secret: [u64; 2], kind: Kind, hello: &Message, challenge: u64) -> u64 {
    crate::hash::keyed(secret, &[&[kind as u8], &hello.encode(), &challenge.to_ne_bytes()])
}

impl Addr {
    /// From what `Addr::key` made.
    pub fn of_key(key: &[u8; 18]) -> Addr {
        let mut ip = [0; 16];
        ip.copy_from_slice(&key[..16]);
        let port = u16::from_be_bytes([key[16], key[17]]);
        Addr { family: libc::AF_INET6 as u16, port, ip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written_and_nothing_else_is() {
        let hello =
            Message { kind: Kind::Hello, bar: 7, words: [1, u64::MAX], ends: [[3; 18], [9; 18]] };
        assert_eq!(Message::decode(&hello.encode()), Some(hello));
        for (at, value) in [(0, b'X'), (11, 0), (11, 9), (8, 1)] {
            let mut raw = hello.encode();
            raw[at] = value;
            assert_eq!(Message::decode(&raw), None, "{value} at {at}");
        }
        assert_eq!((Message::decode(&[]), Message::decode(&[0; LEN + 1])), (None, None));
    }

    #[test]
    fn a_proof_is_of_one_secret_end_and_connection() {
        let hello = Message::new(Kind::Hello);
        let own = proof([1, 2], Kind::Challenge, &hello, 5);
        assert_eq!(own, proof([1, 2], Kind::Challenge, &hello, 5));
        let other = Message { ends: [[1; 18], [0; 18]], ..hello };
        for different in [
            proof([1, 3], Kind::Challenge, &hello, 5),
            proof([1, 2], Kind::Proof, &hello, 5),
            proof([1, 2], Kind::Challenge, &other, 5),
            proof([1, 2], Kind::Challenge, &hello, 6),
        ] {
            assert_ne!(own, different);
        }
    }

    #[test]
    fn addresses_survive_as_keys() {
        let mut ip = [0; 16];
        ip[..4].copy_from_slice(&[10, 8, 0, 2]);
        let address = Addr { family: libc::AF_INET as u16, port: 7000, ip };
        assert_eq!(Addr::of_key(&address.key()).key(), address.key());
    }
}
