//! Capture files as apps.

mod filter;
mod reader;
mod writer;

use crate::registry::Registry;

pub use filter::{PcapFilter, PcapFilterArgs};
pub use reader::{PcapReader, PcapReaderArgs};
pub use writer::{PcapWriter, PcapWriterArgs};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<PcapReader>();
    registry.register::<PcapWriter>();
    registry.register::<PcapFilter>();
}
