//! Copies between an application's memory and shared memory.
//!
//! glibc copies blocks of more than a few kilobytes with `rep movsb`. On Zen 3 and Zen 4 that
//! instruction falls to a fifteenth of its rate where the destination lies 1 to 15 bytes behind the
//! source modulo 4096 (3.4 instead of 48 GB/s for 32 KiB on an EPYC 9004; glibc's bug 30995), and a
//! byte stream brings every such distance. Plain vector loads and stores have no such place and are
//! as fast or faster at all others.
#![allow(unsafe_code)]

/// Shorter blocks glibc copies with vectors, too, and knows more about.
#[cfg_attr(
    any(shortwire_raw, miri, not(target_arch = "x86_64")),
    expect(dead_code, reason = "no such glibc is there")
)]
const WIDE: usize = 1024;

/// As [`core::ptr::copy_nonoverlapping`] for bytes, for long blocks at any distance.
///
/// # Safety
/// As for [`core::ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // Whoever enters without libc keeps 128 bits of each vector register for the program: the upper
    // ones may not be touched there.
    #[cfg(all(target_arch = "x86_64", not(miri), not(shortwire_raw)))]
    if len >= WIDE && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's obligation; the processor has AVX2; at least WIDE bytes.
        return unsafe { avx2(src, dst, len) };
    }
    // SAFETY: the caller's obligation.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
}

/// At least 32 bytes.
#[cfg(all(target_arch = "x86_64", not(miri), not(shortwire_raw)))]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "loads and stores of one copy, which one argument covers"
)]
#[target_feature(enable = "avx2")]
unsafe fn avx2(src: *const u8, dst: *mut u8, len: usize) {
    use core::arch::x86_64::{
        __m256i, _mm256_loadu_si256 as load, _mm256_store_si256 as store,
        _mm256_storeu_si256 as store_anywhere,
    };
    const STEP: usize = size_of::<__m256i>();
    // SAFETY: all offsets are at most `len - STEP`; `dst + at` is aligned to STEP from the first
    // step on. Both ends are copied by themselves and overlap the aligned part between them.
    unsafe {
        let (first, last) = (load(src.cast()), load(src.add(len - STEP).cast()));
        store_anywhere(dst.cast(), first);
        let mut at = STEP - dst.addr() % STEP;
        // All loads before the first store: one that follows a store at the same place of a page
        // would wait for it.
        while at + 4 * STEP <= len {
            let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
            let (a, b, c, d) =
                (load(from), load(from.add(1)), load(from.add(2)), load(from.add(3)));
            store(to, a);
            store(to.add(1), b);
            store(to.add(2), c);
            store(to.add(3), d);
            at += 4 * STEP;
        }
        while at + STEP <= len {
            store(dst.add(at).cast(), load(src.add(at).cast()));
            at += STEP;
        }
        store_anywhere(dst.add(len - STEP).cast(), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(from: usize, to: usize, len: usize) {
        let source: Vec<u8> = (0..from + len).map(|i| (i * 31 + i / 251) as u8).collect();
        let mut target = vec![0xa5u8; to + len + 64];
        // SAFETY: both lie inside, and are two allocations.
        unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
        assert_eq!(target[to..to + len], source[from..]);
        assert!(
            target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xa5),
            "wrote outside"
        );
    }

    #[test]
    fn every_remainder_and_alignment() {
        for len in (0..3).chain(WIDE - 2..WIDE + 2 * 128 + 2) {
            for to in 0..32 {
                check(len % 7, to, len);
            }
        }
    }

    proptest! {
        #[test]
        fn any_length(from in 0usize..64, to in 0usize..64, len in 0usize..40_000) {
            check(from, to, len);
        }
    }
}
