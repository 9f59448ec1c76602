//! Which connections are wanted, in the words of iproute2's `ss`.
//!
//! ```text
//! EXPR := EXPR or EXPR | EXPR [and] EXPR | not EXPR | ( EXPR ) | TEST
//! TEST := state NAME | FIELD [OP] VALUE
//! ```

use std::net::IpAddr;

use connections::Connection;

mod parse;

pub use parse::fields;

/// What is asked of a connection.
#[derive(Debug)]
pub enum Filter {
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
    State(&'static [&'static str]),
    /// One of the numbers stands so to this one.
    Number(fn(&Connection) -> Vec<u64>, Op, u64),
    /// One of the texts is like this pattern.
    Text(fn(&Connection) -> Vec<String>, String),
    Host(End, Host),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Is,
    Not,
    Below,
    Above,
    AtMost,
    AtLeast,
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    Local,
    Peer,
}

/// An address, as many bits of it as count, and a port.
#[derive(Debug)]
pub struct Host {
    network: Option<(IpAddr, u32)>,
    port: Option<u16>,
}

impl Filter {
    /// Whether it says something of states, so that the usual choice does not count.
    pub fn names_states(&self) -> bool {
        match self {
            Filter::All(parts) | Filter::Any(parts) => parts.iter().any(Filter::names_states),
            Filter::Not(part) => part.names_states(),
            Filter::State(_) => true,
            _ => false,
        }
    }

    pub fn wants(&self, connection: &Connection) -> bool {
        match self {
            Filter::All(parts) => parts.iter().all(|part| part.wants(connection)),
            Filter::Any(parts) => parts.iter().any(|part| part.wants(connection)),
            Filter::Not(part) => !part.wants(connection),
            Filter::State(states) => states.contains(&connection.state),
            Filter::Number(field, op, wanted) => {
                field(connection).into_iter().any(|value| op.holds(value, *wanted))
            }
            Filter::Text(field, pattern) => {
                field(connection).iter().any(|text| is_like(text, pattern))
            }
            Filter::Host(end, host) => host.holds(connection, *end),
        }
    }
}

impl Op {
    fn holds(self, value: u64, wanted: u64) -> bool {
        match self {
            Op::Is => value == wanted,
            Op::Not => value != wanted,
            Op::Below => value < wanted,
            Op::Above => value > wanted,
            Op::AtMost => value <= wanted,
            Op::AtLeast => value >= wanted,
        }
    }
}

impl Host {
    fn holds(&self, connection: &Connection, end: End) -> bool {
        let Some(address) = end.of(connection) else { return false };
        self.port.is_none_or(|port| address.port() == port)
            && self.network.is_none_or(|(network, bits)| is_within(address.ip(), network, bits))
    }
}

impl End {
    fn of(self, connection: &Connection) -> Option<std::net::SocketAddr> {
        match self {
            End::Local => connection.local,
            End::Peer => connection.peer,
        }
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let shifted = |value: u128, of: u32| if bits == 0 { 0 } else { value >> (of - bits) };
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => {
            shifted(u32::from(a).into(), 32) == shifted(u32::from(n).into(), 32)
        }
        (IpAddr::V6(a), IpAddr::V6(n)) => shifted(a.into(), 128) == shifted(n.into(), 128),
        _ => false,
    }
}

/// `*` and `?` stand for anything; upper and lower case are alike.
fn is_like(text: &str, pattern: &str) -> bool {
    fn matches(text: &[char], pattern: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|skipped| matches(&text[skipped..], rest)),
            Some(('?', rest)) => !text.is_empty() && matches(&text[1..], rest),
            Some((c, rest)) => text.first() == Some(c) && matches(&text[1..], rest),
        }
    }
    let chars = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    matches(&chars(text), &chars(pattern))
}

#[cfg(test)]
mod tests;
