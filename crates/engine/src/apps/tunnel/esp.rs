//! IPsec ESP in tunnel mode (RFC 4303) with AES-GCM (RFC 4106): IP packets, encrypted and
//! authentic. Keys are configured; nobody negotiates them here.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use super::replay::Replay;
use super::{Encapsulation, Outer, OuterArgs, PORTS, Refused, cut, finish, run, strip};
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::headers::{IPV4, IPV6, Mac, be16};
use crate::args::ArgError;
use crate::packet::Packet;

const PROTOCOL: u8 = 50;
/// What is inside: an IPv4 or an IPv6 packet, or nothing (RFC 4303, 2.6).
const IN_IPV4: u8 = 4;
const IN_IPV6: u8 = 41;

/// Parameter index and number, and the initialisation vector.
const HEADER: usize = 8;
const IV: usize = 8;
const ICV: usize = 16;

/// Carries IP packets to another host, encrypted.
pub struct Esp {
    args: EspArgs,
    outer: Outer,
    send: Cipher,
    receive: Cipher,
    /// The number of the packet that was sent last.
    sent: u64,
    /// The next initialisation vector. It counts from a random number on, so that no two packets
    /// under one key have the same, also when the app starts again with it.
    vector: u64,
    replay: Replay,
    counts: [u64; COUNTERS.len()],
}

/// Arguments of [`Esp`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EspArgs {
    /// The way between the ends.
    pub outer: OuterArgs,
    /// What we send with.
    pub send: Association,
    /// What the other end sends with.
    pub receive: Association,
    /// Sequence numbers of 64 bits, of which 32 are sent: both ends must agree. Without, no more
    /// than 2^32 - 1 packets are sent under a key.
    #[serde(default)]
    pub esn: bool,
    /// Source and destination of the frames that come out.
    #[serde(default)]
    pub from: Mac,
    /// See [`Self::from`].
    #[serde(default)]
    pub to: Mac,
}

/// One direction of a tunnel.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Association {
    /// Security parameter index, 256 or more.
    pub spi: u32,
    /// Key of 16 or 32 bytes and salt of 4 bytes, in hexadecimal digits.
    pub key: String,
}

const COUNTERS: &[&str] = &[
    "sent",
    "received",
    "too_long",
    "not_ours",
    "malformed",
    "not_authentic",
    "replayed",
    "congested",
    "exhausted",
];

/// A key made ready.
struct Cipher {
    key: LessSafeKey,
    salt: [u8; 4],
}

impl Cipher {
    fn new(name: &'static str, association: &Association) -> Result<Self, ArgError> {
        let wrong = || {
            let problem = "key is 40 or 72 hexadecimal digits: 16 or 32 bytes of key, 4 of salt";
            ArgError::wrong(name, problem)
        };
        let text = &association.key;
        if !matches!(text.len(), 40 | 72) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        if association.spi < 256 {
            return Err(ArgError::wrong(name, "spi is 256 or more: those below are reserved"));
        }
        let mut bytes = [0; 36];
        for (place, byte) in bytes[..text.len() / 2].iter_mut().enumerate() {
            let digits = &text[place * 2..place * 2 + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        let (key, salt) = bytes[..text.len() / 2].split_at(text.len() / 2 - 4);
        let algorithm = if key.len() == 16 { &AES_128_GCM } else { &AES_256_GCM };
        let key = UnboundKey::new(algorithm, key).map_err(|_| wrong())?;
        let salt = salt.first_chunk().copied().ok_or_else(wrong)?;
        Ok(Self { key: LessSafeKey::new(key), salt })
    }

    /// No two packets under a key have the same vector: see [`Esp::vector`].
    fn nonce(&self, vector: &[u8; IV]) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.salt);
        nonce[4..].copy_from_slice(vector);
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts all but the last bytes, which become the integrity check value.
    fn encrypt(&self, vector: &[u8; IV], header: &[u8], data: &mut [u8]) -> Option<()> {
        let (data, end) = data.split_at_mut(data.len().checked_sub(ICV)?);
        let (nonce, header) = (self.nonce(vector), Aad::from(header));
        let tag = self.key.seal_in_place_separate_tag(nonce, header, data).ok()?;
        end.copy_from_slice(tag.as_ref());
        Some(())
    }

    /// Decrypts all but the last bytes. None, and the data is of no use, if it is not authentic.
    fn decrypt<'a>(
        &self,
        vector: &[u8; IV],
        header: &[u8],
        data: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        self.key.open_in_place(self.nonce(vector), Aad::from(header), data).ok()
    }
}

impl Kind for Esp {
    const NAME: &'static str = "Esp";
    const ABOUT: &'static str =
        "an IPsec ESP tunnel with AES-GCM for IP packets, between 'inner' and 'outer'";
    const INPUTS: Ports = PORTS;
    const OUTPUTS: Ports = PORTS;
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = EspArgs;

    fn check(args: &EspArgs) -> Result<(), ArgError> {
        args.outer.check("outer")?;
        Cipher::new("send", &args.send)?;
        Cipher::new("receive", &args.receive)?;
        if args.send.key.eq_ignore_ascii_case(&args.receive.key) {
            return Err(ArgError::wrong("receive", "each direction has a key of its own"));
        }
        Ok(())
    }

    fn new(args: EspArgs, _context: &Context) -> Result<Self, AppError> {
        let mut vector = [0; 8];
        getrandom(&mut vector, GetRandomFlags::empty())
            .map_err(|error| AppError::os("a random number", error))?;
        Ok(Self {
            outer: Outer::new(&args.outer, PROTOCOL),
            send: Cipher::new("send", &args.send)?,
            receive: Cipher::new("receive", &args.receive)?,
            sent: 0,
            vector: u64::from_ne_bytes(vector),
            replay: Replay::new(),
            counts: [0; COUNTERS.len()],
            args,
        })
    }
}

/// What is authentic beside the data: index and number, with the upper half in the middle where it
/// is not sent.
fn associated(spi: u32, number: u64, esn: bool) -> ([u8; 12], usize) {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&spi.to_be_bytes());
    if esn {
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        return (bytes, 12);
    }
    bytes[4..8].copy_from_slice(&(number as u32).to_be_bytes());
    (bytes, 8)
}

impl Encapsulation for Esp {
    fn wrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        let most = if self.args.esn { u64::MAX } else { u32::MAX.into() };
        if self.sent == most {
            return Err(Refused::Exhausted);
        }
        finish(packet);
        let inside = if strip(packet)? == IPV4 { IN_IPV4 } else { IN_IPV6 };
        // The end of the padding's length and of the type is at a multiple of four bytes.
        let padding = (packet.length() + 2).next_multiple_of(4) - packet.length() - 2;
        let trailer = [1, 2, 3, 0, 0];
        let fits = packet.append(&trailer[..padding])
            && packet.append(&[padding as u8, inside])
            && packet.append(&[0; ICV])
            && packet.grow_front(HEADER + IV);
        if !fits {
            return Err(Refused::TooLong);
        }
        let number = self.sent + 1;
        let (header, length) = associated(self.args.send.spi, number, self.args.esn);
        packet[..4].copy_from_slice(&header[..4]);
        packet[4..8].copy_from_slice(&(number as u32).to_be_bytes());
        let vector = self.vector.to_be_bytes();
        packet[HEADER..HEADER + IV].copy_from_slice(&vector);
        let data = &mut packet[HEADER + IV..];
        self.send.encrypt(&vector, &header[..length], data).ok_or(Refused::TooLong)?;
        self.vector = self.vector.wrapping_add(1);
        self.sent = number;
        self.outer.wrap(packet)
    }

    fn unwrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        let range = self.outer.unwrap(packet)?;
        let esp = &mut packet[range.clone()];
        if be16(esp, 0).zip(be16(esp, 2)).map(|(high, low)| u32::from(high) << 16 | u32::from(low))
            != Some(self.args.receive.spi)
        {
            return Err(Refused::NotOurs);
        }
        if esp.len() < HEADER + IV + 4 + ICV || !esp.len().is_multiple_of(4) {
            return Err(Refused::Malformed);
        }
        let low = u32::from_be_bytes([esp[4], esp[5], esp[6], esp[7]]);
        let number = if self.args.esn { self.replay.extend(low) } else { low.into() };
        if !self.replay.is_new(number) {
            return Err(Refused::OutOfOrder);
        }
        let (header, length) = associated(self.args.receive.spi, number, self.args.esn);
        let (front, data) = esp.split_at_mut(HEADER + IV);
        let vector = front[HEADER..].first_chunk().ok_or(Refused::Malformed)?;
        let data = self.receive.decrypt(vector, &header[..length], data);
        let data: &[u8] = data.ok_or(Refused::BadChecksum)?;
        self.replay.add(number);
        let [inner @ .., padding, inside] = data else { return Err(Refused::Malformed) };
        let inner = inner.len().checked_sub((*padding).into()).ok_or(Refused::Malformed)?;
        let ip = &data[..inner];
        // The packet may be followed by bytes that hide how long it is.
        let (kind, total) = match *inside {
            IN_IPV4 => (IPV4, be16(ip, 2).map(usize::from)),
            IN_IPV6 => (IPV6, be16(ip, 4).map(|length| 40 + usize::from(length))),
            _ => return Err(Refused::NotOurs),
        };
        let total = total.filter(|total| *total <= inner).ok_or(Refused::Malformed)?;
        let start = range.start + HEADER + IV;
        cut(packet, start..start + total);
        let mut header = [0; 14];
        header[..6].copy_from_slice(&self.args.to.0);
        header[6..12].copy_from_slice(&self.args.from.0);
        header[12..].copy_from_slice(&kind.to_be_bytes());
        packet.prepend(&header);
        Ok(())
    }

    fn counts(&mut self) -> &mut [u64] {
        &mut self.counts
    }
}

impl App for Esp {
    fn push(&mut self, io: &Io) {
        run(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: [&str; 2] =
        ["000102030405060708090a0b0c0d0e0f01020304", "0f0e0d0c0b0a0908070605040302010001020304"];

    /// The two ends of a tunnel.
    fn ends(esn: bool, long: bool) -> [Esp; 2] {
        let key = |number: usize| match long {
            true => format!("{}{}", &KEYS[number][..32], KEYS[number]),
            false => KEYS[number].to_string(),
        };
        [0, 1].map(|us: usize| {
            let address = |number: usize| [10, 0, 0, 1 + number as u8].into();
            let association =
                |number: usize| Association { spi: 256 + number as u32, key: key(number) };
            let args = EspArgs {
                outer: OuterArgs {
                    local: address(us),
                    remote: address(1 - us),
                    mac: Mac([2, 0, 0, 0, 0, us as u8]),
                    next_hop: Mac([2, 0, 0, 0, 0, 1 - us as u8]),
                    ttl: 64,
                },
                send: association(us),
                receive: association(1 - us),
                esn,
                from: Mac([2; 6]),
                to: Mac([4; 6]),
            };
            Esp::check(&args).unwrap();
            Esp::new(args, &Context { name: String::new(), thread: 0 }).unwrap()
        })
    }

    /// An IPv4 packet of this length in a frame, with padding behind it.
    fn frame(length: usize) -> Packet {
        let mut frame =
            [&[4; 6][..], &[2; 6], &[8, 0, 0x45, 0], &(length as u16).to_be_bytes()].concat();
        frame.extend((18..14 + length).map(|byte| byte as u8));
        frame.extend([0xee; 3]);
        Packet::from_slice(&frame).unwrap()
    }

    fn sealed(esp: &mut Esp, length: usize) -> Packet {
        let mut packet = frame(length);
        esp.wrap(&mut packet).unwrap();
        packet
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(lengths in prop::collection::vec(20usize..1800, 1..10), esn in any::<bool>(), long in any::<bool>()) {
            let [mut a, mut b] = ends(esn, long);
            for length in lengths {
                let mut packet = sealed(&mut a, length);
                prop_assert_eq!((packet.length() - 34) % 4, 0);
                b.unwrap(&mut packet).unwrap();
                prop_assert_eq!(&packet[..], &frame(length)[..14 + length]);
            }
        }

        #[test]
        fn a_changed_bit_is_not_authentic(at in 34usize..136, bit in 0u8..8, esn in any::<bool>()) {
            let [mut a, mut b] = ends(esn, false);
            let mut packet = sealed(&mut a, 60);
            prop_assert_eq!(packet.length(), 34 + 16 + 60 + 4 + 16 - 2 + 2);
            let at = at.min(packet.length() - 1);
            packet[at] ^= 1 << bit;
            let expected = match at {
                34..38 => Refused::NotOurs,
                // Number 0 never comes.
                _ if packet[38..42] == [0; 4] => Refused::OutOfOrder,
                _ => Refused::BadChecksum,
            };
            prop_assert_eq!(b.unwrap(&mut packet), Err(expected));
            // Nothing was remembered of it.
            let mut packet = sealed(&mut a, 60);
            b.unwrap(&mut packet).unwrap();
        }

        #[test]
        fn anything_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..120), length in 0usize..200) {
            let [mut a, mut b] = ends(false, false);
            let mut packet = sealed(&mut a, 60);
            let length = length.min(packet.length());
            packet.truncate(length);
            let end = packet.length();
            let start = end.min(42);
            for (byte, value) in packet[start..].iter_mut().zip(&bytes) {
                *byte = *value;
            }
            if start < end && !bytes.is_empty() {
                // By chance one in 2^128 is authentic.
                prop_assert!(b.unwrap(&mut packet).is_err());
            }
        }
    }

    #[test]
    fn what_came_does_not_come_again() {
        let [mut a, mut b] = ends(false, false);
        let packets: Vec<Packet> = (0..1100).map(|_| sealed(&mut a, 40)).collect();
        let mut comes = |number: usize| b.unwrap(&mut packets[number].duplicate().unwrap());
        for number in [5, 3, 4, 1099, 1098] {
            assert_eq!(comes(number), Ok(()), "{number}");
            assert_eq!(comes(number), Err(Refused::OutOfOrder), "{number}");
        }
        // Below the window nobody knows.
        assert_eq!((comes(75), comes(76)), (Err(Refused::OutOfOrder), Ok(())));
    }

    #[test]
    fn numbers_come_to_an_end_or_go_on() {
        let [mut a, mut b] = ends(false, false);
        a.sent = u64::from(u32::MAX) - 1;
        b.unwrap(&mut sealed(&mut a, 40)).unwrap();
        assert_eq!(a.wrap(&mut frame(40)), Err(Refused::Exhausted));
        let [mut a, mut b] = ends(true, false);
        for start in [u64::from(u32::MAX) - 3, (7 << 32) - 3] {
            (a.sent, b.replay) = (start, Replay::new());
            b.replay.add(start);
            for number in 0..6 {
                b.unwrap(&mut sealed(&mut a, 40)).unwrap_or_else(|why| panic!("{number}: {why:?}"));
            }
        }
    }

    #[test]
    fn vectors_never_repeat() {
        let [mut a, mut again] = ends(false, false);
        let vector = |esp: &mut Esp| sealed(esp, 40)[42..50].to_vec();
        let vectors: std::collections::HashSet<_> =
            (0..100).flat_map(|_| [vector(&mut a), vector(&mut again)]).collect();
        assert_eq!(vectors.len(), 200, "also after a start with the same key");
    }

    #[test]
    fn wrong_keys_are_told() {
        let [esp, _] = ends(false, false);
        let refused = |change: fn(&mut EspArgs)| {
            let mut args = esp.args.clone();
            change(&mut args);
            Esp::check(&args).unwrap_err().to_string()
        };
        assert!(refused(|args| args.send.key.truncate(39)).contains("40 or 72 hexadecimal digits"));
        assert!(refused(|args| args.send.key.replace_range(..1, "+")).contains("hexadecimal"));
        assert!(refused(|args| args.receive.spi = 255).contains("256 or more"));
        assert!(refused(|args| args.receive.key = args.send.key.clone()).contains("of its own"));
        assert!(refused(|args| args.outer.ttl = 0).contains("ttl"));
    }
}
