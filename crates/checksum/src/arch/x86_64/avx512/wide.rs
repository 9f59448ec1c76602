//! Without VNNI: 64-bit words added as they are, their upper halves once more.

use core::arch::x86_64::*;

use super::short;

super::frame!("avx512f,avx512bw,avx512vl,bmi2", ".text.csum_wide");

/// No lane overflows: 2^32 words would be needed. Even, so that the pieces' sums add up.
const PIECE: usize = 1 << 30;

/// Up to so many bytes are copied by `copy_few`.
const FEW: usize = super::VECTOR;

/// # Safety
/// Both must have the same length, up to `FEW` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
#[inline]
unsafe fn copy_few(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    super::copy_short(source, destination, sum)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
#[inline]
fn up_to_four(data: &[u8], sum: u32) -> u32 {
    up_to::<1, 2>(data, sum)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
#[inline]
fn up_to_nine(data: &[u8], sum: u32) -> u32 {
    up_to::<4, 4>(data, sum)
}

/// The sum of the words modulo 2^64, and the exact sum of their upper halves. Both together give
/// the exact sum, with one instruction less for each vector than taking both halves apart.
#[derive(Clone, Copy)]
struct Sum {
    words: __m512i,
    upper: __m512i,
}

#[target_feature(enable = "avx512f")]
#[inline]
fn none() -> Sum {
    Sum { words: _mm512_setzero_si512(), upper: _mm512_setzero_si512() }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn start(_vectors: usize) -> Sum {
    none()
}

#[target_feature(enable = "avx512f")]
#[inline]
fn add(sum: Sum, vector: __m512i) -> Sum {
    let upper = _mm512_srli_epi64::<32>(vector);
    Sum { words: _mm512_add_epi64(sum.words, vector), upper: _mm512_add_epi64(sum.upper, upper) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn add_four([a, b, c, d]: [Sum; 4], [e, f, g, h]: [__m512i; 4]) -> [Sum; 4] {
    [add(a, e), add(b, f), add(c, g), add(d, h)]
}

#[target_feature(enable = "avx512f")]
#[inline]
fn join(a: Sum, b: Sum) -> Sum {
    Sum { words: _mm512_add_epi64(a.words, b.words), upper: _mm512_add_epi64(a.upper, b.upper) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn total(sum: Sum) -> u64 {
    // The lower halves' sum is what the upper halves leave of the words' sum: below 2^64, so exact.
    let lower = _mm512_sub_epi64(sum.words, _mm512_slli_epi64::<32>(sum.upper));
    _mm512_reduce_add_epi64(_mm512_add_epi64(lower, sum.upper)) as u64
}
