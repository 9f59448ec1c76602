//! Which connections of a wait have news: bits that the peer sets in an arena of the process that
//! waits, one for each slot, so that a wait with hundreds of connections looks at those where
//! something has happened and passes over the rest.
//!
//! A bit never lies by itself: it says "look", and each look decides by the connection's own words.
//! So a hostile peer can cause looks at its own connections, and nothing else.

use shm::sync::{AtomicU64, Ordering::*, fence};

/// Waits of a process that can have bits: as many as there is room for in the front of an arena.
#[cfg(not(loom))]
pub const ROWS: usize = 28;
#[cfg(loom)]
pub const ROWS: usize = 1;
/// Words of each, with a bit for every slot that an arena can have.
#[cfg(not(loom))]
pub const WORDS: usize = 16;
#[cfg(loom)]
pub const WORDS: usize = 1;

/// Slots that have one.
pub const SLOTS: usize = WORDS * 64;

/// In `cover`, above the number of the wait: its row plus one, 0: it has none.
const ROW_AT: u32 = 8;
const WAIT: u32 = (1 << ROW_AT) - 1;

/// The bits of all rows, in an arena. Its peer sets them, and its owner for what it does itself; its
/// owner takes them.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Announced([[AtomicU64; WORDS]; ROWS]);

/// The wait that a `cover` word names.
#[inline(always)]
pub fn wait_of(cover: u32) -> u32 {
    cover & WAIT
}

/// The bits of an arena, which lie right in front of its control page. Only where an arena has a front.
pub fn in_front_of(page: *mut super::Waits) -> *mut Announced {
    if page.is_null() { core::ptr::null_mut() } else { page.cast::<Announced>().wrapping_sub(1) }
}

/// Whether a `cover` word names a row.
#[inline(always)]
pub fn has_row(cover: u32) -> bool {
    cover > WAIT
}

/// The row that a `cover` word names; none where a peer names one that there is not.
#[inline(always)]
fn row_of(cover: u32) -> Option<usize> {
    (cover >> ROW_AT).checked_sub(1).map(|row| row as usize).filter(|row| *row < ROWS)
}

/// The `cover` word of a wait with this row plus one, or 0.
pub fn cover_of(wait: u32, row: u32) -> u32 {
    wait | row << ROW_AT
}

impl Announced {
    /// Says that something of the connection in this slot, which `cover` covers, has changed: to be
    /// called behind the change, which was a SeqCst exchange or is followed by a full fence.
    #[inline]
    pub fn set(&self, cover: u32, slot: u32) {
        let row = row_of(cover).map(|row| &self.0[row]);
        let Some(word) = row.and_then(|row| row.get(slot as usize / 64)) else { return };
        let bit = 1 << (slot % 64);
        // SYNC: bits. Behind the change, in front of a look whether the wait sleeps. A bit that is
        // set already has yet to be taken, and whoever takes it sees the change.
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
    }

    /// Takes those of the bits `of` that are set in a word of a row: slots to be looked at behind this
    /// call. All others stay as they are, and cost who would set them a load.
    #[inline]
    pub fn take(&self, row: u32, word: usize, of: u64) -> u64 {
        let Some(word) = self.0.get(row as usize).and_then(|words| words.get(word)) else {
            return 0;
        };
        // SYNC: bits. Behind the fence of `Waits::sleep` where the caller is about to sleep: whoever
        // sets a bit behind this sees the sleep.
        if word.load(SeqCst) & of == 0 {
            return 0;
        }
        let bits = word.fetch_and(!of, SeqCst) & of;
        // SYNC: bits. In front of the looks, for who finds a bit set before this takes it.
        fence(SeqCst);
        bits
    }
}
