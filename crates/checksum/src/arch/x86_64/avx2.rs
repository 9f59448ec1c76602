//! 256-bit vectors: 64-bit words added as they are, their upper halves once more.

use core::arch::x86_64::*;
use core::hint::select_unpredictable;

use super::carry;
use crate::arch::aligned;
use crate::sum::{add64, fold64};

const VECTOR: usize = 32;
const GROUP: usize = 4 * VECTOR;

/// Read in place of vectors that the data does not have.
#[repr(align(32))]
struct Zeros([u8; VECTOR]);
static ZEROS: Zeros = Zeros([0; VECTOR]);

/// A window of 32 bytes that begins `kept` bytes in has `kept` bytes 0xff at its end.
static MASKS: [u8; 2 * VECTOR] = {
    let mut masks = [0; 2 * VECTOR];
    let mut place = VECTOR;
    while place < 2 * VECTOR {
        masks[place] = 0xff;
        place += 1;
    }
    masks
};

/// The sum of the words modulo 2^64, and the exact sum of their upper halves: together, the exact sum.
#[derive(Clone, Copy)]
struct Sum {
    words: __m256i,
    upper: __m256i,
}

/// Two, so that additions need not wait for each other.
type Sums = [Sum; 2];

#[target_feature(enable = "avx2")]
#[inline]
fn load(vector: &[u8; VECTOR]) -> __m256i {
    // SAFETY: a vector's bytes, at any alignment.
    unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn none() -> Sums {
    [Sum { words: _mm256_setzero_si256(), upper: _mm256_setzero_si256() }; 2]
}

#[target_feature(enable = "avx2")]
#[inline]
fn add(sum: Sum, vector: __m256i) -> Sum {
    let upper = _mm256_srli_epi64::<32>(vector);
    Sum { words: _mm256_add_epi64(sum.words, vector), upper: _mm256_add_epi64(sum.upper, upper) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn finish([a, b]: Sums) -> u64 {
    let words = _mm256_add_epi64(a.words, b.words);
    let upper = _mm256_add_epi64(a.upper, b.upper);
    // The lower halves' sum is what the upper halves leave of the words' sum: below 2^64, so exact.
    let lower = _mm256_sub_epi64(words, _mm256_slli_epi64::<32>(upper));
    let lanes = _mm256_add_epi64(lower, upper);
    let pair = _mm_add_epi64(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    _mm_cvtsi128_si64(_mm_add_epi64(pair, _mm_unpackhi_epi64(pair, pair))) as u64
}

#[target_feature(enable = "avx2")]
pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
    if data.len() < VECTOR {
        return carry::one_chain(data, sum);
    }
    let (groups, rest) = data.as_chunks::<GROUP>();
    let mut sums = none();
    for group in groups {
        for [a, b] in group.as_chunks::<VECTOR>().0.as_chunks::<2>().0 {
            sums = [add(sums[0], load(a)), add(sums[1], load(b))];
        }
    }
    // The rest without a branch, because packets differ in length from one to the next. Up to three vectors:
    for number in 0..3 {
        let there = rest.len() >= (number + 1) * VECTOR;
        let at = select_unpredictable(there, rest.as_ptr().wrapping_add(number * VECTOR), ZEROS.0.as_ptr());
        // SAFETY: the vector lies in the rest, or it is the zeros.
        sums[number % 2] = add(sums[number % 2], load(unsafe { &*at.cast() }));
    }
    // Behind them fewer than 32 bytes: up to an even length they are the end of a vector that begins before them and is
    // cleared there; the odd last byte is by itself.
    let (even, behind) = (data.len() & !1, rest.len() % VECTOR);
    let end: &[u8; VECTOR] = data[even - VECTOR..even].as_array().expect("a vector's length");
    let kept: &[u8; VECTOR] = MASKS[behind & !1..][..VECTOR].as_array().expect("a vector's length");
    sums[1] = add(sums[1], _mm256_and_si256(load(end), load(kept)));
    let odd = u64::from(data[data.len() - 1]) & (data.len() as u64 & 1).wrapping_neg();
    // Three addends of at most 2^64 - 1, 2^32 - 1 and 255: one carry each.
    fold64(add64(finish(sums), odd + u64::from(sum)))
}

#[target_feature(enable = "avx2")]
pub(crate) fn copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let (vectors, rest) = source.as_chunks::<VECTOR>();
    let (places, place) = destination.as_chunks_mut::<VECTOR>();
    let total = copy_vectors::<false>(vectors, places);
    carry::copy(rest, place, fold64(add64(total, u64::from(sum))))
}

/// With `NT`, the destination must be aligned to a vector, or the processor faults.
#[target_feature(enable = "avx2")]
#[inline]
fn copy_vectors<const NT: bool>(source: &[[u8; VECTOR]], destination: &mut [[u8; VECTOR]]) -> u64 {
    let mut sums = none();
    for (number, (from, to)) in source.iter().zip(destination).enumerate() {
        let vector = load(from);
        let to = to.as_mut_ptr().cast();
        // SAFETY: a vector's bytes; with NT aligned, as `aligned` has seen to.
        unsafe { if NT { _mm256_stream_si256(to, vector) } else { _mm256_storeu_si256(to, vector) } };
        sums[number % 2] = add(sums[number % 2], vector);
    }
    finish(sums)
}

#[target_feature(enable = "avx2")]
pub(crate) fn copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    // SAFETY: this function has the same feature; the lengths are equal here too.
    unsafe { aligned::<VECTOR>(source, destination, sum, copy, stream) }
}

#[target_feature(enable = "avx2")]
fn stream(source: &[[u8; VECTOR]], destination: &mut [[u8; VECTOR]]) -> u32 {
    let total = copy_vectors::<true>(source, destination);
    // Stores that go past the caches are not ordered with others; whoever is told of the copy must see it.
    _mm_sfence();
    fold64(total)
}
