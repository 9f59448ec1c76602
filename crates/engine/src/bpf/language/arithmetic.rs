//! Comparisons of numbers in a packet: `tcp[tcpflags] & (tcp-syn|tcp-fin) != 0`, `len > 100`.

use super::primitives::{IPV4, IPV6, Protocol, carried_in_frame, no_later_fragment};
use super::tokens::Token;
use super::{Parsed, Parser, left_out, number};
use crate::bpf::graph::{Condition, Field, NETWORK, Operator, Test, Value};

/// Farther than any packet goes.
const FARTHEST: u32 = 65535;

/// Names that stand for numbers.
const NAMES: [(&str, u32); 24] = [
    ("icmptype", 0),
    ("icmpcode", 1),
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-sourcequench", 4),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-routeradvert", 9),
    ("icmp-routersolicit", 10),
    ("icmp-timxceed", 11),
    ("icmp-paramprob", 12),
    ("icmp-tstamp", 13),
    ("icmp-tstampreply", 14),
    ("icmp-ireq", 15),
    ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17),
    ("icmp-maskreply", 18),
    ("tcpflags", 13),
    ("tcp-fin", 1),
    ("tcp-syn", 2),
    ("tcp-rst", 4),
    ("tcp-push", 8),
    ("tcp-ack", 16),
    ("tcp-urg", 32),
];

enum Term {
    Number(u32),
    /// Of packets that fulfil the condition.
    Value(Value, Condition),
}

/// A comparison, if one comes next.
pub fn relation(parser: &mut Parser) -> Parsed<Option<Condition>> {
    let start = parser.at;
    let relation = comparison(parser).ok();
    if relation.is_none() {
        parser.at = start;
    }
    Ok(relation)
}

fn comparison(parser: &mut Parser) -> Parsed<Condition> {
    let left = alternation(parser)?;
    // With the opposite where that is what there is.
    let operators = [
        (">=", Operator::AtLeast, true),
        ("<=", Operator::Above, false),
        ("!=", Operator::Equal, false),
        ("==", Operator::Equal, true),
        ("=", Operator::Equal, true),
        (">", Operator::Above, true),
        ("<", Operator::AtLeast, false),
    ];
    let operator = operators.into_iter().find(|(sign, ..)| parser.takes(sign));
    let Some((_, operator, is)) = operator else { return left_out("no comparison") };
    let (Term::Value(value, check), Term::Number(constant)) = (left, alternation(parser)?) else {
        return left_out("a comparison of this kind");
    };
    let test = Condition::Test(Test { value, operator, constant });
    let test = if is { test } else { test.not() };
    Ok(if check == Condition::Always { test } else { check.and(test) })
}

/// Both numbers, or None.
fn numbers(left: &Term, right: &Term) -> Option<(u32, u32)> {
    match (left, right) {
        (Term::Number(left), Term::Number(right)) => Some((*left, *right)),
        _ => None,
    }
}

fn alternation(parser: &mut Parser) -> Parsed<Term> {
    let mut left = masking(parser)?;
    while parser.takes("|") {
        let right = masking(parser)?;
        let Some((one, other)) = numbers(&left, &right) else { return left_out("'|'") };
        left = Term::Number(one | other);
    }
    Ok(left)
}

fn masking(parser: &mut Parser) -> Parsed<Term> {
    let mut left = shift(parser)?;
    while parser.takes("&") {
        left = match (left, shift(parser)?) {
            (Term::Number(left), Term::Number(right)) => Term::Number(left & right),
            (Term::Value(value, check), Term::Number(mask))
            | (Term::Number(mask), Term::Value(value, check)) => {
                let mask = value.mask & mask;
                if mask == 0 {
                    return left_out("an empty mask");
                }
                Term::Value(Value { mask, ..value }, check)
            }
            _ => return left_out("'&' of two fields"),
        };
    }
    Ok(left)
}

fn shift(parser: &mut Parser) -> Parsed<Term> {
    let mut left = sum(parser)?;
    loop {
        let leftwards = parser.takes("<<");
        if !leftwards && !parser.takes(">>") {
            return Ok(left);
        }
        let right = sum(parser)?;
        let result = numbers(&left, &right).and_then(|(number, bits)| match leftwards {
            true => number.checked_shl(bits),
            false => number.checked_shr(bits),
        });
        let Some(result) = result else { return left_out("a shift") };
        left = Term::Number(result);
    }
}

fn sum(parser: &mut Parser) -> Parsed<Term> {
    let mut left = primary(parser)?;
    while parser.takes("+") {
        let right = primary(parser)?;
        let Some((one, other)) = numbers(&left, &right) else { return left_out("'+'") };
        left = Term::Number(one.wrapping_add(other));
    }
    Ok(left)
}

fn primary(parser: &mut Parser) -> Parsed<Term> {
    if parser.takes("(") {
        let inner = parser.deeper(alternation)?;
        return if parser.takes(")") { Ok(inner) } else { left_out("a missing ')'") };
    }
    let token = parser.next()?;
    let Token::Word(word) = &token else { return left_out(token.to_string()) };
    if word == "len" {
        let value = Value { field: Field::Length, mask: u32::MAX };
        return Ok(Term::Value(value, Condition::Always));
    }
    if let Some(number) = number(word).or_else(|| named(word)) {
        return Ok(Term::Number(number));
    }
    let protocol = Protocol::named(word);
    match protocol {
        Some(protocol) if parser.takes("[") => field(parser, protocol),
        _ => left_out(token.to_string()),
    }
}

fn named(word: &str) -> Option<u32> {
    NAMES.iter().find(|(name, _)| *name == word).map(|(_, number)| *number)
}

/// What stands in square brackets: the place, and behind a colon the number of bytes.
fn field(parser: &mut Parser, protocol: Protocol) -> Parsed<Term> {
    let Term::Number(place) = alternation(parser)? else { return left_out("a field at a field") };
    let bytes = if parser.takes(":") { parser.number()? } else { 1 };
    if !parser.takes("]") || place > FARTHEST || !matches!(bytes, 1 | 2 | 4) {
        return left_out("such a field");
    }
    let bytes = bytes as u8;
    let (field, check) = match protocol {
        Protocol::Ether => (Field::At(place, bytes), Condition::Always),
        Protocol::Ip | Protocol::Ip6 | Protocol::Arp | Protocol::ReverseArp => {
            (Field::At(NETWORK + place, bytes), protocol.condition()?)
        }
        Protocol::Over6(_) => {
            let carried = Condition::Test(Test {
                value: Value { field: Field::At(NETWORK + 6, 1), mask: u32::MAX },
                operator: Operator::Equal,
                constant: 58,
            });
            (Field::At(NETWORK + 40 + place, bytes), carried_in_frame(IPV6).and(carried))
        }
        // What is encrypted, or authenticated, has no fields.
        Protocol::Either(50 | 51) => return left_out("fields of IPsec"),
        Protocol::Either(_) | Protocol::Over4(_) => {
            let carried = protocol.condition()?.and(no_later_fragment());
            (Field::Behind(place, bytes), carried_in_frame(IPV4).and(carried))
        }
    };
    Ok(Term::Value(Value { field, mask: u32::MAX }, check))
}
