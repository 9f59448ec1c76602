//! A look at the packets of a running engine from another process: `shortwire capture` and
//! `trace-packets`.
//!
//! Each thread of an engine that publishes counters listens at a socket beside them. Who connects
//! says what it wants to see and is handed memory that it can read and not write; the engine copies
//! packets into it and never waits, so that a looker that is slow, stuck or killed loses its own
//! view and nothing else. The engine reads one message of it, of bounded length, and then only
//! whether it is still there. An engine that nobody looks at pays one comparison per breath.

mod client;
mod listener;
#[doc(hidden)]
pub mod order;
mod ring;

pub use client::{Entry, Filter, FilterError, Look, LookError};
pub(crate) use listener::{Listener, Peer, Request, is_room};
pub(crate) use ring::{Head, Writer};
pub use ring::{Kind, LABEL};
