//! Many packets in one call, with the next packets' first lines on their way while one is summed.

use core::ops::Deref;

use crate::kernel;
use crate::prefetch::{self, Profile};

/// Adds to each of `sums` the partial sum of the packet at the same place.
///
/// On entry a sum is 0 or, say, that of a pseudo header. While one packet is summed, the first
/// lines of one of the following packets are fetched, as the [profile](prefetch::Profile) says:
/// worth it for packets that are not in the cache, nearly free otherwise.
///
/// ```
/// let packets: [&[u8]; 2] = [b"one packet", b"another one"];
/// let mut sums = [0; 2];
/// shortwire_checksum::csum_batch(&packets, &mut sums);
/// assert_eq!(sums.map(shortwire_checksum::csum_fold), packets.map(shortwire_checksum::checksum));
/// ```
///
/// # Panics
/// If `packets` and `sums` differ in length.
pub fn csum_batch<P: Deref<Target = [u8]>>(packets: &[P], sums: &mut [u32]) {
    run(packets, sums, &prefetch::profile(), kernel::active_partial);
}

#[inline(always)]
pub(crate) fn run<P: Deref<Target = [u8]>>(
    packets: &[P],
    sums: &mut [u32],
    profile: &Profile,
    partial: impl Fn(&[u8], u32) -> u32,
) {
    assert_eq!(packets.len(), sums.len(), "csum_batch: as many sums as packets");
    let (lines, ahead) = (profile.next_packet_lines as usize, profile.packets_ahead as usize);
    if lines == 0 || ahead == 0 {
        return packets.iter().zip(sums).for_each(|(packet, sum)| *sum = partial(packet, *sum));
    }
    // The first packet is read at once; those behind it that the loop would not reach are fetched
    // here.
    for packet in packets.iter().take(ahead).skip(1) {
        prefetch::head(packet, lines);
    }
    for (place, (packet, sum)) in packets.iter().zip(sums).enumerate() {
        if let Some(next) = packets.get(place + ahead) {
            prefetch::head(next, lines);
        }
        *sum = partial(packet, *sum);
    }
}
