//! The Internet checksum of a packet in two pieces, and of the packet after a router has changed an
//! address in it.

use shortwire_checksum::{csum_chain, csum_fold, csum_partial, csum_replace4};

fn main() {
    let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7];
    let check = csum_fold(csum_partial(&packet, 0));
    assert_eq!(check, csum_fold(csum_chain(&[&packet[..7], &packet[7..]], 0)));

    let (old, new) = ([192, 0, 2, 1], [203, 0, 113, 5]);
    let mut routed = packet;
    routed[12..16].copy_from_slice(&new);
    assert_eq!(csum_replace4(check, old, new), csum_fold(csum_partial(&routed, 0)));
    println!("{:02x?}", check.to_ne_bytes());
}
