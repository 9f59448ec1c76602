//! Ethernet and IP headers as far as the apps look at them, and addresses as people write them.

use std::fmt;
use std::str::FromStr;

use checksum::csum_replace2;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) const ETHERNET: usize = 14;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const VLAN: u16 = 0x8100;
/// Provider bridges, IEEE 802.1ad.
pub(crate) const QINQ: u16 = 0x88a8;
pub(crate) const IPV6: u16 = 0x86dd;

/// A MAC address, written `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Addressed to more than one station.
    pub fn is_group(&self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a MAC address: write it as 02:00:00:00:00:01");
        let mut address = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut address {
            let hex = |part: &&str| {
                matches!(part.len(), 1..=2) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            let part = parts.next().filter(hex).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(address)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Two bytes in network order; None beyond the end.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The destination and source of a frame.
#[inline]
pub(crate) fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    let destination = frame.first_chunk::<6>()?;
    let source = frame.get(6..)?.first_chunk::<6>()?;
    Some((Mac(*destination), Mac(*source)))
}

/// The type of a frame's payload and where it starts, behind up to two VLAN tags.
#[inline]
pub(crate) fn payload(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    for _ in 0..2 {
        match be16(frame, at)? {
            VLAN | QINQ => at += 4,
            _ => break,
        }
    }
    Some((be16(frame, at)?, at + 2))
}

/// The congestion bits of an IP header (RFC 3168): its sender hears of none, or some router has met one.
pub(crate) const NOT_ECT: u8 = 0;
/// See [`NOT_ECT`].
pub(crate) const CE: u8 = 3;

/// Those bits of the header that starts the bytes; None where there is none of IP.
#[inline]
pub(crate) fn ecn(ip: &[u8]) -> Option<u8> {
    let [first, second, ..] = *ip else { return None };
    match first >> 4 {
        4 => Some(second & 3),
        6 => Some(second >> 4 & 3),
        _ => None,
    }
}

/// Says in a header of IP that a router has met congestion. IPv4's checksum is right afterwards if it
/// was before.
pub(crate) fn mark_congestion(ip: &mut [u8]) {
    match ip {
        [first, rest @ ..] if *first >> 4 == 4 && rest.len() >= 19 => {
            let old = [*first, rest[0]];
            rest[0] |= CE;
            let check = u16::from_ne_bytes([rest[9], rest[10]]);
            let check = csum_replace2(check, old, [*first, rest[0]]).to_ne_bytes();
            rest[9..11].copy_from_slice(&check);
        }
        [first, second, ..] if *first >> 4 == 6 => *second |= CE << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_written_as_usual() {
        assert_eq!("02:0:ff:00:00:1A".parse(), Ok(Mac([2, 0, 255, 0, 0, 26])));
        assert_eq!(Mac([2, 0, 255, 0, 0, 26]).to_string(), "02:00:ff:00:00:1a");
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02:00:00:00:00:1g",
            "02:00:00:00:00:100",
            "+1:2:3:4:5:6",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn payloads_are_found_behind_tags() {
        let mut frame = vec![0; 12];
        assert_eq!(payload(&frame), None);
        frame.extend(IPV4.to_be_bytes());
        assert_eq!(payload(&frame), Some((IPV4, 14)));
        frame.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(payload(&frame), Some((IPV4, 18)));
        frame.splice(12..12, [0x88, 0xa8, 0, 6]);
        assert_eq!(payload(&frame), Some((IPV4, 22)));
        assert_eq!(payload(&frame[..20]), None);
    }
}
