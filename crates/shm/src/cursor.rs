//! The position in a byte ring, kept privately by each side and told to the other as one word.
//!
//! It is SMC-D's cursor: `count` is the offset into the ring, `wrap` how often it went round. The
//! pair tells a full ring from an empty one. Both sides keep the authority over their own cursor in
//! private memory; what the peer publishes is a claim, which [`Cursor::follow`] checks.

/// The 48 bits of a published word that are the cursor. The upper 16 carry flags.
pub const CURSOR_MASK: u64 = (1 << 48) - 1;

/// A published word that no honest peer could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation;

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("peer published an impossible cursor")
    }
}

impl core::error::Error for Violation {}

/// Private authority over a place in a byte ring.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Bytes since the start of the stream.
    pub pos: u64,
    count: u32,
    wrap: u16,
    _pad: u16,
}

impl Cursor {
    /// The start of the stream.
    pub const ZERO: Self = Self { pos: 0, count: 0, wrap: 0, _pad: 0 };

    /// The place `pos` bytes after the start of the stream, in a ring of `size` bytes.
    pub fn at(pos: u64, size: u32) -> Self {
        let size = u64::from(size.max(1));
        Self { pos, count: (pos % size) as u32, wrap: (pos / size) as u16, _pad: 0 }
    }

    /// Offset into the ring.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Moves on by `n` bytes, `n <= size`, in a ring of `size` bytes.
    #[inline]
    pub fn advance(&mut self, n: u32, size: u32) {
        self.pos = self.pos.wrapping_add(u64::from(n));
        // Compared against what is left, so that nothing overflows for a size near 2^32.
        let left = size.wrapping_sub(self.count);
        if n >= left {
            self.count = n - left;
            self.wrap = self.wrap.wrapping_add(1);
        } else {
            self.count += n;
        }
    }

    /// The word for the peer: `wrap` in bits 0..16, `count` in bits 16..48, no flags.
    #[inline]
    pub fn wire(&self) -> u64 {
        u64::from(self.wrap) | u64::from(self.count) << 16
    }

    /// Moves to where the peer's published `word` says and returns the bytes moved.
    ///
    /// `limit` is the most that the peer may have moved: the free space when following a producer's
    /// cursor, the bytes outstanding when following a consumer's. The top 16 bits are ignored.
    /// After a [`Violation`] the cursor is where it was.
    #[inline]
    pub fn follow(&mut self, word: u64, size: u32, limit: u32) -> Result<u32, Violation> {
        let wrap = word as u16;
        let count = (word >> 16) as u32;
        if count >= size {
            return Err(Violation);
        }
        let base = match wrap.wrapping_sub(self.wrap) {
            0 => 0,
            1 => u64::from(size),
            _ => return Err(Violation),
        };
        let Some(moved) = (base + u64::from(count)).checked_sub(u64::from(self.count)) else {
            return Err(Violation);
        };
        if moved > u64::from(limit.min(size)) {
            return Err(Violation);
        }
        self.pos = self.pos.wrapping_add(moved);
        self.count = count;
        self.wrap = wrap;
        Ok(moved as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(wrap: u16, count: u32) -> Cursor {
        Cursor { pos: 0, count, wrap, _pad: 0 }
    }

    #[test]
    fn wire_layout_is_smc_d() {
        let c = at(0x0102, 0x0a0b_0c0d);
        assert_eq!(c.wire().to_le_bytes(), [0x02, 0x01, 0x0d, 0x0c, 0x0b, 0x0a, 0, 0]);
        assert_eq!(c.wire() & !CURSOR_MASK, 0);
        assert_eq!(core::mem::size_of::<Cursor>(), 16);
    }

    #[test]
    fn advance_wraps_at_the_end_and_at_u16() {
        let mut c = at(u16::MAX, 6);
        c.advance(4, 10);
        assert_eq!((c.wrap, c.count, c.pos), (0, 0, 4));
        c.advance(10, 10);
        assert_eq!((c.wrap, c.count, c.pos), (1, 0, 14));
    }

    #[test]
    fn a_place_follows_from_the_bytes_before_it() {
        for size in [1u32, 7, 65504] {
            let mut c = Cursor::ZERO;
            for n in [0, 1, size / 2, size, size - size / 2].into_iter().cycle().take(200_000) {
                c.advance(n, size);
                assert_eq!(Cursor::at(c.pos, size), c);
            }
        }
    }

    #[test]
    fn sizes_near_the_top_do_not_overflow() {
        let size = u32::MAX;
        let mut a = at(0, size - 1);
        let mut b = a;
        a.advance(size, size);
        assert_eq!((a.wrap, a.count), (1, size - 1));
        assert_eq!(b.follow(a.wire(), size, size), Ok(size));
        assert_eq!(b, a);
    }

    #[test]
    fn a_full_ring_is_followed_and_one_more_is_not() {
        for size in [1u32, 2, 7, 65504] {
            for count in [0, size / 2, size - 1] {
                let mut c = at(u16::MAX, count);
                assert_eq!(c.follow(at(0, count).wire(), size, size), Ok(size));
                let mut c = at(u16::MAX, count);
                assert_eq!(c.follow(at(0, count).wire(), size, size - 1), Err(Violation));
                if count + 1 < size {
                    assert_eq!(c.follow(at(0, count + 1).wire(), size, u32::MAX), Err(Violation));
                }
            }
        }
    }

    #[test]
    fn backwards_and_out_of_range_are_violations() {
        let start = at(5, 100);
        for word in [
            at(5, 99).wire(),
            at(4, 100).wire(),
            at(4, 999).wire(),
            at(7, 0).wire(),
            at(5, 1000).wire(),
            at(5, u32::MAX).wire(),
        ] {
            let mut c = start;
            assert_eq!(c.follow(word, 1000, 1000), Err(Violation), "{word:#x}");
            assert_eq!(c, start);
        }
    }

    #[test]
    fn flags_are_ignored() {
        let mut c = at(0, 0);
        assert_eq!(c.follow(at(0, 9).wire() | !CURSOR_MASK, 10, 10), Ok(9));
    }

    proptest! {
        #[test]
        fn follow_is_the_inverse_of_advance(
            size in 1u32.., wrap: u16, count: u32, n: u32, limit: u32,
        ) {
            let (count, n) = (count % size, (u64::from(n) % (u64::from(size) + 1)) as u32);
            let start = at(wrap, count);
            let mut there = start;
            there.advance(n, size);
            prop_assert!(there.count < size);
            let mut here = start;
            if n <= limit {
                prop_assert_eq!(here.follow(there.wire(), size, limit), Ok(n));
                prop_assert_eq!(here, there);
            } else {
                prop_assert_eq!(here.follow(there.wire(), size, limit), Err(Violation));
                prop_assert_eq!(here, start);
            }
        }

        #[test]
        fn hostile_words_never_move_it_outside(
            size in 1u32..100_000, wrap: u16, count: u32, word: u64, limit: u32,
        ) {
            let start = at(wrap, count % size);
            let mut c = start;
            match c.follow(word, size, limit) {
                Ok(n) => {
                    prop_assert!(c.count < size && n <= limit && n <= size);
                    let mut again = start;
                    again.advance(n, size);
                    prop_assert_eq!(again, c);
                }
                Err(Violation) => prop_assert_eq!(c, start),
            }
        }
    }
}
