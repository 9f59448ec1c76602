//! A learning bridge (IEEE 802.1D without spanning tree).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Direction, Io, Kind, Ports};
use crate::apps::headers::{Mac, addresses};
use crate::batch::Batch;
use crate::packet::Packet;
use crate::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Bridge>();
}

/// Sends each frame to the port where its destination was seen, or to all others. A port is an
/// input and an output of the same name.
pub struct Bridge {
    /// Where an address was seen, and when.
    stations: HashMap<Mac, (usize, u64)>,
    /// Names of the ports, and for each its index among the outputs and the inputs.
    ports: Vec<Port>,
    age: u64,
    most: usize,
    learned: u64,
    flooded: u64,
    forwarded: u64,
    filtered: u64,
    next_sweep: u64,
}

struct Port {
    name: String,
    input: Option<usize>,
    output: Option<usize>,
}

/// Arguments of [`Bridge`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BridgeArgs {
    /// Seconds after which an address that was not seen is forgotten.
    pub age: u64,
    /// Most addresses; more are not learned, so that made-up addresses cost no memory.
    pub stations: usize,
}

impl Default for BridgeArgs {
    fn default() -> Self {
        Self { age: 300, stations: 65536 }
    }
}

impl Kind for Bridge {
    const NAME: &'static str = "Bridge";
    const ABOUT: &'static str = "a learning bridge; each name is an input and an output";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = Ports::Any;
    const COUNTERS: &'static [&'static str] =
        &["stations", "learned", "forwarded", "flooded", "filtered"];
    type Args = BridgeArgs;

    fn new(args: BridgeArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self {
            stations: HashMap::new(),
            ports: Vec::new(),
            age: args.age.saturating_mul(1_000_000_000),
            most: args.stations,
            learned: 0,
            flooded: 0,
            forwarded: 0,
            filtered: 0,
            next_sweep: 0,
        })
    }
}

/// Where a frame goes.
enum Way {
    Nowhere,
    /// A place in the list of ports.
    Port(usize),
    AllBut(usize),
}

impl Bridge {
    /// Learns the source and looks the destination up.
    fn way(&mut self, frame: &[u8], from: usize, now: u64) -> Way {
        let Some((destination, source)) = addresses(frame) else { return Way::Nowhere };
        if !source.is_group() {
            let room = self.stations.len() < self.most;
            match self.stations.get_mut(&source) {
                Some(seen) => *seen = (from, now),
                None if room => {
                    self.stations.insert(source, (from, now));
                    self.learned += 1;
                }
                None => {}
            }
        }
        match self.stations.get(&destination) {
            Some((port, _)) if *port == from => Way::Nowhere,
            Some((port, seen)) if now.saturating_sub(*seen) <= self.age => Way::Port(*port),
            _ => Way::AllBut(from),
        }
    }

    fn send(&mut self, packet: Packet, way: &Way, io: &Io) {
        match way {
            Way::Nowhere => self.filtered += 1,
            Way::Port(port) => {
                self.forwarded += 1;
                if let Some(output) = self.ports[*port].output.and_then(|index| io.output(index)) {
                    output.transmit(packet);
                }
            }
            Way::AllBut(from) => {
                self.flooded += 1;
                let others = self.ports.iter().enumerate().filter(|(place, _)| place != from);
                let mut outputs = others.filter_map(|(_, port)| io.output(port.output?));
                let last = outputs.next_back();
                for output in outputs {
                    output.transmit_copies_of(std::slice::from_ref(&packet));
                }
                if let Some(output) = last {
                    output.transmit(packet);
                }
            }
        }
    }
}

impl App for Bridge {
    fn push(&mut self, io: &Io) {
        let mut batch = Batch::new();
        for from in 0..self.ports.len() {
            let Some(input) = self.ports[from].input.and_then(|index| io.input(index)) else {
                continue;
            };
            let mut waiting = input.length();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                for packet in batch.drain() {
                    let way = self.way(&packet, from, io.now());
                    self.send(packet, &way, io);
                }
            }
        }
    }

    fn tick(&mut self, io: &Io) {
        if io.now() >= self.next_sweep {
            self.next_sweep = io.now() + 1_000_000_000;
            let (now, age) = (io.now(), self.age);
            self.stations.retain(|_, (_, seen)| now.saturating_sub(*seen) <= age);
        }
    }

    fn link(&mut self, direction: Direction, name: &str, index: usize) {
        let place = self.ports.iter().position(|port| port.name == name).unwrap_or_else(|| {
            self.ports.push(Port { name: name.to_string(), input: None, output: None });
            self.ports.len() - 1
        });
        match direction {
            Direction::Input => self.ports[place].input = Some(index),
            Direction::Output => self.ports[place].output = Some(index),
        }
    }

    /// A port keeps its place: addresses are known by it.
    fn unlink(&mut self, direction: Direction, name: &str) {
        let Some(place) = self.ports.iter().position(|port| port.name == name) else { return };
        match direction {
            Direction::Input => self.ports[place].input = None,
            Direction::Output => self.ports[place].output = None,
        }
        self.stations.retain(|_, (port, _)| *port != place);
    }

    fn counters(&self, values: &mut [u64]) {
        let stations = self.stations.len() as u64;
        values.copy_from_slice(&[
            stations,
            self.learned,
            self.forwarded,
            self.flooded,
            self.filtered,
        ]);
    }
}
