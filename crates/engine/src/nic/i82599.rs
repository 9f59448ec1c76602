//! The Intel 82599, a 10 Gbit/s Ethernet card: its driver and its model in software.
//!
//! [`Card`] is what happens once: reset, filters, link, statistics. [`Queue`] is the data path.
//! Both are generic over the registers, which are those of hardware or of [`model`].

pub mod app;
mod card;
mod descriptor;
pub mod model;
mod queue;
pub mod registers;
mod statistics;

pub use card::{Backing, Card, CardError, LONGEST, LinkState, RSS_KEY, Settings};
pub use queue::Queue;
pub use statistics::Statistics;

/// Vendor and device of the cards with SFP+ cages. Those with other connectors want another link
/// mode.
pub const IDS: &[(u16, u16)] =
    &[(0x8086, 0x10fb), (0x8086, 0x1507), (0x8086, 0x1529), (0x8086, 0x154d), (0x8086, 0x1557)];
