//! Flow spreading: packets of one flow stay together and in order, and flows go to all outputs.
//!
//! The hash is Toeplitz's, as network cards compute it (receive-side scaling): over the addresses
//! and, for TCP and UDP packets that are no fragments, the ports.

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::headers::{IPV4, IPV6, payload};
use crate::apps::icmp::upper_v6;
use crate::args::ArgError;
use crate::batch::Batch;
use crate::packet::Packet;
use crate::registry::Registry;
use checksum::{TCP, UDP};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Rss>();
}

/// Most bytes that are hashed: two IPv6 addresses and two ports.
const MOST: usize = 36;
/// A key has four bytes more than it hashes.
const KEY: usize = MOST + 4;

/// The key of the published test vectors, which most drivers use unless told otherwise.
const MICROSOFT: [u8; KEY] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The hash, by tables of what each half of a byte adds at each place.
#[derive(Debug, Clone)]
pub struct Toeplitz([[u32; 16]; MOST * 2]);

impl Default for Toeplitz {
    fn default() -> Self {
        Self::new(&MICROSOFT)
    }
}

impl Toeplitz {
    /// Tables for a key, 4.5 KiB.
    pub fn new(key: &[u8; KEY]) -> Self {
        // The 32 bits of the key from bit `at` on.
        let window = |at: usize| {
            let bits = (0..32).map(|bit| key[(at + bit) / 8] >> (7 - (at + bit) % 8) & 1);
            bits.fold(0u32, |word, bit| word << 1 | u32::from(bit))
        };
        let mut tables = [[0; 16]; MOST * 2];
        for (place, table) in tables.iter_mut().enumerate() {
            for (value, entry) in table.iter_mut().enumerate() {
                let bits = (0..4).filter(|bit| value >> (3 - bit) & 1 != 0);
                *entry = bits.fold(0, |sum, bit| sum ^ window(place * 4 + bit));
            }
        }
        Self(tables)
    }

    /// The hash of up to 36 bytes; what is behind them does not count.
    #[inline]
    pub fn hash(&self, bytes: &[u8]) -> u32 {
        let (tables, _) = self.0.as_chunks::<2>();
        let each = bytes.iter().zip(tables);
        each.fold(0, |sum, (byte, [high, low])| {
            sum ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)]
        })
    }

    /// The hash of a frame's flow: of addresses and ports, of addresses, or 0 for what is no IP.
    #[inline]
    pub fn frame(&self, frame: &[u8]) -> u32 {
        let mut flow = [0; MOST];
        let length = flow_of(frame, &mut flow);
        self.hash(&flow[..length])
    }
}

/// Writes what a frame's flow is known by, as cards order it, and returns its length.
#[inline]
fn flow_of(frame: &[u8], flow: &mut [u8; MOST]) -> usize {
    let Some((kind, at)) = payload(frame) else { return 0 };
    let ip = &frame[at..];
    let (addresses, upper) = match kind {
        IPV4 => {
            let Some(start) = ip.first_chunk::<20>() else { return 0 };
            flow[..8].copy_from_slice(&start[12..20]);
            // All fragments of a packet go one way, though only the first one has ports.
            let whole = start[6] & 0x3f == 0 && start[7] == 0;
            (8, whole.then_some((start[9], usize::from(start[0] & 15) * 4)))
        }
        IPV6 => {
            let Some(start) = ip.first_chunk::<40>() else { return 0 };
            flow[..32].copy_from_slice(&start[8..40]);
            (32, if start[6] == 44 { None } else { upper_v6(ip) })
        }
        _ => return 0,
    };
    if let Some((TCP | UDP, at)) = upper
        && let Some(ports) = ip.get(at..).and_then(|rest| rest.first_chunk::<4>())
    {
        flow[addresses..addresses + 4].copy_from_slice(ports);
        return addresses + 4;
    }
    addresses
}

/// Sends the packets of a flow to one of its outputs, over links and threads.
pub struct Rss {
    hash: Box<Toeplitz>,
    /// By the number of the output.
    batches: Vec<Batch>,
    others: u64,
    flows: u64,
}

/// Arguments of [`Rss`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RssArgs {
    /// 80 hexadecimal digits; without it, the key of the published test vectors.
    pub key: Option<String>,
    /// Sends both directions of a connection to one output: the key 6d5a, repeated.
    pub symmetric: bool,
}

impl RssArgs {
    fn key(&self) -> Result<[u8; KEY], ArgError> {
        let mut key = MICROSOFT;
        if let Some(text) = &self.key {
            let wrong = || ArgError::wrong("key", format!("is {} hexadecimal digits", KEY * 2));
            if text.len() != KEY * 2 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            for (place, byte) in key.iter_mut().enumerate() {
                let digits = &text[place * 2..place * 2 + 2];
                *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
            }
            if self.symmetric {
                return Err(ArgError::wrong("symmetric", "is a key of its own: leave 'key' out"));
            }
        } else if self.symmetric {
            key.as_chunks_mut::<2>().0.fill([0x6d, 0x5a]);
        }
        Ok(key)
    }
}

impl Kind for Rss {
    const NAME: &'static str = "Rss";
    const ABOUT: &'static str = "spreads flows over all outputs, the packets of one to the same";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    const COUNTERS: &'static [&'static str] = &["flows", "others"];
    type Args = RssArgs;

    fn check(args: &RssArgs) -> Result<(), ArgError> {
        args.key().map(drop)
    }

    fn new(args: RssArgs, _context: &Context) -> Result<Self, AppError> {
        let hash = Box::new(Toeplitz::new(&args.key()?));
        Ok(Self { hash, batches: Vec::new(), others: 0, flows: 0 })
    }

    fn reconfigure(&mut self, args: RssArgs) -> Result<Reconfigured, AppError> {
        *self.hash = Toeplitz::new(&args.key()?);
        Ok(Reconfigured::Done)
    }
}

impl App for Rss {
    fn push(&mut self, io: &Io) {
        let outputs = io.outputs().count();
        // Once, when links come or go.
        if self.batches.len() != outputs {
            self.batches.resize_with(outputs, Batch::new);
        }
        for input in io.inputs() {
            let mut waiting = input.length();
            if outputs == 0 {
                input.discard();
                continue;
            }
            let mut batch = Batch::new();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                for packet in batch.drain() {
                    let place = self.place(&packet, outputs);
                    // It holds as many as the batch that is dealt out.
                    self.batches[place].push(packet);
                }
                for (output, batch) in io.outputs().zip(&mut self.batches) {
                    output.transmit_batch(batch);
                }
            }
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.flows, self.others]);
    }
}

impl Rss {
    /// The output of a packet. What is no IP goes to the first.
    #[inline]
    fn place(&mut self, packet: &Packet, outputs: usize) -> usize {
        let mut flow = [0; MOST];
        let length = flow_of(packet, &mut flow);
        self.others += u64::from(length == 0);
        self.flows += u64::from(length != 0);
        // The upper half of the product: all of the hash counts, and no division is needed.
        ((u64::from(self.hash.hash(&flow[..length])) * outputs as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, SocketAddr};

    /// Bit by bit, as it is defined.
    fn naive(key: &[u8; KEY], bytes: &[u8]) -> u32 {
        let mut sum = 0;
        for at in 0..bytes.len() * 8 {
            if bytes[at / 8] >> (7 - at % 8) & 1 != 0 {
                let bit = |at: usize| u32::from(key[at / 8] >> (7 - at % 8) & 1);
                sum ^= (0..32).fold(0, |word, next| word << 1 | bit(at + next));
            }
        }
        sum
    }

    fn frame(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
        let mut frame = vec![0; 12];
        let (octets, kind): (fn(IpAddr) -> Vec<u8>, u16) = match source {
            SocketAddr::V4(_) => (
                |address| match address {
                    IpAddr::V4(address) => address.octets().to_vec(),
                    IpAddr::V6(_) => unreachable!(),
                },
                IPV4,
            ),
            SocketAddr::V6(_) => (
                |address| match address {
                    IpAddr::V6(address) => address.octets().to_vec(),
                    IpAddr::V4(_) => unreachable!(),
                },
                IPV6,
            ),
        };
        frame.extend(kind.to_be_bytes());
        if kind == IPV4 {
            frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        } else {
            frame.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
        }
        frame.extend(octets(source.ip()));
        frame.extend(octets(destination.ip()));
        frame.extend(source.port().to_be_bytes());
        frame.extend(destination.port().to_be_bytes());
        frame.resize(frame.len() + 16, 0);
        frame
    }

    /// "Verifying the RSS hash calculation", Windows driver documentation: destination, source,
    /// hash with ports, hash of addresses.
    const VECTORS: [(&str, &str, u32, u32); 8] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x51ccc178, 0x323e8fc2),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xc626b0ea, 0xd718262a),
        ("12.22.207.184:38024", "24.19.198.95:12898", 0x5c2b394a, 0xd2d0a5de),
        ("209.142.163.6:2217", "38.27.205.30:48228", 0xafc7327f, 0x82989176),
        ("202.188.127.2:1303", "153.39.163.191:44251", 0x10e828a2, 0x5d1809c5),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x40207d3d, 0x2cc18cd5),
        ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0xdde51bbf, 0x0f0c461c),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x02d1feef,
            0x4b61e985,
        ),
    ];

    #[test]
    fn the_hash_is_that_of_the_published_vectors() {
        let hash = Toeplitz::default();
        for (destination, source, with_ports, of_addresses) in VECTORS {
            let mut frame = frame(source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(hash.frame(&frame), with_ports, "{source} to {destination}");
            // A protocol without ports.
            let protocol = if frame[12..14] == [8, 0] { 23 } else { 20 };
            frame[protocol] = 132;
            assert_eq!(hash.frame(&frame), of_addresses, "{source} to {destination}");
        }
    }

    #[test]
    fn both_directions_are_one_flow() {
        let args = RssArgs { symmetric: true, ..RssArgs::default() };
        let hash = Toeplitz::new(&args.key().unwrap());
        for (one, other, ..) in VECTORS {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(hash.frame(&frame(one, other)), hash.frame(&frame(other, one)));
        }
    }

    #[test]
    fn fragments_go_one_way() {
        let hash = Toeplitz::default();
        let mut first = frame("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        first[20] = 0x20;
        let mut later = first.clone();
        (later[20], later[21], later[34]) = (0, 9, 77);
        assert_eq!(hash.frame(&first), hash.frame(&later));
    }

    proptest! {
        #[test]
        fn tables_say_what_bits_do(key in prop::array::uniform(any::<u8>()), bytes in prop::collection::vec(any::<u8>(), 0..=MOST)) {
            prop_assert_eq!(Toeplitz::new(&key).hash(&bytes), naive(&key, &bytes));
        }

        #[test]
        fn anything_has_a_hash(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            Toeplitz::default().frame(&bytes);
        }
    }
}
