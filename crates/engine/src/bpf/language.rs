//! Filter expressions (pcap-filter(7)) for Ethernet frames, as far as they are compiled here.
//!
//! What is accepted means what it means to libpcap, to the last case, but for what its optimizer gets wrong; everything
//! else is [left to it](super::compile). Left out are names of hosts, ports and protocols, which a system translates,
//! headers that move what follows (VLANs, MPLS, PPPoE), chains of IPv6 headers, and arithmetic beyond
//! the masking of a field.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Instruction;
use super::graph::{Condition, program};
use arithmetic::relation;
use primitives::{Direction, Kind, Protocol, Qualifiers};
use tokens::{Token, tokens};

mod arithmetic;
mod primitives;
#[cfg(test)]
mod tests;
mod tokens;

/// Why an expression is not compiled here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut(pub String);

type Parsed<T> = Result<T, LeftOut>;

fn left_out<T>(what: impl Into<String>) -> Parsed<T> {
    Err(LeftOut(what.into()))
}

/// Conditions of an expression: more of them would be calls in calls that need much of a stack.
const MOST: usize = 1000;
/// Brackets in brackets, and negations.
const DEPTH: usize = 50;

/// Compiles an expression.
pub fn compile(expression: &str) -> Parsed<Vec<Instruction>> {
    let tokens = tokens(expression)?;
    if tokens.is_empty() {
        return Ok(program(&Condition::Always).unwrap_or_default());
    }
    let mut parser = Parser { tokens, at: 0, terms: 0, depth: 0 };
    let (condition, _) = parser.expression()?;
    if let Some(token) = parser.peek() {
        return left_out(token.to_string());
    }
    // To libpcap such an expression is an error, and most probably it is one.
    program(&condition).ok_or_else(|| LeftOut("what no packet fulfils".to_string()))
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    terms: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn peek_behind(&self, count: usize) -> Option<&Token> {
        self.tokens.get(self.at + count)
    }

    fn next(&mut self) -> Parsed<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token.ok_or_else(|| LeftOut("its end".to_string()))
    }

    /// Goes on if this comes next.
    fn takes(&mut self, token: &str) -> bool {
        let is = self.peek().is_some_and(|next| next.is(token));
        self.at += usize::from(is);
        is
    }

    fn takes_one(&mut self, tokens: &[&str]) -> bool {
        tokens.iter().any(|token| self.takes(token))
    }

    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == DEPTH {
            return left_out("so many brackets");
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Terms with `and` and `or` between them, which bind equally, from the left; and by what the last one
    /// was qualified, which a mere address or number behind it takes over.
    fn expression(&mut self) -> Parsed<(Condition, Option<Qualifiers>)> {
        let (mut condition, mut last) = self.term(None)?;
        loop {
            let is_and = if self.takes_one(&["and", "&&"]) {
                true
            } else if self.takes_one(&["or", "||"]) {
                false
            } else {
                return Ok((condition, last));
            };
            let (right, qualifiers) = self.term(last)?;
            condition = if is_and { condition.and(right) } else { condition.or(right) };
            last = qualifiers;
        }
    }

    fn term(&mut self, before: Option<Qualifiers>) -> Parsed<(Condition, Option<Qualifiers>)> {
        self.terms += 1;
        if self.terms > MOST {
            return left_out("so many terms");
        }
        if self.takes_one(&["not", "!"]) {
            let (inner, qualifiers) = self.deeper(|this| this.term(before))?;
            return Ok((inner.not(), qualifiers));
        }
        if let Some(relation) = relation(self)? {
            return Ok((relation, None));
        }
        let start = self.at;
        if let Some(before) = before {
            if let Ok(id) = self.id(before) {
                return Ok((id, Some(before)));
            }
            self.at = start;
        }
        if self.takes("(") {
            let inner = self.deeper(Self::expression)?;
            return if self.takes(")") { Ok(inner) } else { left_out("a missing ')'") };
        }
        self.primitive()
    }

    /// What a qualifier stands before: an address, a number, or several in brackets.
    fn id(&mut self, qualifiers: Qualifiers) -> Parsed<Condition> {
        self.terms += 1;
        if self.terms > MOST {
            return left_out("so many terms");
        }
        if self.takes_one(&["not", "!"]) {
            return Ok(self.deeper(|this| this.id(qualifiers))?.not());
        }
        if !self.takes("(") {
            return self.single(qualifiers);
        }
        self.deeper(|this| {
            let mut condition = this.id(qualifiers)?;
            loop {
                if this.takes_one(&["and", "&&"]) {
                    condition = condition.and(this.id(qualifiers)?);
                } else if this.takes_one(&["or", "||"]) {
                    condition = condition.or(this.id(qualifiers)?);
                } else if this.takes(")") {
                    return Ok(condition);
                } else {
                    return left_out("a missing ')'");
                }
            }
        })
    }

    fn single(&mut self, qualifiers: Qualifiers) -> Parsed<Condition> {
        let token = self.next()?;
        let Token::Word(word) = &token else { return left_out(token.to_string()) };
        let refused = || left_out(format!("'{word}' there"));
        match qualifiers.kind {
            Kind::Port | Kind::PortRange => {
                let mut ports = word.splitn(2, '-');
                let first = ports.next().and_then(number).filter(|port| *port <= 65535);
                let last = match ports.next() {
                    None => (qualifiers.kind == Kind::Port).then_some(first).flatten(),
                    Some(last) if qualifiers.kind == Kind::PortRange => {
                        number(last).filter(|port| *port <= 65535)
                    }
                    Some(_) => None,
                };
                match (first, last) {
                    (Some(first), Some(last)) => qualifiers.ports(first.min(last), first.max(last)),
                    _ => refused(),
                }
            }
            Kind::Host | Kind::Net => {
                if let Some(address) = mac(word) {
                    return qualifiers.station(address);
                }
                if word.contains(':') {
                    let Ok(address) = word.parse::<Ipv6Addr>() else { return refused() };
                    // Those that end in an IPv4 address are written in so many ways.
                    if word.contains('.') {
                        return refused();
                    }
                    let length = self.length(128)?;
                    return qualifiers.hosts_v6(address, length.unwrap_or(128), length.is_some());
                }
                let Some((address, bits)) = dotted(word, qualifiers.kind) else { return refused() };
                if qualifiers.kind == Kind::Host {
                    return if bits == 32 {
                        qualifiers.hosts(address, u32::MAX)
                    } else {
                        refused()
                    };
                }
                let mask = match self.length(32)? {
                    Some(length) if word.contains('.') => mask_of(length),
                    Some(_) => return refused(),
                    None if self.takes("mask") => {
                        let Token::Word(mask) = self.next()? else { return refused() };
                        match mask.parse::<Ipv4Addr>() {
                            Ok(mask) if bits == 32 => mask.to_bits(),
                            _ => return refused(),
                        }
                    }
                    None => mask_of(bits),
                };
                if address & !mask != 0 { refused() } else { qualifiers.hosts(address, mask) }
            }
        }
    }

    /// Bits of a net behind a slash, if there is one.
    fn length(&mut self, most: u32) -> Parsed<Option<u32>> {
        if !self.takes("/") {
            return Ok(None);
        }
        let token = self.next()?;
        let Token::Word(word) = &token else { return left_out(token.to_string()) };
        match number(word) {
            Some(length) if length <= most => Ok(Some(length)),
            _ => left_out(format!("'/{word}'")),
        }
    }

    /// `src`, `dst`, or both.
    fn direction(&mut self) -> Option<Direction> {
        let source = if self.takes("src") {
            true
        } else if self.takes("dst") {
            false
        } else {
            return None;
        };
        let other = if source { "dst" } else { "src" };
        if self.peek_behind(1).is_some_and(|token| token.is(other)) {
            let both = if self.takes_one(&["or", "||"]) {
                Some(Direction::Either)
            } else if self.takes_one(&["and", "&&"]) {
                Some(Direction::Both)
            } else {
                None
            };
            if both.is_some() {
                self.at += 1;
                return both;
            }
        }
        Some(if source { Direction::Source } else { Direction::Destination })
    }

    fn primitive(&mut self) -> Parsed<(Condition, Option<Qualifiers>)> {
        let token = self.next()?;
        let Token::Word(word) = &token else { return left_out(token.to_string()) };
        let protocol = Protocol::named(word);
        match word.as_str() {
            "less" => return Ok((primitives::at_most(self.number()?), None)),
            "greater" => return Ok((primitives::at_least(self.number()?), None)),
            _ => {}
        }
        if protocol.is_none() {
            self.at -= 1;
        }
        if self.takes("proto") {
            return Ok((primitives::carries(protocol, self.number()?)?, None));
        }
        if self.takes("broadcast") {
            return Ok((primitives::broadcast(protocol)?, None));
        }
        if self.takes("multicast") {
            return Ok((primitives::multicast(protocol)?, None));
        }
        let direction = self.direction();
        let kinds = [
            ("host", Kind::Host),
            ("net", Kind::Net),
            ("port", Kind::Port),
            ("portrange", Kind::PortRange),
        ];
        let kind = kinds.into_iter().find(|(name, _)| self.takes(name)).map(|(_, kind)| kind);
        if direction.is_none() && kind.is_none() {
            return match protocol {
                Some(protocol) => Ok((protocol.condition()?, None)),
                None => left_out(format!("'{word}'")),
            };
        }
        let direction = direction.unwrap_or(Direction::Either);
        let qualifiers = Qualifiers { protocol, direction, kind: kind.unwrap_or(Kind::Host) };
        Ok((self.id(qualifiers)?, Some(qualifiers)))
    }

    fn number(&mut self) -> Parsed<u32> {
        let token = self.next()?;
        match &token {
            Token::Word(word) => number(word),
            Token::Sign(_) => None,
        }
        .ok_or_else(|| LeftOut(format!("{token} where a number is expected")))
    }
}

/// Decimal, or hexadecimal behind 0x. Octal numbers are left out.
fn number(word: &str) -> Option<u32> {
    if let Some(digits) = word.strip_prefix("0x") {
        let valid =
            (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        return valid.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
    }
    let valid =
        word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    valid.then(|| word.parse().ok()).flatten()
}

/// An address of one to four numbers, and how many bits they are. The first ones are given; a mere
/// number is one for nets only.
fn dotted(word: &str, kind: Kind) -> Option<(u32, u32)> {
    let parts: Vec<u32> = word.split('.').map(number).collect::<Option<_>>()?;
    let fits = parts.len() <= 4 && parts.iter().all(|part| *part <= 255);
    let alone = parts.len() == 1;
    // As libpcap has it a net of 0 is the host of that number.
    if !fits || word.contains('x') || alone && (kind != Kind::Net || parts[0] == 0) {
        return None;
    }
    let bits = 8 * parts.len() as u32;
    let address = parts.iter().fold(0, |address, part| address << 8 | part);
    Some((if bits == 32 { address } else { address << (32 - bits) }, bits))
}

fn mask_of(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

/// Six pairs of digits with colons between them.
fn mac(word: &str) -> Option<[u8; 6]> {
    let parts: Vec<&str> = word.split(':').collect();
    let digits = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if parts.len() != 6 || !parts.iter().all(digits) {
        return None;
    }
    let bytes = parts.iter().map(|part| u8::from_str_radix(part, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}
