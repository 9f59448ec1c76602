//! The messages of memif 2.0 as bytes: each is 128 bytes and one message of a SOCK_SEQPACKET
//! socket. The layout is that of VPP's `memif.h`: packed, in the byte order of the machine.

/// Bytes of every message.
pub const LENGTH: usize = 128;
/// 2.0.
pub const VERSION: u16 = 0x200;
/// In the first word of a ring that is one.
pub const COOKIE: u32 = 0x03e3_1f20;
/// Most entries of a ring, as a power of two.
pub const LARGEST_RING: u8 = 14;

/// A field of text, padded with zeros.
pub type Name = [u8; 32];
pub type Secret = [u8; 24];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub name: Name,
    pub min_version: u16,
    pub max_version: u16,
    /// The largest index of a region, and of a ring of either direction: not how many there are.
    pub max_region: u16,
    pub max_to_client: u16,
    pub max_to_server: u16,
    pub max_log2: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    pub version: u16,
    pub id: u32,
    /// 0: Ethernet frames.
    pub mode: u8,
    pub secret: Secret,
    pub name: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddRing {
    pub to_server: bool,
    pub index: u16,
    pub region: u16,
    pub offset: u32,
    pub log2: u8,
    pub private_header: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    Ack,
    /// The server's first word.
    Hello(Hello),
    Init(Init),
    /// With the descriptor of the memory.
    AddRegion {
        index: u16,
        size: u64,
    },
    /// With the descriptor of an eventfd.
    AddRing(AddRing),
    /// With the name of the client's interface.
    Connect(Name),
    Connected(Name),
    /// Why an end leaves.
    Disconnect {
        code: u32,
        reason: [u8; 96],
    },
}

mod kind {
    pub const ACK: u16 = 1;
    pub const HELLO: u16 = 2;
    pub const INIT: u16 = 3;
    pub const ADD_REGION: u16 = 4;
    pub const ADD_RING: u16 = 5;
    pub const CONNECT: u16 = 6;
    pub const CONNECTED: u16 = 7;
    pub const DISCONNECT: u16 = 8;
}

const TO_SERVER: u16 = 1;

impl Message {
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut out = Writer { bytes: [0; LENGTH], at: 0 };
        match self {
            Self::Ack => out.put(&kind::ACK.to_ne_bytes()),
            Self::Hello(hello) => {
                out.put(&kind::HELLO.to_ne_bytes());
                out.put(&hello.name);
                out.put(&hello.min_version.to_ne_bytes());
                out.put(&hello.max_version.to_ne_bytes());
                out.put(&hello.max_region.to_ne_bytes());
                out.put(&hello.max_to_client.to_ne_bytes());
                out.put(&hello.max_to_server.to_ne_bytes());
                out.put(&[hello.max_log2]);
            }
            Self::Init(init) => {
                out.put(&kind::INIT.to_ne_bytes());
                out.put(&init.version.to_ne_bytes());
                out.put(&init.id.to_ne_bytes());
                out.put(&[init.mode]);
                out.put(&init.secret);
                out.put(&init.name);
            }
            Self::AddRegion { index, size } => {
                out.put(&kind::ADD_REGION.to_ne_bytes());
                out.put(&index.to_ne_bytes());
                out.put(&size.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                out.put(&kind::ADD_RING.to_ne_bytes());
                out.put(&(if ring.to_server { TO_SERVER } else { 0 }).to_ne_bytes());
                out.put(&ring.index.to_ne_bytes());
                out.put(&ring.region.to_ne_bytes());
                out.put(&ring.offset.to_ne_bytes());
                out.put(&[ring.log2]);
                out.put(&ring.private_header.to_ne_bytes());
            }
            Self::Connect(name) => {
                out.put(&kind::CONNECT.to_ne_bytes());
                out.put(name);
            }
            Self::Connected(name) => {
                out.put(&kind::CONNECTED.to_ne_bytes());
                out.put(name);
            }
            Self::Disconnect { code, reason } => {
                out.put(&kind::DISCONNECT.to_ne_bytes());
                out.put(&code.to_ne_bytes());
                out.put(reason);
            }
        }
        out.bytes
    }

    /// None for a kind that memif 2.0 does not have.
    pub fn decode(bytes: &[u8; LENGTH]) -> Option<Message> {
        let mut from = Reader { bytes, at: 0 };
        Some(match from.u16() {
            kind::ACK => Self::Ack,
            kind::HELLO => Self::Hello(Hello {
                name: from.take(),
                min_version: from.u16(),
                max_version: from.u16(),
                max_region: from.u16(),
                max_to_client: from.u16(),
                max_to_server: from.u16(),
                max_log2: from.u8(),
            }),
            kind::INIT => Self::Init(Init {
                version: from.u16(),
                id: from.u32(),
                mode: from.u8(),
                secret: from.take(),
                name: from.take(),
            }),
            kind::ADD_REGION => {
                Self::AddRegion { index: from.u16(), size: u64::from_ne_bytes(from.take()) }
            }
            kind::ADD_RING => Self::AddRing(AddRing {
                to_server: from.u16() & TO_SERVER != 0,
                index: from.u16(),
                region: from.u16(),
                offset: from.u32(),
                log2: from.u8(),
                private_header: from.u16(),
            }),
            kind::CONNECT => Self::Connect(from.take()),
            kind::CONNECTED => Self::Connected(from.take()),
            kind::DISCONNECT => Self::Disconnect { code: from.u32(), reason: from.take() },
            _ => return None,
        })
    }
}

/// A text in a field, cut so that a zero follows it.
pub fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let length = text.len().min(N - 1);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field
}

/// The text of a peer's field, for people: no more than it can hold, and without what would move a
/// terminal's cursor, turn the order of letters, or look like another line.
pub fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let shown = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' };
    field[..end].iter().map(shown).collect()
}

struct Writer {
    bytes: [u8; LENGTH],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8; LENGTH],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        out
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn word(bytes: &[u8], at: usize, length: usize) -> u64 {
        (0..length).rev().fold(0, |value, i| value << 8 | u64::from(bytes[at + i]))
    }

    proptest! {
        /// Fields are where the specification's packed structures have them; what has been read is
        /// written again as the same bytes.
        #[test]
        #[cfg(target_endian = "little")]
        fn fields_are_at_their_places(kind in 0_u16..10, mut bytes in vec(any::<u8>(), LENGTH)) {
            bytes[..2].copy_from_slice(&kind.to_le_bytes());
            let bytes: [u8; LENGTH] = bytes.try_into().unwrap();
            let word = |at, length| word(&bytes, at, length);
            let end = match Message::decode(&bytes) {
                None => {
                    prop_assert!(kind == 0 || kind > 8);
                    return Ok(());
                }
                Some(Message::Ack) => 2,
                Some(Message::Hello(hello)) => {
                    prop_assert_eq!(&hello.name[..], &bytes[2..34]);
                    prop_assert_eq!(u64::from(hello.min_version), word(34, 2));
                    prop_assert_eq!(u64::from(hello.max_version), word(36, 2));
                    prop_assert_eq!(u64::from(hello.max_region), word(38, 2));
                    prop_assert_eq!(u64::from(hello.max_to_client), word(40, 2));
                    prop_assert_eq!(u64::from(hello.max_to_server), word(42, 2));
                    prop_assert_eq!(u64::from(hello.max_log2), word(44, 1));
                    45
                }
                Some(Message::Init(init)) => {
                    prop_assert_eq!(u64::from(init.version), word(2, 2));
                    prop_assert_eq!(u64::from(init.id), word(4, 4));
                    prop_assert_eq!(u64::from(init.mode), word(8, 1));
                    prop_assert_eq!(&init.secret[..], &bytes[9..33]);
                    prop_assert_eq!(&init.name[..], &bytes[33..65]);
                    65
                }
                Some(Message::AddRegion { index, size }) => {
                    prop_assert_eq!((u64::from(index), size), (word(2, 2), word(4, 8)));
                    12
                }
                Some(Message::AddRing(ring)) => {
                    prop_assert_eq!(u64::from(ring.to_server), word(2, 2) & 1);
                    prop_assert_eq!(u64::from(ring.index), word(4, 2));
                    prop_assert_eq!(u64::from(ring.region), word(6, 2));
                    prop_assert_eq!(u64::from(ring.offset), word(8, 4));
                    prop_assert_eq!(u64::from(ring.log2), word(12, 1));
                    prop_assert_eq!(u64::from(ring.private_header), word(13, 2));
                    15
                }
                Some(Message::Connect(name) | Message::Connected(name)) => {
                    prop_assert_eq!(&name[..], &bytes[2..34]);
                    34
                }
                Some(Message::Disconnect { code, reason }) => {
                    prop_assert_eq!(u64::from(code), word(2, 4));
                    prop_assert_eq!(&reason[..], &bytes[6..102]);
                    102
                }
            };
            let mut again = Message::decode(&bytes).unwrap().encode();
            if kind == kind::ADD_RING {
                // Flags that nobody has defined are not kept.
                prop_assert_eq!(again[2] & 1, bytes[2] & 1);
                again[2..4].copy_from_slice(&bytes[2..4]);
            }
            prop_assert_eq!(&again[..end], &bytes[..end]);
            prop_assert!(again[end..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn text_of_a_peer_moves_no_cursor() {
        assert_eq!(text(&field::<8>("too long to fit")), "too lon");
        assert_eq!(text(b"a\x1b[2Jb\nd\0c"), "a?[2Jb?d");
        assert_eq!(text("\u{202e}".as_bytes()), "???");
        assert_eq!(text(&[0xff; 96]).len(), 96);
    }
}
