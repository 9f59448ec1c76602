//! 512-bit vectors.
//!
//! The frame is the same for both ways of adding vectors up (`wide`, `vnni`), which each come with
//! a type `Sum` and the functions `none`, `start`, `add`, `add_four`, `join` and `total`, and with
//! `short`, `up_to_four` and `up_to_nine` for what fits into so many vectors.
//!
//! Packets differ in length from one to the next, and a branch that is predicted wrongly costs as
//! much as adding up 1 KiB. So there are few classes of lengths, and within a class no branch: what
//! the data does not have is read from a block of zeros instead, selected by conditional moves, and
//! the last vector is loaded under a mask.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use crate::sum::fold64;

mod vnni;
mod wide;

pub(crate) use vnni::{copy as vnni_copy, copy_nt as vnni_copy_nt, partial as vnni_partial};
pub(crate) use wide::{copy as wide_copy, copy_nt as wide_copy_nt, partial as wide_partial};

/// Bytes of a vector.
const VECTOR: usize = 64;
/// Bytes of a group of four vectors, which go into four sums that do not wait for each other.
const GROUP: usize = 4 * VECTOR;
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

/// The last vector of data that are not empty, 1 to 64 bytes, with zeros behind them.
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
#[inline]
fn load_last(data: &[u8]) -> __m512i {
    let before = (data.len() - 1) / VECTOR * VECTOR;
    // SAFETY: `before` is less than the length, and bytes that the mask leaves out are not read.
    unsafe { _mm512_maskz_loadu_epi8(mask(data.len() - before), data.as_ptr().add(before).cast()) }
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

/// Stores as many of the vector's bytes as there are places, up to 64.
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
#[inline]
fn store_some(places: &mut [u8], vector: __m512i) {
    // SAFETY: bytes that the mask leaves out are not written.
    unsafe { _mm512_mask_storeu_epi8(places.as_mut_ptr().cast(), mask(places.len()), vector) };
}

/// Up to 64 bytes: 32-bit halves taken apart, which needs the fewest instructions for a single
/// vector.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
#[inline]
fn short(data: &[u8], sum: u32) -> u32 {
    sum_one(load_some(data), sum)
}

/// Copies up to 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
#[inline]
fn copy_short(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    let vector = load_some(source);
    store_some(destination, vector);
    sum_one(vector, sum)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
#[inline]
fn sum_one(vector: __m512i, sum: u32) -> u32 {
    let lower = _mm512_and_si512(vector, _mm512_set1_epi64(0xffff_ffff));
    let lanes = _mm512_add_epi64(lower, _mm512_srli_epi64::<32>(vector));
    // 17 numbers of 32 bits: no carry.
    fold64(_mm512_reduce_add_epi64(lanes) as u64 + u64::from(sum))
}

macro_rules! frame {
    ($features:literal, $section:literal) => {
        use core::hint::select_unpredictable;

        use super::{GROUP, VECTOR, ZEROS};
        use super::{load, load_last, load_some, store_some};
        use crate::arch::aligned;
        use crate::sum::{add64, csum_block_add, fold64};

        type Sums = [Sum; 4];

        // Short data takes so few cycles that it matters in how many lines of 64 bytes its code
        // lies: two, or three if it does not begin with one. Functions are aligned to 16 bytes
        // only, but begin a section that has a greater alignment.
        #[cfg(target_os = "linux")]
        core::arch::global_asm!(
            concat!(".pushsection ", $section, ",\"ax\",@progbits"),
            ".p2align 6",
            ".popsection"
        );

        #[cfg_attr(target_os = "linux", unsafe(link_section = $section))]
        #[target_feature(enable = $features)]
        pub(crate) fn partial(data: &[u8], sum: u32) -> u32 {
            if data.len() <= VECTOR { short(data, sum) } else { not_short(data, sum) }
        }

        /// Not inlined, as `long`: what it saves and sets up, short data need not pay for.
        #[cfg_attr(target_os = "linux", unsafe(link_section = $section))]
        #[target_feature(enable = $features)]
        #[inline(never)]
        fn not_short(data: &[u8], sum: u32) -> u32 {
            match data.len() {
                ..=256 => up_to_four(data, sum),
                ..=576 => up_to_nine(data, sum),
                _ => many(data, sum),
            }
        }

        /// Apart, as it leaves registers behind that a VZEROUPPER must follow, and the others not.
        #[target_feature(enable = $features)]
        #[inline(never)]
        fn many(data: &[u8], sum: u32) -> u32 {
            match data.len() {
                ..=1024 => up_to::<9, 6>(data, sum),
                ..=1536 => up_to::<16, 7>(data, sum),
                _ => long(data, sum),
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
            add_four(sums, [load(a), load(b), load(c), load(d)])
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
            add_four(sums, [load(a), load(b), load(c), load_last(end)])
        }

        /// A vector of data that has more than `64 * ALWAYS` bytes, or zeros if the data does not
        /// go on behind it.
        #[target_feature(enable = $features)]
        #[inline]
        fn load_from<const ALWAYS: usize>(data: &[u8], number: usize) -> __m512i {
            let there = number < ALWAYS || data.len() > (number + 1) * VECTOR;
            // SAFETY: the vector is there only if the data goes on behind it, or has so many
            // always.
            load(unsafe { select(there, data.as_ptr().wrapping_add(number * VECTOR)) })
        }

        /// Without a branch, more than `64 * ALWAYS` bytes and up to `64 * (ALWAYS + MAYBE + 1)`:
        /// the vectors that are always there, those that may be, and what is left, at least a byte.
        #[target_feature(enable = $features)]
        #[inline]
        fn up_to<const ALWAYS: usize, const MAYBE: usize>(data: &[u8], sum: u32) -> u32 {
            const { assert!((ALWAYS + MAYBE) % 4 == 0 || (ALWAYS + MAYBE) % 4 == 3) };
            let mut sums = starts(ALWAYS + MAYBE + 1);
            let groups = (ALWAYS + MAYBE) / 4;
            let vector = |number| load_from::<ALWAYS>(data, number);
            // Short enough for compilers to unroll, or the sums would live in memory.
            for at in (0..groups).map(|group| 4 * group) {
                sums = add_four(sums, [vector(at), vector(at + 1), vector(at + 2), vector(at + 3)]);
            }
            if groups * 4 == ALWAYS + MAYBE {
                sums[0] = add(sums[0], load_last(data));
            } else {
                let at = groups * 4;
                sums =
                    add_four(sums, [vector(at), vector(at + 1), vector(at + 2), load_last(data)]);
            }
            finish(sums, u64::from(sum))
        }

        #[target_feature(enable = $features)]
        #[inline(never)]
        fn long(data: &[u8], sum: u32) -> u32 {
            let before = data.as_ptr().addr().wrapping_neg() % VECTOR;
            if data.len() < crate::cpu::align_from() || before == 0 {
                return in_turns(data, sum);
            }
            let (head, rest) = data.split_at(before);
            csum_block_add(short(head, sum), in_turns(rest, 0), head.len())
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn in_turns(data: &[u8], sum: u32) -> u32 {
            let mut sum = u64::from(sum);
            for piece in data.chunks(PIECE) {
                // Two groups in a turn, for eight sums that do not wait for each other; the end has
                // up to two more.
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
        pub(crate) fn copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
            match source.len() {
                0 => sum,
                // SAFETY: the lengths are equal, as the kernel's caller has seen to.
                ..=FEW => unsafe { copy_few(source, destination, sum) },
                ..=PIECE => copy_piece(source, destination, sum),
                _ => copy_long(source, destination, sum),
            }
        }

        #[target_feature(enable = $features)]
        #[inline(never)]
        fn copy_long(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
            let pieces = source.chunks(PIECE).zip(destination.chunks_mut(PIECE));
            pieces.fold(sum, |sum, (source, destination)| copy_piece(source, destination, sum))
        }

        /// 1 byte to a piece.
        #[target_feature(enable = $features)]
        #[inline]
        fn copy_piece(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
            let mut sums = starts(source.len().div_ceil(VECTOR));
            let whole = (source.len() - 1) / GROUP * GROUP;
            let (groups, end) = source.split_at(whole);
            let (places, place) = destination.split_at_mut(whole);
            for (group, to) in
                groups.as_chunks::<GROUP>().0.iter().zip(places.as_chunks_mut::<GROUP>().0)
            {
                sums = copy_group::<false>(sums, group, to);
            }
            finish(copy_end(sums, end, place), u64::from(sum))
        }

        /// The end of the data, 1 to 256 bytes. Not a loop: compilers make a call of memcpy of its
        /// stores, and then sum the source in a second pass.
        #[target_feature(enable = $features)]
        #[inline]
        fn copy_end([mut a, mut b, mut c, d]: Sums, end: &[u8], place: &mut [u8]) -> Sums {
            if end.len() > VECTOR {
                a = copy_at(a, 0, end, place);
            }
            if end.len() > 2 * VECTOR {
                b = copy_at(b, VECTOR, end, place);
            }
            if end.len() > 3 * VECTOR {
                c = copy_at(c, 2 * VECTOR, end, place);
            }
            let before = (end.len() - 1) / VECTOR * VECTOR;
            let last = load_some(&end[before..]);
            store_some(&mut place[before..], last);
            [a, b, c, add(d, last)]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn copy_at(sum: Sum, at: usize, source: &[u8], destination: &mut [u8]) -> Sum {
            match (source[at..].first_chunk(), destination[at..].first_chunk_mut()) {
                (Some(vector), Some(to)) => copy_vector::<false>(sum, vector, to),
                _ => sum,
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn copy_group<const NT: bool>(
            sums: Sums,
            source: &[u8; GROUP],
            destination: &mut [u8; GROUP],
        ) -> Sums {
            let [a, b, c, d] = source.as_chunks::<VECTOR>().0 else { return sums };
            let [to_a, to_b, to_c, to_d] = destination.as_chunks_mut::<VECTOR>().0 else {
                return sums;
            };
            let vectors = [load(a), load(b), load(c), load(d)];
            for (vector, to) in vectors.iter().zip([to_a, to_b, to_c, to_d]) {
                store::<NT>(*vector, to);
            }
            add_four(sums, vectors)
        }

        /// With `NT`, the destination must be aligned to a vector, or the processor faults.
        #[target_feature(enable = $features)]
        #[inline]
        fn copy_vector<const NT: bool>(
            sum: Sum,
            source: &[u8; VECTOR],
            destination: &mut [u8; VECTOR],
        ) -> Sum {
            let vector = load(source);
            store::<NT>(vector, destination);
            add(sum, vector)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn store<const NT: bool>(vector: __m512i, destination: &mut [u8; VECTOR]) {
            let at = destination.as_mut_ptr().cast();
            // SAFETY: a vector's bytes; with NT aligned, as `aligned` has seen to.
            unsafe {
                if NT { _mm512_stream_si512(at, vector) } else { _mm512_storeu_si512(at, vector) }
            };
        }

        #[target_feature(enable = $features)]
        pub(crate) fn copy_nt(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
            // SAFETY: this function has the same features; the lengths are equal here too.
            unsafe { aligned::<VECTOR>(source, destination, sum, copy, stream) }
        }

        #[target_feature(enable = $features)]
        fn stream(source: &[[u8; VECTOR]], destination: &mut [[u8; VECTOR]]) -> u32 {
            let mut sum = 0;
            for (source, destination) in
                source.chunks(PIECE / VECTOR).zip(destination.chunks_mut(PIECE / VECTOR))
            {
                let mut sums = starts(source.len());
                for (number, (vector, to)) in source.iter().zip(destination).enumerate() {
                    sums[number % 4] = copy_vector::<true>(sums[number % 4], vector, to);
                }
                sum = finish(sums, u64::from(sum));
            }
            // Stores that go past the caches are not ordered with others; whoever is told of the
            // copy must see it.
            _mm_sfence();
            sum
        }
    };
}
use frame;
