//! What lies where in the memory of a link, and which of its places for images and signals are in
//! use.

use crate::verbs::WORDS;
use shm::segment::PAGE;

/// Buffers of a link.
pub(super) const MOST: usize = 2048;
/// Bytes in one request.
pub const STAGE: usize = 64 << 10;
/// Requests in a chain.
pub const CHAIN: usize = 8;
/// Bytes of all images of a link.
pub const IMAGES: usize = MOST * WORDS;
pub(super) const SIGNALS: usize = MOST * 8;
/// Behind the stage, which has room for what [`staged`] leaves free.
pub(super) const IMAGES_AT: usize = STAGE + PAGE;
pub(super) const SIGNALS_AT: usize = IMAGES_AT + IMAGES;
/// Behind what is registered: the words of the images as the peer has them.
pub(super) const TOLD: usize = (SIGNALS_AT + SIGNALS).next_multiple_of(PAGE);
pub(super) const BYTES: usize = TOLD + IMAGES;

/// Where in the stage, from `at` on, there is what goes to or comes from `to`: never 1 to 15 bytes
/// before it modulo 4096, where a copy by the kernel may go byte by byte ([`::verbs::far::write`])
/// and half a cursor would be seen.
pub(super) const fn staged(at: usize, to: u64) -> usize {
    at + (to as usize).wrapping_sub(at) % 16
}

/// Which of a link's places are in use.
pub struct Places([u64; MOST / 64], usize);

impl Places {
    pub(super) const EMPTY: Self = Self([0; MOST / 64], 0);

    /// The next free one behind the last: places rest before they are used again.
    pub(super) fn take(&mut self) -> Option<usize> {
        let free =
            (0..MOST).map(|i| (self.1 + i) % MOST).find(|i| self.0[i / 64] & 1 << (i % 64) == 0)?;
        self.0[free / 64] |= 1 << (free % 64);
        self.1 = free + 1;
        Some(free)
    }

    pub(super) fn give_back(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word &= !(1 << (place % 64));
        }
    }
}
