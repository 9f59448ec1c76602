//! A filter in the language of tcpdump.

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::basic::{Each, each};
use crate::args::ArgError;
use crate::bpf::{Program, compile};
use crate::packet::Packet;

/// Lets packets through that match an expression.
pub struct PcapFilter {
    program: Program,
    accepted: u64,
    rejected: u64,
}

/// Arguments of [`PcapFilter`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapFilterArgs {
    /// As for tcpdump: `"udp port 53"`; see pcap-filter(7).
    pub filter: String,
}

fn program(args: &PcapFilterArgs) -> Result<Program, ArgError> {
    compile(&args.filter).map_err(|error| ArgError::wrong("filter", error.to_string()))
}

impl Kind for PcapFilter {
    const NAME: &'static str = "PcapFilter";
    const ABOUT: &'static str = "lets packets through that match a tcpdump expression";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["accepted", "rejected"];
    type Args = PcapFilterArgs;

    fn check(args: &PcapFilterArgs) -> Result<(), ArgError> {
        program(args).map(|_| ())
    }

    fn new(args: PcapFilterArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { program: program(&args)?, accepted: 0, rejected: 0 })
    }

    fn reconfigure(&mut self, args: PcapFilterArgs) -> Result<Reconfigured, AppError> {
        self.program = program(&args)?;
        Ok(Reconfigured::Done)
    }
}

impl Each for PcapFilter {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let kept = self.program.run(packet) != 0;
        self.accepted += u64::from(kept);
        self.rejected += u64::from(!kept);
        kept
    }
}

impl App for PcapFilter {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.accepted, self.rejected]);
    }
}
