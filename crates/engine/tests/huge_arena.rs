//! Packet memory on huge pages. Alone in its process, because the arena is one per process.

use engine::Packet;
use engine::arena::{self, HugeError};

#[test]
fn pages_change_before_the_first_packet_only() {
    arena::set_slots(2048).unwrap();
    match arena::arena().use_huge_pages() {
        Ok(()) => assert!(arena::arena().use_huge_pages().is_ok(), "a repeated call is fine"),
        Err(HugeError::Refused(errno)) => {
            eprintln!("skipped: on huge pages: {errno} (nr_hugepages is too small)")
        }
        Err(error) => panic!("{error}"),
    }
    // On either kind of page, all packets are there and are zeros at first.
    let packets: Vec<_> = std::iter::from_fn(Packet::allocate).collect();
    assert_eq!(packets.len(), 2048);
    let mut packet = packets.into_iter().next_back().unwrap();
    assert!(packet.resize(1500) && packet.iter().all(|byte| *byte == 0));
    packet.fill(7);
    assert!(packet.iter().all(|byte| *byte == 7));
}
