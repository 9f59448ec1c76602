//! Generic routing encapsulation: RFC 2784, with the key and the sequence number of RFC 2890.

use serde::{Deserialize, Serialize};

use super::{
    COUNTERS, Counts, Encapsulation, Outer, OuterArgs, PORTS, Refused, cut, finish, run, strip,
};
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::headers::{IPV4, IPV6, Mac, be16};
use crate::args::ArgError;
use crate::packet::Packet;
use checksum::{csum_fold, csum_partial};

const PROTOCOL: u8 = 47;
/// Type of what is inside: Ethernet frames (transparent Ethernet bridging).
const FRAMES: u16 = 0x6558;

const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;

/// Carries Ethernet frames or IP packets to another host in GRE.
pub struct Gre {
    args: GreArgs,
    outer: Outer,
    /// Of the next packet that is sent.
    sequence: u32,
    /// The last one that was received.
    last: Option<u32>,
    counts: Counts,
}

/// Arguments of [`Gre`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreArgs {
    /// The way between the ends.
    pub outer: OuterArgs,
    /// What is carried.
    #[serde(default)]
    pub mode: Mode,
    /// Number of the tunnel, equal at both ends; packets with another one, or with none, are not
    /// ours.
    #[serde(default)]
    pub key: Option<u32>,
    /// Send a checksum over what is carried. One that comes is always checked.
    #[serde(default)]
    pub checksum: bool,
    /// Send sequence numbers, and discard what comes after its successor.
    #[serde(default)]
    pub sequence: bool,
    /// In mode `ip`: source and destination of the frames that come out.
    #[serde(default)]
    pub from: Mac,
    /// See [`Self::from`].
    #[serde(default)]
    pub to: Mac,
}

/// What a tunnel carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Ethernet frames: Linux's `gretap` and `ip6gretap`.
    #[default]
    Ethernet,
    /// IP packets: Linux's `gre` and `ip6gre`.
    Ip,
}

impl Kind for Gre {
    const NAME: &'static str = "Gre";
    const ABOUT: &'static str =
        "a GRE tunnel for frames or IP packets, between 'inner' and 'outer'";
    const INPUTS: Ports = PORTS;
    const OUTPUTS: Ports = PORTS;
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = GreArgs;

    fn check(args: &GreArgs) -> Result<(), ArgError> {
        args.outer.check("outer")
    }

    fn new(args: GreArgs, _context: &Context) -> Result<Self, AppError> {
        let outer = Outer::new(&args.outer, PROTOCOL);
        Ok(Self { args, outer, sequence: 0, last: None, counts: [0; COUNTERS.len()] })
    }
}

impl Encapsulation for Gre {
    fn wrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        finish(packet);
        let kind = match self.args.mode {
            Mode::Ethernet => FRAMES,
            Mode::Ip => strip(packet)?,
        };
        let mut header = [0; 16];
        let (mut length, mut flags) = (4, 0);
        let mut add = |on: bool, flag: u16, bytes: [u8; 4]| {
            if on {
                header[length..length + 4].copy_from_slice(&bytes);
                length += 4;
                flags |= flag;
            }
        };
        add(self.args.checksum, CHECKSUM, [0; 4]);
        add(self.args.key.is_some(), KEY, self.args.key.unwrap_or(0).to_be_bytes());
        add(self.args.sequence, SEQUENCE, self.sequence.to_be_bytes());
        header[..2].copy_from_slice(&flags.to_be_bytes());
        header[2..4].copy_from_slice(&kind.to_be_bytes());
        if !packet.prepend(&header[..length]) {
            return Err(Refused::TooLong);
        }
        if self.args.checksum {
            let sum = csum_fold(csum_partial(packet, 0));
            packet[4..6].copy_from_slice(&sum.to_ne_bytes());
        }
        self.outer.wrap(packet)?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    fn unwrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        let range = self.outer.unwrap(packet)?;
        let gre = &packet[range.clone()];
        let (flags, kind) = (be16(gre, 0).zip(be16(gre, 2))).ok_or(Refused::Malformed)?;
        // Source routing and other versions (PPTP) have other headers behind these bits.
        if flags & !(CHECKSUM | KEY | SEQUENCE) != 0 {
            return Err(Refused::Malformed);
        }
        let mut at = 4;
        let mut field = |flag: u16| -> Result<Option<u32>, Refused> {
            if flags & flag == 0 {
                return Ok(None);
            }
            let bytes = gre.get(at..).and_then(|rest| rest.first_chunk::<4>());
            at += 4;
            bytes.map(|bytes| Some(u32::from_be_bytes(*bytes))).ok_or(Refused::Malformed)
        };
        let (sum, key, sequence) = (field(CHECKSUM)?, field(KEY)?, field(SEQUENCE)?);
        if key != self.args.key {
            return Err(Refused::NotOurs);
        }
        if sum.is_some() && csum_fold(csum_partial(gre, 0)) != 0 {
            return Err(Refused::BadChecksum);
        }
        let inner = range.start + at..range.end;
        let ours = match self.args.mode {
            Mode::Ethernet => kind == FRAMES,
            Mode::Ip => matches!(kind, IPV4 | IPV6),
        };
        if !ours {
            return Err(Refused::NotOurs);
        }
        if self.args.mode == Mode::Ethernet && inner.len() < 14 {
            return Err(Refused::Malformed);
        }
        if self.args.sequence {
            let number = sequence.ok_or(Refused::Malformed)?;
            // Numbers go round: what is less than half of them ahead is newer.
            if self.last.is_some_and(|last| number.wrapping_sub(last) as i32 <= 0) {
                return Err(Refused::OutOfOrder);
            }
            self.last = Some(number);
        }
        cut(packet, inner);
        if self.args.mode == Mode::Ip {
            let mut header = [0; 14];
            header[..6].copy_from_slice(&self.args.to.0);
            header[6..12].copy_from_slice(&self.args.from.0);
            header[12..].copy_from_slice(&kind.to_be_bytes());
            packet.prepend(&header);
        }
        Ok(())
    }

    fn counts(&mut self) -> &mut [u64] {
        &mut self.counts
    }
}

impl App for Gre {
    fn push(&mut self, io: &Io) {
        run(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}
