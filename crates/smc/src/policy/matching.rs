//! What the conditions of a rule are, and whether they hold.

use core::net::IpAddr;

use crate::inet::Addr;

/// A pattern: `*` stands for any bytes, `?` for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glob<'a>(pub &'a [u8]);

impl<'a> Glob<'a> {
    /// Of a program: its name, or its whole path.
    pub(super) fn program(text: &'a [u8]) -> Option<Self> {
        let is_path = text.contains(&b'/');
        let whole = matches!(text.first(), Some(b'/' | b'*'));
        (!text.is_empty() && (!is_path || whole)).then_some(Self(text))
    }

    /// Whether it is about the whole path.
    fn is_path(self) -> bool {
        self.0.contains(&b'/')
    }

    /// Whether it stands for all of `text`. Takes at most their lengths' product of steps.
    pub fn matches(self, text: &[u8]) -> bool {
        let (pattern, mut p, mut t) = (self.0, 0, 0);
        // Where the last star was, and how much of the text it stands for.
        let mut star: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, t));
                    p += 1;
                }
                Some(&c) if c == b'?' || c == text[t] => (p, t) = (p + 1, t + 1),
                _ => match star {
                    Some((at, upto)) => {
                        star = Some((at, upto + 1));
                        (p, t) = (at + 1, upto + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|&c| c == b'*')
    }
}

/// A user by number or by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User<'a> {
    /// Its number.
    Number(u32),
    /// Its name, which /etc/passwd has.
    Name(&'a [u8]),
}

impl<'a> User<'a> {
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        match number(text) {
            Some(n) => u32::try_from(n).ok().map(User::Number),
            None if text.is_empty() || text.iter().any(|b| b":/\\\"".contains(b)) => None,
            None if text.iter().all(u8::is_ascii_digit) => None,
            None => Some(User::Name(text)),
        }
    }

    /// Its number, of a name by the lines of `passwd`.
    pub fn number(self, passwd: &[u8]) -> Option<u32> {
        let User::Name(name) = self else {
            let User::Number(n) = self else { return None };
            return Some(n);
        };
        passwd.split(|&byte| byte == b'\n').find_map(|line| {
            let mut fields = line.split(|&byte| byte == b':');
            (fields.next() == Some(name)).then_some(())?;
            u32::try_from(number(fields.nth(1)?)?).ok()
        })
    }
}

/// A decimal number without sign and blanks.
fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 10 && text.iter().all(u8::is_ascii_digit);
    digits.then(|| text.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

/// A range of ports, both ends of it included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let port = |text| u16::try_from(number(text)?).ok().filter(|&port| port != 0);
        let (first, last) = match text.iter().position(|&byte| byte == b'-') {
            Some(at) => (port(&text[..at])?, port(&text[at + 1..])?),
            None => (port(text)?, port(text)?),
        };
        (first <= last).then_some(Self { first, last })
    }

    pub(super) fn has(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// Addresses that agree in their first bits, as IPv6, and ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Net {
    ip: [u8; 16],
    /// 0: every address.
    bits: u8,
    ports: Option<Ports>,
}

impl Net {
    /// `ADDRESS`, `ADDRESS/BITS`, either with `:PORTS`, or `:PORTS` alone; an IPv6 address with
    /// ports is in brackets.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (address, ports) = match text {
            [b'[', rest @ ..] => {
                let end = rest.iter().position(|&byte| byte == b']')?;
                match &rest[end + 1..] {
                    [] => (&rest[..end], None),
                    [b':', ports @ ..] => (&rest[..end], Some(ports)),
                    _ => return None,
                }
            }
            _ if text.iter().filter(|&&byte| byte == b':').count() == 1 => {
                let at = text.iter().position(|&byte| byte == b':')?;
                (&text[..at], Some(&text[at + 1..]))
            }
            _ => (text, None),
        };
        let ports = match ports {
            Some(text) => Some(Ports::parse(text)?),
            None => None,
        };
        if address.is_empty() || address == b"*" {
            return (ports.is_some() || address == b"*").then_some(Self {
                ip: [0; 16],
                bits: 0,
                ports,
            });
        }
        let (address, bits) = match address.iter().position(|&byte| byte == b'/') {
            Some(at) => (&address[..at], Some(number(&address[at + 1..])?)),
            None => (address, None),
        };
        let (ip, bits) = match core::str::from_utf8(address).ok()?.parse().ok()? {
            IpAddr::V4(ip) => {
                let bits = bits.unwrap_or(32);
                (ip.to_ipv6_mapped().octets(), (bits <= 32).then_some(96 + bits as u8)?)
            }
            IpAddr::V6(ip) => {
                let bits = bits.unwrap_or(128);
                (ip.octets(), (bits <= 128).then_some(bits as u8)?)
            }
        };
        Some(Self { ip, bits, ports })
    }

    /// Whether an end of a connection is one of them.
    pub fn has(self, end: &Addr) -> bool {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
        let [own, other] = [self.ip, end.mapped()].map(u128::from_be_bytes);
        (own ^ other) & mask == 0 && self.ports.is_none_or(|ports| ports.has(end.port))
    }
}

/// Who opened a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The other end: it was accepted here.
    In,
    /// This end.
    Out,
}

impl Direction {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"in" => Some(Direction::In),
            b"out" => Some(Direction::Out),
            _ => None,
        }
    }
}

/// A program as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Its file, links followed; of a script that of its interpreter.
    pub file: &'a [u8],
    /// How it was started: a path whose links are not followed, and of a script the script's.
    pub started: &'a [u8],
    /// Its arguments, with a blank between each two.
    pub args: &'a [u8],
    /// Its effective user.
    pub user: u32,
    /// What /etc/passwd says; empty where no rule asks for a name.
    pub passwd: &'a [u8],
}

impl Program<'_> {
    /// Whether a rule may be for it, whatever the connection.
    pub(super) fn meets(&self, rule: &super::Rule<'_>) -> bool {
        let name = |path: &[u8]| path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let is_named = |glob: Glob<'_>| {
            [self.file, self.started]
                .into_iter()
                .any(|path| glob.matches(if glob.is_path() { path } else { &path[name(path)..] }))
        };
        rule.program.is_none_or(is_named)
            && rule.args.is_none_or(|glob| glob.matches(self.args))
            && rule.user.is_none_or(|user| user.number(self.passwd) == Some(self.user))
    }
}

impl super::OnConn {
    /// Whether it holds for a connection between these two ends, our own first. `direction` is
    /// asked only if it matters; None: it does, and cannot be told.
    pub fn holds(
        &self,
        names: &[Addr; 2],
        direction: impl FnOnce() -> Option<Direction>,
    ) -> Option<bool> {
        let [local, peer] = names;
        let there = self.local.is_none_or(|net| net.has(local))
            && self.peer.is_none_or(|net| net.has(peer))
            && self.port.is_none_or(|ports| ports.has(local.port) || ports.has(peer.port));
        match self.direction {
            Some(wanted) if there => direction().map(|is| is == wanted),
            _ => Some(there),
        }
    }
}
