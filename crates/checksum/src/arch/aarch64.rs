//! aarch64: NEON, which every processor of this architecture has.
#![allow(unsafe_code)]

use core::arch::aarch64::*;

use super::portable;
use crate::sum::{add64, fold64};

const VECTOR: usize = 16;
const GROUP: usize = 4 * VECTOR;
/// A lane of 32 bits takes two words from each group: 2^15 groups fit. Even, so that the pieces'
/// sums add up.
const PIECE: usize = (1 << 14) * GROUP;

/// A window of 16 bytes that begins `kept` bytes in has `kept` bytes 0xff at its end.
static MASKS: [u8; 2 * VECTOR] = {
    let mut masks = [0; 2 * VECTOR];
    let mut place = VECTOR;
    while place < 2 * VECTOR {
        masks[place] = 0xff;
        place += 1;
    }
    masks
};

#[target_feature(enable = "neon")]
#[inline]
fn load(vector: &[u8; VECTOR]) -> uint16x8_t {
    // SAFETY: a vector's bytes, at any alignment.
    vreinterpretq_u16_u8(unsafe { vld1q_u8(vector.as_ptr()) })
}

/// Four sums that do not wait for each other; each instruction adds a vector's words in pairs to
/// lanes of 32 bits.
#[target_feature(enable = "neon")]
#[inline]
fn add_group([a, b, c, d]: [uint32x4_t; 4], group: &[u8; GROUP]) -> [uint32x4_t; 4] {
    let [at_a, at_b, at_c, at_d] = group.as_chunks::<VECTOR>().0 else { return [a, b, c, d] };
    [
        vpadalq_u16(a, load(at_a)),
        vpadalq_u16(b, load(at_b)),
        vpadalq_u16(c, load(at_c)),
        vpadalq_u16(d, load(at_d)),
    ]
}

#[target_feature(enable = "neon")]
#[inline]
fn total([a, b, c, d]: [uint32x4_t; 4]) -> u64 {
    vaddlvq_u32(a) + vaddlvq_u32(b) + vaddlvq_u32(c) + vaddlvq_u32(d)
}

#[target_feature(enable = "neon")]
pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
    if data.len() < VECTOR {
        return portable::partial(data, sum);
    }
    let mut sum = u64::from(sum);
    let (pieces, rest) = data.as_chunks::<PIECE>();
    for piece in pieces {
        let mut sums = [vdupq_n_u32(0); 4];
        for group in piece.as_chunks::<GROUP>().0 {
            sums = add_group(sums, group);
        }
        sum = add64(sum, total(sums));
    }
    let (groups, rest) = rest.as_chunks::<GROUP>();
    let mut sums = [vdupq_n_u32(0); 4];
    for group in groups {
        sums = add_group(sums, group);
    }
    let (vectors, behind) = rest.as_chunks::<VECTOR>();
    for vector in vectors {
        sums[0] = vpadalq_u16(sums[0], load(vector));
    }
    // Fewer than 16 bytes: up to an even length they are the end of a vector that begins before
    // them and is cleared there; the odd last byte is by itself.
    let even = data.len() & !1;
    let end: &[u8; VECTOR] = data[even - VECTOR..even].try_into().expect("a vector's length");
    let kept: &[u8; VECTOR] =
        MASKS[behind.len() & !1..][..VECTOR].try_into().expect("a vector's length");
    sums[1] = vpadalq_u16(sums[1], vandq_u16(load(end), load(kept)));
    let odd = if data.len() > even { data[even] } else { 0 };
    fold64(add64(sum, total(sums) + u64::from(odd)))
}

#[target_feature(enable = "neon")]
pub(crate) fn copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let mut sum = u64::from(sum);
    for (source, destination) in source.chunks(PIECE).zip(destination.chunks_mut(PIECE)) {
        let mut sums = [vdupq_n_u32(0); 4];
        let (vectors, rest) = source.as_chunks::<VECTOR>();
        let (places, place) = destination.as_chunks_mut::<VECTOR>();
        for (number, (from, to)) in vectors.iter().zip(places).enumerate() {
            let vector = load(from);
            // SAFETY: a vector's bytes, at any alignment.
            unsafe { vst1q_u8(to.as_mut_ptr(), vreinterpretq_u8_u16(vector)) };
            sums[number % 4] = vpadalq_u16(sums[number % 4], vector);
        }
        sum = add64(sum, total(sums));
        sum = u64::from(portable::copy(rest, place, fold64(sum)));
    }
    sum as u32
}

/// With STNP, a pair of vectors per store: a hint to the processor to go past the caches.
#[target_feature(enable = "neon")]
pub(crate) fn copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let mut sum = u64::from(sum);
    for (source, destination) in source.chunks(PIECE).zip(destination.chunks_mut(PIECE)) {
        let mut sums = [vdupq_n_u32(0); 4];
        let (pairs, rest) = source.as_chunks::<{ 2 * VECTOR }>();
        let (places, place) = destination.as_chunks_mut::<{ 2 * VECTOR }>();
        for (pair, to) in pairs.iter().zip(places) {
            let [a, b] = pair.as_chunks::<VECTOR>().0 else { continue };
            let (a, b) = (load(a), load(b));
            // SAFETY: writes the pair's 32 bytes, at any alignment.
            unsafe {
                core::arch::asm!("stnp {a:q}, {b:q}, [{to}]", a = in(vreg) a, b = in(vreg) b, to = in(reg) to,
                    options(nostack, preserves_flags));
            }
            sums[0] = vpadalq_u16(sums[0], a);
            sums[1] = vpadalq_u16(sums[1], b);
        }
        sum = add64(sum, total(sums));
        sum = u64::from(portable::copy(rest, place, fold64(sum)));
    }
    sum as u32
}
