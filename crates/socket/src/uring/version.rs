//! Which kernel this is, where what a ring does goes by that.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Whether this kernel is of that version or a later one.
pub(super) fn is_since(major: u32, minor: u32) -> bool {
    /// Both numbers; 0: not asked yet.
    static THIS: AtomicU32 = AtomicU32::new(0);
    if THIS.load(Relaxed) == 0 {
        let name = rustix::system::uname();
        let (major, minor) = of(name.release().to_bytes());
        THIS.store(major.min(0x7fff) << 16 | minor.min(0xffff), Relaxed);
    }
    THIS.load(Relaxed) >= major << 16 | minor
}

/// The first two numbers of a release.
fn of(release: &[u8]) -> (u32, u32) {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(|digits| {
        digits.iter().fold(0u32, |n, digit| n.saturating_mul(10) + u32::from(digit - b'0'))
    });
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_two_numbers() {
        assert_eq!(of(b"6.10.3-amd64"), (6, 10));
        assert_eq!(of(b"5.4.0-150-generic"), (5, 4));
        assert_eq!(of(b"6.9"), (6, 9));
        assert_eq!(of(b"7"), (7, 0));
        assert!(is_since(4, 0) && !is_since(0x7fff, 0));
    }
}
