//! Data of 65 to 576 bytes, where a call is a good part of the time. All in registers above 15:
//! after the others VZEROUPPER would have to follow.
#![allow(unsafe_code)]

use core::arch::asm;
use core::hint::select_unpredictable;

use super::super::{VECTOR, ZEROS};
use crate::sum::fold64;

/// The signs of two words; two ones; what a lane begins with if 4, or 9, vectors are added (see
/// `start`).
static CONSTANTS: [u32; 4] = [0x8000_8000, 0x0001_0001, 4 * 2 * 0x8000, 9 * 2 * 0x8000];

/// Where the vector of this number lies, if the data goes on behind it; else zeros. Only the
/// address is made: what is read there is up to the assembly.
#[inline(always)]
fn place(data: &[u8], number: usize) -> *const u8 {
    let there = data.len() > (number + 1) * VECTOR;
    let at = data.as_ptr().wrapping_add(number * VECTOR);
    select_unpredictable(there, at, ZEROS.0.as_ptr())
}

/// Where the last vector begins, and a bit for each byte that it has.
#[inline(always)]
fn last(data: &[u8]) -> (*const u8, u64) {
    let length = data.len();
    (
        data.as_ptr().wrapping_add((length - 1) & !(VECTOR - 1)),
        u64::MAX >> (length.wrapping_neg() % VECTOR),
    )
}

/// From 32-bit lanes in zmm16 to two words of 64 bits in `a` and `b`.
macro_rules! total {
    () => {
        concat!(
            "vextracti64x4 ymm17, zmm16, 1\n",
            "vpaddd ymm16, ymm16, ymm17\n",
            "vextracti32x4 xmm17, ymm16, 1\n",
            "vpaddd xmm16, xmm16, xmm17\n",
            "vmovq {a}, xmm16\n",
            "vpextrq {b}, xmm16, 1",
        )
    };
}

/// 65 to 256 bytes: the first vector and the last are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub fn up_to_four(data: &[u8], sum: u32) -> u32 {
    let (end, mask) = last(data);
    let (a, b): (u64, u64);
    // SAFETY: reads vectors of the data, or of the zeros, and of the last one what the mask names.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "vpbroadcastd zmm20, [rip + {constants}]",
            "vpbroadcastd zmm21, [rip + {constants} + 4]",
            "vpbroadcastd zmm16, [rip + {constants} + 8]",
            "vmovdqu8 zmm18{{k1}}{{z}}, [{end}]",
            "vpxord zmm17, zmm20, [{first}]",
            "vpxord zmm19, zmm20, [{second}]",
            "vpxord zmm22, zmm20, [{third}]",
            "vpxord zmm18, zmm18, zmm20",
            "vpdpwssd zmm16, zmm17, zmm21",
            "vpmaddwd zmm19, zmm19, zmm21",
            "vpdpwssd zmm16, zmm22, zmm21",
            "vpdpwssd zmm19, zmm18, zmm21",
            "vpaddd zmm16, zmm16, zmm19",
            total!(),
            mask = in(reg) mask, end = in(reg) end, first = in(reg) data.as_ptr(),
            second = in(reg) place(data, 1), third = in(reg) place(data, 2),
            a = lateout(reg) a, b = lateout(reg) b, constants = sym CONSTANTS,
            out("k1") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _, out("xmm20") _,
            out("xmm21") _, out("xmm22") _, options(pure, readonly, nostack, preserves_flags)
        );
    }
    // Lanes far from their limit: no carry.
    fold64(a + b + u64::from(sum))
}

/// 257 to 576 bytes: the first four vectors and the last are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub fn up_to_nine(data: &[u8], sum: u32) -> u32 {
    let (end, mask) = last(data);
    let (a, b): (u64, u64);
    // SAFETY: as above.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "vpbroadcastd zmm20, [rip + {constants}]",
            "vpbroadcastd zmm21, [rip + {constants} + 4]",
            "vpbroadcastd zmm16, [rip + {constants} + 12]",
            "vpxord zmm17, zmm20, [{first}]",
            "vpxord zmm18, zmm20, [{first} + 64]",
            "vpxord zmm19, zmm20, [{first} + 128]",
            "vpxord zmm22, zmm20, [{first} + 192]",
            "vpxord zmm23, zmm20, [{fifth}]",
            "vpxord zmm24, zmm20, [{sixth}]",
            "vpxord zmm25, zmm20, [{seventh}]",
            "vpxord zmm26, zmm20, [{eighth}]",
            "vmovdqu8 zmm27{{k1}}{{z}}, [{end}]",
            "vpxord zmm27, zmm27, zmm20",
            "vpdpwssd zmm16, zmm17, zmm21",
            "vpmaddwd zmm18, zmm18, zmm21",
            "vpmaddwd zmm19, zmm19, zmm21",
            "vpmaddwd zmm22, zmm22, zmm21",
            "vpdpwssd zmm16, zmm23, zmm21",
            "vpdpwssd zmm18, zmm24, zmm21",
            "vpdpwssd zmm19, zmm25, zmm21",
            "vpdpwssd zmm22, zmm26, zmm21",
            "vpmaddwd zmm27, zmm27, zmm21",
            "vpaddd zmm18, zmm18, zmm19",
            "vpaddd zmm16, zmm16, zmm22",
            "vpaddd zmm18, zmm18, zmm27",
            "vpaddd zmm16, zmm16, zmm18",
            total!(),
            mask = in(reg) mask, end = in(reg) end, first = in(reg) data.as_ptr(),
            fifth = in(reg) place(data, 4), sixth = in(reg) place(data, 5), seventh = in(reg) place(data, 6),
            eighth = in(reg) place(data, 7), a = lateout(reg) a, b = lateout(reg) b, constants = sym CONSTANTS,
            out("k1") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _, out("xmm20") _,
            out("xmm21") _, out("xmm22") _, out("xmm23") _, out("xmm24") _, out("xmm25") _, out("xmm26") _,
            out("xmm27") _, options(pure, readonly, nostack, preserves_flags)
        );
    }
    fold64(a + b + u64::from(sum))
}
