//! A bit for each number that a descriptor may have.

use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fd::RawFd;

const WORDS: usize = 1 << 14;

/// Numbers below 2^20; higher ones are in no set.
pub struct Numbers([AtomicU64; WORDS]);

impl Numbers {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    fn word(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    pub fn mark(&self, fd: RawFd, is_in: bool) {
        match (self.word(fd), is_in) {
            (Some((word, bit)), true) => drop(word.fetch_or(bit, Ordering::Relaxed)),
            (Some((word, bit)), false) => drop(word.fetch_and(!bit, Ordering::Relaxed)),
            (None, _) => {}
        }
    }

    pub fn has(&self, fd: RawFd) -> bool {
        self.word(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    pub fn clear(&self) {
        // What was never written is not to be: it would be memory.
        let used = self.0.iter().filter(|word| word.load(Ordering::Relaxed) != 0);
        used.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Those from `first` to `last`, the least first.
    pub fn within(&self, first: u32, last: u32) -> impl Iterator<Item = u32> {
        let words = self.0.iter().enumerate().skip(first as usize / 64);
        let words = words.take_while(move |(at, _)| at * 64 <= last as usize);
        let used = words.filter(|(_, word)| word.load(Ordering::Relaxed) != 0);
        let all = used.flat_map(|(at, _)| (0..64).map(move |bit| at as u32 * 64 + bit));
        all.filter(move |fd| (first..=last).contains(fd) && self.has(fd.cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_numbers_between_its_ends() {
        static NUMBERS: Numbers = Numbers::new();
        for fd in [3, 63, 64, 1000, 1 << 21, -1] {
            NUMBERS.mark(fd, true);
        }
        let within = |first, last| NUMBERS.within(first, last).collect::<Vec<_>>();
        assert_eq!(within(0, u32::MAX), [3, 63, 64, 1000]);
        assert_eq!(within(4, 64), [63, 64]);
        assert_eq!(within(65, 999), []);
        NUMBERS.mark(64, false);
        assert_eq!(within(63, 1000), [63, 1000]);
        NUMBERS.clear();
        assert!(within(0, u32::MAX).is_empty() && !NUMBERS.has(3));
    }
}
