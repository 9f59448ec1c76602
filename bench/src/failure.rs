//! What can go wrong here, as sentences.

use std::{fmt, io};

pub type Result<T> = std::result::Result<T, Failure>;

#[derive(Debug)]
pub enum Failure {
    /// A byte that was received is not the byte that was sent.
    WrongData {
        offset: u64,
        what: &'static str,
    },
    /// The other end is there, but speaks something else.
    Protocol(String),
    Io {
        doing: String,
        error: io::Error,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::WrongData { offset, what } => {
                write!(
                    f,
                    "WRONG DATA in the {what}: the first wrong byte is at offset {offset}. The transport corrupted the stream."
                )
            }
            Failure::Protocol(what) => f.write_str(what),
            Failure::Io { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

/// Says what was being done when a system call failed.
pub trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| Failure::Io { doing: what.into(), error: error.into() })
    }
}
