//! Fragments become packets again: RFC 791, RFC 815, RFC 8200, and against those who mean harm
//! RFC 5722 (overlaps), RFC 6946 (atomic fragments) and RFC 7112 (headers in the first fragment).

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, Io, Kind, Ports};
use crate::apps::basic::{Each, each};
use crate::apps::headers::{CE, IPV4, IPV6, NOT_ECT, be16, ecn, mark_congestion, payload};
use crate::arena::MAX_LENGTH;
use crate::args::ArgError;
use crate::flow_table::{FlowTable, Key};
use crate::packet::Packet;
use checksum::{csum_fold, csum_partial};

use super::split::unfragmentable;
use super::{MORE, OFFSET};

/// Room for the headers of a packet, before its data.
const HEAD: usize = 96;
/// Most data of a packet that is put together.
const MOST: usize = MAX_LENGTH - HEAD;
/// Words of 64 bits for one bit per eight bytes of data.
const WORDS: usize = MOST.div_ceil(8 * 64);

/// Puts fragments together; lets all else pass.
pub struct Reassembler {
    datagrams: FlowTable<Datagram, 1>,
    timeout: u64,
    now: u64,
    /// A packet that is whole takes the place of its last fragment.
    counts: [u64; COUNTERS.len()],
}

/// Arguments of [`Reassembler`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReassemblerArgs {
    /// Most packets that wait for fragments, each in memory for one packet; the oldest goes when
    /// another begins. 1 to 65536.
    pub datagrams: usize,
    /// Seconds after which a packet that is not whole is given up, counted from its first
    /// fragment. More than 0, up to 120.
    pub timeout: f64,
}

impl Default for ReassemblerArgs {
    fn default() -> Self {
        Self { datagrams: 1024, timeout: 30.0 }
    }
}

const COUNTERS: &[&str] = &[
    "reassembled",
    "fragments",
    "malformed",
    "overlaps",
    "too_long",
    "timeouts",
    "evicted",
    "no_packet",
];
const REASSEMBLED: usize = 0;
const FRAGMENTS: usize = 1;
const TIMEOUTS: usize = 5;
const EVICTED: usize = 6;

/// Why a fragment is not taken: the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Malformed = 2,
    Overlap = 3,
    TooLong = 4,
    NoPacket = 7,
}

/// A packet of which something is missing.
#[derive(Default)]
struct Datagram {
    /// The data from [`HEAD`] on, the headers just before it. None once a fragment was refused:
    /// those that follow are, too.
    buffer: Option<Packet>,
    /// Which units of eight bytes are there.
    units: [u64; WORDS],
    received: usize,
    /// A bit for each value that their congestion bits had.
    ecn: u8,
    /// Length of the data, once the last fragment is there.
    end: Option<usize>,
    /// Length of the headers, once the first fragment is there.
    head: Option<usize>,
    /// Where in them the IP header starts.
    ip: usize,
}

/// A fragment, as its headers describe it.
struct Fragment {
    key: Key,
    offset: usize,
    more: bool,
    /// Where the IP header starts, where the headers end that all fragments have, and where the
    /// data starts and ends, in the frame.
    ip: usize,
    headers: usize,
    data: usize,
    end: usize,
    /// IPv6: where the type of the next header stands that is the fragment header's, and what
    /// becomes of it.
    next: Option<(usize, u8)>,
}

impl Kind for Reassembler {
    const NAME: &'static str = "Reassembler";
    const ABOUT: &'static str = "puts IPv4 and IPv6 fragments together, lets all else pass";
    const INPUTS: Ports = Ports::Named(&["input"]);
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const COUNTERS: &'static [&'static str] = COUNTERS;
    type Args = ReassemblerArgs;

    fn check(args: &ReassemblerArgs) -> Result<(), ArgError> {
        if !(1..=65536).contains(&args.datagrams) {
            return Err(ArgError::wrong("datagrams", "is a number from 1 to 65536"));
        }
        if !(args.timeout > 0.0 && args.timeout <= 120.0) {
            return Err(ArgError::wrong(
                "timeout",
                "is a number of seconds, above 0 and up to 120",
            ));
        }
        Ok(())
    }

    fn new(args: ReassemblerArgs, _context: &Context) -> Result<Self, AppError> {
        Ok(Self {
            datagrams: FlowTable::new(args.datagrams),
            timeout: (args.timeout * 1e9) as u64,
            now: 0,
            counts: [0; COUNTERS.len()],
        })
    }
}

impl Reassembler {
    /// Forgets packets whose time is over.
    fn expire(&mut self) {
        while let Some((at, begun)) = self.datagrams.oldest(0) {
            if self.now.saturating_sub(begun) < self.timeout {
                return;
            }
            self.datagrams.remove(at);
            self.counts[TIMEOUTS] += 1;
        }
    }

    /// Takes a fragment; true if the packet in its place is whole now.
    fn take(&mut self, frame: &mut Packet, fragment: &Fragment) -> Result<bool, Refused> {
        let length = fragment.end - fragment.data;
        if length == 0 || (fragment.more && !length.is_multiple_of(8)) {
            return Err(Refused::Malformed);
        }
        let found = self.datagrams.find(&fragment.key);
        if fragment.offset + length > MOST || fragment.headers > HEAD {
            // The others are of no use either, and their memory is.
            if let Some(at) = found {
                self.datagrams.value_mut(at).buffer = None;
            }
            return Err(Refused::TooLong);
        }
        let at = match found {
            Some(at) => at,
            None => {
                if self.datagrams.is_full()
                    && let Some((oldest, _)) = self.datagrams.oldest(0)
                {
                    self.datagrams.remove(oldest);
                    self.counts[EVICTED] += 1;
                }
                let mut buffer = Packet::allocate().ok_or(Refused::NoPacket)?;
                buffer.resize(MAX_LENGTH);
                let datagram = Datagram { buffer: Some(buffer), ..Datagram::default() };
                let inserted = self.datagrams.insert(fragment.key, datagram, 0, self.now);
                inserted.ok_or(Refused::NoPacket)?
            }
        };
        let datagram = self.datagrams.value_mut(at);
        if let Err(refused) = datagram.add(frame, fragment) {
            datagram.buffer = None;
            return Err(refused);
        }
        if datagram.end != Some(datagram.received) || datagram.head.is_none() {
            return Ok(false);
        }
        let datagram = self.datagrams.remove(at);
        *frame = datagram.whole(fragment.key[39] == 6).ok_or(Refused::Malformed)?;
        Ok(true)
    }
}

impl Datagram {
    fn add(&mut self, frame: &[u8], fragment: &Fragment) -> Result<(), Refused> {
        let highest = self.highest();
        let buffer = self.buffer.as_mut().ok_or(Refused::Overlap)?;
        let data = &frame[fragment.data..fragment.end];
        let (first, last) = (fragment.offset, fragment.offset + data.len());
        let place = HEAD + first..HEAD + last;
        let units = first / 8..last.div_ceil(8);
        let there = units.clone().filter(|unit| self.units[unit / 64] >> (unit % 64) & 1 != 0);
        let there = there.count();
        let fits = match self.end {
            Some(end) if fragment.more => last < end,
            // Two ends in different places are no packet that was sent.
            Some(end) => last == end,
            None => fragment.more,
        };
        if there == units.len() && fits && buffer[place.clone()] == *data {
            // The network delivered it twice.
            return Ok(());
        }
        let beyond = match (self.end, fragment.more) {
            (Some(end), true) => last > end,
            (Some(_), false) => true,
            (None, false) => highest > last.div_ceil(8),
            (None, true) => false,
        };
        if there != 0 || beyond {
            return Err(Refused::Overlap);
        }
        if !fragment.more {
            self.end = Some(last);
        }
        for unit in units {
            self.units[unit / 64] |= 1 << (unit % 64);
        }
        buffer[place].copy_from_slice(data);
        self.received += data.len();
        self.ecn |= 1 << ecn(&frame[fragment.ip..]).unwrap_or(NOT_ECT);
        if first == 0 {
            let head = fragment.headers;
            buffer[HEAD - head..HEAD].copy_from_slice(&frame[..head]);
            if let Some((place, next)) = fragment.next {
                buffer[HEAD - head + place] = next;
            }
            self.head = Some(head);
            self.ip = fragment.ip;
        }
        Ok(())
    }

    /// One more than the highest unit that is there.
    fn highest(&self) -> usize {
        let word = self.units.iter().rposition(|word| *word != 0);
        word.map_or(0, |word| (word + 1) * 64 - self.units[word].leading_zeros() as usize)
    }

    /// The packet; None if its length is more than its header can say, or a router has marked one of
    /// its fragments and not dropped it although its sender would not understand.
    fn whole(self, v6: bool) -> Option<Packet> {
        let (mut packet, end, head) = (self.buffer?, self.end?, self.head?);
        packet.shrink_front(HEAD - head);
        packet.truncate(head + end);
        let ip = &mut packet[self.ip..];
        if self.ecn & 1 << CE != 0 {
            if self.ecn & 1 << NOT_ECT != 0 {
                return None;
            }
            // One is enough (RFC 3168, 5.3).
            mark_congestion(ip);
        }
        let length = ip.len();
        if v6 {
            ip[4..6].copy_from_slice(&u16::try_from(length.checked_sub(40)?).ok()?.to_be_bytes());
        } else {
            let header = usize::from(ip[0] & 15) * 4;
            ip[2..4].copy_from_slice(&u16::try_from(length).ok()?.to_be_bytes());
            let word = u16::from_be_bytes([ip[6], ip[7]]) & !(MORE | OFFSET);
            ip[6..8].copy_from_slice(&word.to_be_bytes());
            ip[10..12].fill(0);
            let sum = csum_fold(csum_partial(&ip[..header], 0));
            ip[10..12].copy_from_slice(&sum.to_ne_bytes());
        }
        Some(packet)
    }
}

/// The fragment in a frame; None if it has none, Err if it is malformed.
fn fragment(frame: &[u8]) -> Result<Option<Fragment>, Refused> {
    let Some((kind, ip)) = payload(frame) else { return Ok(None) };
    let vlan = if ip > 14 { be16(frame, ip - 4).unwrap_or(0) & 0xfff } else { 0 };
    match kind {
        IPV4 => v4(frame, ip, vlan),
        IPV6 => v6(frame, ip, vlan),
        _ => Ok(None),
    }
}

fn v4(frame: &[u8], at: usize, vlan: u16) -> Result<Option<Fragment>, Refused> {
    let Some(start) = frame.get(at..).and_then(|ip| ip.first_chunk::<20>()) else {
        return Ok(None);
    };
    let word = u16::from_be_bytes([start[6], start[7]]);
    if word & (MORE | OFFSET) == 0 {
        return Ok(None);
    }
    let header = usize::from(start[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([start[2], start[3]]));
    if start[0] >> 4 != 4 || header < 20 || total < header || at + total > frame.len() {
        return Err(Refused::Malformed);
    }
    if csum_fold(csum_partial(&frame[at..at + header], 0)) != 0 {
        return Err(Refused::Malformed);
    }
    let mut key = [0; 40];
    key[..8].copy_from_slice(&start[12..20]);
    key[32..34].copy_from_slice(&start[4..6]);
    key[34] = start[9];
    key[37..39].copy_from_slice(&vlan.to_be_bytes());
    key[39] = 4;
    Ok(Some(Fragment {
        key,
        offset: usize::from(word & OFFSET) * 8,
        more: word & MORE != 0,
        ip: at,
        headers: at + header,
        data: at + header,
        end: at + total,
        next: None,
    }))
}

fn v6(frame: &[u8], at: usize, vlan: u16) -> Result<Option<Fragment>, Refused> {
    let ip = &frame[at..];
    let Some(start) = ip.first_chunk::<40>() else { return Ok(None) };
    let Some(part) = unfragmentable(ip) else { return Ok(None) };
    if part.next != 44 {
        return Ok(None);
    }
    let total = 40 + usize::from(u16::from_be_bytes([start[4], start[5]]));
    let header = ip.get(part.length..).and_then(|rest| rest.first_chunk::<8>());
    let header = header.ok_or(Refused::Malformed)?;
    if start[0] >> 4 != 6 || total > ip.len() || total < part.length + 8 {
        return Err(Refused::Malformed);
    }
    let word = u16::from_be_bytes([header[2], header[3]]);
    let data = part.length + 8;
    if word & 0xfff8 == 0 && !complete(&ip[data..total], header[0]) {
        return Err(Refused::Malformed);
    }
    let mut key = [0; 40];
    key[..32].copy_from_slice(&start[8..40]);
    key[32..36].copy_from_slice(&header[4..]);
    key[37..39].copy_from_slice(&vlan.to_be_bytes());
    key[39] = 6;
    Ok(Some(Fragment {
        key,
        offset: usize::from(word & 0xfff8),
        more: word & 1 != 0,
        ip: at,
        headers: at + part.length,
        data: at + data,
        end: at + total,
        next: Some((at + part.field, header[0])),
    }))
}

/// Whether the chain of headers ends in this first fragment (RFC 7112).
fn complete(data: &[u8], mut next: u8) -> bool {
    let mut at = 0;
    while matches!(next, 0 | 43 | 60) {
        let (Some(following), Some(length)) = (data.get(at), data.get(at + 1)) else {
            return false;
        };
        next = *following;
        at += 8 + usize::from(*length) * 8;
    }
    // A fragment header in a fragment is no chain that ends; no data is one that does.
    next != 44 && (at < data.len() || next == 59)
}

impl Each for Reassembler {
    fn keep(&mut self, frame: &mut Packet) -> bool {
        let fragment = match fragment(frame) {
            Ok(None) => return true,
            Ok(Some(fragment)) => fragment,
            Err(refused) => {
                self.counts[refused as usize] += 1;
                return false;
            }
        };
        self.counts[FRAGMENTS] += 1;
        // An atomic fragment is a packet of its own, whatever else bears its number.
        if let (0, false, Some((field, next))) = (fragment.offset, fragment.more, fragment.next) {
            frame[field] = next;
            let length = (fragment.end - fragment.ip - 48) as u16;
            frame[fragment.ip + 4..fragment.ip + 6].copy_from_slice(&length.to_be_bytes());
            frame.copy_within(..fragment.headers, 8);
            frame.shrink_front(8);
            frame.truncate(fragment.end - 8);
            self.counts[REASSEMBLED] += 1;
            return true;
        }
        match self.take(frame, &fragment) {
            Ok(whole) => {
                self.counts[REASSEMBLED] += u64::from(whole);
                whole
            }
            Err(refused) => {
                self.counts[refused as usize] += 1;
                false
            }
        }
    }
}

impl App for Reassembler {
    fn push(&mut self, io: &Io) {
        self.now = io.now();
        each(io, self);
    }

    fn tick(&mut self, io: &Io) {
        self.now = io.now();
        self.expire();
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&self.counts);
    }
}
