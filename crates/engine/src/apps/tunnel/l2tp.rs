//! L2TPv3 sessions that nobody negotiates (RFC 3931, static as in RFC 8159's keyed IPv6 tunnel):
//! Ethernet frames behind the number of a session and a cookie, over IP or UDP.

use serde::{Deserialize, Serialize};

use super::{COUNTERS, Counts, Encapsulation, Outer, OuterArgs, PORTS, Refused, cut, finish, run};
use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::args::ArgError;
use crate::packet::Packet;
use checksum::UDP;

/// L2TP's own protocol of IP.
const PROTOCOL: u8 = 115;
/// Data, version 3, and two reserved bytes.
const OVER_UDP: [u8; 4] = [0, 3, 0, 0];

/// Carries Ethernet frames to another host in a static session of L2TPv3.
pub struct L2tpv3 {
    /// Before each frame that is sent and received: what UDP needs, session, cookie, sublayer.
    sent: Header,
    expected: Header,
    ports: Option<[u16; 2]>,
    outer: Outer,
    counts: Counts,
}

/// Arguments of [`L2tpv3`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct L2tpv3Args {
    /// The way between the ends.
    pub outer: OuterArgs,
    /// Number of the session at our end, which the other puts into what it sends; not 0.
    pub session: u32,
    /// Number of the session at the other end.
    pub peer_session: u32,
    /// What must come with packets to us: 0, 8 or 16 hexadecimal digits.
    #[serde(default)]
    pub cookie: String,
    /// What is sent with packets to the other end.
    #[serde(default)]
    pub peer_cookie: String,
    /// Four bytes of the default sublayer behind the cookie, as Linux has them unless
    /// `l2spec_type none` is asked for. Sequence numbers in them are neither sent nor looked at.
    #[serde(default)]
    pub sublayer: bool,
    /// Over IP (protocol 115), or UDP.
    #[serde(default)]
    pub carrier: Carrier,
    /// With UDP: our port.
    #[serde(default = "port")]
    pub port: u16,
    /// With UDP: the other end's port.
    #[serde(default = "port")]
    pub peer_port: u16,
}

fn port() -> u16 {
    1701
}

/// What carries the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// IP itself.
    #[default]
    Ip,
    /// UDP over IP.
    Udp,
}

/// Up to 20 bytes.
struct Header {
    bytes: [u8; 20],
    /// What a received packet must equal: without the sublayer.
    compared: usize,
    length: usize,
}

impl Header {
    fn new(args: &L2tpv3Args, session: u32, cookie: &[u8]) -> Self {
        let mut header = Self { bytes: [0; 20], compared: 0, length: 0 };
        let udp = if args.carrier == Carrier::Udp { &OVER_UDP[..] } else { &[] };
        for part in [udp, &session.to_be_bytes(), cookie] {
            header.bytes[header.compared..header.compared + part.len()].copy_from_slice(part);
            header.compared += part.len();
        }
        header.length = header.compared + if args.sublayer { 4 } else { 0 };
        header
    }
}

/// A cookie of 0, 4 or 8 bytes.
fn cookie(key: &'static str, text: &str) -> Result<([u8; 8], usize), ArgError> {
    let wrong = || ArgError::wrong(key, "is 0, 8 or 16 hexadecimal digits");
    let digits = text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !digits || !matches!(text.len(), 0 | 8 | 16) {
        return Err(wrong());
    }
    let (mut bytes, length) = ([0; 8], text.len() / 2);
    for (place, byte) in bytes[..length].iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[place * 2..place * 2 + 2], 16).map_err(|_| wrong())?;
    }
    Ok((bytes, length))
}

impl Kind for L2tpv3 {
    const NAME: &'static str = "L2tpv3";
    const ABOUT: &'static str = "a static L2TPv3 session for frames, between 'inner' and 'outer'";
    const INPUTS: Ports = PORTS;
    const OUTPUTS: Ports = PORTS;
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = L2tpv3Args;

    fn check(args: &L2tpv3Args) -> Result<(), ArgError> {
        for (key, session) in [("session", args.session), ("peer_session", args.peer_session)] {
            if session == 0 {
                return Err(ArgError::wrong(key, "is not 0, which is for control messages"));
            }
        }
        cookie("cookie", &args.cookie)?;
        cookie("peer_cookie", &args.peer_cookie)?;
        args.outer.check("outer")
    }

    fn new(args: L2tpv3Args, _context: &Context) -> Result<Self, AppError> {
        let (ours, length) = cookie("cookie", &args.cookie)?;
        let (theirs, peer_length) = cookie("peer_cookie", &args.peer_cookie)?;
        let (protocol, ports) = match args.carrier {
            Carrier::Ip => (PROTOCOL, None),
            Carrier::Udp => (UDP, Some([args.port, args.peer_port])),
        };
        Ok(Self {
            sent: Header::new(&args, args.peer_session, &theirs[..peer_length]),
            expected: Header::new(&args, args.session, &ours[..length]),
            ports,
            outer: Outer::new(&args.outer, protocol),
            counts: [0; COUNTERS.len()],
        })
    }
}

impl Encapsulation for L2tpv3 {
    fn wrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        finish(packet);
        if !packet.prepend(&self.sent.bytes[..self.sent.length]) {
            return Err(Refused::TooLong);
        }
        match self.ports {
            Some(ports) => self.outer.wrap_udp(packet, ports),
            None => self.outer.wrap(packet),
        }
    }

    fn unwrap(&mut self, packet: &mut Packet) -> Result<(), Refused> {
        let range = match self.ports {
            Some([ours, _]) => self.outer.unwrap_udp(packet, ours)?,
            None => self.outer.unwrap(packet)?,
        };
        let Header { bytes, compared, length } = &self.expected;
        let header = packet[range.clone()].get(..*compared).ok_or(Refused::Malformed)?;
        // No difference tells how much of the cookie was right.
        let differs = header.iter().zip(bytes).fold(0, |sum, (one, other)| sum | (one ^ other));
        if differs != 0 {
            return Err(Refused::NotOurs);
        }
        if range.len() < length + 14 {
            return Err(Refused::Malformed);
        }
        cut(packet, range.start + length..range.end);
        Ok(())
    }

    fn counts(&mut self) -> &mut [u64] {
        &mut self.counts
    }
}

impl App for L2tpv3 {
    fn push(&mut self, io: &Io) {
        run(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}
