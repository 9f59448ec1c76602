//! Rules of an access list, as they are written and as they are tested.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::INSIDE;
use crate::apps::transport::Flow;
use crate::args::ArgError;
use crate::lpm::Prefix;
use checksum::{ICMP, ICMPV6, TCP, UDP};

/// What becomes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// They pass, and so do the answers to them.
    Allow,
    /// They are discarded and counted.
    #[default]
    Deny,
}

/// Where packets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The port `inside`.
    Inside,
    /// The port `outside`.
    Outside,
}

/// A protocol by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
}

/// A rule. What it does not name fits everything.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What becomes of packets that fit.
    pub action: Action,
    /// Where they come from.
    #[serde(default)]
    pub from: Option<Side>,
    /// Their protocol.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// Their source address.
    #[serde(default)]
    pub source: Option<Prefix>,
    /// Their destination address.
    #[serde(default)]
    pub destination: Option<Prefix>,
    /// Their destination port, or the first and the last of some. Only TCP and UDP have ports.
    #[serde(default)]
    pub ports: Option<Vec<u16>>,
}

impl Rule {
    pub(super) fn check(&self, number: usize) -> Result<(), ArgError> {
        let wrong = |problem: &str| {
            Err(ArgError::wrong("rules", format!("rule {}: {problem}", number + 1)))
        };
        match self.ports.as_deref() {
            None | Some([_]) => {}
            Some([first, last]) if first <= last => {}
            Some(_) => return wrong("ports is one port, or the first and the last of some"),
        }
        if self.ports.is_some() && !matches!(self.protocol, Some(Protocol::Tcp | Protocol::Udp)) {
            return wrong("ports is for protocol 'tcp' or 'udp'");
        }
        let version = |prefix: &Option<Prefix>| prefix.map(|prefix| prefix.address.is_ipv4());
        match (version(&self.source), version(&self.destination)) {
            (Some(source), Some(destination)) if source != destination => {
                wrong("source and destination are of one version of IP")
            }
            _ => Ok(()),
        }
    }
}

/// A rule made ready.
pub(super) struct Test {
    pub(super) action: Action,
    from: Option<usize>,
    protocol: Option<Protocol>,
    v6: Option<bool>,
    source: Masked,
    destination: Masked,
    ports: (u16, u16),
}

/// Bits that count, and what they are.
struct Masked {
    mask: u128,
    bits: u128,
}

impl Masked {
    fn new(prefix: Option<Prefix>) -> Self {
        let Some(prefix) = prefix else { return Self { mask: 0, bits: 0 } };
        let bits = match prefix.address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix.length)).unwrap_or(0);
        Self { mask, bits: bits & mask }
    }

    #[inline]
    fn fits(&self, address: &[u8; 16]) -> bool {
        u128::from_be_bytes(*address) & self.mask == self.bits
    }
}

impl Test {
    pub(super) fn new(rule: &Rule) -> Self {
        let prefix = rule.source.or(rule.destination);
        Self {
            action: rule.action,
            from: rule.from.map(|side| if side == Side::Inside { INSIDE } else { 1 - INSIDE }),
            protocol: rule.protocol,
            v6: prefix.map(|prefix| prefix.address.is_ipv6()),
            source: Masked::new(rule.source),
            destination: Masked::new(rule.destination),
            ports: match rule.ports.as_deref() {
                Some([port]) => (*port, *port),
                Some([first, last]) => (*first, *last),
                _ => (0, u16::MAX),
            },
        }
    }

    #[inline]
    pub(super) fn fits(&self, packet: &Flow, from: usize) -> bool {
        let protocol = match self.protocol {
            None => true,
            Some(Protocol::Tcp) => packet.protocol == TCP,
            Some(Protocol::Udp) => packet.protocol == UDP,
            Some(Protocol::Icmp) => matches!(packet.protocol, ICMP | ICMPV6),
        };
        protocol
            && self.from.is_none_or(|side| side == from)
            && self.v6.is_none_or(|v6| v6 == packet.v6)
            && self.source.fits(&packet.source)
            && self.destination.fits(&packet.destination)
            && (self.ports.0..=self.ports.1).contains(&packet.ports[1])
    }
}
