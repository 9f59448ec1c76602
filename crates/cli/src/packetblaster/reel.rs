//! The frames of a blast as packets, in an endless turn.

use ::engine::Packet;

/// Packets that are copied at once where frames cannot be sent from where they lie.
pub const BATCH: usize = 128;

/// Whatever frame is next, a whole batch lies behind it in one piece: the first frames follow the
/// last one again. Without that, a capture of one packet would go one packet at a time, at a
/// twentieth of the speed.
pub struct Reel {
    packets: Vec<Packet>,
    frames: usize,
    next: usize,
}

impl Reel {
    /// None if there is no memory for so many packets. There must be a frame.
    pub fn new(frames: &[Vec<u8>]) -> Option<Reel> {
        let turn = frames.iter().cycle().take(frames.len() + BATCH - 1);
        let packets: Option<Vec<Packet>> = turn.map(|frame| Packet::from_slice(frame)).collect();
        Some(Reel { packets: packets?, frames: frames.len(), next: 0 })
    }

    /// The next ones, as many as asked for, a batch at most.
    pub fn upcoming(&self, count: usize) -> &[Packet] {
        &self.packets[self.next..][..count.min(BATCH)]
    }

    /// So many of them went.
    pub fn advance(&mut self, count: usize) {
        self.next = (self.next + count) % self.frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_is_whole_and_the_turn_is_kept() {
        for frames in [1, 2, 3, 127, 128, 129, 256, 300] {
            let bytes: Vec<Vec<u8>> = (0..frames).map(|n| vec![n as u8; 14 + n % 7]).collect();
            let mut reel = Reel::new(&bytes).unwrap();
            let mut expected = bytes.iter().cycle();
            // Batches are taken whole and in part, as the room in a link and the rate allow.
            for taken in [BATCH, BATCH, 1, 0, 77, BATCH, 3, BATCH, BATCH] {
                let upcoming = reel.upcoming(BATCH);
                assert_eq!(upcoming.len(), BATCH, "{frames} frames");
                for packet in &upcoming[..taken] {
                    assert_eq!(&packet[..], &expected.next().unwrap()[..], "{frames} frames");
                }
                reel.advance(taken);
            }
            assert_eq!(reel.upcoming(5).len(), 5);
        }
    }
}
