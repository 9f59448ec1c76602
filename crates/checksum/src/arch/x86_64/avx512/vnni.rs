//! With VNNI: one instruction adds a vector's 16-bit words to 32-bit lanes, as products with 1.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;

mod copying;
mod few;

use few::{up_to_four, up_to_nine};

/// Up to so many bytes are copied by `copy_few`.
const FEW: usize = 1536;

/// # Safety
/// Both must have the same length, 1 to `FEW` bytes.
use copying::copy_few;

super::frame!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2", ".text.csum_vnni");

/// 4096 vectors: in the end a lane holds the sum of 16 words of each, which must stay below 2^32.
const PIECE: usize = 2048 * VECTOR;

/// Lanes of 32 bits. The instruction takes words as signed, so `add` flips their sign, which takes
/// 0x8000 from each, and `start` gives that back in advance.
#[derive(Clone, Copy)]
struct Sum(__m512i);

#[target_feature(enable = "avx512f")]
#[inline]
fn none() -> Sum {
    Sum(_mm512_setzero_si512())
}

/// The sum to begin with when so many vectors are going to be added, to it and to those it is
/// joined with.
#[target_feature(enable = "avx512f")]
#[inline]
fn start(vectors: usize) -> Sum {
    Sum(_mm512_set1_epi32((vectors * 2 * 0x8000) as i32))
}

/// Words with their sign flipped.
#[target_feature(enable = "avx512f")]
#[inline]
fn signed(vector: __m512i) -> __m512i {
    _mm512_xor_si512(vector, _mm512_set1_epi16(i16::MIN))
}

#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn add(sum: Sum, vector: __m512i) -> Sum {
    let mut lanes = sum.0;
    // Not the intrinsic: compilers take that apart into a multiplication and an addition, which is
    // one instruction more. SAFETY: registers only.
    unsafe {
        asm!(
            "vpdpwssd {lanes}, {signed}, {ones}",
            lanes = inout(zmm_reg) lanes, signed = in(zmm_reg) signed(vector), ones = in(zmm_reg) _mm512_set1_epi16(1),
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    Sum(lanes)
}

/// Four times `add`. Together, because processors that choose the oldest instruction first get
/// through four loads and then four sums sooner than through load and sum by turns.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn add_four([mut a, mut b, mut c, mut d]: [Sum; 4], [e, f, g, h]: [__m512i; 4]) -> [Sum; 4] {
    // SAFETY: registers only.
    unsafe {
        asm!(
            "vpdpwssd {a}, {e}, {ones}",
            "vpdpwssd {b}, {f}, {ones}",
            "vpdpwssd {c}, {g}, {ones}",
            "vpdpwssd {d}, {h}, {ones}",
            a = inout(zmm_reg) a.0, b = inout(zmm_reg) b.0, c = inout(zmm_reg) c.0, d = inout(zmm_reg) d.0,
            e = in(zmm_reg) signed(e), f = in(zmm_reg) signed(f), g = in(zmm_reg) signed(g), h = in(zmm_reg) signed(h),
            ones = in(zmm_reg) _mm512_set1_epi16(1),
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [a, b, c, d]
}

#[target_feature(enable = "avx512f")]
#[inline]
fn join(a: Sum, b: Sum) -> Sum {
    Sum(_mm512_add_epi32(a.0, b.0))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn total(sum: Sum) -> u64 {
    let half =
        _mm256_add_epi32(_mm512_castsi512_si256(sum.0), _mm512_extracti64x4_epi64::<1>(sum.0));
    let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    // Two lanes stay: as halves of a 64-bit word they mean the same to a ones' complement sum.
    _mm_cvtsi128_si64(_mm_add_epi32(quarter, _mm_unpackhi_epi64(quarter, quarter))) as u64
}

/// Constants of `short`: a whole mask; the signs of two words, and two ones; what `start` gives for
/// one vector.
static SHORT: [u64; 3] = [u64::MAX, 0x0001_0001_8000_8000, 2 * 0x8000];

/// Up to 64 bytes. In assembly for two reasons: registers above 15, after which no VZEROUPPER is
/// needed, and constants as operands in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")]
#[inline]
fn short(data: &[u8], sum: u32) -> u32 {
    let (a, b): (u64, u64);
    // SAFETY: reads as many bytes as the data has, for the mask leaves out the others.
    unsafe {
        asm!(
            "bzhi {mask}, [rip + {constants}], {length}",
            "kmovq k1, {mask}",
            "vpbroadcastd zmm17, [rip + {constants} + 16]",
            "vmovdqu8 zmm16{{k1}}{{z}}, [{at}]",
            "vpxord zmm16, zmm16, dword ptr [rip + {constants} + 8]{{1to16}}",
            "vpdpwssd zmm17, zmm16, dword ptr [rip + {constants} + 12]{{1to16}}",
            "vextracti64x4 ymm16, zmm17, 1",
            "vpaddd ymm17, ymm17, ymm16",
            "vextracti32x4 xmm16, ymm17, 1",
            "vpaddd xmm17, xmm17, xmm16",
            "vmovq {a}, xmm17",
            "vpextrq {b}, xmm17, 1",
            mask = out(reg) _, length = in(reg) data.len(), at = in(reg) data.as_ptr(), a = out(reg) a, b = out(reg) b,
            constants = sym SHORT, out("k1") _, out("xmm16") _, out("xmm17") _, options(pure, readonly, nostack)
        );
    }
    // Lanes far from their limit: no carry.
    fold64(a + b + u64::from(sum))
}
