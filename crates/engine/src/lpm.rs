//! Longest prefix match: a trie with a step of one byte, for IPv4 and IPv6 alike.
//!
//! A lookup follows at most one entry per address byte and stops at the first that has no subtree.
//! Values of short prefixes are written into all entries below them when the table is built, so
//! that nothing is remembered on the way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address and the number of its bits that count, written `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Bits behind the first `length` count for nothing.
    pub address: IpAddr,
    /// Number of bits: at most 32 or 128.
    pub length: u8,
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a prefix: write it as 10.0.0.0/8 or fd00::/8");
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let length: u8 = length.parse().map_err(|_| wrong())?;
        let prefix = Self { address, length };
        let bytes = octets(&address);
        let bits = bytes.len() * 8;
        let beyond =
            (usize::from(length)..bits).any(|bit| bytes[bit / 8] >> (7 - bit % 8) & 1 != 0);
        match usize::from(length) > bits {
            true => Err(wrong()),
            false if beyond => Err(format!("'{text}' has bits behind its length of {length}")),
            false => Ok(prefix),
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// An entry is 0, a value plus 1, or with this bit the number of a node.
const NODE: u32 = 1 << 31;

struct Trie(Vec<[u32; 256]>);

impl Trie {
    /// The prefixes come in the order of their length, so that an entry that is filled has nothing
    /// below it.
    fn insert(&mut self, address: &[u8], length: u8, value: u32) {
        let (whole, bits) =
            (usize::from(length).saturating_sub(1) / 8, (usize::from(length) + 7) % 8 + 1);
        let mut node = 0;
        for byte in &address[..whole] {
            let entry = self.0[node][usize::from(*byte)];
            node = if entry & NODE != 0 {
                (entry & !NODE) as usize
            } else {
                self.0.push([entry; 256]);
                let new = self.0.len() - 1;
                self.0[node][usize::from(*byte)] = NODE | new as u32;
                new
            };
        }
        let (first, count) =
            if length == 0 { (0, 256) } else { (usize::from(address[whole]), 1 << (8 - bits)) };
        self.0[node][first..first + count].fill(value + 1);
    }

    #[inline]
    fn lookup(&self, address: &[u8]) -> Option<u32> {
        let mut node = 0;
        for byte in address {
            let entry = self.0[node][usize::from(*byte)];
            if entry & NODE == 0 {
                return entry.checked_sub(1);
            }
            node = (entry & !NODE) as usize;
        }
        None
    }
}

/// A table from prefixes to numbers.
pub struct Table {
    v4: Trie,
    v6: Trie,
}

impl Table {
    /// Of equal prefixes the last one counts.
    pub fn new(prefixes: impl IntoIterator<Item = (Prefix, u32)>) -> Self {
        let mut prefixes: Vec<_> = prefixes.into_iter().collect();
        prefixes.sort_by_key(|(prefix, _)| prefix.length);
        let mut table = Self { v4: Trie(vec![[0; 256]]), v6: Trie(vec![[0; 256]]) };
        for (prefix, value) in prefixes {
            match prefix.address {
                IpAddr::V4(address) => table.v4.insert(&address.octets(), prefix.length, value),
                IpAddr::V6(address) => table.v6.insert(&address.octets(), prefix.length, value),
            }
        }
        table
    }

    /// The value of the longest prefix that this address matches.
    #[inline]
    pub fn v4(&self, address: Ipv4Addr) -> Option<u32> {
        self.v4.lookup(&address.octets())
    }

    /// The value of the longest prefix that this address matches.
    #[inline]
    pub fn v6(&self, address: Ipv6Addr) -> Option<u32> {
        self.v6.lookup(&address.octets())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_are_read_strictly() {
        for good in
            ["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "::/0", "fd00::/8", "2001:db8::1/128"]
        {
            assert_eq!(good.parse::<Prefix>().unwrap().to_string(), good);
        }
        for bad in
            ["10.0.0.0", "10.0.0.0/33", "10.0.0.1/8", "::1/64", "::/129", "x/8", "10.0.0.0/x"]
        {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    /// Cuts an address down to a prefix.
    fn prefix(bits: u128, length: u8, v6: bool) -> Prefix {
        let width = if v6 { 128 } else { 32 };
        let length = length % (width as u8 + 1);
        let mask = if length == 0 { 0 } else { !0u128 << (width - u32::from(length)) };
        let address = if v6 {
            IpAddr::V6(Ipv6Addr::from_bits(bits & mask))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits((bits as u32) & mask as u32))
        };
        Prefix { address, length }
    }

    fn covers(prefix: &Prefix, address: &IpAddr) -> bool {
        let (a, b) = (octets(&prefix.address), octets(address));
        a.len() == b.len()
            && (0..usize::from(prefix.length))
                .all(|bit| (a[bit / 8] ^ b[bit / 8]) >> (7 - bit % 8) & 1 == 0)
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_of_all(
            // Few different bits, so that prefixes lie within each other.
            prefixes in prop::collection::vec((prop_oneof![any::<u128>(), (0u128..4).prop_map(|b| b << 126 | b << 30 | b << 15)], any::<u8>(), any::<bool>()), 0..40),
            addresses in prop::collection::vec((prop_oneof![any::<u128>(), (0u128..16).prop_map(|b| b << 124 | b << 28 | b << 14)], any::<bool>()), 1..60),
        ) {
            let prefixes: Vec<Prefix> = prefixes.into_iter().map(|(bits, length, v6)| prefix(bits, length, v6)).collect();
            let table = Table::new(prefixes.iter().copied().zip(0..));
            for (bits, v6) in addresses {
                let address = prefix(bits, if v6 { 128 } else { 32 }, v6).address;
                let best = prefixes.iter().enumerate().filter(|(_, prefix)| covers(prefix, &address));
                let best = best.max_by_key(|(place, prefix)| (prefix.length, *place)).map(|(place, _)| place as u32);
                let found = match address {
                    IpAddr::V4(address) => table.v4(address),
                    IpAddr::V6(address) => table.v6(address),
                };
                prop_assert_eq!(found, best);
            }
        }
    }
}
