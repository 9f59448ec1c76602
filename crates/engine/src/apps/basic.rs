//! Apps that make, discard and copy packets.

mod checks;
mod sort;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::arena::MAX_LENGTH;
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::packet::Packet;
use crate::registry::Registry;

pub use checks::{Crash, CrashArgs, Match, Synth, SynthArgs};
pub use sort::{
    DelayedStart, DelayedStartArgs, Repeater, RepeaterArgs, Sample, SampleArgs, Split, Truncate,
    TruncateArgs,
};
pub(crate) use sort::{Each, each};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Source>();
    registry.register::<Sink>();
    registry.register::<Tee>();
    registry.register::<Join>();
    registry.register::<Split>();
    registry.register::<Repeater>();
    registry.register::<Truncate>();
    registry.register::<Sample>();
    registry.register::<DelayedStart>();
    registry.register::<Synth>();
    registry.register::<Match>();
    registry.register::<Crash>();
}

/// Sends copies of one packet to all outputs, a batch per breath.
pub struct Source {
    template: Packet,
}

/// Arguments of [`Source`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceArgs {
    /// Bytes per packet, without the frame check sequence.
    pub size: usize,
}

impl Default for SourceArgs {
    fn default() -> Self {
        Self { size: 60 }
    }
}

impl Kind for Source {
    const NAME: &'static str = "Source";
    const ABOUT: &'static str = "sends copies of one packet of zeros as fast as it can";
    const OUTPUTS: Ports = Ports::Any;
    const PULLS: bool = true;
    type Args = SourceArgs;

    fn check(args: &SourceArgs) -> Result<(), ArgError> {
        if args.size > MAX_LENGTH {
            return Err(ArgError::wrong(
                "size",
                format!("{} is too long: a packet has up to {MAX_LENGTH} bytes", args.size),
            ));
        }
        Ok(())
    }

    fn new(args: SourceArgs, _context: &Context) -> Result<Self, AppError> {
        let mut template =
            Packet::allocate().ok_or_else(|| AppError::new("all packets are in use"))?;
        template.resize(args.size);
        Ok(Self { template })
    }
}

impl App for Source {
    fn pull(&mut self, io: &Io) {
        for output in io.outputs() {
            output.transmit_copies(&self.template, BATCH);
        }
    }
}

/// Frees what comes in.
pub struct Sink;

impl Kind for Sink {
    const NAME: &'static str = "Sink";
    const ABOUT: &'static str = "discards all packets";
    const INPUTS: Ports = Ports::Any;
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self)
    }
}

impl App for Sink {
    fn push(&mut self, io: &Io) {
        for input in io.inputs() {
            input.discard();
        }
    }
}

/// Sends everything from all inputs to each output.
pub struct Tee;

impl Kind for Tee {
    const NAME: &'static str = "Tee";
    const ABOUT: &'static str = "copies every packet to all outputs";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self)
    }
}

impl App for Tee {
    fn push(&mut self, io: &Io) {
        for input in io.inputs() {
            // Only what waits now, so that a loop through this app ends.
            let mut waiting = input.length();
            while waiting > 0 {
                let mut batch = Batch::new();
                let count = input.receive_batch(&mut batch);
                waiting = waiting.saturating_sub(count);
                let mut outputs = io.outputs();
                let Some(last) = outputs.next_back() else { break };
                for output in outputs {
                    output.transmit_copies_of(&batch);
                }
                last.transmit_batch(&mut batch);
            }
        }
    }
}

/// Sends everything from all inputs to one output.
pub struct Join;

impl Kind for Join {
    const NAME: &'static str = "Join";
    const ABOUT: &'static str = "brings all inputs together";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self)
    }
}

impl App for Join {
    fn push(&mut self, io: &Io) {
        for input in io.inputs() {
            match io.output(0) {
                Some(output) => input.forward(output, usize::MAX),
                None => input.discard(),
            };
        }
    }
}
