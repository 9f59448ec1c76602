//! Every kernel against the naive oracle: lengths, alignments, patterns, the bytes around, and
//! sizes that overflow.

use crate::oracle::{Guarded, Random, finish, naive, patterns, skipped};
use shortwire_checksum::{Kernel, csum_fold, csum_partial_latency};

const LENGTHS: usize = 2048;

/// The kernels that this processor can run.
fn kernels() -> impl Iterator<Item = &'static Kernel> {
    Kernel::all().iter().filter(|kernel| kernel.is_available())
}

/// So that nobody takes them for tested.
#[test]
fn kernels_that_this_processor_lacks() {
    let absent: Vec<_> =
        Kernel::all().iter().filter(|kernel| !kernel.is_available()).map(Kernel::name).collect();
    if !absent.is_empty() {
        skipped("kernels", &format!("this processor cannot run {}", absent.join(", ")));
    }
}

/// The oracle's answer for each of `data[..0]` to `data[..=LENGTHS]`.
fn prefixes(data: &[u8], sum: u32) -> Vec<u16> {
    let mut total = u128::from(sum);
    let mut answers = vec![finish(total)];
    for (place, &byte) in data.iter().enumerate() {
        total += u128::from(u16::from_ne_bytes(if place % 2 == 0 { [byte, 0] } else { [0, byte] }));
        answers.push(finish(total));
    }
    answers
}

#[test]
fn the_oracle_knows_the_rfc_example() {
    assert_eq!(
        naive(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0).to_ne_bytes(),
        [!0xdd, !0xf2]
    );
    assert_eq!(
        prefixes(&[1, 2, 3], 7),
        [naive(&[], 7), naive(&[1], 7), naive(&[1, 2], 7), naive(&[1, 2, 3], 7)]
    );
}

#[test]
fn every_length_at_every_alignment() {
    let mut random = Random(7);
    for (pattern, data) in patterns(LENGTHS + 64) {
        let base = data.as_ptr().align_offset(64);
        for sum in [0, 0xffff_ffff, random.next() as u32] {
            for alignment in 0..64 {
                let data = &data[(base + alignment) % 64..][..LENGTHS];
                let expected = prefixes(data, sum);
                for kernel in kernels() {
                    for length in 0..=LENGTHS {
                        let got = csum_fold(kernel.csum_partial(&data[..length], sum));
                        assert_eq!(
                            got,
                            expected[length],
                            "{} {pattern} length {length} alignment {alignment}",
                            kernel.name()
                        );
                    }
                }
            }
        }
    }
}

/// Short data that is waited for has a way of its own.
#[test]
fn the_sum_at_once_is_the_same_and_reads_nothing_else() {
    let mut memory = Guarded::new(LENGTHS);
    let memory = memory.bytes();
    for (pattern, data) in patterns(memory.len()) {
        memory.copy_from_slice(&data[..memory.len()]);
        for sum in [0, 0xffff_ffff] {
            let expected = prefixes(memory, sum);
            for length in 0..=LENGTHS {
                let got = csum_partial_latency(&memory[..length], sum);
                assert_eq!(csum_fold(got), expected[length], "{pattern} length {length}");
                let last = &memory[memory.len() - length..];
                let got = csum_partial_latency(last, sum);
                assert_eq!(csum_fold(got), naive(last, sum), "{pattern} length {length}, last");
                assert_eq!(got == 0, sum == 0 && last.iter().all(|&byte| byte == 0), "{length}");
            }
        }
    }
}

#[test]
fn no_byte_outside_is_read() {
    let mut memory = Guarded::new(LENGTHS);
    let memory = memory.bytes();
    Random(3).fill(memory);
    let behind = prefixes(memory, 0);
    for kernel in kernels() {
        for length in 0..=LENGTHS {
            // Directly behind the inaccessible page, and directly before the other one.
            assert_eq!(
                csum_fold(kernel.csum_partial(&memory[..length], 0)),
                behind[length],
                "{}",
                kernel.name()
            );
            let last = &memory[memory.len() - length..];
            assert_eq!(
                csum_fold(kernel.csum_partial(last, 0)),
                naive(last, 0),
                "{}",
                kernel.name()
            );
        }
    }
}

#[test]
fn copies_are_exact_and_stay_inside() {
    let (mut from, mut to) = (Guarded::new(LENGTHS + 64), Guarded::new(LENGTHS + 64));
    let (from, to) = (from.bytes(), to.bytes());
    Random(5).fill(from);
    let lengths = (0..1000).chain((1000..LENGTHS).step_by(37)).chain([LENGTHS]);
    for length in lengths {
        // At the end of their page, so that alignments change with the length, and shifted against
        // each other; and the source at the front of its page.
        for (shift, front) in
            [(0, false), (1, false), (2, true), (7, true), (32, false), (63, false), (127, true)]
        {
            let start = if front { 0 } else { from.len() - length };
            let source = &from[start..][..length];
            let expected = naive(source, 0x1_2345);
            for kernel in kernels() {
                for nt in [false, true] {
                    to.fill(0xa5);
                    let start = to.len() - length - shift;
                    let destination = &mut to[start..][..length];
                    let sum = if nt {
                        kernel.csum_and_copy_nt(source, destination, 0x1_2345)
                    } else {
                        kernel.csum_and_copy(source, destination, 0x1_2345)
                    };
                    let name = kernel.name();
                    assert_eq!(
                        csum_fold(sum),
                        expected,
                        "{name} nt {nt} length {length} shift {shift}"
                    );
                    assert_eq!(destination, source, "{name} nt {nt} length {length} shift {shift}");
                    let outside = to[..start].iter().chain(&to[start + length..]);
                    assert!(
                        outside.into_iter().all(|&byte| byte == 0xa5),
                        "{name} nt {nt} length {length}"
                    );
                }
            }
        }
    }
}

/// Where the data are cut, with odd addresses and sums of nothing but zeros and ones.
#[test]
fn long_copies_are_exact() {
    let mut random = vec![0; (256 << 10) + 300];
    Random(7).fill(&mut random);
    let (zeros, ones) = (vec![0; random.len()], vec![0xff; random.len()]);
    for cut in [0, 8 << 10, 128 << 10, 256 << 10] {
        for more in [0, 1, 33, 34, 127, 129, 255] {
            for data in [&random, &zeros, &ones] {
                let source = &data[1..][..cut + more];
                for sum in [0, 0xffff_fffe] {
                    let expected = naive(source, sum);
                    for kernel in kernels() {
                        for shift in [0, 31] {
                            let mut to = vec![0xa5; source.len() + 64];
                            let destination = &mut to[shift..][..source.len()];
                            let got = kernel.csum_and_copy(source, destination, sum);
                            assert_eq!(csum_fold(got), expected, "{} {cut} {more}", kernel.name());
                            assert!(destination == source);
                            let got = kernel.csum_and_copy_nt(source, destination, sum);
                            assert_eq!(csum_fold(got), expected, "{} {cut} {more}", kernel.name());
                            assert!(destination == source);
                            assert!(to[shift + source.len()..].iter().all(|&byte| byte == 0xa5));
                        }
                    }
                }
            }
        }
    }
}

/// Several well-known routines lose carries here.
#[test]
fn long_data_lose_no_carry() {
    let mut random = vec![0; (1 << 20) + 65];
    Random(11).fill(&mut random);
    let ones = vec![0xff; (8 << 20) + 3];
    let cases: [&[u8]; 9] = [
        &ones[..256 << 10],
        &ones[1..(256 << 10) + 2],
        &ones[..(1 << 20) + 1],
        &ones,
        &random[..1 << 20],
        &random[1..],
        &random[17..(512 << 10) + 16],
        &random[63..8192 + 63],
        &random[..8191],
    ];
    for data in cases {
        for sum in [0, 0xffff_fffe] {
            let expected = naive(data, sum);
            for kernel in kernels() {
                let got = csum_fold(kernel.csum_partial(data, sum));
                assert_eq!(got, expected, "{} length {}", kernel.name(), data.len());
                let got = csum_fold(kernel.csum_partial_prefetch(data, sum, 320));
                assert_eq!(got, expected, "{} length {} with prefetch", kernel.name(), data.len());
            }
        }
        let mut copy = vec![0; data.len()];
        for kernel in kernels() {
            copy.fill(0);
            assert_eq!(
                csum_fold(kernel.csum_and_copy(data, &mut copy, 0)),
                naive(data, 0),
                "{}",
                kernel.name()
            );
            assert!(copy == data, "{}", kernel.name());
            copy.fill(0);
            assert_eq!(
                csum_fold(kernel.csum_and_copy_nt(data, &mut copy, 0)),
                naive(data, 0),
                "{}",
                kernel.name()
            );
            assert!(copy == data, "{}", kernel.name());
        }
    }
}

/// What a header's field may become depends on it: a sum is zero only if everything was.
#[test]
fn only_zeros_give_zero() {
    for kernel in kernels() {
        for length in 0..=LENGTHS {
            assert_eq!(kernel.csum_partial(&vec![0; length], 0), 0, "{}", kernel.name());
            let full = kernel.csum_partial(&vec![0xff; length & !1], 0);
            assert_eq!(full == 0, length < 2, "{} length {length}", kernel.name());
        }
        assert_ne!(kernel.csum_partial(&[0; 100], 0xffff_ffff), 0, "{}", kernel.name());
    }
}
