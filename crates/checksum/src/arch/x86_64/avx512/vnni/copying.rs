//! Copies of up to 1536 bytes. Lengths differ from packet to packet, so up to 256 bytes there is no
//! branch, and then one loop and one way to its end: at most one branch that is predicted wrongly. In registers above 15, after
//! which no VZEROUPPER is needed.
#![allow(unsafe_code)]

use core::arch::asm;

use super::super::VECTOR;
use crate::sum::fold64;

/// The signs of two words; two ones; what a lane begins with if one vector is added; and if
/// two are.
static CONSTANTS: [u32; 4] = [0x8000_8000, 0x0001_0001, 2 * 0x8000, 4 * 0x8000];

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

/// 1 to 1536 bytes.
///
/// # Safety
/// Both must have the same length, in these bounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")]
#[inline]
pub unsafe fn copy_few(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    // SAFETY: the caller's obligation, and the lengths.
    unsafe {
        match source.len() {
            0..=VECTOR => one(source, destination, sum),
            65..=128 => two(source, destination, sum),
            129..=256 => four(source, destination, sum),
            _ => more(source, destination, sum),
        }
    }
}

/// 1 to 64 bytes.
///
/// # Safety
/// Both must have the same length, in these bounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")]
#[inline]
unsafe fn one(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let mask = u64::MAX >> (source.len().wrapping_neg() % VECTOR);
    let (a, b): (u64, u64);
    // SAFETY: as many bytes as the mask names are read, and written.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "vmovdqu8 zmm17{{k1}}{{z}}, [{from}]",
            "vpbroadcastd zmm16, [rip + {constants} + 8]",
            "vmovdqu8 [{to}]{{k1}}, zmm17",
            "vpxord zmm17, zmm17, dword ptr [rip + {constants}]{{1to16}}",
            "vpdpwssd zmm16, zmm17, dword ptr [rip + {constants} + 4]{{1to16}}",
            total!(),
            mask = in(reg) mask, from = in(reg) source.as_ptr(), to = in(reg) destination.as_mut_ptr(),
            a = lateout(reg) a, b = lateout(reg) b, constants = sym CONSTANTS,
            out("k1") _, out("xmm16") _, out("xmm17") _, options(nostack, preserves_flags)
        );
    }
    fold64(a + b + u64::from(sum))
}

/// 65 to 128 bytes: the first vector and the last, which may lie over it.
///
/// # Safety
/// Both must have the same length, in these bounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")]
#[inline]
unsafe fn two(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let length = source.len();
    let mask = u64::MAX >> (length.wrapping_neg() % VECTOR);
    let (a, b): (u64, u64);
    // SAFETY: both lie in the data, and so do the bytes that the mask names.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "vmovdqu64 zmm17, [{from}]",
            "vmovdqu64 zmm18, [{from} + {length} - 64]",
            "vmovdqu8 zmm19{{k1}}{{z}}, [{from} + 64]",
            "vpbroadcastd zmm16, [rip + {constants} + 12]",
            "vpbroadcastd zmm20, [rip + {constants}]",
            "vpbroadcastd zmm21, [rip + {constants} + 4]",
            "vmovdqu64 [{to}], zmm17",
            "vmovdqu64 [{to} + {length} - 64], zmm18",
            "vpxord zmm17, zmm17, zmm20",
            "vpxord zmm19, zmm19, zmm20",
            "vpdpwssd zmm16, zmm17, zmm21",
            "vpdpwssd zmm16, zmm19, zmm21",
            total!(),
            mask = in(reg) mask, from = in(reg) source.as_ptr(), to = in(reg) destination.as_mut_ptr(),
            length = in(reg) length, a = lateout(reg) a, b = lateout(reg) b, constants = sym CONSTANTS,
            out("k1") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _, out("xmm20") _,
            out("xmm21") _, options(nostack, preserves_flags)
        );
    }
    fold64(a + b + u64::from(sum))
}

/// 129 to 256 bytes: four vectors, of which the two in the middle may lie over the last. They are
/// copied where they lie, and counted if they are whole and not the last.
///
/// # Safety
/// Both must have the same length, in these bounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")]
#[inline]
unsafe fn four(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let length = source.len();
    let last = length - VECTOR;
    let mask = u64::MAX >> (length.wrapping_neg() % VECTOR);
    let counted = |there: bool| u32::from(there).wrapping_neg();
    let start = (length.div_ceil(VECTOR) * 2 * 0x8000) as u32;
    let (a, b): (u64, u64);
    // SAFETY: all four lie in the data.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "kmovd k2, {second_counts:e}",
            "kmovd k3, {third_counts:e}",
            "vpbroadcastd zmm20, [rip + {constants}]",
            "vpbroadcastd zmm21, [rip + {constants} + 4]",
            "vpbroadcastd zmm16, {start:e}",
            "vmovdqu64 zmm17, [{from}]",
            "vmovdqu64 zmm18, [{from} + {second}]",
            "vmovdqu64 zmm19, [{from} + {third}]",
            "vmovdqu64 zmm22, [{from} + {last}]",
            "vmovdqu8 zmm23{{k1}}{{z}}, [{from} + {rest}]",
            "vmovdqu64 [{to}], zmm17",
            "vmovdqu64 [{to} + {second}], zmm18",
            "vmovdqu64 [{to} + {third}], zmm19",
            "vmovdqu64 [{to} + {last}], zmm22",
            "vpxord zmm17, zmm17, zmm20",
            "vpxord zmm18, zmm18, zmm20",
            "vpxord zmm19, zmm19, zmm20",
            "vpxord zmm23, zmm23, zmm20",
            "vpdpwssd zmm16, zmm17, zmm21",
            "vpmaddwd zmm18{{k2}}{{z}}, zmm18, zmm21",
            "vpmaddwd zmm19{{k3}}{{z}}, zmm19, zmm21",
            "vpdpwssd zmm16, zmm23, zmm21",
            "vpaddd zmm18, zmm18, zmm19",
            "vpaddd zmm16, zmm16, zmm18",
            total!(),
            mask = in(reg) mask, start = in(reg) start, from = in(reg) source.as_ptr(), to = in(reg) destination.as_mut_ptr(),
            second = in(reg) last.min(VECTOR), third = in(reg) last.min(2 * VECTOR), last = in(reg) last,
            rest = in(reg) (length - 1) & !(VECTOR - 1),
            second_counts = in(reg) counted(length > 2 * VECTOR), third_counts = in(reg) counted(length > 3 * VECTOR),
            a = lateout(reg) a, b = lateout(reg) b, constants = sym CONSTANTS,
            out("k1") _, out("k2") _, out("k3") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _, options(nostack, preserves_flags)
        );
    }
    fold64(a + b + u64::from(sum))
}

/// 65 to 1536 bytes.
///
/// # Safety
/// Both must have the same length, in these bounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,bmi2")]
#[inline]
unsafe fn more(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let length = source.len();
    let whole = (length - 1) / VECTOR;
    let mask = u64::MAX >> (length.wrapping_neg() % VECTOR);
    // Each vector takes 0x8000 from the words it adds, which the lanes have in advance.
    let start = ((whole + 1) * 2 * 0x8000) as u32;
    let (a, b): (u64, u64);
    // Words are multiplied by 1 and added apart, not in one instruction: each would wait for the one
    // before for as long as a multiplication takes, and the stores leave time for two.
    //
    // SAFETY: `whole` vectors and as many bytes as the mask names are read, and written.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "vpbroadcastd zmm20, [rip + {constants}]",
            "vpbroadcastd zmm21, [rip + {constants} + 4]",
            "vpbroadcastd zmm16, {start:e}",
            // The loop moves two at a time. An odd one goes before them; if there is none, the first is
            // copied twice and counted once.
            "vmovdqu64 zmm17, [{from}]",
            "vmovdqu64 [{to}], zmm17",
            "mov {odd:e}, {left:e}",
            "and {odd:e}, 1",
            "neg {odd:e}",
            "kmovd k2, {odd:e}",
            "vpxord zmm17, zmm17, zmm20",
            "vpmaddwd zmm17{{k2}}{{z}}, zmm17, zmm21",
            "vpaddd zmm16, zmm16, zmm17",
            "and {odd:e}, 64",
            "add {from}, {odd}",
            "add {to}, {odd}",
            "shr {left}, 1",
            "jz 3f",
            ".p2align 4",
            "2:",
            "vmovdqu64 zmm17, [{from}]",
            "vmovdqu64 zmm18, [{from} + 64]",
            "vmovdqu64 [{to}], zmm17",
            "vmovdqu64 [{to} + 64], zmm18",
            "vpxord zmm17, zmm17, zmm20",
            "vpxord zmm18, zmm18, zmm20",
            "vpmaddwd zmm17, zmm17, zmm21",
            "vpmaddwd zmm18, zmm18, zmm21",
            "vpaddd zmm17, zmm17, zmm18",
            "vpaddd zmm16, zmm16, zmm17",
            "sub {from}, -128",
            "sub {to}, -128",
            "dec {left}",
            "jnz 2b",
            "3:",
            // The end once more from before it, so that no store has a mask.
            "vmovdqu64 zmm18, [{from} + {rest} - 64]",
            "vmovdqu8 zmm17{{k1}}{{z}}, [{from}]",
            "vmovdqu64 [{to} + {rest} - 64], zmm18",
            "vpxord zmm17, zmm17, zmm20",
            "vpdpwssd zmm16, zmm17, zmm21",
            total!(),
            mask = in(reg) mask, start = in(reg) start, rest = in(reg) length - whole * VECTOR, odd = out(reg) _, left = inout(reg) whole => _,
            from = inout(reg) source.as_ptr() => _, to = inout(reg) destination.as_mut_ptr() => _,
            a = lateout(reg) a, b = lateout(reg) b, constants = sym CONSTANTS,
            out("k1") _, out("k2") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm20") _, out("xmm21") _, options(nostack)
        );
    }
    // Lanes far from their limit: no carry.
    fold64(a + b + u64::from(sum))
}
