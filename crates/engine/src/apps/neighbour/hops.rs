//! Where a frame without destination goes: a neighbour's address, from the packet's destination and
//! the routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::message::{self, BROADCAST};
use crate::apps::headers::{ETHERNET, IPV4, IPV6, Mac, be16};
use crate::args::ArgError;
use crate::lpm::{Prefix, Table};

/// The next hop of packets to some addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// The destinations that it is for.
    pub prefix: Prefix,
    /// The router that leads there; without one they are on the link themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
}

impl NextHop {
    /// `ours` are our own addresses.
    pub(super) fn check(&self, ours: &[IpAddr]) -> Result<(), ArgError> {
        let Self { prefix, via: Some(via) } = self else { return Ok(()) };
        let problem = if via.is_ipv4() != prefix.address.is_ipv4() {
            format!("{prefix} and {via} are of different versions of IP")
        } else if via.is_unspecified() || via.is_multicast() || ours.contains(via) {
            format!("{via}, the way to {prefix}, is no neighbour's address")
        } else {
            return Ok(());
        };
        Err(ArgError::wrong("routes", problem))
    }
}

/// What the next hop of a frame is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A neighbour.
    Hop(IpAddr),
    /// A group of stations.
    Group(Mac),
    /// Nothing: it is no IP, or no route is for it.
    Nowhere,
}

/// The routes.
pub(super) struct Hops {
    /// The place of the route; None without routes.
    table: Option<Table>,
    via: Vec<Option<IpAddr>>,
}

impl Hops {
    pub fn new(routes: &[NextHop]) -> Self {
        let prefixes = routes.iter().map(|route| route.prefix).zip(0..);
        let table = (!routes.is_empty()).then(|| Table::new(prefixes));
        Self { table, via: routes.iter().map(|route| route.via).collect() }
    }

    pub fn next(&self, frame: &[u8]) -> Next {
        let Some(destination) = destination(frame) else { return Next::Nowhere };
        match destination {
            IpAddr::V4(Ipv4Addr::BROADCAST) => return Next::Group(BROADCAST),
            // RFC 1112, 6.4.
            IpAddr::V4(group) if group.is_multicast() => {
                let [_, b, c, d] = group.octets();
                return Next::Group(Mac([1, 0, 0x5e, b & 0x7f, c, d]));
            }
            IpAddr::V6(group) if group.is_multicast() => return Next::Group(message::group(group)),
            _ => {}
        }
        let Some(table) = &self.table else { return Next::Hop(destination) };
        let route = match destination {
            IpAddr::V4(address) => table.v4(address),
            IpAddr::V6(address) => table.v6(address),
        };
        route.map_or(Next::Nowhere, |route| {
            Next::Hop(self.via[route as usize].unwrap_or(destination))
        })
    }
}

fn destination(frame: &[u8]) -> Option<IpAddr> {
    match be16(frame, 12)? {
        IPV4 => Some(Ipv4Addr::from(*frame.get(ETHERNET + 16..)?.first_chunk::<4>()?).into()),
        IPV6 => Some(Ipv6Addr::from(*frame.get(ETHERNET + 24..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// The source of a frame whose destination was found.
pub(super) fn source(frame: &[u8]) -> Option<IpAddr> {
    match be16(frame, 12)? {
        IPV4 => Some(Ipv4Addr::from(*frame.get(ETHERNET + 12..)?.first_chunk::<4>()?).into()),
        IPV6 => Some(Ipv6Addr::from(*frame.get(ETHERNET + 8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(destination: IpAddr) -> Vec<u8> {
        let mut frame = vec![0; 60];
        match destination {
            IpAddr::V4(address) => {
                frame[12..14].copy_from_slice(&IPV4.to_be_bytes());
                frame[30..34].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                frame[12..14].copy_from_slice(&IPV6.to_be_bytes());
                frame[38..54].copy_from_slice(&address.octets());
            }
        }
        frame
    }

    fn hops(routes: &[(&str, Option<&str>)]) -> Hops {
        let route = |(prefix, via): &(&str, Option<&str>)| NextHop {
            prefix: prefix.parse().unwrap(),
            via: via.map(|via| via.parse().unwrap()),
        };
        Hops::new(&routes.iter().map(route).collect::<Vec<_>>())
    }

    fn next(hops: &Hops, destination: &str) -> Next {
        hops.next(&frame(destination.parse().unwrap()))
    }

    fn hop(address: &str) -> Next {
        Next::Hop(address.parse().unwrap())
    }

    #[test]
    fn destinations_are_neighbours_or_behind_one() {
        let link = hops(&[]);
        assert_eq!(next(&link, "10.0.0.1"), hop("10.0.0.1"));
        assert_eq!(next(&link, "fd00::1"), hop("fd00::1"));
        let routed = hops(&[
            ("10.0.0.0/24", None),
            ("10.1.0.0/16", Some("10.0.0.7")),
            ("0.0.0.0/0", Some("10.0.0.254")),
            ("fd00::/64", None),
        ]);
        assert_eq!(next(&routed, "10.0.0.1"), hop("10.0.0.1"));
        assert_eq!(next(&routed, "10.1.2.3"), hop("10.0.0.7"));
        assert_eq!(next(&routed, "192.0.2.1"), hop("10.0.0.254"));
        assert_eq!(next(&routed, "fd00::1"), hop("fd00::1"));
        assert_eq!(next(&routed, "fd01::1"), Next::Nowhere);
    }

    #[test]
    fn groups_need_no_question() {
        let none = hops(&[("10.0.0.0/24", None)]);
        assert_eq!(next(&none, "255.255.255.255"), Next::Group(BROADCAST));
        assert_eq!(next(&none, "239.255.1.2"), Next::Group(Mac([1, 0, 0x5e, 0x7f, 1, 2])));
        assert_eq!(next(&none, "ff02::1:2"), Next::Group(Mac([0x33, 0x33, 0, 1, 0, 2])));
    }

    #[test]
    fn what_is_cut_off_goes_nowhere() {
        let link = hops(&[]);
        for (address, length) in [("10.0.0.1", 34), ("fd00::1", 54)] {
            let frame = frame(address.parse().unwrap());
            assert_eq!(link.next(&frame[..length]), hop(address));
            (0..length).for_each(|length| assert_eq!(link.next(&frame[..length]), Next::Nowhere));
        }
        assert_eq!(link.next(&[0; 60]), Next::Nowhere);
    }
}
