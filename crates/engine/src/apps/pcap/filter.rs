//! A filter in the language of tcpdump, with the state of connections if it is asked for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::basic::{Each, each};
use crate::apps::connections::{Connections, key};
use crate::apps::headers::{IPV4, IPV6, payload};
use crate::apps::transport::{Flow, flow};
use crate::args::ArgError;
use crate::bpf::{Program, compile};
use crate::flow_table::Key;
use crate::packet::Packet;

/// Connections that a table knows at once.
const CONNECTIONS: usize = 65536;

/// Lets packets through that match an expression, and those of connections that such packets began.
pub struct PcapFilter {
    program: Program,
    table: Option<Table>,
    accepted: u64,
    rejected: u64,
    known: u64,
}

/// Arguments of [`PcapFilter`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapFilterArgs {
    /// As for tcpdump: `"udp port 53"`; see pcap-filter(7).
    pub filter: String,
    /// Name of a table of connections. A packet of TCP, UDP or an ICMP echo that matches begins one, and
    /// whatever belongs to a known one passes, in both directions and through all filters of this
    /// engine thread that name the same table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_table: Option<String>,
}

fn program(args: &PcapFilterArgs) -> Result<Program, ArgError> {
    compile(&args.filter).map_err(|error| ArgError::wrong("filter", error.to_string()))
}

/// A table that filters share.
struct Table {
    name: String,
    connections: Rc<RefCell<Connections>>,
}

thread_local! {
    static TABLES: RefCell<HashMap<String, Weak<RefCell<Connections>>>> = RefCell::default();
}

impl Table {
    /// The one of this name, which goes with the last filter that has it.
    fn named(name: &str) -> Self {
        let connections = TABLES.with_borrow_mut(|tables| {
            tables.retain(|_, table| table.strong_count() > 0);
            let known = tables.get(name).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let new = Rc::new(RefCell::new(Connections::new(CONNECTIONS)));
                tables.insert(name.to_string(), Rc::downgrade(&new));
                new
            })
        });
        Self { name: name.to_string(), connections }
    }
}

/// The connection that a packet belongs to, its flow, and which end sent it. What begins none, such as an
/// error of ICMP or a later fragment, has none.
fn connection(frame: &[u8]) -> Option<(Key, Flow, usize)> {
    let (IPV4 | IPV6, at) = payload(frame)? else { return None };
    let packet = flow(&frame[at..], false).ok().filter(|flow| flow.ports != [0; 2])?;
    // The end that comes first in order, wherever the filter stands.
    let [from, to] = packet.ports;
    let later = (&packet.source, from) > (&packet.destination, to);
    Some((key(&packet, later.into()), packet, later.into()))
}

impl Kind for PcapFilter {
    const NAME: &'static str = "PcapFilter";
    const ABOUT: &'static str = "lets packets through that match a tcpdump expression";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["accepted", "rejected", "known", "connections"];
    type Args = PcapFilterArgs;

    fn check(args: &PcapFilterArgs) -> Result<(), ArgError> {
        program(args).map(|_| ())
    }

    fn new(args: PcapFilterArgs, _context: &Context) -> Result<Self, AppError> {
        let table = args.state_table.as_deref().map(Table::named);
        let program = program(&args)?;
        Ok(Self { program, table, accepted: 0, rejected: 0, known: 0 })
    }

    /// Known connections go on, unless the table is another one.
    fn reconfigure(&mut self, args: PcapFilterArgs) -> Result<Reconfigured, AppError> {
        self.program = program(&args)?;
        if self.table.as_ref().map(|table| &table.name) != args.state_table.as_ref() {
            self.table = args.state_table.as_deref().map(Table::named);
        }
        Ok(Reconfigured::Done)
    }
}

/// Judges each packet by itself.
struct Alone<'a> {
    program: &'a Program,
    all: u64,
    accepted: u64,
}

impl Each for Alone<'_> {
    #[inline(always)]
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let accepted = self.program.run(packet) != 0;
        self.all += 1;
        self.accepted += u64::from(accepted);
        accepted
    }
}

/// Judges each packet by the connection that it belongs to.
struct Connected<'a, 'p> {
    alone: &'a mut Alone<'p>,
    connections: &'a mut Connections,
    now: u64,
    known: u64,
}

impl Each for Connected<'_, '_> {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let connection = connection(packet);
        if let Some((key, flow, from)) = &connection
            && let Some(at) = self.connections.find(key)
        {
            self.connections.go_on(at, flow, *from, self.now);
            self.known += 1;
            return true;
        }
        let accepted = self.alone.keep(packet);
        if let (true, Some((key, _, from))) = (accepted, connection) {
            // Without room for it the next packet is judged as this one.
            self.connections.begin(key, from, self.now);
        }
        accepted
    }
}

impl App for PcapFilter {
    fn push(&mut self, io: &Io) {
        let mut alone = Alone { program: &self.program, all: 0, accepted: 0 };
        match &self.table {
            None => each(io, &mut alone),
            Some(table) => {
                let mut connections = table.connections.borrow_mut();
                let mut connected = Connected {
                    alone: &mut alone,
                    connections: &mut connections,
                    now: io.now(),
                    known: 0,
                };
                each(io, &mut connected);
                self.known += connected.known;
            }
        }
        self.accepted += alone.accepted;
        self.rejected += alone.all - alone.accepted;
    }

    fn tick(&mut self, io: &Io) {
        if let Some(table) = &self.table {
            table.connections.borrow_mut().expire(io.now());
        }
    }

    fn counters(&self, values: &mut [u64]) {
        let known = self.table.as_ref().map_or(0, |table| table.connections.borrow().len() as u64);
        values.copy_from_slice(&[self.accepted, self.rejected, self.known, known]);
    }
}
