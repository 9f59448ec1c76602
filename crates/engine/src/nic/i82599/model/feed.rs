//! Where a model without a cable gets its frames from.

use super::transmit::Frame;
use crate::packet::Packet;

/// Frames to be received, in turn. They lie in packets, where the model finds those of a cable,
/// too.
#[derive(Default)]
pub(super) struct Feed {
    frames: Vec<Packet>,
    next: usize,
    /// How many are still to come; None: without end.
    left: Option<u64>,
}

impl Feed {
    pub fn new(frames: Vec<Packet>, repeat: bool) -> Self {
        let left = (!repeat).then_some(frames.len() as u64);
        Self { frames, next: 0, left }
    }

    pub fn frame(&mut self) -> Option<Frame> {
        if self.left == Some(0) {
            return None;
        }
        let packet = self.frames.get_mut(self.next)?;
        let length = packet.length();
        let data = std::ptr::NonNull::from(&mut packet[..]).cast();
        Some(Frame { data, length, tag: None })
    }

    pub fn taken(&mut self) {
        self.next = if self.next + 1 == self.frames.len() { 0 } else { self.next + 1 };
        self.left = self.left.map(|left| left.saturating_sub(1));
    }
}
