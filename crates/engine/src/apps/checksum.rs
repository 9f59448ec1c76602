//! Internet checksums of IPv4 headers, TCP, UDP, ICMP and ICMPv6: put in, or checked.
//!
//! Fragments have their transport checksum in another packet or over all of them: only their IPv4 header is looked at.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports, Reconfigured};
use crate::apps::basic::{Each, each};
use crate::apps::headers::{IPV4, IPV6, be16, payload};
use crate::apps::sums::{csum_fold, csum_partial};
use crate::packet::{CHECKSUM_VALID, NEEDS_CHECKSUM, Packet};
use crate::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<Checksum>();
}

/// Fills checksums in, or discards packets with wrong ones.
pub struct Checksum {
    mode: Mode,
    filled: u64,
    good: u64,
    bad: u64,
    none: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChecksumArgs {
    pub mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Fill,
    Verify,
}

impl Kind for Checksum {
    const NAME: &'static str = "Checksum";
    const ABOUT: &'static str = "fills in IP, TCP, UDP and ICMP checksums, or discards packets where they are wrong";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = &["filled", "good", "bad", "none"];
    type Args = ChecksumArgs;

    fn new(args: ChecksumArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self { mode: args.mode, filled: 0, good: 0, bad: 0, none: 0 })
    }

    fn reconfigure(&mut self, args: ChecksumArgs) -> Result<Reconfigured, AppError> {
        self.mode = args.mode;
        Ok(Reconfigured::Done)
    }
}

/// A part of a packet with a checksum in it.
struct Part {
    /// What is summed.
    range: Range<usize>,
    /// Sum of the pseudo header.
    pseudo: u32,
    /// Place of the checksum.
    at: usize,
    /// UDP over IPv4 may do without: the field is 0 then, and a sum of 0 is written as 0xffff (RFC 768).
    udp: bool,
    optional: bool,
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// The IPv4 header and the transport's part, as far as there are any. None: the lengths are wrong.
fn parts(frame: &[u8]) -> Option<[Option<Part>; 2]> {
    match payload(frame) {
        Some((IPV4, at)) => {
            let packet = frame.get(at..)?;
            let header = usize::from(packet.first()? & 15) * 4;
            let total = usize::from(be16(packet, 2)?);
            if packet[0] >> 4 != 4 || header < 20 || total < header || total > packet.len() {
                return None;
            }
            let whole = Part { range: at..at + header, pseudo: 0, at: at + 10, udp: false, optional: false };
            let fragment = be16(packet, 6)? & 0x3fff != 0;
            let transport = match fragment {
                true => None,
                false => transport(packet[9], at + header..at + total, &packet[12..20], true)?,
            };
            Some([Some(whole), transport])
        }
        Some((IPV6, at)) => {
            let packet = frame.get(at..)?;
            let end = 40 + usize::from(be16(packet, 4)?);
            if packet[0] >> 4 != 6 || end > packet.len() {
                return None;
            }
            let Some((protocol, start)) = upper(&packet[..end])? else { return Some([None, None]) };
            Some([None, transport(protocol, at + start..at + end, &packet[8..40], false)?])
        }
        _ => Some([None, None]),
    }
}

/// The protocol behind the extension headers and where it starts (RFC 8200, 4). Some(None) for a fragment, and for a
/// routing header that is still on its way: its packet's last destination is not in the header.
fn upper(packet: &[u8]) -> Option<Option<(u8, usize)>> {
    let (mut next, mut at) = (packet[6], 40);
    while matches!(next, 0 | 43 | 44 | 60) {
        let header = packet.get(at..at + 8)?;
        if next == 44 || next == 43 && header[3] != 0 {
            return Some(None);
        }
        next = header[0];
        at += 8 + usize::from(header[1]) * 8;
    }
    if at > packet.len() { None } else { Some(Some((next, at))) }
}

/// The part of a transport protocol; Some(None) for one without a checksum that is known here.
fn transport(protocol: u8, range: Range<usize>, addresses: &[u8], v4: bool) -> Option<Option<Part>> {
    let (offset, least) = match protocol {
        TCP => (16, 20),
        UDP => (6, 8),
        ICMP if v4 => (2, 8),
        ICMPV6 if !v4 => (2, 4),
        _ => return Some(None),
    };
    if range.len() < least {
        return None;
    }
    let mut pseudo = [0; 8];
    pseudo[..4].copy_from_slice(&(range.len() as u32).to_be_bytes());
    pseudo[7] = protocol;
    let pseudo = if protocol == ICMP { 0 } else { csum_partial(&pseudo, csum_partial(addresses, 0)) };
    let udp = protocol == UDP;
    Some(Some(Part { at: range.start + offset, range, pseudo, udp, optional: udp && v4 }))
}

impl Part {
    fn fill(&self, frame: &mut [u8]) {
        frame[self.at..self.at + 2].fill(0);
        let sum = match csum_fold(csum_partial(&frame[self.range.clone()], self.pseudo)) {
            0 if self.udp => 0xffff,
            sum => sum,
        };
        frame[self.at..self.at + 2].copy_from_slice(&sum.to_ne_bytes());
    }

    fn holds(&self, frame: &[u8]) -> bool {
        let absent = self.optional && frame[self.at..self.at + 2] == [0, 0];
        absent || csum_fold(csum_partial(&frame[self.range.clone()], self.pseudo)) == 0
    }
}

impl Each for Checksum {
    fn keep(&mut self, packet: &mut Packet) -> bool {
        let Some(parts) = parts(packet) else {
            self.bad += 1;
            return self.mode == Mode::Fill;
        };
        let parts = parts.iter().flatten();
        if self.mode == Mode::Fill {
            let before = self.filled;
            for part in parts {
                part.fill(packet);
                self.filled = before + 1;
            }
            packet.flags &= !NEEDS_CHECKSUM;
            self.none += u64::from(self.filled == before);
            return true;
        }
        // A mark says that the transport's checksum is not there yet, by agreement.
        let marked = packet.flags & NEEDS_CHECKSUM != 0;
        let (mut any, mut good) = (false, true);
        for part in parts.filter(|part| !marked || part.at < usize::from(packet.checksum_start)) {
            any = true;
            good &= part.holds(packet);
        }
        packet.flags |= if good && any && !marked { CHECKSUM_VALID } else { 0 };
        *(if !good {
            &mut self.bad
        } else if any {
            &mut self.good
        } else {
            &mut self.none
        }) += 1;
        good
    }
}

impl App for Checksum {
    fn push(&mut self, io: &Io) {
        each(io, self);
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.filled, self.good, self.bad, self.none]);
    }
}
