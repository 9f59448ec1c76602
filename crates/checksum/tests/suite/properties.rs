//! Laws that hold for any data, against the naive oracle and two independent crates.

use crate::oracle::naive;
use proptest::collection::vec;
use proptest::prelude::*;
use shortwire_checksum::*;

fn data() -> impl Strategy<Value = Vec<u8>> {
    // Bytes of one value are where carries gather and where the two zeros are.
    prop_oneof![vec(any::<u8>(), 0..3000), vec(prop_oneof![Just(0u8), Just(0xff)], 0..300)]
}

/// The field at an even place replaced, and the checksum computed from scratch.
fn rewritten(data: &[u8], at: usize, new: &[u8]) -> (u16, u16, bool) {
    let mut changed = data.to_vec();
    changed[at..at + new.len()].copy_from_slice(new);
    (naive(data, 0), naive(&changed, 0), changed.iter().all(|&byte| byte == 0))
}

fn even_place(data: &[u8], size: usize, choice: usize) -> usize {
    (choice % (data.len() - size + 1)) & !1
}

macro_rules! replaces {
    ($name:ident, $function:ident, $size:literal) => {
        proptest! {
            #[test]
            fn $name(data in data(), choice: usize, new in any::<[u8; $size]>(), zero: bool) {
                let mut data = data;
                data.resize(data.len().max($size), 0);
                let new = if zero { [0; $size] } else { new };
                let at = even_place(&data, $size, choice);
                let old: [u8; $size] = data[at..at + $size].try_into().unwrap();
                let (before, after, all_zero) = rewritten(&data, at, &new);
                let updated = $function(before, old, new);
                // Only zeros have two right answers here.
                prop_assert!(updated == after || (all_zero && updated == 0), "{updated:#x} {after:#x}");
            }
        }
    };
}

replaces!(replace_2_is_recompute, csum_replace2, 2);
replaces!(replace_4_is_recompute, csum_replace4, 4);
replaces!(replace_6_is_recompute, csum_replace6, 6);
replaces!(replace_16_is_recompute, csum_replace16, 16);

proptest! {
    #[test]
    fn three_crates_agree(data in data()) {
        let ours = checksum(&data);
        prop_assert_eq!(ours, naive(&data, 0));
        prop_assert_eq!(ours.to_ne_bytes(), internet_checksum::checksum(&data));
        prop_assert_eq!(!ours, smoltcp::wire::checksum::data(&data).to_be());
    }

    #[test]
    fn any_split_adds_up(data in data(), at: usize, sum: u32) {
        let at = at % (data.len() + 1);
        let (left, right) = data.split_at(at);
        let whole = csum_fold(csum_partial(&data, sum));
        let joined = csum_block_add(csum_partial(left, sum), csum_partial(right, 0), at);
        prop_assert_eq!(csum_fold(joined), whole);
        let back = csum_sub(joined, csum_block_add(0, csum_partial(right, 0), at));
        let left = csum_fold(csum_partial(left, sum));
        prop_assert!(csum_fold(back) == left || (csum_fold(back) == 0 && left == 0xffff));
    }

    #[test]
    fn chains_and_batches_are_their_parts(parts in vec(vec(any::<u8>(), 0..70), 0..20), sum: u32) {
        let whole = parts.concat();
        prop_assert_eq!(csum_fold(csum_chain(&parts, sum)), csum_fold(csum_partial(&whole, sum)));
        let slices: Vec<_> = parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
        prop_assert_eq!(csum_chain(&slices, sum), csum_chain(&parts, sum));
        for profile in [prefetch::Profile::NONE, prefetch::Profile::new(64, 255, 1), prefetch::Profile::new(0, 1, 255)] {
            let mut sums = vec![sum; parts.len()];
            Kernel::active().csum_batch(&parts, &mut sums, &profile);
            for (part, got) in parts.iter().zip(sums) {
                prop_assert_eq!(csum_fold(got), naive(part, sum));
            }
        }
    }

    #[test]
    fn fixed_sizes_are_the_general_sum(a: [u8; 20], b in any::<[[u8; 20]; 2]>()) {
        prop_assert_eq!(csum_header20(&a), naive(&a, 0));
        let b: [u8; 40] = b.concat().try_into().unwrap();
        prop_assert_eq!(csum_header40(&b), naive(&b, 0));
    }

    #[test]
    fn pseudo_headers_are_their_bytes(a: [u8; 16], b: [u8; 16], protocol: u8, length: u32, sum: u32) {
        let mut header = [a, b].concat();
        header.extend(length.to_be_bytes());
        header.extend([0, 0, 0, protocol]);
        prop_assert_eq!(csum_ipv6_magic(a, b, length, protocol, sum), naive(&header, sum));
        let (a, b) = (*a.first_chunk::<4>().unwrap(), *b.first_chunk::<4>().unwrap());
        let mut header = [a, b].concat();
        header.extend([0, protocol]);
        header.extend((length as u16).to_be_bytes());
        prop_assert_eq!(csum_tcpudp_magic(a, b, length as u16, protocol, sum), naive(&header, sum));
    }
}

#[test]
fn zero_has_two_forms_and_only_zeros_give_the_first() {
    assert_eq!(checksum(&[0; 40]), 0xffff);
    assert_eq!(checksum(&[0xff; 40]), 0);
    assert_eq!(csum_header20(&[0; 20]), 0xffff);
    assert_eq!(csum_header40(&[0xff; 40]), 0);
    // RFC 1624 section 4: 0x0000 must not come out here, as equation 2 has it.
    assert_eq!(csum_replace2(0xdd2fu16.to_be(), [0x55, 0x55], [0x32, 0x85]), 0x0000);
}

#[test]
fn kernels_are_found_by_name_and_selected() {
    use shortwire_checksum::kernel::{KernelError, select};
    let error = Kernel::by_name("fast").unwrap_err();
    assert_eq!(error, KernelError::Unknown);
    for kernel in Kernel::all() {
        assert!(error.to_string().contains(kernel.name()));
        match Kernel::by_name(kernel.name()) {
            Ok(found) => {
                select(found).unwrap();
                assert_eq!(Kernel::active(), found);
                assert_eq!(checksum(b"123456789"), naive(b"123456789", 0));
            }
            Err(error) => {
                assert_eq!(error, KernelError::NotSupported(kernel));
                assert_eq!(select(kernel), Err(error));
                assert!(error.to_string().contains(kernel.requires()));
            }
        }
    }
    select(Kernel::fastest()).unwrap();
}

#[test]
fn a_profile_changes_no_sum() {
    let data = vec![0x5a; 5000];
    for in_packet in [0, 1, 320, u16::MAX] {
        prefetch::set_profile(prefetch::Profile::new(in_packet, 8, 2));
        assert_eq!(prefetch::profile().in_packet, in_packet);
        assert_eq!(checksum(&data), naive(&data, 0));
        let mut sums = [0, 7];
        csum_batch(&[&data[..], &data[1..]], &mut sums);
        assert_eq!(sums.map(csum_fold), [naive(&data, 0), naive(&data[1..], 7)]);
    }
    prefetch::set_profile(prefetch::Profile::built_in());
}
