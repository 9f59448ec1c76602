//! A port of the forwarder, as a configuration writes it: its MAC address alone, or a table.

use std::fmt;
use std::net::IpAddr;

use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use super::Arrival;
use crate::apps::headers::Mac;
use crate::args::ArgError;

/// A port of a [`Forwarder`](super::Forwarder).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Frames must be sent to it.
    pub mac: Mac,
    /// Addresses of the router itself, which answers echo requests to them. The first of each
    /// version is what ICMP errors come from; without one none are sent.
    pub addresses: Vec<IpAddr>,
    /// Longest IP packet that the port sends, in bytes, 68 or more;
    /// without it there is no limit but that of packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

impl From<Mac> for Port {
    fn from(mac: Mac) -> Self {
        Self { mac, addresses: Vec::new(), mtu: None }
    }
}

impl Port {
    pub(super) fn arrival(&self) -> Arrival {
        let v4 = |address: &IpAddr| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        };
        let v6 = |address: &IpAddr| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        };
        Arrival {
            mac: self.mac,
            v4: self.addresses.iter().find_map(v4),
            v6: self.addresses.iter().find_map(v6),
            back: None,
        }
    }

    pub(super) fn check(&self, name: &str) -> Result<(), ArgError> {
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < 68) {
            let problem = format!("port '{name}' has an mtu of {mtu}: IPv4 needs 68 bytes or more");
            return Err(ArgError::wrong("ports", problem));
        }
        let any = |address: &&IpAddr| address.is_unspecified() || address.is_multicast();
        match self.addresses.iter().find(any) {
            Some(address) => {
                let problem = format!("port '{name}': {address} is not the address of one host");
                Err(ArgError::wrong("ports", problem))
            }
            None => Ok(()),
        }
    }
}

/// The table form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    mac: Mac,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    #[serde(default)]
    mtu: Option<u16>,
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Port;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a MAC address or { mac, addresses, mtu }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Port, E> {
                text.parse::<Mac>().map(Port::from).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Port, A::Error> {
                let Fields { mac, addresses, mtu } =
                    Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Port { mac, addresses, mtu })
            }
        }

        deserializer.deserialize_any(Either)
    }
}
