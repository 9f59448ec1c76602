//! 256-bit vectors: pairs of words multiplied by 1 and added, into lanes of 32 bits. The
//! instruction takes words as signed, so `add` flips their sign, which takes 0x8000 from each, and
//! `starts` gives that back in advance.
//!
//! With AVX-VNNI (`VNNI`) one instruction does both. It has the latency of a multiplication, so that
//! four sums are too few for long data, where the two instructions stay.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;
use core::hint::select_unpredictable;

use super::few;
use crate::sum::{add64, fold64};

mod copying;

pub(crate) use copying::{copy, copy_nt};

const VECTOR: usize = 32;
const GROUP: usize = 4 * VECTOR;
/// Up to so many bytes one instruction that takes long beats two that do not.
const MULTIPLIED: usize = 6144;
/// 4096 vectors: in the end a lane holds the sum of 8 words of each, which must stay below 2^32.
/// Even, so that the pieces' sums add up.
const PIECE: usize = 4096 * VECTOR;

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

/// Four, so that additions need not wait for each other.
type Sums = [__m256i; 4];

#[target_feature(enable = "avx2")]
#[inline]
fn load(vector: &[u8; VECTOR]) -> __m256i {
    // SAFETY: a vector's bytes, at any alignment.
    unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) }
}

/// The sums to begin with when so many vectors are going to be added, to whichever.
#[target_feature(enable = "avx2")]
#[inline]
fn starts(vectors: usize) -> Sums {
    let none = _mm256_setzero_si256();
    [_mm256_set1_epi32((vectors * 2 * 0x8000) as i32), none, none, none]
}

#[target_feature(enable = "avx2")]
#[inline]
fn add<const VNNI: bool>(mut sum: __m256i, vector: __m256i) -> __m256i {
    let signed = _mm256_xor_si256(vector, _mm256_set1_epi16(i16::MIN));
    if VNNI {
        // SAFETY: registers only; whoever asks for it has the instruction.
        unsafe {
            asm!(
                "{{vex}} vpdpwssd {sum}, {signed}, {ones}",
                sum = inout(ymm_reg) sum, signed = in(ymm_reg) signed, ones = in(ymm_reg) _mm256_set1_epi16(1),
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        return sum;
    }
    _mm256_add_epi32(sum, _mm256_madd_epi16(signed, _mm256_set1_epi16(1)))
}

/// Four times load and `add`. In assembly, because compilers address such a loop by an index, with
/// which processors split an operand in memory from its instruction: one third more of what limits
/// the loop.
#[target_feature(enable = "avx2")]
#[inline]
fn add_group<const VNNI: bool>([mut a, mut b, mut c, mut d]: Sums, group: &[u8; GROUP]) -> Sums {
    if VNNI {
        // SAFETY: reads the group only; whoever asks for it has the instruction.
        unsafe {
            asm!(
                "vpxor {e}, {sign}, [{at}]",
                "vpxor {f}, {sign}, [{at} + 32]",
                "vpxor {g}, {sign}, [{at} + 64]",
                "vpxor {h}, {sign}, [{at} + 96]",
                "{{vex}} vpdpwssd {a}, {e}, {ones}",
                "{{vex}} vpdpwssd {b}, {f}, {ones}",
                "{{vex}} vpdpwssd {c}, {g}, {ones}",
                "{{vex}} vpdpwssd {d}, {h}, {ones}",
                a = inout(ymm_reg) a, b = inout(ymm_reg) b, c = inout(ymm_reg) c, d = inout(ymm_reg) d,
                e = out(ymm_reg) _, f = out(ymm_reg) _, g = out(ymm_reg) _, h = out(ymm_reg) _, at = in(reg) group,
                sign = in(ymm_reg) _mm256_set1_epi16(i16::MIN), ones = in(ymm_reg) _mm256_set1_epi16(1),
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        return [a, b, c, d];
    }
    // SAFETY: reads the group only.
    unsafe {
        asm!(
            "vpxor {e}, {sign}, [{at}]",
            "vpxor {f}, {sign}, [{at} + 32]",
            "vpxor {g}, {sign}, [{at} + 64]",
            "vpxor {h}, {sign}, [{at} + 96]",
            "vpmaddwd {e}, {e}, {ones}",
            "vpmaddwd {f}, {f}, {ones}",
            "vpmaddwd {g}, {g}, {ones}",
            "vpmaddwd {h}, {h}, {ones}",
            "vpaddd {a}, {a}, {e}",
            "vpaddd {b}, {b}, {f}",
            "vpaddd {c}, {c}, {g}",
            "vpaddd {d}, {d}, {h}",
            a = inout(ymm_reg) a, b = inout(ymm_reg) b, c = inout(ymm_reg) c, d = inout(ymm_reg) d,
            e = out(ymm_reg) _, f = out(ymm_reg) _, g = out(ymm_reg) _, h = out(ymm_reg) _, at = in(reg) group,
            sign = in(ymm_reg) _mm256_set1_epi16(i16::MIN), ones = in(ymm_reg) _mm256_set1_epi16(1),
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    [a, b, c, d]
}

#[target_feature(enable = "avx2")]
#[inline]
fn finish([a, b, c, d]: Sums) -> u64 {
    let lanes = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    let half = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    // Two lanes stay: as halves of a 64-bit word they mean the same to a ones' complement sum.
    _mm_cvtsi128_si64(_mm_add_epi32(half, _mm_unpackhi_epi64(half, half))) as u64
}

#[target_feature(enable = "avx2")]
pub(crate) fn partial<const VNNI: bool>(data: &[u8], sum: u32) -> u32 {
    match data.len() {
        // An odd last byte is by itself, so that each class has room for one more.
        0..=33 => few::partial(data, sum),
        34..=65 => up_to::<VNNI, 1, 0>(data, sum),
        66..=129 => up_to::<VNNI, 2, 1>(data, sum),
        130..=257 => up_to::<VNNI, 4, 3>(data, sum),
        // Two sums are a chain too long for an instruction with the latency of a multiplication.
        258..=385 if !VNNI => up_to::<VNNI, 8, 3>(data, sum),
        258..=MULTIPLIED if VNNI => piece::<true>(data, sum),
        258..=PIECE => piece::<false>(data, sum),
        _ => pieces(data, sum),
    }
}

/// Not inlined: it saves registers, which shorter data need not pay for.
#[target_feature(enable = "avx2")]
#[inline(never)]
fn pieces(data: &[u8], sum: u32) -> u32 {
    data.chunks(PIECE).fold(sum, |sum, piece| partial::<false>(piece, sum))
}

/// Without a branch, more than `32 * ALWAYS` bytes and up to `32 * (ALWAYS + MAYBE + 1)`, and one
/// more: the vectors that are always there, those that may be, and what is left, at least two
/// bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn up_to<const VNNI: bool, const ALWAYS: usize, const MAYBE: usize>(data: &[u8], sum: u32) -> u32 {
    let even = data.len() & !1;
    let mut sums = starts(ALWAYS + MAYBE + 1);
    for number in 0..ALWAYS + MAYBE {
        let there = number < ALWAYS || even > (number + 1) * VECTOR;
        let at = data.as_ptr().wrapping_add(number * VECTOR);
        // SAFETY: the vector lies in the data, or it is the zeros.
        let vector = unsafe { &*select_unpredictable(there, at, ZEROS.0.as_ptr()).cast() };
        sums[number % 2] = add::<VNNI>(sums[number % 2], load(vector));
    }
    let last = add_last::<VNNI>(sums[1], data, even, (even - 1) % VECTOR + 1);
    fold64(add64(finish([sums[0], last, sums[2], sums[3]]), odd(data) + u64::from(sum)))
}

/// Adds the last `behind` bytes before an even length, 0 to 32: the end of a vector that begins
/// before them and is cleared there.
#[target_feature(enable = "avx2")]
#[inline]
fn add_last<const VNNI: bool>(sum: __m256i, data: &[u8], even: usize, behind: usize) -> __m256i {
    let end: &[u8; VECTOR] = data[even - VECTOR..even].try_into().expect("a vector's length");
    let kept: &[u8; VECTOR] =
        MASKS[behind.min(VECTOR)..][..VECTOR].try_into().expect("a vector's length");
    add::<VNNI>(sum, _mm256_and_si256(load(end), load(kept)))
}

/// The last byte of data of odd length.
#[inline(always)]
fn odd(data: &[u8]) -> u64 {
    u64::from(data[data.len() - 1]) & (data.len() as u64 & 1).wrapping_neg()
}

/// More than some vectors to a piece. Not inlined, as `pieces`.
#[target_feature(enable = "avx2")]
#[inline(never)]
fn piece<const VNNI: bool>(data: &[u8], sum: u32) -> u32 {
    let (groups, rest) = data.as_chunks::<GROUP>();
    let sums = groups
        .iter()
        .fold(starts(4 * groups.len() + 4), |sums, group| add_group::<VNNI>(sums, group));
    close::<VNNI>(sums, data, rest, sum)
}

/// Adds the rest behind whole groups, four vectors at most, without a branch, because packets differ in length from
/// one to the next.
#[target_feature(enable = "avx2")]
#[inline]
fn close<const VNNI: bool>(mut sums: Sums, data: &[u8], rest: &[u8], sum: u32) -> u32 {
    // Up to three vectors:
    for (number, lanes) in sums.iter_mut().enumerate().take(3) {
        let there = rest.len() >= (number + 1) * VECTOR;
        let at = select_unpredictable(
            there,
            rest.as_ptr().wrapping_add(number * VECTOR),
            ZEROS.0.as_ptr(),
        );
        // SAFETY: the vector lies in the rest, or it is the zeros.
        *lanes = add::<VNNI>(*lanes, load(unsafe { &*at.cast() }));
    }
    // Behind them fewer than 32 bytes.
    let (even, behind) = (data.len() & !1, (rest.len() % VECTOR) & !1);
    sums[3] = add_last::<VNNI>(sums[3], data, even, behind);
    fold64(add64(finish(sums), odd(data) + u64::from(sum)))
}
