//! Cards that fail, and drivers that would do wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use engine::nic::i82599::Backing;
use engine::nic::i82599::model::Fault;
use engine::nic::i82599::registers::*;
use engine::nic::{Bar, Buffer};

fn opening_fails(change: impl FnOnce(&mut model::Faults)) -> String {
    let (a, _) = numbers();
    let spec: Spec = format!("model:{a}").parse().unwrap();
    let (wire, end) = Wire::of(&spec).unwrap();
    wire.inject(end, change);
    match card(&spec, promiscuous()) {
        Ok(_) => panic!("it works"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_card_that_does_not_come_up_is_named() {
    assert!(opening_fails(|faults| faults.stuck_reset = true).contains("does not end its reset"));
    assert!(opening_fails(|faults| faults.no_eeprom = true).contains("does not read its EEPROM"));
    assert!(opening_fails(|faults| faults.gone = true).contains("does not"));
}

#[test]
fn queues_that_do_not_start_are_named_and_leave_nothing_behind() {
    let (a, _) = numbers();
    let spec: Spec = format!("model:{a}").parse().unwrap();
    let card = card(&spec, promiscuous()).unwrap();
    let (wire, end) = Wire::of(&spec).unwrap();
    wire.inject(end, |faults| faults.stuck_queues = true);
    let error = Queue::open(card.clone(), 0, 0, 64).err().unwrap();
    assert!(error.to_string().contains("does not enable a receive queue"), "{error}");
    wire.inject(end, |faults| faults.stuck_queues = false);
    assert!(Queue::open(card, 0, 0, 64).is_ok(), "the queue is free again");
}

#[test]
fn what_is_sent_waits_for_the_link() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    left.wire.inject(right.end, |faults| faults.no_link = true);
    assert!(!left.queue.card().link().up);
    (0..10).for_each(|number| left.send(&frame(SOMEBODY, 60, number)));
    left.queue.complete();
    assert_eq!((left.queue.pending(), right.receive().len()), (10, 0));
    left.wire.inject(right.end, |faults| faults.no_link = false);
    assert_eq!(left.queue.card().link().speed, 10_000);
    left.queue.complete();
    assert_eq!((left.queue.pending(), right.receive().len()), (0, 10));
}

#[test]
fn packets_without_a_report_stay_with_the_card() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    left.wire.inject(left.end, |faults| faults.lost_reports = 1);
    (0..3).for_each(|number| left.send(&frame(SOMEBODY, 60, number)));
    left.queue.complete();
    assert_eq!(right.receive().len(), 3);
    assert_eq!(left.queue.pending(), 3, "whose slots might still be read");
}

#[test]
fn broken_frames_are_freed_and_counted() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    left.wire.inject(right.end, |faults| (faults.broken_frames, faults.checksum_errors) = (2, 3));
    (0..10).for_each(|number| left.send(&frame(SOMEBODY, 60, number)));
    let got = right.receive();
    // Three never arrive, two arrive broken.
    assert_eq!(got, (5..10).map(|number| frame(SOMEBODY, 60, number)).collect::<Vec<_>>());
    assert_eq!((right.queue.broken, right.queue.card().statistics().rx_errors), (2, 3));
}

/// A transmit queue by hand, as a wrong driver would have it.
struct ByHand {
    bar: ModelBar,
    ring: Buffer,
    wire: Arc<Wire>,
    _memory: model::ModelMemory,
}

impl ByHand {
    fn new() -> Self {
        let (a, _) = numbers();
        let spec: Spec = format!("model:{a}").parse().unwrap();
        let (wire, _) = Wire::of(&spec).unwrap();
        let (bar, mut memory) = model::open(&spec).unwrap();
        let ring = memory.dma().buffer(1024).unwrap();
        bar.write32(AUTOC, AUTOC_LMS_10G_SERIAL | AUTOC_RESTART);
        bar.write32(DMATXCTL, DMATXCTL_ENABLE);
        Self { bar, ring, wire, _memory: memory }
    }

    fn start(&self, address: u64, length: u32) -> bool {
        let queue = tx_queue(0);
        self.bar.write32(queue + BAL, address as u32);
        self.bar.write32(queue + BAH, (address >> 32) as u32);
        self.bar.write32(queue + LEN, length);
        self.bar.write32(queue + DCTL, DCTL_ENABLE);
        self.bar.read32(queue + DCTL) & DCTL_ENABLE != 0
    }

    fn found(&self, words: [u64; 2]) -> Vec<Fault> {
        assert!(self.start(self.ring.address(), 1024));
        let cells = self.ring.cells::<AtomicU64>();
        cells[0].store(words[0], Ordering::Relaxed);
        cells[1].store(words[1], Ordering::Relaxed);
        self.bar.write32(tx_queue(0) + TAIL, 1);
        assert_ne!(self.bar.read32(EICR), 0, "an interrupt cause tells of it");
        assert_eq!(self.bar.read32(EICR), 0, "reading cleared it");
        self.wire.found(0)
    }
}

#[test]
fn memory_is_checked_as_an_iommu_would() {
    // The process's own address of a packet means nothing to a device.
    let mut packet = Packet::from_slice(&[0; 64]).unwrap();
    let address = packet.as_mut_ptr().addr() as u64;
    let good = 3 << 20 | 1 << 24 | 1 << 25 | 1 << 27 | 1 << 29 | 64 | 64 << 46;
    assert_eq!(ByHand::new().found([address, good]), [Fault::Address { queue: 0, address }]);
    // Types, lengths, and the end of the packet, are checked, too.
    for bad in [0, good & !(1 << 29), good & !(1 << 24), good | 1 << 46, good & !64] {
        assert_eq!(
            ByHand::new().found([address, bad]),
            [Fault::Descriptor { queue: 0, word: bad }]
        );
    }
}

#[test]
fn rings_are_checked() {
    let by_hand = ByHand::new();
    let address = by_hand.ring.address();
    assert!(!by_hand.start(address, 1000), "not a multiple of 128");
    assert!(!by_hand.start(address, 8192), "beyond the memory");
    assert!(!by_hand.start(address + 64, 512), "not aligned");
    assert_eq!(by_hand.wire.found(0).len(), 3);
    assert!(by_hand.start(address, 1024));
}

#[test]
fn outside_of_the_registers_there_is_nothing() {
    let by_hand = ByHand::new();
    assert_eq!(by_hand.bar.read32(REGION as u32), u32::MAX);
    by_hand.bar.write32(REGION as u32, 1);
    assert_eq!(by_hand.bar.read32(2), u32::MAX);
}
