//! Numbers of the waits by which peers wake this process: words in control pages that both share.
//! They are its own, also where a fork child uses the same pages: a child lets none of its waits
//! stand for a connection that it has inherited.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::WAITS;
use crate::conn::announce::ROWS;

/// Those in use, one bit each.
static WAITING: [AtomicU64; WAITS / 64] = [const { AtomicU64::new(0) }; WAITS / 64];

/// A number, 1..WAITS; 0 when all are taken.
pub fn take() -> u32 {
    for (i, word) in WAITING.iter().enumerate() {
        // The number 0 stands for none.
        let never = u64::from(i == 0);
        let mut bits = word.load(Relaxed);
        while bits | never != u64::MAX {
            let bit = (bits | never).trailing_ones();
            match word.compare_exchange_weak(bits, bits | 1 << bit, AcqRel, Relaxed) {
                Ok(_) => return i as u32 * 64 + bit,
                Err(now) => bits = now,
            }
        }
    }
    0
}

/// Gives one back.
pub fn free(wait: u32) {
    if wait != 0 {
        WAITING[wait as usize / 64].fetch_and(!(1 << (wait % 64)), AcqRel);
    }
}

/// Rows of bits that waits with many connections have (`conn::announce`), one bit each.
static ROWS_TAKEN: AtomicU32 = AtomicU32::new(0);

/// A row plus one; 0 when all are taken.
pub fn take_row() -> u32 {
    let free = |taken: u32| {
        let row = taken.trailing_ones();
        (row < ROWS as u32).then_some(taken | 1 << row)
    };
    ROWS_TAKEN.fetch_update(AcqRel, Relaxed, free).map_or(0, |before| before.trailing_ones() + 1)
}

/// Gives one back.
pub fn free_row(row: u32) {
    if row != 0 {
        ROWS_TAKEN.fetch_and(!(1 << (row - 1)), AcqRel);
    }
}

/// In a fork child.
pub fn after_fork_child() {
    WAITING.iter().for_each(|word| word.store(0, Relaxed));
    ROWS_TAKEN.store(0, Relaxed);
}
