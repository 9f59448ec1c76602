//! Arithmetic on partial sums (RFC 1071).

/// Folds a partial sum to 16 bits and complements it: the value that goes into a header's checksum
/// field.
///
/// The result is in native byte order: store it with [`u16::to_ne_bytes`]. Over data that holds its
/// own right checksum the result is 0.
#[inline(always)]
pub const fn csum_fold(sum: u32) -> u16 {
    // Adding the two halves to each other puts the end-around carry into the upper half, with one
    // addition.
    !(sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Adds two partial sums of data that both began at even offsets.
#[inline(always)]
pub const fn csum_add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u32
}

/// Takes the partial sum `part` out of `sum` again. What stays is right modulo 0xffff; it may be
/// the other zero.
#[inline(always)]
pub const fn csum_sub(sum: u32, part: u32) -> u32 {
    csum_add(sum, !part)
}

/// Adds the partial sum of a block that lies `offset` bytes behind the beginning of what `sum` is
/// about.
///
/// A block at an odd offset was summed with its bytes in the wrong halves of the 16-bit words; RFC
/// 1071 section 2(B) puts that right by one rotation.
#[inline(always)]
pub const fn csum_block_add(sum: u32, part: u32, offset: usize) -> u32 {
    csum_add(sum, part.rotate_right((offset as u32 & 1) * 8))
}

/// A 64-bit sum with end-around carry, as a partial sum of 32 bits.
#[inline(always)]
pub(crate) const fn fold64(sum: u64) -> u32 {
    (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32
}

/// Adds with end-around carry.
#[inline(always)]
pub(crate) const fn add64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_stays_zero_and_ffff_stays_ffff() {
        assert_eq!(csum_fold(0), 0xffff);
        for zero in [0xffff, 0xffff_0000, 0xffff_ffff, 0x1_fffe] {
            assert_eq!(csum_fold(zero), 0, "{zero:#x}");
        }
        assert_eq!(csum_add(0xffff_ffff, 0), 0xffff_ffff);
        assert_eq!(csum_add(0xffff_ffff, 1), 1);
        assert_eq!(fold64(u64::MAX), u32::MAX);
        assert_eq!(fold64(0), 0);
    }

    #[test]
    fn rfc_1071_example() {
        // Section 3: the words 0001 f203 f4f5 f6f7 add up to 2ddf0, that is ddf2.
        let words = [0x0001u32, 0xf203, 0xf4f5, 0xf6f7];
        let sum = words.into_iter().fold(0, csum_add);
        assert_eq!(sum, 0x2_ddf0);
        assert_eq!(!csum_fold(sum), 0xddf2);
        assert_eq!(csum_fold(csum_sub(sum, 0xf203)), csum_fold(0x0001 + 0xf4f5 + 0xf6f7));
    }

    #[test]
    fn blocks_at_odd_offsets_rotate() {
        assert_eq!(csum_block_add(1, 0x0000_3412, 2), 0x3413);
        assert_eq!(csum_block_add(1, 0x0000_3412, 3), 0x1200_0035);
    }
}
