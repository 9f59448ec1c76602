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
    vaddvq_u64(vpadalq_u32(vpadalq_u32(vpadalq_u32(vpaddlq_u32(a), b), c), d))
}

/// The words of the last bytes, fewer than 16, which are the end of a vector that begins in front of them and
/// is cleared there, up to an even length; and the odd last byte.
#[target_feature(enable = "neon")]
#[inline]
fn add_end(sums: uint32x4_t, data: &[u8]) -> (uint32x4_t, u64) {
    let even = data.len() & !1;
    let Some(end) = data[..even].last_chunk::<VECTOR>() else { return (sums, 0) };
    let kept: &[u8; VECTOR] =
        MASKS[(data.len() % VECTOR) & !1..][..VECTOR].try_into().expect("a vector's length");
    let sums = vpadalq_u16(sums, vandq_u16(load(end), load(kept)));
    (sums, if data.len() > even { u64::from(data[even]) } else { 0 })
}

/// From a vector to four: one sum, as more of them would only have to be added up.
#[target_feature(enable = "neon")]
#[inline]
fn few(data: &[u8], sum: u32) -> u32 {
    let (vectors, behind) = data.as_chunks::<VECTOR>();
    let Some((first, vectors)) = vectors.split_first() else { return sum };
    let mut sums = vpaddlq_u16(load(first));
    for vector in vectors {
        sums = vpadalq_u16(sums, load(vector));
    }
    let mut odd = 0;
    if !behind.is_empty() {
        (sums, odd) = add_end(sums, data);
    }
    fold64(vaddlvq_u32(sums) + odd + u64::from(sum))
}

#[target_feature(enable = "neon")]
pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
    if data.len() < VECTOR {
        return portable::partial(data, sum);
    }
    if data.len() < GROUP {
        return few(data, sum);
    }
    if data.len() > PIECE {
        return long(data, sum);
    }
    let (groups, rest) = data.as_chunks::<GROUP>();
    let Some((first, groups)) = groups.split_first() else { return sum };
    let [a, b, c, d] = first.as_chunks::<VECTOR>().0 else { return sum };
    let mut sums = [a, b, c, d].map(|vector| vpaddlq_u16(load(vector)));
    for group in groups {
        sums = add_group(sums, group);
    }
    let (vectors, behind) = rest.as_chunks::<VECTOR>();
    for vector in vectors {
        sums[0] = vpadalq_u16(sums[0], load(vector));
    }
    let mut odd = 0;
    if !behind.is_empty() {
        (sums[1], odd) = add_end(sums[1], data);
    }
    fold64(total(sums) + odd + u64::from(sum))
}

/// Apart, so that its calls cost the others no stack.
#[cold]
#[inline(never)]
fn long(data: &[u8], sum: u32) -> u32 {
    // SAFETY: every processor of this architecture has NEON.
    data.chunks(PIECE).fold(sum, |sum, piece| unsafe { partial(piece, sum) })
}

#[target_feature(enable = "neon")]
#[inline]
fn copy_vector(sums: uint32x4_t, from: &[u8; VECTOR], to: &mut [u8; VECTOR]) -> uint32x4_t {
    let vector = load(from);
    // SAFETY: a vector's bytes, at any alignment.
    unsafe { vst1q_u8(to.as_mut_ptr(), vreinterpretq_u8_u16(vector)) };
    vpadalq_u16(sums, vector)
}

#[target_feature(enable = "neon")]
pub(crate) fn copy(source: &[u8], destination: &mut [u8], mut sum: u32) -> u32 {
    for (source, destination) in source.chunks(PIECE).zip(destination.chunks_mut(PIECE)) {
        let mut sums = [vdupq_n_u32(0); 4];
        // By groups, so that each vector's sum is known and stays in its register.
        let (groups, rest) = source.as_chunks::<GROUP>();
        let (places, place) = destination.as_chunks_mut::<GROUP>();
        for (from, to) in groups.iter().zip(places) {
            let (from, to) = (from.as_chunks::<VECTOR>().0, to.as_chunks_mut::<VECTOR>().0);
            for ((sums, from), to) in sums.iter_mut().zip(from).zip(to) {
                *sums = copy_vector(*sums, from, to);
            }
        }
        let (vectors, rest) = rest.as_chunks::<VECTOR>();
        let (places, place) = place.as_chunks_mut::<VECTOR>();
        for (from, to) in vectors.iter().zip(places) {
            sums[0] = copy_vector(sums[0], from, to);
        }
        sum = portable::copy(rest, place, fold64(add64(u64::from(sum), total(sums))));
    }
    sum
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
