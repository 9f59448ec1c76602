//! Apps for tests and trials: made-up traffic, a comparison of two streams, and a crash to rehearse
//! with.

use std::collections::VecDeque;
use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::headers::Mac;
use crate::arena::MAX_LENGTH;
use crate::args::ArgError;
use crate::batch::BATCH;
use crate::packet::Packet;

/// Sends Ethernet frames of given sizes in turn.
pub struct Synth {
    templates: Vec<Packet>,
    next: usize,
    left: u64,
}

/// Arguments of [`Synth`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SynthArgs {
    /// Lengths of the frames without the frame check sequence, one after the other.
    pub sizes: Vec<usize>,
    /// Source address of the frames.
    pub src: Mac,
    /// Destination address of the frames.
    pub dst: Mac,
    /// EtherType of the frames.
    pub ethertype: u16,
    /// Fill the payload with random bytes instead of zeros.
    pub random_payload: bool,
    /// Stop after so many packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
}

impl Default for SynthArgs {
    fn default() -> Self {
        // 88b5 is the number for local experiments, IEEE 802, so that nobody takes the frames for
        // something.
        Self {
            sizes: vec![60],
            src: Mac([2, 0, 0, 0, 0, 1]),
            dst: Mac([2, 0, 0, 0, 0, 2]),
            ethertype: 0x88b5,
            random_payload: false,
            packets: None,
        }
    }
}

impl Kind for Synth {
    const NAME: &'static str = "Synth";
    const ABOUT: &'static str = "sends made-up Ethernet frames of given sizes";
    const OUTPUTS: Ports = Ports::Any;
    const PULLS: bool = true;
    type Args = SynthArgs;

    fn check(args: &SynthArgs) -> Result<(), ArgError> {
        match args.sizes.iter().find(|size| !(14..=MAX_LENGTH).contains(*size)) {
            Some(size) => {
                Err(ArgError::wrong("sizes", format!("{size} is not between 14 and {MAX_LENGTH}")))
            }
            None if args.sizes.is_empty() => {
                Err(ArgError::wrong("sizes", "at least one size is needed"))
            }
            None => Ok(()),
        }
    }

    fn new(args: SynthArgs, _context: &Context) -> Result<Self, AppError> {
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let mut frame = |size: usize| {
            let mut packet = Packet::from_slice(&args.dst.0)?;
            packet.append(&args.src.0);
            packet.append(&args.ethertype.to_be_bytes());
            packet.resize(size);
            if args.random_payload {
                packet[14..].fill_with(|| xorshift(&mut random));
            }
            Some(packet)
        };
        let templates: Option<Vec<Packet>> = args.sizes.iter().map(|size| frame(*size)).collect();
        let templates = templates.ok_or_else(|| AppError::new("all packets are in use"))?;
        Ok(Self { templates, next: 0, left: args.packets.unwrap_or(u64::MAX) })
    }
}

/// Marsaglia's generator: reproducible, and good enough to fill a packet.
fn xorshift(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u8
}

impl App for Synth {
    fn pull(&mut self, io: &Io) {
        for output in io.outputs() {
            let mut wanted =
                BATCH.min(output.room()).min(usize::try_from(self.left).unwrap_or(BATCH));
            while wanted > 0 {
                let part = &self.templates[self.next..];
                let part = &part[..part.len().min(wanted)];
                let sent = output.transmit_copies_of(part);
                self.next = (self.next + sent) % self.templates.len();
                self.left -= sent as u64;
                wanted = if sent < part.len() { 0 } else { wanted - sent };
            }
        }
    }

    fn finished(&self) -> bool {
        self.left == 0
    }
}

/// Compares what comes in with what is expected, packet by packet and byte by byte.
pub struct Match {
    waiting: [VecDeque<Packet>; 2],
    matched: u64,
    differing: u64,
    first: Option<String>,
}

/// The inputs of [`Match`]: what came, and what should have come.
const RX: usize = 0;
const EXPECTED: usize = 1;
/// Packets that one side may be ahead.
const AHEAD: usize = 4096;

impl Kind for Match {
    const NAME: &'static str = "Match";
    const ABOUT: &'static str =
        "compares packets on 'rx' with those on 'expected' and reports the differences";
    const INPUTS: Ports = Ports::Named(&["rx", "expected"]);
    const COUNTERS: &'static [&'static str] = &["matched", "differing", "missing", "surplus"];
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self { waiting: Default::default(), matched: 0, differing: 0, first: None })
    }
}

impl Match {
    /// Packets that were equal, and pairs that were not.
    pub fn result(&self) -> (u64, u64) {
        (self.matched, self.differing)
    }

    /// Packets without a partner so far: missing on 'rx', and surplus there.
    pub fn unpaired(&self) -> (u64, u64) {
        (self.waiting[EXPECTED].len() as u64, self.waiting[RX].len() as u64)
    }

    fn compare(&mut self, rx: &Packet, expected: &Packet) {
        if **rx == **expected {
            self.matched += 1;
            return;
        }
        self.differing += 1;
        let place = rx
            .iter()
            .zip(expected.iter())
            .position(|(a, b)| a != b)
            .unwrap_or(rx.len().min(expected.len()));
        let number = self.matched + self.differing;
        self.first.get_or_insert_with(|| {
            format!(
                "packet {number} differs at byte {place}: {} and {} bytes long",
                rx.len(),
                expected.len()
            )
        });
    }
}

impl App for Match {
    fn push(&mut self, io: &Io) {
        for side in [RX, EXPECTED] {
            while self.waiting[side].len() < AHEAD {
                let Some(packet) = io.input(side).and_then(|input| input.receive()) else { break };
                self.waiting[side].push_back(packet);
            }
        }
        while !self.waiting[RX].is_empty() && !self.waiting[EXPECTED].is_empty() {
            if let (Some(rx), Some(expected)) =
                (self.waiting[RX].pop_front(), self.waiting[EXPECTED].pop_front())
            {
                self.compare(&rx, &expected);
            }
        }
    }

    fn counters(&self, values: &mut [u64]) {
        let (missing, surplus) = self.unpaired();
        values.copy_from_slice(&[self.matched, self.differing, missing, surplus]);
    }

    fn report(&self, out: &mut dyn Write) -> fmt::Result {
        let (missing, surplus) = self.unpaired();
        writeln!(
            out,
            "{} equal, {} different, {missing} missing, {surplus} surplus",
            self.matched, self.differing
        )?;
        self.first.as_ref().map_or(Ok(()), |first| writeln!(out, "{first}"))
    }
}

/// Lets packets pass and then panics: what an operator sees when an app has a fault.
pub struct Crash {
    left: u64,
}

/// Arguments of [`Crash`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashArgs {
    /// Packets that pass before.
    pub packets: u64,
}

impl Kind for Crash {
    const NAME: &'static str = "Crash";
    const ABOUT: &'static str = "lets so many packets pass and then crashes, to rehearse it";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    type Args = CrashArgs;

    fn new(args: CrashArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { left: args.packets })
    }
}

impl App for Crash {
    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let passing = input.length().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        match io.output(0) {
            Some(output) => _ = input.forward(output, passing),
            None => (0..passing).for_each(|_| drop(input.receive())),
        }
        self.left -= passing as u64;
        assert!(input.is_empty(), "as configured, all its packets have passed");
    }
}
