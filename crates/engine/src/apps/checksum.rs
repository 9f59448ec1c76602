//! Internet checksums of IPv4 headers, TCP, UDP, ICMP and ICMPv6: put in, or checked. See
//! [`checksum::packet`].

use checksum::packet::{Outcome, fill, verify};
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::basic::{Each, each};
use crate::apps::headers::{IPV4, IPV6, payload};
use crate::packet::{CHECKSUM_VALID, NEEDS_CHECKSUM, Packet};
use crate::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Checksum>();
}

/// Fills checksums in, or discards packets with wrong ones. What is no IP passes.
pub struct Checksum {
    mode: Mode,
    done: u64,
    bad: u64,
    none: u64,
}

/// Arguments of [`Checksum`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChecksumArgs {
    /// Whether sums are put in or compared.
    pub mode: Mode,
}

/// What [`Checksum`] does with the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Computes them and puts them in.
    Fill,
    /// Compares them, and discards packets where they are wrong.
    Verify,
}

impl Kind for Checksum {
    const NAME: &'static str = "Checksum";
    const ABOUT: &'static str =
        "fills in IP, TCP, UDP and ICMP checksums, or discards packets where they are wrong";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["done", "bad", "none"];
    type Args = ChecksumArgs;

    fn new(args: ChecksumArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { mode: args.mode, done: 0, bad: 0, none: 0 })
    }

    fn reconfigure(&mut self, args: ChecksumArgs) -> Result<Reconfigured, AppError> {
        self.mode = args.mode;
        Ok(Reconfigured::Done)
    }
}

impl Each for Checksum {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let Some((IPV4 | IPV6, start)) = payload(packet) else {
            self.none += 1;
            return true;
        };
        // A mark says that the transport's checksum is not there yet, by agreement: it must be
        // before it can be checked.
        let marked = packet.flags & NEEDS_CHECKSUM != 0;
        let outcome = match self.mode {
            Mode::Verify if !marked => verify(&packet[start..]),
            _ => fill(&mut packet[start..]),
        };
        packet.flags &= !NEEDS_CHECKSUM;
        match outcome {
            Ok(Outcome::Complete) => {
                packet.flags |= CHECKSUM_VALID;
                self.done += 1;
            }
            Ok(_) => self.none += 1,
            Err(_) => self.bad += 1,
        }
        // Only a check discards: a packet that cannot be filled in goes on as it came.
        outcome.is_ok() || self.mode == Mode::Fill
    }
}

impl App for Checksum {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.done, self.bad, self.none]);
    }
}
