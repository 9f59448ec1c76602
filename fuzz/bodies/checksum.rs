//! What the checksum target does with its input: all kernels against each other, and whole packets.

use shortwire_checksum::packet::{Outcome, fill, verify};
use shortwire_checksum::{Chain, Kernel, csum_block_add, csum_fold};

/// Byte 0: repetitions, for long data; byte 1: how far into a line the data begin; bytes 2 to 5:
/// the sum to begin with; the rest: data.
pub fn kernels(input: &[u8]) {
    let Some((&[repeat, skew, ref sum @ ..], data)) = input.split_first_chunk::<6>() else {
        return;
    };
    let sum = u32::from_ne_bytes([sum[0], sum[1], sum[2], sum[3]]);
    let mut bytes = vec![0; usize::from(skew % 64)];
    (0..=repeat % 32).for_each(|_| bytes.extend_from_slice(data));
    let data = &bytes[usize::from(skew % 64)..];

    let expected = csum_fold(Kernel::all()[0].csum_partial(data, sum));
    let at = data.len() * usize::from(skew) / 256;
    let (left, right) = data.split_at(at);
    for kernel in Kernel::all().iter().filter(|kernel| kernel.is_available()) {
        let name = kernel.name();
        assert_eq!(csum_fold(kernel.csum_partial(data, sum)), expected, "{name}");
        let ahead = usize::from(repeat) * 16;
        assert_eq!(
            csum_fold(kernel.csum_partial_prefetch(data, sum, ahead)),
            expected,
            "{name} with prefetch"
        );
        let split =
            csum_block_add(kernel.csum_partial(left, sum), kernel.csum_partial(right, 0), at);
        assert_eq!(csum_fold(split), expected, "{name} split at {at}");
        let mut copy = vec![0; data.len()];
        assert_eq!(
            csum_fold(kernel.csum_and_copy(data, &mut copy, sum)),
            expected,
            "{name} copying"
        );
        assert!(copy == data, "{name} copied wrongly");
        copy.fill(0);
        assert_eq!(
            csum_fold(kernel.csum_and_copy_nt(data, &mut copy, sum)),
            expected,
            "{name} copying past the caches"
        );
        assert!(copy == data, "{name} copied wrongly past the caches");
    }
    let mut chain = Chain::new(sum);
    data.chunks(usize::from(repeat) + 1).for_each(|part| chain.push(part));
    assert_eq!(csum_fold(chain.sum()), expected, "in parts");
}

/// A packet that can be filled is right afterwards, and filling changes nothing but its checksums.
pub fn packet(input: &[u8]) {
    let checked = verify(input);
    let mut filled = input.to_vec();
    let Ok(outcome) = fill(&mut filled) else {
        assert!(filled == input && checked.is_err());
        return;
    };
    assert_eq!(verify(&filled), Ok(outcome));
    let changed = filled.iter().zip(input).filter(|(new, old)| new != old).count();
    assert!(changed <= 4, "two checksums have 4 bytes");
    if checked == Ok(Outcome::Complete) {
        // Right before: at most the other zero instead.
        assert!(
            filled
                .chunks(2)
                .zip(input.chunks(2))
                .all(|(new, old)| new == old || *old == [0, 0] || *old == [0xff, 0xff])
        );
    }
}
