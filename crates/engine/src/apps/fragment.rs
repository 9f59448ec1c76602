//! Fragments: made by [`Fragmenter`], put together by [`Reassembler`].

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::headers::{IPV4, IPV6, be16, payload};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::link::Link;
use crate::packet::Packet;
use crate::registry::Registry;
use rustix::rand::{GetRandomFlags, getrandom};

mod reassemble;
mod split;

pub use reassemble::{Reassembler, ReassemblerArgs};
pub(super) use split::split_v4;
use split::split_v6;

/// More fragments follow (IPv4).
const MORE: u16 = 0x2000;
/// The offset of a fragment, in units of eight bytes (IPv4).
const OFFSET: u16 = 0x1fff;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Fragmenter>();
    registry.register::<Reassembler>();
}

/// Cuts IP packets that are too long for what follows. IPv4 packets that must not be cut are
/// discarded and counted; IPv6 packets are cut as their source would, which is for the entry of a
/// tunnel and for hosts, not for routers.
pub struct Fragmenter {
    mtu: usize,
    /// State of the generator of IPv6 identifications.
    random: u64,
    fragmented: u64,
    pieces: u64,
    refused: u64,
}

/// Arguments of [`Fragmenter`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FragmenterArgs {
    /// Longest IP packet that passes whole, in bytes: 68 or more.
    pub mtu: u16,
}

impl Kind for Fragmenter {
    const NAME: &'static str = "Fragmenter";
    const ABOUT: &'static str = "cuts IPv4 and IPv6 packets that are longer than an MTU";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["fragmented", "pieces", "refused"];
    type Args = FragmenterArgs;

    fn check(args: &FragmenterArgs) -> Result<(), ArgError> {
        if args.mtu < 68 {
            return Err(ArgError::wrong("mtu", "is a number of bytes, 68 or more"));
        }
        Ok(())
    }

    fn new(args: FragmenterArgs, _context: &Context) -> Result<Self, AppError> {
        let mut seed = [0; 8];
        getrandom(&mut seed, GetRandomFlags::empty())
            .map_err(|error| AppError::os("a random number", error))?;
        let random = u64::from_ne_bytes(seed) | 1;
        Ok(Self { mtu: args.mtu.into(), random, fragmented: 0, pieces: 0, refused: 0 })
    }

    fn reconfigure(&mut self, args: FragmenterArgs) -> Result<Reconfigured, AppError> {
        self.mtu = args.mtu.into();
        Ok(Reconfigured::Done)
    }
}

impl Fragmenter {
    /// Identifications that nobody foretells (RFC 7739): xorshift64*.
    fn id(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    #[cold]
    fn cut(&mut self, mut packet: Packet, v6: bool, at: usize, output: &Link) {
        let mut pieces = 0;
        let emit = |piece| {
            pieces += 1;
            output.transmit(piece);
        };
        let done = if v6 {
            let id = self.id();
            split_v6(&mut packet, at, self.mtu, id, emit)
        } else {
            // Do not fragment.
            packet[at + 6] & 0x40 == 0 && split_v4(&mut packet, at, self.mtu, emit)
        };
        self.fragmented += u64::from(done);
        self.refused += u64::from(!done);
        self.pieces += pieces;
    }
}

/// The version of the IP packet in a frame, where it starts and how long it says to be.
#[inline]
fn ip_of(frame: &[u8]) -> Option<(bool, usize, usize)> {
    match payload(frame)? {
        (IPV4, at) => Some((false, at, be16(frame, at + 2)?.into())),
        (IPV6, at) => Some((true, at, 40 + usize::from(be16(frame, at + 4)?))),
        _ => None,
    }
}

impl App for Fragmenter {
    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let Some(output) = io.output(0) else {
            input.discard();
            return;
        };
        let mut waiting = input.length();
        let (mut batch, mut passed) = (Batch::new(), Batch::new());
        while waiting > 0 {
            waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
            for packet in batch.drain() {
                match ip_of(&packet) {
                    Some((v6, at, total)) if total > self.mtu && packet.length() >= at + 20 => {
                        // What came before goes before.
                        output.transmit_batch(&mut passed);
                        self.cut(packet, v6, at, output);
                    }
                    _ => {
                        passed.push_towards(output, packet);
                    }
                }
            }
        }
        output.transmit_batch(&mut passed);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.fragmented, self.pieces, self.refused]);
    }
}
