//! Which builds share memory with which: the release of what two processes have in common beside
//! the messages of CLC, namely the words of buffers and control pages, the lanes of link groups, the
//! proof and the brokers' words.
//!
//! A change of any of these that an older build would misread is a new release. A build speaks a
//! range of releases, as a rule its own and the one before, and the two ends of a connection the
//! newest that both speak; where there is none the connection stays TCP.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The release that this code was written for. What is new in
/// - 2: who publishes sets bits in its peer's arena, for waits that name a row (`conn::announce`).
const NEWEST: u8 = 2;
/// The oldest that it can speak instead.
const OLDEST: u8 = 1;

/// What a library file says of itself, to be found without running it.
#[repr(C)]
struct Spoken {
    mark: [u8; MARK.len()],
    oldest: u8,
    newest: u8,
}

/// What precedes both numbers in the file of the library.
pub const MARK: [u8; 20] = *b"shortwire releases: ";

#[used]
static SPOKEN: Spoken = Spoken { mark: MARK, oldest: OLDEST, newest: NEWEST };

static BUILD: AtomicU64 = AtomicU64::new(0);

/// What this library was built from, 0 before it has been told.
pub fn build() -> u64 {
    BUILD.load(Relaxed)
}

/// Tells it, as the build script gives it: hexadecimal digits.
pub fn built_from(digits: &str) {
    BUILD.store(u64::from_str_radix(digits, 16).unwrap_or(0), Relaxed);
}

/// The releases that a build speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Releases {
    /// The oldest.
    pub oldest: u8,
    /// The newest.
    pub newest: u8,
}

impl Releases {
    /// Those of this build, as they stand in its file.
    pub fn ours() -> Releases {
        // Not known to the compiler: what stands in the file counts.
        let spoken = core::hint::black_box(&SPOKEN);
        Releases { oldest: spoken.oldest, newest: spoken.newest }
    }

    /// None where it is no range.
    pub fn new(oldest: u8, newest: u8) -> Option<Releases> {
        (oldest <= newest).then_some(Releases { oldest, newest })
    }

    /// Whether it sets bits for what happens on a connection.
    pub fn announces(self) -> bool {
        self.newest >= 2
    }

    /// Both numbers in one word.
    pub fn word(self) -> u32 {
        u32::from_be_bytes([0, 0, self.oldest, self.newest])
    }

    /// What such a word says, if it is a range.
    pub fn of_word(word: u32) -> Option<Releases> {
        let [_, _, oldest, newest] = word.to_be_bytes();
        Releases::new(oldest, newest)
    }

    /// Those that stand in the file of a library.
    pub fn of_file(file: &[u8]) -> Option<Releases> {
        let at = file.windows(MARK.len()).position(|bytes| bytes == MARK)?;
        match file.get(at + MARK.len()..)? {
            &[oldest, newest, ..] => Releases::new(oldest, newest),
            _ => None,
        }
    }

    /// The newest that both speak.
    pub fn common(self, other: Releases) -> Option<u8> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl core::fmt::Display for Releases {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "release {}", self.newest),
            false => write!(f, "releases {} to {}", self.oldest, self.newest),
        }
    }
}

/// Both ends', where they have none in common, as a connection notes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Of the end that notes them.
    pub ours: Releases,
    /// Of the other.
    pub theirs: Releases,
}

impl Mismatch {
    /// In one word.
    pub fn word(self) -> u32 {
        self.ours.word() << 16 | self.theirs.word()
    }

    /// What such a word says.
    pub fn of_word(word: u32) -> Mismatch {
        let [a, b, c, d] = word.to_be_bytes();
        let (ours, theirs) = (Releases { oldest: a, newest: b }, Releases { oldest: c, newest: d });
        Mismatch { ours, theirs }
    }
}

impl core::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} here, {} there", self.ours, self.theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn releases(oldest: u8, newest: u8) -> Releases {
        Releases::new(oldest, newest).expect("a range")
    }

    #[test]
    fn neighbours_speak_the_older_ones_newest() {
        assert_eq!(releases(1, 2).common(releases(2, 3)), Some(2));
        assert_eq!(releases(2, 3).common(releases(1, 2)), Some(2));
        assert_eq!(releases(1, 1).common(releases(1, 1)), Some(1));
        assert_eq!(releases(1, 2).common(releases(3, 4)), None);
        assert_eq!(releases(3, 4).common(releases(1, 2)), None);
        assert_eq!(Releases::new(2, 1), None);
    }

    #[test]
    fn a_file_says_what_it_speaks() {
        let file = [b"ELF...", MARK.as_slice(), &[3, 4, 0]].concat();
        assert_eq!(Releases::of_file(&file), Some(releases(3, 4)));
        assert_eq!(Releases::of_file(&file[..file.len() - 2]), None);
        assert_eq!(Releases::of_file(b"another library"), None);
    }

    #[test]
    fn both_numbers_are_kept_and_said() {
        let mismatch = Mismatch { ours: releases(1, 1), theirs: releases(2, 3) };
        assert_eq!(Mismatch::of_word(mismatch.word()), mismatch);
        assert_eq!(mismatch.to_string(), "release 1 here, releases 2 to 3 there");
    }

    /// What two processes share, by the size and the places of its parts. Where this fails the
    /// layout has changed: that takes a new release, and code that speaks the old one too.
    #[test]
    fn the_layout_is_that_of_the_newest_release() {
        use crate::conn::header::{DmbHeader, HEADER_LEN};
        use core::mem::offset_of;
        let words = [
            offset_of!(DmbHeader, kind),
            offset_of!(DmbHeader, prod),
            offset_of!(DmbHeader, cons),
            offset_of!(DmbHeader, switch),
            offset_of!(DmbHeader, rx_arm),
            offset_of!(DmbHeader, tx_arm),
            offset_of!(DmbHeader, cover),
            offset_of!(DmbHeader, cpu),
            offset_of!(DmbHeader, rung),
            offset_of!(DmbHeader, kin),
            offset_of!(DmbHeader, takeback),
        ];
        assert_eq!(
            (NEWEST, words, HEADER_LEN),
            (2, [0, 8, 16, 24, 32, 36, 40, 44, 48, 52, 56], 64)
        );
    }
}
