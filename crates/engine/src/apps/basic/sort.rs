//! Apps that pick among packets or change their number.

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::arena::MAX_LENGTH;
use crate::args::ArgError;
use crate::batch::{BATCH, Batch};
use crate::packet::Packet;

/// Deals packets out to all outputs in turn, a batch each.
pub struct Split {
    next: usize,
}

impl Kind for Split {
    const NAME: &'static str = "Split";
    const ABOUT: &'static str = "deals packets out to all outputs in turn";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self { next: 0 })
    }
}

impl App for Split {
    fn push(&mut self, io: &Io) {
        let outputs = io.outputs().count();
        for input in io.inputs() {
            let mut waiting = input.length();
            while waiting > 0 {
                let Some(output) = io.outputs().nth(self.next % outputs.max(1)) else {
                    input.discard();
                    break;
                };
                self.next = (self.next + 1) % outputs;
                waiting = waiting.saturating_sub(input.forward(output, waiting.min(BATCH)));
            }
        }
    }
}

/// Keeps what came in and sends copies of it, in order, again and again.
pub struct Repeater {
    kept: Vec<Packet>,
    next: usize,
    limit: usize,
    refused: u64,
}

/// Arguments of [`Repeater`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepeaterArgs {
    /// Most packets to keep; more are discarded.
    pub limit: usize,
}

impl Default for RepeaterArgs {
    fn default() -> Self {
        Self { limit: 16384 }
    }
}

impl Kind for Repeater {
    const NAME: &'static str = "Repeater";
    const ABOUT: &'static str = "keeps all packets and sends copies of them for ever";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] = &["kept", "refused"];
    type Args = RepeaterArgs;

    fn new(args: RepeaterArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self {
            kept: Vec::with_capacity(args.limit.min(1 << 16)),
            next: 0,
            limit: args.limit,
            refused: 0,
        })
    }
}

impl App for Repeater {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0).filter(|_| !self.kept.is_empty()) else { return };
        let mut left = BATCH.min(output.room());
        while left > 0 {
            let part = &self.kept[self.next..];
            let part = &part[..part.len().min(left)];
            let sent = output.transmit_copies_of(part);
            self.next = (self.next + sent) % self.kept.len();
            if sent < part.len() {
                return;
            }
            left -= sent;
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        for _ in 0..input.length() {
            match input.receive() {
                Some(packet) if self.kept.len() < self.limit => self.kept.push(packet),
                Some(_) => self.refused += 1,
                None => break,
            }
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.kept.len() as u64, self.refused]);
    }
}

/// What an app does with each packet of a batch: change it, or leave it out.
pub(crate) trait Each {
    fn keep(&mut self, packet: &mut Packet) -> bool;
}

/// Takes all that waits on input 0 through `each` and sends what is kept to output 0.
pub(crate) fn each(io: &Io, each: &mut impl Each) {
    let Some(input) = io.input(0) else { return };
    let mut waiting = input.length();
    let mut batch = Batch::new();
    while waiting > 0 {
        waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
        batch.retain(|packet| each.keep(packet));
        match io.output(0) {
            Some(output) => output.transmit_batch(&mut batch),
            None => batch.clear(),
        }
    }
}

/// Cuts packets off.
pub struct Truncate {
    length: usize,
}

/// Arguments of [`Truncate`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TruncateArgs {
    /// Bytes that are kept.
    pub length: usize,
}

impl Kind for Truncate {
    const NAME: &'static str = "Truncate";
    const ABOUT: &'static str = "makes all packets the same length, cutting or filling with zeros";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    type Args = TruncateArgs;

    fn check(args: &TruncateArgs) -> Result<(), ArgError> {
        if args.length > MAX_LENGTH {
            return Err(ArgError::wrong(
                "length",
                format!("a packet has up to {MAX_LENGTH} bytes"),
            ));
        }
        Ok(())
    }

    fn new(args: TruncateArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { length: args.length })
    }

    fn reconfigure(&mut self, args: TruncateArgs) -> Result<Reconfigured, AppError> {
        self.length = args.length;
        Ok(Reconfigured::Done)
    }
}

impl Each for Truncate {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        packet.resize(self.length)
    }
}

impl App for Truncate {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }
}

/// Lets every n-th packet through.
pub struct Sample {
    every: u64,
    seen: u64,
}

/// Arguments of [`Sample`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleArgs {
    /// One of so many is kept.
    pub every: u64,
}

impl Kind for Sample {
    const NAME: &'static str = "Sample";
    const ABOUT: &'static str = "lets one of every so many packets through";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    type Args = SampleArgs;

    fn check(args: &SampleArgs) -> Result<(), ArgError> {
        if args.every == 0 { Err(ArgError::wrong("every", "is at least 1")) } else { Ok(()) }
    }

    fn new(args: SampleArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { every: args.every, seen: 0 })
    }

    fn reconfigure(&mut self, args: SampleArgs) -> Result<Reconfigured, AppError> {
        *self = Self { every: args.every, seen: 0 };
        Ok(Reconfigured::Done)
    }
}

impl Each for Sample {
    fn keep(&mut self, _packet: &mut Packet) -> bool {
        self.seen += 1;
        let kept = self.seen == self.every;
        if kept {
            self.seen = 0;
        }
        kept
    }
}

impl App for Sample {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }
}

/// Lets nothing through for a while; packets wait on its input meanwhile.
pub struct DelayedStart {
    delay: u64,
    opens: Option<u64>,
}

/// Arguments of [`DelayedStart`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayedStartArgs {
    /// Seconds.
    pub delay: f64,
}

impl Kind for DelayedStart {
    const NAME: &'static str = "DelayedStart";
    const ABOUT: &'static str =
        "holds packets back for some seconds after its start, then lets all through";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    type Args = DelayedStartArgs;

    fn check(args: &DelayedStartArgs) -> Result<(), ArgError> {
        let valid = (0.0..=1e9).contains(&args.delay);
        if valid {
            Ok(())
        } else {
            Err(ArgError::wrong("delay", "is a number of seconds, 0 or more"))
        }
    }

    fn new(args: DelayedStartArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { delay: (args.delay * 1e9) as u64, opens: None })
    }
}

impl App for DelayedStart {
    fn push(&mut self, io: &Io) {
        // Counted from the first breath, since links are attached before it.
        let opens = *self.opens.get_or_insert(io.now() + self.delay);
        if io.now() < opens {
            return;
        }
        if let (Some(input), Some(output)) = (io.input(0), io.output(0)) {
            input.forward(output, usize::MAX);
        }
    }
}
