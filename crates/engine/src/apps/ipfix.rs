//! Flow export by IPFIX (RFC 7011, with the information elements of IANA's registry).
//!
//! Packets pass from `input` to `output` as they are. What is known of their flows leaves by
//! `export`, in UDP datagrams to a collector.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::headers::{IPV4, IPV6, be16, payload};
use crate::apps::transport::{FIN, RST, flow};
use crate::apps::tunnel::{Outer, OuterArgs};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::flow_table::{FlowTable, Key};
use crate::packet::Packet;
use crate::registry::Registry;
use checksum::UDP;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Ipfix>();
}

/// Counts the flows that pass and tells a collector of them.
pub struct Ipfix {
    flows: FlowTable<Flow, 1>,
    outer: Outer,
    args: IpfixArgs,
    /// Messages that are not full yet, of IPv4 and of IPv6.
    open: [Option<Packet>; 2],
    /// Records that were sent.
    sequence: u32,
    /// When templates are due again: nanoseconds of the engine's clock.
    templates: u64,
    /// What the engine's clock lacks of the time since 1970, in nanoseconds.
    since_1970: u64,
    counts: [u64; COUNTERS.len()],
}

/// Arguments of [`Ipfix`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpfixArgs {
    /// The way to the collector.
    pub collector: OuterArgs,
    /// The collector's UDP port, which is ours, too.
    #[serde(default = "port")]
    pub port: u16,
    /// Number of the observation domain.
    #[serde(default)]
    pub domain: u32,
    /// Seconds without packets after which a flow has ended.
    #[serde(default = "idle")]
    pub idle: f64,
    /// Seconds after which a flow that goes on is told.
    #[serde(default = "active")]
    pub active: f64,
    /// Seconds between two tellings of the templates.
    #[serde(default = "templates")]
    pub templates: f64,
    /// Most flows that are known at once, 1 to 2^24; the one without packets for longest is told
    /// and goes when another begins.
    #[serde(default = "flows")]
    pub flows: usize,
}

fn port() -> u16 {
    4739
}

fn idle() -> f64 {
    15.0
}

fn active() -> f64 {
    120.0
}

fn templates() -> f64 {
    60.0
}

fn flows() -> usize {
    65536
}

const COUNTERS: &[&str] = &["flows", "records", "messages", "not_flows", "no_packet"];
const FLOWS: usize = 0;
const RECORDS: usize = 1;
const MESSAGES: usize = 2;
const NOT_FLOWS: usize = 3;
const NO_PACKET: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    packets: u64,
    octets: u64,
    begun: u64,
    last: u64,
    flags: u8,
}

/// Why a flow is told: values of flowEndReason (136).
const IDLE: u8 = 1;
const ACTIVE: u8 = 2;
const END: u8 = 3;
const RESOURCES: u8 = 5;

const VERSION: u16 = 10;
const HEADER: usize = 16;
/// Longest message: what fits behind headers of IPv6 and UDP in the smallest MTU of IPv6.
const LONGEST: usize = 1232;
const TEMPLATE_SET: u16 = 2;
/// Numbers of the templates of IPv4 and IPv6.
const TEMPLATES: [u16; 2] = [256, 257];
/// Information elements with their lengths, of both templates, in the order of a record; of the
/// addresses those of IPv4: 27 and 28, of 16 bytes, are those of IPv6.
const ELEMENTS: [(u16, u16); 11] = [
    (8, 4),
    (12, 4),
    (7, 2),
    (11, 2),
    (4, 1),
    (6, 1),
    (136, 1),
    (2, 8),
    (1, 8),
    (152, 8),
    (153, 8),
];

impl Kind for Ipfix {
    const NAME: &'static str = "Ipfix";
    const ABOUT: &'static str =
        "passes packets from 'input' to 'output' and tells a collector of their flows by 'export'";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output", "export"]);
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = IpfixArgs;

    fn check(args: &IpfixArgs) -> Result<(), ArgError> {
        for (key, seconds) in
            [("idle", args.idle), ("active", args.active), ("templates", args.templates)]
        {
            if !(seconds > 0.0 && seconds <= 86400.0) {
                return Err(ArgError::wrong(key, "is a number of seconds, above 0, up to 86400"));
            }
        }
        if !(1..=1 << 24).contains(&args.flows) {
            return Err(ArgError::wrong("flows", "is a number from 1 to 16777216"));
        }
        args.collector.check("collector")
    }

    fn new(args: IpfixArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self {
            flows: FlowTable::new(args.flows),
            outer: Outer::new(&args.collector, UDP),
            open: [None, None],
            sequence: 0,
            templates: 0,
            since_1970: 0,
            counts: [0; COUNTERS.len()],
            args,
        })
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Ipfix {
    fn see(&mut self, io: &Io, frame: &[u8]) {
        let Some((IPV4 | IPV6, at)) = payload(frame) else {
            self.counts[NOT_FLOWS] += 1;
            return;
        };
        let ip = &frame[at..];
        let Ok(packet) = flow(ip, false) else {
            self.counts[NOT_FLOWS] += 1;
            return;
        };
        let octets = if packet.v6 {
            be16(ip, 4).map(|length| 40 + u64::from(length))
        } else {
            be16(ip, 2).map(u64::from)
        };
        let mut key = [0; 40];
        key[..16].copy_from_slice(&packet.source);
        key[16..32].copy_from_slice(&packet.destination);
        key[32..34].copy_from_slice(&packet.ports[0].to_be_bytes());
        key[34..36].copy_from_slice(&packet.ports[1].to_be_bytes());
        (key[36], key[37]) = (packet.protocol, u8::from(packet.v6));
        let now = io.now();
        let at = match self.flows.find(&key) {
            Some(at) => at,
            None => {
                if self.flows.is_full()
                    && let Some((oldest, _)) = self.flows.oldest(0)
                {
                    self.end(io, oldest, RESOURCES);
                }
                let new = Flow { begun: now, ..Flow::default() };
                let Some(at) = self.flows.insert(key, new, 0, now) else { return };
                self.counts[FLOWS] += 1;
                at
            }
        };
        self.flows.touch(at, 0, now);
        let flow = self.flows.value_mut(at);
        if flow.packets == 0 {
            flow.begun = now;
        }
        flow.packets += 1;
        flow.octets += octets.unwrap_or(0);
        flow.flags |= packet.flags;
        flow.last = now;
        if packet.flags & (FIN | RST) != 0 {
            self.end(io, at, END);
        } else if now.saturating_sub(flow.begun) >= nanoseconds(self.args.active) {
            // It goes on, counted from nothing.
            let told = std::mem::take(flow);
            self.record(io, &key, &told, ACTIVE);
        }
    }

    /// Tells of a flow and forgets it.
    fn end(&mut self, io: &Io, at: u32, reason: u8) {
        let key = *self.flows.key(at);
        let flow = self.flows.remove(at);
        // What was told just now and had no packets since is no news.
        if flow.packets != 0 {
            self.record(io, &key, &flow, reason);
        }
    }

    fn record(&mut self, io: &Io, key: &Key, flow: &Flow, reason: u8) {
        let v6 = usize::from(key[37]);
        let width = if v6 == 1 { 16 } else { 4 };
        let mut record = [0; 71];
        let mut length = 0;
        let milliseconds = |time: u64| ((time + self.since_1970) / 1_000_000).to_be_bytes();
        for part in [
            &key[..width],
            &key[16..16 + width],
            &key[32..36],
            &[key[36], flow.flags, reason],
            &flow.packets.to_be_bytes(),
            &flow.octets.to_be_bytes(),
            &milliseconds(flow.begun),
            &milliseconds(flow.last),
        ] {
            record[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        let full = |open: &Packet| open.length() + length > LONGEST;
        if self.open[v6].as_ref().is_some_and(full) {
            self.flush(io, v6);
        }
        if self.open[v6].is_none() {
            self.open[v6] = message(TEMPLATES[v6]);
        }
        match &mut self.open[v6] {
            Some(open) => {
                open.append(&record[..length]);
                self.counts[RECORDS] += 1;
            }
            None => self.counts[NO_PACKET] += 1,
        }
    }

    /// Sends the message of records of this version.
    fn flush(&mut self, io: &Io, v6: usize) {
        let Some(open) = self.open[v6].take() else { return };
        let size = if v6 == 1 { 71 } else { 47 };
        let records = (open.length() - HEADER - 4) / size;
        self.send(io, open, records as u32);
    }

    /// Fills a message's header in and sends it.
    fn send(&mut self, io: &Io, mut message: Packet, records: u32) {
        let length = message.length() as u16;
        let time = ((io.now() + self.since_1970) / 1_000_000_000) as u32;
        message[..2].copy_from_slice(&VERSION.to_be_bytes());
        message[2..4].copy_from_slice(&length.to_be_bytes());
        message[4..8].copy_from_slice(&time.to_be_bytes());
        message[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        message[12..16].copy_from_slice(&self.args.domain.to_be_bytes());
        message[18..20].copy_from_slice(&(length - HEADER as u16).to_be_bytes());
        // The number of the next record, also where this message is lost.
        self.sequence = self.sequence.wrapping_add(records);
        let ports = [self.args.port; 2];
        if self.outer.wrap_udp(&mut message, ports).is_ok()
            && let Some(export) = io.output(1)
        {
            self.counts[MESSAGES] += 1;
            export.transmit(message);
        }
    }

    fn tell_templates(&mut self, io: &Io) {
        let Some(mut message) = message(TEMPLATE_SET) else {
            self.counts[NO_PACKET] += 1;
            return;
        };
        for (v6, number) in TEMPLATES.into_iter().enumerate() {
            message.append(&number.to_be_bytes());
            message.append(&(ELEMENTS.len() as u16).to_be_bytes());
            for (element, length) in ELEMENTS {
                let (element, length) = match (element, v6) {
                    (8, 1) => (27, 16),
                    (12, 1) => (28, 16),
                    _ => (element, length),
                };
                message.append(&u16::to_be_bytes(element));
                message.append(&u16::to_be_bytes(length));
            }
        }
        self.send(io, message, 0);
    }
}

/// A message with one set of this number, empty so far.
fn message(set: u16) -> Option<Packet> {
    let mut packet = Packet::allocate()?;
    packet.resize(HEADER + 4);
    packet[HEADER..HEADER + 2].copy_from_slice(&set.to_be_bytes());
    Some(packet)
}

impl Ipfix {
    /// Looks at the clock, and tells of the templates where that is due.
    fn wake(&mut self, io: &Io) {
        let now = io.now();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.since_1970 = (since_1970.as_nanos() as u64).saturating_sub(now);
        if now >= self.templates {
            self.templates = now + nanoseconds(self.args.templates);
            self.tell_templates(io);
        }
    }
}

impl App for Ipfix {
    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        if self.templates == 0 {
            self.wake(io);
        }
        let mut waiting = input.length();
        let mut batch = Batch::new();
        while waiting > 0 {
            waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
            for packet in batch.iter() {
                self.see(io, packet);
            }
            match io.output(0) {
                Some(output) => output.transmit_batch(&mut batch),
                None => batch.clear(),
            }
        }
    }

    fn tick(&mut self, io: &Io) {
        self.wake(io);
        let idle = nanoseconds(self.args.idle);
        while let Some((at, last)) = self.flows.oldest(0)
            && io.now().saturating_sub(last) >= idle
        {
            self.end(io, at, IDLE);
        }
        for v6 in 0..2 {
            self.flush(io, v6);
        }
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}
