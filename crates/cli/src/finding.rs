//! What is found out about a program, a process or a unit, with what to do about it, as every command
//! shows it.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::run::{Alone, Obstacle, raw_way};

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

/// What is in the way of a program.
pub fn obstacle(program: &Path, obstacle: &Obstacle) -> Finding {
    let way = obstacle.is_for_raw().then(|| raw_way(obstacle.file(program)));
    // What can be done if it cannot be followed as it is.
    let (otherwise, is_for_raw) = match obstacle.root() {
        Obstacle::Static => ("use a build of it that is linked dynamically", true),
        Obstacle::Go(Alone::NoLibc) => (
            "build it with cgo (CGO_ENABLED=1, where a C compiler is; a program that uses net or os/user then has the C library)",
            true,
        ),
        Obstacle::Musl => ("use a build for glibc", true),
        Obstacle::Go(Alone::Undecided) => ("Nothing: such a program cannot take part yet.", false),
        Obstacle::OtherMachine => ("Use a build for this machine's word size.", false),
        Obstacle::Privileged(_) => (
            "Start it as that user already, or give it its rights otherwise (systemd's AmbientCapabilities).",
            false,
        ),
        Obstacle::Interpreter(..) => ("Use another interpreter.", false),
    };
    let advice = match way.filter(|_| is_for_raw) {
        None => otherwise.into(),
        Some(Ok(None)) => {
            format!("Start it by `shortwire run --raw auto`, which follows it, or {otherwise}.")
        }
        Some(Ok(Some(cost))) => format!(
            "Start it by `shortwire run --raw auto`, which follows it at a cost, or {otherwise}: it {cost}."
        ),
        Some(Err(why)) => {
            format!("`shortwire run --raw auto` cannot follow it, as it {why}; {otherwise}.")
        }
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
