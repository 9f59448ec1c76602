//! All packets in use. A process of its own, so that no other test runs out of them.

use engine::{Link, Packet, arena};

#[test]
fn an_empty_arena_is_no_disaster() {
    arena::set_slots(2000).unwrap();
    assert_eq!(arena::arena().slots(), 2048);
    arena::set_slots(2048).unwrap();
    assert!(arena::set_slots(4096).is_err());
    let mut all: Vec<Packet> = std::iter::from_fn(Packet::allocate).collect();
    assert_eq!(all.len(), 2048);
    assert!(Packet::from_slice(b"x").is_none());
    let link = Link::new();
    assert_eq!(link.transmit_copies(&all[0], 10), 0);
    assert_eq!((link.transmit_copies_of(&all[..10]), link.stats().txdrop), (0, 10));
    all.truncate(1);
    assert_eq!(link.transmit_copies(&all[0], 10), 10);
    link.discard();
    // What one thread frees another one can use.
    let freed = std::thread::spawn(|| std::iter::from_fn(Packet::allocate).take(500).count())
        .join()
        .unwrap();
    assert_eq!(freed, 500);
    drop(all);
    let rest: Vec<Packet> = std::iter::from_fn(Packet::allocate).collect();
    assert_eq!(rest.len(), 2048);
}
