//! An access list with the state of connections: what was let through is answered.

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::connections::{Connections, key};
use crate::apps::headers::{IPV4, IPV6, payload};
use crate::apps::transport::{ACK, FIN, RST, SYN, Unknown, flow};
use crate::args::ArgError;
use crate::batch::Batch;
use crate::packet::Packet;
use crate::registry::Registry;
use checksum::{ICMP, ICMPV6, TCP};
use rule::Test;

mod rule;

pub use rule::{Action, Protocol, Rule, Side};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Acl>();
}

/// Stands between two networks and lets through what its rules say, and the answers to it.
pub struct Acl {
    rules: Vec<Test>,
    default: Action,
    connections: Connections,
    now: u64,
    counts: [u64; COUNTERS.len()],
}

/// Arguments of [`Acl`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclArgs {
    /// The first one that fits a packet of no known connection decides.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// What becomes of packets that no rule fits.
    #[serde(default)]
    pub default: Action,
    /// Most connections that are known at once, 1 to 2^24; of those that are not established the
    /// oldest goes when another begins.
    #[serde(default = "connections")]
    pub connections: usize,
}

fn connections() -> usize {
    65536
}

const INSIDE: usize = 0;
const OUTSIDE: usize = 1;

const COUNTERS: &[&str] = &[
    "allowed",
    "known",
    "related",
    "denied",
    "invalid",
    "fragments",
    "malformed",
    "full",
    "not_ip",
    "connections",
];

/// Why a packet passes or does not: the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// A rule lets it through.
    Allowed = 0,
    /// Its connection is known.
    Known = 1,
    /// An ICMP error about a known connection.
    Related = 2,
    Denied = 3,
    /// TCP that belongs to no connection and begins none, an answer to nothing.
    Invalid = 4,
    Fragments = 5,
    Malformed = 6,
    /// There are too many connections, all of them established.
    Full = 7,
    /// It passes.
    NotIp = 8,
}

impl Verdict {
    fn passes(self) -> bool {
        matches!(self, Self::Allowed | Self::Known | Self::Related | Self::NotIp)
    }
}

impl Kind for Acl {
    const NAME: &'static str = "Acl";
    const ABOUT: &'static str =
        "lets packets between 'inside' and 'outside' pass by rules and the state of connections";
    const INPUTS: Ports = Ports::Named(&["inside", "outside"]);
    const OUTPUTS: Ports = Ports::Named(&["inside", "outside"]);
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = AclArgs;

    fn check(args: &AclArgs) -> Result<(), ArgError> {
        if !(1..=1 << 24).contains(&args.connections) {
            return Err(ArgError::wrong("connections", "is a number from 1 to 16777216"));
        }
        args.rules.iter().enumerate().try_for_each(|(number, rule)| rule.check(number))
    }

    fn new(args: AclArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self {
            rules: args.rules.iter().map(Test::new).collect(),
            default: args.default,
            connections: Connections::new(args.connections),
            now: 0,
            counts: [0; COUNTERS.len()],
        })
    }

    /// Known connections go on, whatever the new rules say.
    fn reconfigure(&mut self, args: AclArgs) -> Result<Reconfigured, AppError> {
        if args.connections != self.connections.capacity() {
            return Ok(Reconfigured::NeedsRestart);
        }
        self.rules = args.rules.iter().map(Test::new).collect();
        self.default = args.default;
        Ok(Reconfigured::Done)
    }
}

impl Acl {
    fn judge(&mut self, frame: &[u8], from: usize) -> Verdict {
        let Some((IPV4 | IPV6, at)) = payload(frame) else { return Verdict::NotIp };
        let packet = match flow(&frame[at..], false) {
            Ok(packet) => packet,
            Err(Unknown::Fragment) => return Verdict::Fragments,
            Err(Unknown::Malformed) => return Verdict::Malformed,
        };
        if let Some(quoted) = packet.quoted {
            // It goes towards the sender of what it quotes, which went the other way.
            return match flow(&frame[at + quoted..at + packet.end], true) {
                Ok(about) if self.connections.find(&key(&about, 1 - from)).is_some() => {
                    Verdict::Related
                }
                Ok(_) => Verdict::Invalid,
                Err(_) => Verdict::Malformed,
            };
        }
        let key = key(&packet, from);
        if let Some(at) = self.connections.find(&key) {
            self.connections.go_on(at, &packet, from, self.now);
            return Verdict::Known;
        }
        // Neighbour discovery and the like belong to no connection.
        let stateless = matches!(packet.protocol, ICMP | ICMPV6) && !packet.begins;
        let answer = stateless && packet.ports != [0; 2];
        let begins_tcp = packet.flags & (SYN | ACK | RST | FIN) == SYN;
        if answer || (packet.protocol == TCP && !begins_tcp) {
            return Verdict::Invalid;
        }
        let fits = self.rules.iter().find(|rule| rule.fits(&packet, from));
        match fits.map_or(self.default, |rule| rule.action) {
            Action::Deny => Verdict::Denied,
            Action::Allow if stateless => Verdict::Allowed,
            Action::Allow if self.connections.begin(key, from, self.now) => Verdict::Allowed,
            Action::Allow => Verdict::Full,
        }
    }
}

impl App for Acl {
    fn push(&mut self, io: &Io) {
        self.now = io.now();
        for (from, to) in [(INSIDE, OUTSIDE), (OUTSIDE, INSIDE)] {
            let Some(input) = io.input(from) else { continue };
            let mut waiting = input.length();
            let mut batch = Batch::new();
            while waiting > 0 {
                waiting = waiting.saturating_sub(input.receive_batch(&mut batch));
                batch.retain(|packet: &mut Packet| {
                    let verdict = self.judge(packet, from);
                    self.counts[verdict as usize] += 1;
                    verdict.passes()
                });
                match io.output(to) {
                    Some(output) => output.transmit_batch(&mut batch),
                    None => batch.clear(),
                }
            }
        }
    }

    fn tick(&mut self, io: &Io) {
        self.now = io.now();
        self.connections.expire(self.now);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
        if let Some(last) = values.last_mut() {
            *last = self.connections.len() as u64;
        }
    }
}
