//! Why a peer is left.

use rustix::io::Errno;

use super::Refused;

/// Nanoseconds from the connection to joined rings. A peer that says nothing would keep others out.
pub const PATIENCE: u64 = 5_000_000_000;

/// Why a peer is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("{0}")]
    Protocol(&'static str),
    #[error("cannot use its memory: {0}")]
    Map(Errno),
    #[error(
        "the kernel gives us no way to wake it without waiting for it (io_setup: {0}; see `sysctl fs.aio-max-nr`, or the filter of a \
         container)"
    )]
    Bell(Errno),
    #[error("its socket fails: {0}")]
    Socket(Errno),
    /// What to do about it.
    #[error("its memory {0}, or trust it with `unsealed = true`")]
    Unsealed(&'static str),
    #[error("it has not finished its greeting within {} seconds", PATIENCE / 1_000_000_000)]
    Slow,
    #[error("it has ended")]
    Ended,
    #[error("it says: {0}")]
    Left(String),
}

impl Broken {
    /// Without what is the peer's text.
    pub fn reason(&self) -> String {
        if matches!(self, Self::Left(_)) { "it says".into() } else { self.to_string() }
    }

    /// The peer has broken a rule, and has not only left.
    pub fn is_violation(&self) -> bool {
        !matches!(self, Self::Ended | Self::Left(_) | Self::Socket(_))
    }
}

impl From<Refused> for Broken {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Socket(Errno::CONNRESET) => Self::Ended,
            Refused::Socket(errno) => Self::Socket(errno),
            Refused::Files => Self::Protocol(
                "more descriptors than belong to its message, or such as are neither memory nor eventfds",
            ),
        }
    }
}
