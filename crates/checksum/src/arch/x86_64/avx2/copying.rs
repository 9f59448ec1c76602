//! Copies. Lengths differ from packet to packet, so from 34 to 257 bytes there is one branch, by the class that the sum
//! has too; a store that may not be there lies over the last one instead.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;

use super::{GROUP, PIECE, Sums, VECTOR, close, few, finish, load, starts, up_to};
use crate::arch::aligned;
use crate::sum::{add64, fold64};

/// # Safety
/// Both must have the same length.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    // SAFETY: the caller's obligation, and the lengths.
    unsafe {
        match source.len() {
            0..=33 => {
                words(source, destination);
                few::partial(source, sum)
            }
            34..=65 => {
                vectors::<2>(source, destination, 0);
                up_to::<false, 1, 0>(source, sum)
            }
            66..=129 => {
                vectors::<4>(source, destination, 0);
                up_to::<false, 2, 1>(source, sum)
            }
            130..=257 => {
                vectors::<8>(source, destination, 0);
                up_to::<false, 4, 3>(source, sum)
            }
            258..=PIECE => piece(source, destination, sum),
            _ => pieces(source, destination, sum),
        }
    }
}

/// Not inlined: it saves registers, which shorter data need not pay for.
///
/// # Safety
/// As [`copy`].
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn pieces(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let pieces = source.chunks(PIECE).zip(destination.chunks_mut(PIECE));
    // SAFETY: parts of the same length.
    pieces.fold(sum, |sum, (source, destination)| unsafe { copy(source, destination, sum) })
}

/// More than 257 bytes. Not inlined, as `pieces`.
///
/// # Safety
/// As [`copy`].
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn piece(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let (from, rest) = source.as_chunks::<GROUP>();
    let to = destination.as_chunks_mut::<GROUP>().0;
    // SAFETY: any alignment will do.
    let sums = unsafe { groups::<false>(starts(4 * from.len() + 4), from, to) };
    // SAFETY: the same length, which is more than a vector.
    unsafe { vectors::<3>(source, destination, source.len() - rest.len()) };
    close::<false>(sums, source, rest, sum)
}

/// Up to 33 bytes: two words, which may lie over each other.
#[inline(always)]
fn words(source: &[u8], destination: &mut [u8]) {
    match source.len() {
        0 => {}
        1 => destination[0] = source[0],
        2..4 => ends::<2>(source, destination),
        4..8 => ends::<4>(source, destination),
        8..16 => ends::<8>(source, destination),
        16..32 => ends::<16>(source, destination),
        _ => ends::<32>(source, destination),
    }
}

#[inline(always)]
fn ends<const N: usize>(source: &[u8], destination: &mut [u8]) {
    if let (Some(first), Some(last)) = (source.first_chunk::<N>(), source.last_chunk::<N>()) {
        let (first, last) = (*first, *last);
        destination.first_chunk_mut::<N>().into_iter().for_each(|to| *to = first);
        destination.last_chunk_mut::<N>().into_iter().for_each(|to| *to = last);
    }
}

/// Copies so many vectors from `at` on, and the last. Those that do not fit are the last, too.
///
/// # Safety
/// Both must have the same length, of a vector at least.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn vectors<const N: usize>(source: &[u8], destination: &mut [u8], at: usize) {
    let last = source.len() - VECTOR;
    let place = |number: usize| if number < N { last.min(at + number * VECTOR) } else { last };
    for number in 0..=N {
        // SAFETY: the last vector, or one before it.
        unsafe {
            let from: *const [u8; VECTOR] = source.as_ptr().add(place(number)).cast();
            let to: *mut __m256i = destination.as_mut_ptr().add(place(number)).cast();
            _mm256_storeu_si256(to, load(&*from));
        }
    }
}

/// As `super::add_group`, with stores that are done at once or go past the caches.
macro_rules! copy_group {
    ($store:literal, $sums:ident, $from:ident, $to:ident) => {
        asm!(
            "vmovdqu {e}, [{from}]",
            "vmovdqu {f}, [{from} + 32]",
            "vmovdqu {g}, [{from} + 64]",
            "vmovdqu {h}, [{from} + 96]",
            concat!($store, " [{to}], {e}"),
            concat!($store, " [{to} + 32], {f}"),
            concat!($store, " [{to} + 64], {g}"),
            concat!($store, " [{to} + 96], {h}"),
            "vpxor {e}, {e}, {sign}",
            "vpxor {f}, {f}, {sign}",
            "vpxor {g}, {g}, {sign}",
            "vpxor {h}, {h}, {sign}",
            "vpmaddwd {e}, {e}, {ones}",
            "vpmaddwd {f}, {f}, {ones}",
            "vpmaddwd {g}, {g}, {ones}",
            "vpmaddwd {h}, {h}, {ones}",
            "vpaddd {a}, {a}, {e}",
            "vpaddd {b}, {b}, {f}",
            "vpaddd {c}, {c}, {g}",
            "vpaddd {d}, {d}, {h}",
            a = inout(ymm_reg) $sums[0], b = inout(ymm_reg) $sums[1], c = inout(ymm_reg) $sums[2], d = inout(ymm_reg) $sums[3],
            e = out(ymm_reg) _, f = out(ymm_reg) _, g = out(ymm_reg) _, h = out(ymm_reg) _, from = in(reg) $from, to = in(reg) $to,
            sign = in(ymm_reg) _mm256_set1_epi16(i16::MIN), ones = in(ymm_reg) _mm256_set1_epi16(1),
            options(nostack, preserves_flags)
        )
    };
}

/// # Safety
/// With `NT`, `to` must be aligned to a vector, or the processor faults.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn groups<const NT: bool>(
    mut sums: Sums,
    from: &[[u8; GROUP]],
    to: &mut [[u8; GROUP]],
) -> Sums {
    for (from, to) in from.iter().zip(to) {
        // SAFETY: reads one group and writes the other; the caller's obligation.
        unsafe {
            if NT {
                copy_group!("vmovntdq", sums, from, to);
            } else {
                copy_group!("vmovdqu", sums, from, to);
            }
        }
    }
    sums
}

/// # Safety
/// As [`copy`].
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    // SAFETY: this function has the same feature, and the caller's obligation. What `stream` is given is aligned to a group.
    unsafe { aligned::<GROUP>(source, destination, sum, copy, stream) }
}

/// # Safety
/// `destination` must be aligned to a vector.
#[target_feature(enable = "avx2")]
unsafe fn stream(source: &[[u8; GROUP]], destination: &mut [[u8; GROUP]]) -> u32 {
    const GROUPS: usize = PIECE / GROUP;
    let pieces = source.chunks(GROUPS).zip(destination.chunks_mut(GROUPS));
    let total = pieces.fold(0, |total, (from, to)| {
        // SAFETY: the caller's obligation.
        add64(total, finish(unsafe { groups::<true>(starts(4 * from.len()), from, to) }))
    });
    // Stores that go past the caches are not ordered with others; whoever is told of the copy must
    // see it.
    _mm_sfence();
    fold64(total)
}
