//! Which packets a card takes, to which queue, and what becomes of tags.

use super::*;
use engine::nic::i82599::registers::*;

const MINE: [u8; 6] = [2, 0, 0, 0, 0, 0x55];
const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ALL: [u8; 6] = [0xff; 6];

fn received(settings: Settings, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (a, b) = numbers();
    let mut left = Port::open(&format!("model:{a},cable={b}"), promiscuous(), 64).unwrap();
    let mut right = Port::open(&format!("model:{b},cable={a}"), settings, 64).unwrap();
    frames.iter().for_each(|frame| left.send(frame));
    right.receive()
}

#[test]
fn a_card_takes_its_own_address_and_broadcasts() {
    let frames = [MINE, SOMEBODY, GROUP, ALL].map(|to| frame(to, 60, 1));
    let own = Settings { mac: Some(MINE), ..Settings::default() };
    assert_eq!(received(own.clone(), &frames), [frames[0].clone(), frames[3].clone()]);
    assert_eq!(received(Settings { promiscuous: true, ..own }, &frames), frames);
}

#[test]
fn the_address_of_the_eeprom_holds_if_no_other_is_given() {
    let (mut left, mut right) = cable(&Settings::default(), 64);
    let mac = right.queue.card().mac();
    assert_eq!(mac[0] & 3, 2, "one address, administered locally");
    left.send(&frame(mac, 60, 1));
    left.send(&frame(SOMEBODY, 60, 2));
    assert_eq!(right.receive(), [frame(mac, 60, 1)]);
}

#[test]
fn groups_are_counted_on_both_sides() {
    let (mut left, right) = cable(&promiscuous(), 64);
    [MINE, GROUP, ALL, ALL].iter().for_each(|to| left.send(&frame(*to, 60, 1)));
    let (sent, got) = (left.queue.card().statistics(), right.queue.card().statistics());
    assert_eq!((sent.tx_packets, sent.tx_multicast, sent.tx_broadcast), (4, 1, 2));
    assert_eq!((got.rx_packets, got.rx_multicast, got.rx_broadcast), (4, 1, 2));
    // With the checksum, without preamble.
    assert_eq!(got.rx_bytes, 4 * 64);
}

/// The same frame with a tag of IEEE 802.1Q.
fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &vlan.to_be_bytes(), &frame[12..]].concat()
}

#[test]
fn tags_go_on_and_off_in_the_card() {
    let plain = frame(SOMEBODY, 80, 1);
    let vlan = |id| Settings { vlan: Some(id), ..promiscuous() };
    // Off, and only those of that VLAN.
    let frames = [plain.clone(), tagged(&plain, 5), tagged(&plain, 6)];
    assert_eq!(received(vlan(5), &frames), std::slice::from_ref(&plain));
    assert_eq!(received(promiscuous(), &frames), frames);
    // On, by the context that was sent once: it is no packet.
    let (a, b) = numbers();
    let mut left = Port::open(&format!("model:{a},cable={b}"), vlan(7), 64).unwrap();
    let mut right = Port::open(&format!("model:{b},cable={a}"), promiscuous(), 64).unwrap();
    (0..200).for_each(|_| {
        left.send(&plain);
        assert_eq!(right.receive(), [tagged(&plain, 7)]);
    });
    assert_eq!(left.queue.card().statistics().tx_packets, 200);
    assert!(left.wire.found(left.end).is_empty());
}

#[test]
fn frames_that_are_too_long_are_dropped_and_counted() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    let longest = engine::nic::i82599::LONGEST - 4;
    left.send(&frame(SOMEBODY, longest + 1, 1));
    left.send(&frame(SOMEBODY, longest, 2));
    assert_eq!(right.receive(), [frame(SOMEBODY, longest, 2)]);
    assert_eq!(right.queue.card().statistics().rx_errors, 1);
}

/// UDP over IPv4 from this port.
fn udp(port: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame
}

#[test]
fn flows_are_spread_over_the_queues_that_are_in_use() {
    let (a, b) = numbers();
    let mut left = Port::open(&format!("model:{a},cable={b}"), promiscuous(), 512).unwrap();
    let card = card(&format!("model:{b},cable={a}").parse().unwrap(), promiscuous()).unwrap();
    let mut queues: Vec<_> =
        [0, 3].map(|queue| Queue::open(card.clone(), queue, queue, 512).unwrap()).into();
    assert!(matches!(Queue::open(card.clone(), 3, 4, 64), Err(CardError::QueueInUse(3))));
    assert!(matches!(Queue::open(card.clone(), 4, 3, 64), Err(CardError::QueueInUse(3))));
    let ports = |queue: &mut Queue<ModelBar>| {
        let link = Link::new();
        // Two batches of packets at most.
        queue.receive(&link);
        queue.receive(&link);
        let packets: Vec<_> = std::iter::from_fn(|| link.receive()).collect();
        packets
            .iter()
            .map(|packet| u16::from_be_bytes([packet[34], packet[35]]))
            .collect::<Vec<_>>()
    };
    (0..200).for_each(|port| left.send(&udp(port)));
    let first: Vec<_> = queues.iter_mut().map(ports).collect();
    assert!(first.iter().all(|queue| queue.len() > 50), "{first:?}");
    assert_eq!(first.iter().map(Vec::len).sum::<usize>(), 200);
    // A flow stays where it is; what is no IP goes to queue 0.
    (0..200).for_each(|port| left.send(&udp(port)));
    left.send(&frame(SOMEBODY, 60, 0));
    let second: Vec<_> = queues.iter_mut().map(ports).collect();
    assert_eq!(
        (&second[0][..first[0].len()], second[0].len()),
        (&first[0][..], first[0].len() + 1)
    );
    assert_eq!(second[1], first[1]);
    // Queues that leave are no longer named.
    drop(queues.pop());
    (0..100).for_each(|port| left.send(&udp(port)));
    assert_eq!(ports(&mut queues[0]).len(), 100);
    assert_eq!(left.wire.peek(1 - left.end, reta(0)), 0);
}
