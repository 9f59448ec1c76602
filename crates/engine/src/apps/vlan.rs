//! VLAN tags (IEEE 802.1Q): put on, taken off, and a trunk taken apart and put together.

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Direction, Io, Kind, Ports};
use crate::apps::basic::{Each, each};
use crate::apps::headers::{QINQ, VLAN, be16};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::link::Link;
use crate::packet::{NEEDS_CHECKSUM, Packet};
use crate::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Tagger>();
    registry.register::<Untagger>();
    registry.register::<VlanMux>();
}

const TAG: usize = 4;
/// The addresses, before which a tag stands behind.
const ADDRESSES: usize = 12;

/// Arguments of [`Tagger`] and [`Untagger`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagArgs {
    /// Number of the VLAN, 0 to 4094.
    pub tag: u16,
    /// Priority, 0 to 7.
    #[serde(default)]
    pub priority: u8,
    /// Type of the tag: 0x8100, or 0x88a8 for the outer tag of a provider bridge.
    #[serde(default = "tpid")]
    pub tpid: u16,
}

fn tpid() -> u16 {
    VLAN
}

impl TagArgs {
    fn check(&self) -> Result<(), ArgError> {
        match self {
            Self { tag: 4095.., .. } => Err(ArgError::wrong("tag", "is a number from 0 to 4094")),
            Self { priority: 8.., .. } => {
                Err(ArgError::wrong("priority", "is a number from 0 to 7"))
            }
            Self { tpid: VLAN | QINQ, .. } => Ok(()),
            _ => Err(ArgError::wrong("tpid", "is 0x8100 or 0x88a8")),
        }
    }

    fn bytes(&self) -> [u8; TAG] {
        let [a, b] = self.tpid.to_be_bytes();
        let [c, d] = (u16::from(self.priority) << 13 | self.tag).to_be_bytes();
        [a, b, c, d]
    }
}

/// Puts a tag behind the addresses; false if the packet is no frame or has no room.
fn push_tag(packet: &mut Packet, tag: [u8; TAG]) -> bool {
    if packet.length() < ADDRESSES + 2 || !packet.grow_front(TAG) {
        return false;
    }
    packet.copy_within(TAG..TAG + ADDRESSES, 0);
    packet[ADDRESSES..ADDRESSES + TAG].copy_from_slice(&tag);
    if packet.flags & NEEDS_CHECKSUM != 0 {
        packet.checksum_start += TAG as u16;
    }
    true
}

/// The number of the VLAN, and the type of the tag.
fn tag_of(packet: &Packet) -> Option<(u16, u16)> {
    let tpid = be16(packet, ADDRESSES)?;
    matches!(tpid, VLAN | QINQ).then_some(())?;
    // The type of what follows must be there, too.
    be16(packet, ADDRESSES + TAG)?;
    Some((tpid, be16(packet, ADDRESSES + 2)? & 0xfff))
}

/// Takes the tag off that [`tag_of`] found.
fn pop_tag(packet: &mut Packet) {
    packet.copy_within(0..ADDRESSES, TAG);
    packet.shrink_front(TAG);
    packet.checksum_start = packet.checksum_start.saturating_sub(TAG as u16);
}

/// Puts one tag on all frames.
pub struct Tagger {
    tag: [u8; TAG],
}

impl Kind for Tagger {
    const NAME: &'static str = "Tagger";
    const ABOUT: &'static str = "puts a VLAN tag on all frames";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    type Args = TagArgs;

    fn check(args: &TagArgs) -> Result<(), ArgError> {
        args.check()
    }

    fn new(args: TagArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { tag: args.bytes() })
    }
}

impl Each for Tagger {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        push_tag(packet, self.tag)
    }
}

impl App for Tagger {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }
}

/// Lets frames of one VLAN through, without their tag.
pub struct Untagger {
    tag: (u16, u16),
    others: u64,
}

impl Kind for Untagger {
    const NAME: &'static str = "Untagger";
    const ABOUT: &'static str = "takes the tag off frames of one VLAN and discards all others";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["others"];
    type Args = TagArgs;

    fn check(args: &TagArgs) -> Result<(), ArgError> {
        args.check()
    }

    fn new(args: TagArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { tag: (args.tpid, args.tag), others: 0 })
    }
}

impl Each for Untagger {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let ours = tag_of(packet) == Some(self.tag);
        if ours {
            pop_tag(packet);
        }
        self.others += u64::from(!ours);
        ours
    }
}

impl App for Untagger {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values[0] = self.others;
    }
}

/// Joins access ports to a trunk. Port `trunk` carries tags, `native` is untagged there, `vlan7` is
/// VLAN 7.
pub struct VlanMux {
    /// Output for each VLAN on the trunk.
    outputs: Vec<Option<usize>>,
    trunk: Option<usize>,
    native: Option<usize>,
    inputs: Vec<Option<Port>>,
    unknown: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Port {
    Trunk,
    Native,
    Vlan(u16),
}

fn port(name: &str) -> Option<Port> {
    match name {
        "trunk" => Some(Port::Trunk),
        "native" => Some(Port::Native),
        _ => name.strip_prefix("vlan")?.parse().ok().filter(|tag| *tag < 4095).map(Port::Vlan),
    }
}

impl Kind for VlanMux {
    const NAME: &'static str = "VlanMux";
    const ABOUT: &'static str = "joins ports vlan1, vlan2, ... and native to a tagged trunk";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    const COUNTERS: &'static [&'static str] = &["unknown"];
    type Args = ();

    fn new((): (), _context: &Context) -> Result<Self, AppError> {
        Ok(Self {
            outputs: vec![None; 4096],
            trunk: None,
            native: None,
            inputs: Vec::new(),
            unknown: 0,
        })
    }
}

impl VlanMux {
    fn place(&mut self, name: &str) -> Option<&mut Option<usize>> {
        Some(match port(name)? {
            Port::Trunk => &mut self.trunk,
            Port::Native => &mut self.native,
            Port::Vlan(tag) => &mut self.outputs[usize::from(tag)],
        })
    }

    /// Changes a packet for where it goes, and says where that is.
    fn route<'a>(&mut self, packet: &mut Packet, from: Port, io: &'a Io) -> Option<&'a Link> {
        let output = match (from, tag_of(packet)) {
            (Port::Vlan(tag), _) => {
                let args = TagArgs { tag, priority: 0, tpid: VLAN };
                self.trunk.filter(|_| push_tag(packet, args.bytes()))
            }
            (Port::Native, _) => self.trunk,
            (Port::Trunk, Some((VLAN, tag))) => {
                let output = self.outputs[usize::from(tag)];
                if output.is_some() {
                    pop_tag(packet);
                }
                output
            }
            (Port::Trunk, _) => self.native,
        };
        self.unknown += u64::from(output.is_none());
        io.output(output?)
    }
}

impl App for VlanMux {
    fn push(&mut self, io: &Io) {
        let mut batch = Batch::new();
        for index in 0..self.inputs.len() {
            let (Some(input), from) = (io.input(index), self.inputs[index]) else { continue };
            let Some(from) = from else {
                self.unknown += input.discard() as u64;
                continue;
            };
            let mut waiting = input.length();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                for mut packet in batch.drain() {
                    if let Some(output) = self.route(&mut packet, from, io) {
                        output.transmit(packet);
                    }
                }
            }
        }
    }

    fn link(&mut self, direction: Direction, name: &str, index: usize) {
        match direction {
            Direction::Input => {
                self.inputs.resize(self.inputs.len().max(index + 1), None);
                self.inputs[index] = port(name);
            }
            Direction::Output => {
                if let Some(place) = self.place(name) {
                    *place = Some(index);
                }
            }
        }
    }

    fn unlink(&mut self, direction: Direction, name: &str) {
        if let (Direction::Output, Some(place)) = (direction, self.place(name)) {
            *place = None;
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values[0] = self.unknown;
    }
}
