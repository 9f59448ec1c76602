//! Buffer sizes as four bits.

/// Compressed size of a receive buffer: code `c` stands for `2^(c + 14)` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeCode(u8);

impl SizeCode {
    /// 16 KiB, the smallest.
    pub const MIN: SizeCode = SizeCode(0);
    /// 1 MiB, the largest that the kernel's SMC-D uses.
    pub const MAX_SMCD: SizeCode = SizeCode(6);
    /// 512 MiB, the largest that four bits can say.
    pub const MAX: SizeCode = SizeCode(15);

    /// The code `code`, if it has four bits.
    pub const fn new(code: u8) -> Option<SizeCode> {
        if code <= 15 { Some(SizeCode(code)) } else { None }
    }

    /// The smallest code for at least `bytes` bytes, but no more than `max`.
    pub fn compress(bytes: u64, max: SizeCode) -> SizeCode {
        match (bytes.saturating_sub(1) >> 14).checked_ilog2() {
            None => SizeCode::MIN,
            Some(log) => SizeCode(u8::try_from(log + 1).unwrap_or(u8::MAX).min(max.0)),
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        1 << (self.0 + 14)
    }

    /// The four bits.
    pub const fn code(self) -> u8 {
        self.0
    }

    pub(super) const fn from_high_nibble(byte: u8) -> SizeCode {
        SizeCode(byte >> 4)
    }

    pub(super) const fn high_nibble(self) -> u8 {
        self.0 << 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_to_a_power_of_two() {
        let code = |bytes| SizeCode::compress(bytes, SizeCode::MAX_SMCD).code();
        assert_eq!([code(0), code(1), code(16384)], [0, 0, 0]);
        assert_eq!([code(16385), code(32768), code(32769)], [1, 1, 2]);
        assert_eq!([code(65536), code(65537), code(131072)], [2, 3, 3]);
        assert_eq!([code(1 << 20), code((1 << 20) + 1), code(u64::MAX)], [6, 6, 6]);
        assert_eq!(SizeCode::compress(u64::MAX, SizeCode::MAX).code(), 15);
    }

    #[test]
    fn codes_are_exact_on_powers_of_two() {
        for code in 0..=15 {
            let size = SizeCode::new(code).unwrap();
            assert_eq!(size.bytes(), 16384 << code);
            assert_eq!(SizeCode::compress(u64::from(size.bytes()), SizeCode::MAX), size);
            assert_eq!(SizeCode::from_high_nibble(size.high_nibble() | 0x0f), size);
        }
        assert_eq!(SizeCode::new(16), None);
    }
}
