//! 512-bit vectors.
//!
//! The frame is the same for both ways of adding vectors up (`wide`, `vnni`), which each come with a type `Sum` and the
//! functions `none`, `start`, `add`, `join` and `total`.
//!
//! Packets differ in length from one to the next, and a branch that is predicted wrongly costs as much as adding up 1 KiB.
//! So there are few classes of lengths, and within a class no branch: what the data does not have is read from a block of
//! zeros instead, selected by conditional moves, and the last vector is loaded under a mask.

use core::arch::x86_64::*;

mod vnni;
mod wide;

pub(crate) use vnni::{copy as vnni_copy, copy_nt as vnni_copy_nt, partial as vnni_partial};
pub(crate) use wide::{copy as wide_copy, copy_nt as wide_copy_nt, partial as wide_partial};

/// Bytes of a vector.
const VECTOR: usize = 64;
/// Bytes of a group of four vectors, which go into four sums that do not wait for each other.
const GROUP: usize = 4 * VECTOR;
/// From here on it pays to bring the data to a vector's alignment first.
const ALIGN_FROM: usize = 8192;

/// Read in place of what the data does not have.
#[repr(align(64))]
struct Zeros([u8; GROUP]);
static ZEROS: Zeros = Zeros([0; GROUP]);

#[target_feature(enable = "avx512f")]
#[inline]
fn load(vector: &[u8; VECTOR]) -> __m512i {
    // SAFETY: a vector's bytes, at any alignment.
    unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) }
}

/// Loads up to 64 bytes, with zeros behind them.
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
#[inline]
fn load_some(bytes: &[u8]) -> __m512i {
    // SAFETY: bytes that the mask leaves out are not read.
    unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
}

/// One bit for each byte, up to 64.
#[target_feature(enable = "bmi2")]
#[inline]
fn mask(bytes: usize) -> u64 {
    _bzhi_u64(u64::MAX, bytes as u32)
}

macro_rules! frame {
    ($features:literal) => {
        use core::hint::select_unpredictable;

        use super::{ALIGN_FROM, GROUP, VECTOR, ZEROS, load, load_some, mask};
        use crate::arch::aligned;
        use crate::sum::{add64, csum_block_add, fold64};

        type Sums = [Sum; 4];

        #[target_feature(enable = $features)]
        pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
            match data.len() {
                0..=64 => fold64(add64(total(add(start(1), load_some(data))), u64::from(sum))),
                65..=256 => up_to::<0>(data, sum),
                257..=768 => up_to::<2>(data, sum),
                769..=1536 => up_to::<5>(data, sum),
                1537..ALIGN_FROM => long(data, sum),
                _ => aligned_long(data, sum),
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn starts(vectors: usize) -> Sums {
            [start(vectors), none(), none(), none()]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn add_group(sums: Sums, group: &[u8; GROUP]) -> Sums {
            let [a, b, c, d] = group.as_chunks::<VECTOR>().0 else { return sums };
            [add(sums[0], load(a)), add(sums[1], load(b)), add(sums[2], load(c)), add(sums[3], load(d))]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn finish([a, b, c, d]: Sums, sum: u64) -> u32 {
            fold64(add64(total(join(join(a, b), join(c, d))), sum))
        }

        /// The `length` bytes at `at` if they are `there`, else zeros.
        ///
        /// # Safety
        /// If they are there, they must be readable for as long as the result is used.
        #[inline(always)]
        unsafe fn select<'a, const LENGTH: usize>(there: bool, at: *const u8) -> &'a [u8; LENGTH] {
            const { assert!(LENGTH <= GROUP) };
            // SAFETY: the caller's obligation for the one, a static at least as long for the other.
            unsafe { &*select_unpredictable(there, at, ZEROS.0.as_ptr()).cast() }
        }

        /// The end of the data, 1 to 256 bytes, as four vectors.
        #[target_feature(enable = $features)]
        #[inline]
        fn add_end(sums: Sums, end: &[u8]) -> Sums {
            let at = end.as_ptr();
            // SAFETY: each is there only if the data goes on behind it.
            let [a, b, c] = unsafe {
                [
                    select::<VECTOR>(end.len() > VECTOR, at),
                    select::<VECTOR>(end.len() > 2 * VECTOR, at.wrapping_add(VECTOR)),
                    select::<VECTOR>(end.len() > 3 * VECTOR, at.wrapping_add(2 * VECTOR)),
                ]
            };
            let last = load_some(&end[(end.len() - 1) / VECTOR * VECTOR..]);
            [add(sums[0], load(a)), add(sums[1], load(b)), add(sums[2], load(c)), add(sums[3], last)]
        }

        /// 1 to `256 * (GROUPS + 1)` bytes, without a branch.
        #[target_feature(enable = $features)]
        #[inline]
        fn up_to<const GROUPS: usize>(data: &[u8], sum: u32) -> u32 {
            let mut sums = starts(4 * (GROUPS + 1));
            for number in 0..GROUPS {
                let there = data.len() > (number + 1) * GROUP;
                // SAFETY: the group is there only if the data goes on behind it.
                sums = add_group(sums, unsafe { select(there, data.as_ptr().wrapping_add(number * GROUP)) });
            }
            let end = &data[(data.len() - 1) / GROUP * GROUP..];
            finish(add_end(sums, end), u64::from(sum))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn long(data: &[u8], sum: u32) -> u32 {
            let mut sum = u64::from(sum);
            for piece in data.chunks(PIECE) {
                // Two groups in a turn, for eight sums that do not wait for each other; the end has up to two more.
                let turns = (piece.len() - 1) / (2 * GROUP);
                let (groups, rest) = piece.split_at(turns * 2 * GROUP);
                let mut sums = [starts(8 * (turns + 1)), [none(); 4]];
                for turn in groups.as_chunks::<GROUP>().0.as_chunks::<2>().0 {
                    sums = [add_group(sums[0], &turn[0]), add_group(sums[1], &turn[1])];
                }
                let more = rest.len() > GROUP;
                // SAFETY: the group is there only if the data goes on behind it.
                sums[0] = add_group(sums[0], unsafe { select(more, rest.as_ptr()) });
                sums[1] = add_end(sums[1], &rest[select_unpredictable(more, GROUP, 0)..]);
                let [[a, b, c, d], [e, f, g, h]] = sums;
                sum = u64::from(finish([join(a, e), join(b, f), join(c, g), join(d, h)], sum));
            }
            sum as u32
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn aligned_long(data: &[u8], sum: u32) -> u32 {
            let (head, rest) = data.split_at(data.as_ptr().addr().wrapping_neg() % VECTOR);
            let first = fold64(add64(total(add(start(1), load_some(head))), u64::from(sum)));
            csum_block_add(first, long(rest, 0), head.len())
        }

        #[target_feature(enable = $features)]
        pub(crate) fn copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
            let mut sum = u64::from(sum);
            for (source, destination) in source.chunks(PIECE).zip(destination.chunks_mut(PIECE)) {
                let mut sums = starts(source.len().div_ceil(VECTOR));
                let (groups, rest) = source.as_chunks::<GROUP>();
                let (places, place) = destination.as_chunks_mut::<GROUP>();
                for (group, to) in groups.iter().zip(places) {
                    sums = copy_group::<false>(sums, group, to);
                }
                let (vectors, rest) = rest.as_chunks::<VECTOR>();
                let (places, place) = place.as_chunks_mut::<VECTOR>();
                for (vector, to) in vectors.iter().zip(places) {
                    sums[0] = copy_vector::<false>(sums[0], vector, to);
                }
                if !rest.is_empty() {
                    let some = load_some(rest);
                    // SAFETY: bytes that the mask leaves out are not written; the slices have the same length.
                    unsafe { _mm512_mask_storeu_epi8(place.as_mut_ptr().cast(), mask(rest.len()), some) };
                    sums[1] = add(sums[1], some);
                }
                sum = u64::from(finish(sums, sum));
            }
            sum as u32
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn copy_group<const NT: bool>(sums: Sums, source: &[u8; GROUP], destination: &mut [u8; GROUP]) -> Sums {
            let [a, b, c, d] = source.as_chunks::<VECTOR>().0 else { return sums };
            let [to_a, to_b, to_c, to_d] = destination.as_chunks_mut::<VECTOR>().0 else { return sums };
            [
                copy_vector::<NT>(sums[0], a, to_a),
                copy_vector::<NT>(sums[1], b, to_b),
                copy_vector::<NT>(sums[2], c, to_c),
                copy_vector::<NT>(sums[3], d, to_d),
            ]
        }

        /// With `NT`, the destination must be aligned to a vector, or the processor faults.
        #[target_feature(enable = $features)]
        #[inline]
        fn copy_vector<const NT: bool>(sum: Sum, source: &[u8; VECTOR], destination: &mut [u8; VECTOR]) -> Sum {
            let vector = load(source);
            let at = destination.as_mut_ptr().cast();
            // SAFETY: a vector's bytes; with NT aligned, as `aligned` has seen to.
            unsafe { if NT { _mm512_stream_si512(at, vector) } else { _mm512_storeu_si512(at, vector) } };
            add(sum, vector)
        }

        #[target_feature(enable = $features)]
        pub(crate) fn copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
            // SAFETY: this function has the same features; the lengths are equal here too.
            unsafe { aligned::<VECTOR>(source, destination, sum, copy, stream) }
        }

        #[target_feature(enable = $features)]
        fn stream(source: &[[u8; VECTOR]], destination: &mut [[u8; VECTOR]]) -> u32 {
            let mut sum = 0;
            for (source, destination) in source.chunks(PIECE / VECTOR).zip(destination.chunks_mut(PIECE / VECTOR)) {
                let mut sums = starts(source.len());
                for (number, (vector, to)) in source.iter().zip(destination).enumerate() {
                    sums[number % 4] = copy_vector::<true>(sums[number % 4], vector, to);
                }
                sum = finish(sums, u64::from(sum));
            }
            // Stores that go past the caches are not ordered with others; whoever is told of the copy must see it.
            _mm_sfence();
            sum
        }
    };
}
use frame;
