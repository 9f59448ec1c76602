//! VXLAN (RFC 7348) between two ends.

use serde::{Deserialize, Serialize};

use super::{COUNTERS, Counts, Encapsulation, Outer, OuterArgs, PORTS, Refused, cut, finish, run};
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::rss::Toeplitz;
use crate::args::ArgError;
use crate::packet::Packet;
use checksum::UDP;

/// The number of the network is there.
const VALID: u8 = 0x08;

/// Carries Ethernet frames of one network to another host in UDP.
pub struct Vxlan {
    vni: [u8; 3],
    port: u16,
    outer: Outer,
    /// Gives the packets of a flow one source port, so that those between take one way with them.
    flows: Box<Toeplitz>,
    counts: Counts,
}

/// Arguments of [`Vxlan`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VxlanArgs {
    /// The way between the ends.
    pub outer: OuterArgs,
    /// Number of the network, 0 to 16777215.
    pub vni: u32,
    /// UDP port of both ends.
    #[serde(default = "port")]
    pub port: u16,
}

fn port() -> u16 {
    4789
}

impl Kind for Vxlan {
    const NAME: &'static str = "Vxlan";
    const ABOUT: &'static str = "a VXLAN tunnel to one other end, between 'inner' and 'outer'";
    const INPUTS: Ports = PORTS;
    const OUTPUTS: Ports = PORTS;
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = VxlanArgs;

    fn check(args: &VxlanArgs) -> Result<(), ArgError> {
        if args.vni >> 24 != 0 {
            return Err(ArgError::wrong("vni", "is a number from 0 to 16777215"));
        }
        if args.port == 0 {
            return Err(ArgError::wrong("port", "is a number from 1 to 65535"));
        }
        args.outer.check("outer")
    }

    fn new(args: VxlanArgs, _context: &Context) -> Result<Self, AppError> {
        let [_, a, b, c] = args.vni.to_be_bytes();
        Ok(Self {
            vni: [a, b, c],
            port: args.port,
            outer: Outer::new(&args.outer, UDP),
            flows: Box::new(Toeplitz::default()),
            counts: [0; COUNTERS.len()],
        })
    }
}

impl Encapsulation for Vxlan {
    fn wrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        finish(packet);
        // The dynamic ports: RFC 7348, 5.
        let source = 0xc000 | (self.flows.frame(packet) & 0x3fff) as u16;
        let [a, b, c] = self.vni;
        if !packet.prepend(&[VALID, 0, 0, 0, a, b, c, 0]) {
            return Err(Refused::TooLong);
        }
        self.outer.wrap_udp(packet, [source, self.port])
    }

    fn unwrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        let range = self.outer.unwrap_udp(packet, self.port)?;
        let header = packet[range.clone()].first_chunk::<8>().ok_or(Refused::Malformed)?;
        if header[0] & VALID == 0 || range.len() < 8 + 14 {
            return Err(Refused::Malformed);
        }
        if header[4..7] != self.vni {
            return Err(Refused::NotOurs);
        }
        cut(packet, range.start + 8..range.end);
        Ok(())
    }

    fn counts(&mut self) -> &mut [u64] {
        &mut self.counts
    }
}

impl App for Vxlan {
    fn push(&mut self, io: &Io) {
        run(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}
