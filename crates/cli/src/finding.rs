//! What is found out about a program, a process or a unit, with what to do about it, as every command
//! shows it.

use std::fmt::Write as _;

use serde::Serialize;

use crate::run::{Alone, Obstacle};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Good,
    /// May cost some connections their shared memory.
    Note,
    /// All connections stay TCP.
    Obstacle,
}

#[derive(PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    pub level: Level,
    pub words: String,
    pub advice: Option<String>,
}

impl Finding {
    pub fn good(words: impl Into<String>) -> Finding {
        Finding { level: Level::Good, words: words.into(), advice: None }
    }

    pub fn note(words: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { level: Level::Note, words: words.into(), advice: Some(advice.into()) }
    }

    pub fn obstacle(words: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { level: Level::Obstacle, words: words.into(), advice: Some(advice.into()) }
    }
}

pub fn obstacle(obstacle: &Obstacle) -> Finding {
    let advice = match obstacle.root() {
        Obstacle::Static => {
            "Start it by `shortwire run --raw auto`, which follows most such programs, or use a build of it that is linked dynamically."
        }
        Obstacle::Go(Alone::NoLibc) => {
            "Start it by `shortwire run --raw auto`, or build it with cgo (CGO_ENABLED=1, where a C compiler is; a program that uses net or os/user then has the C library)."
        }
        Obstacle::Go(Alone::Undecided) => "Nothing: such a program cannot take part yet.",
        Obstacle::OtherMachine => "Use a build for this machine's word size.",
        Obstacle::Musl => "Start it by `shortwire run --raw auto`, or use a build for glibc.",
        Obstacle::Privileged(_) => {
            "Start it as that user already, or give it its rights otherwise (systemd's AmbientCapabilities)."
        }
        Obstacle::Interpreter(..) => "Use another interpreter.",
    };
    Finding::obstacle(obstacle.to_string(), advice)
}

/// Names, arguments and settings are a program's own: nothing in them may steer a terminal, begin a
/// line of its own, or turn text around.
pub fn plain(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// Findings as they are shown.
pub fn lines_of(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Obstacle => "STOP",
        };
        let _ = writeln!(text, "  {mark}  {}", plain(&finding.words));
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "        -> {}", plain(advice));
        }
    }
    text
}

/// A word for the shell, whatever is in it.
pub fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_the_shell() {
        assert_eq!(in_quotes("it's"), r"'it'\''s'");
    }
}
