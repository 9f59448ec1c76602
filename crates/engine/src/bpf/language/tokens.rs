//! Words and signs of a filter expression.

use std::fmt;

use super::{LeftOut, Parsed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// A keyword, a number or an address.
    Word(String),
    Sign(&'static str),
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        match self {
            Self::Word(word) => word == text,
            Self::Sign(sign) => *sign == text,
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "'{word}'"),
            Self::Sign(sign) => write!(f, "'{sign}'"),
        }
    }
}

/// The longer ones first.
const SIGNS: [&str; 21] = [
    "&&", "||", "<<", ">>", "<=", ">=", "==", "!=", "(", ")", "[", "]", "!", "&", "|", "<", ">",
    "=", "/", "+", ":",
];

pub fn tokens(expression: &str) -> Parsed<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim_matches([' ', '\t', '\n', '\r']);
    // There, a colon is a sign; else it stands in addresses.
    let mut in_brackets = false;
    while let Some(first) = rest.chars().next() {
        if !first.is_ascii() {
            return Err(LeftOut(format!("'{first}'")));
        }
        let in_word =
            |c: char| c.is_ascii_alphanumeric() || "._".contains(c) || c == ':' && !in_brackets;
        let length = if in_word(first) {
            // A hyphen belongs to what it joins.
            rest.find(|c| !in_word(c) && c != '-').unwrap_or(rest.len())
        } else {
            0
        };
        if length > 0 {
            let word = &rest[..length];
            if word.ends_with('-') {
                return Err(LeftOut(format!("'{word}'")));
            }
            tokens.push(Token::Word(word.to_string()));
            rest = &rest[length..];
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            in_brackets = in_brackets && sign != "]" || sign == "[";
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
        } else {
            return Err(LeftOut(format!("'{first}'")));
        }
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }
    Ok(tokens)
}
