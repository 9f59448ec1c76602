//! Packets over a cable: content, rings that wrap, back pressure.

use proptest::prelude::*;

use super::*;
use engine::nic::i82599::model::Fault;
use engine::nic::i82599::registers::*;

#[test]
fn frames_arrive_whole_and_in_order_over_rings_that_wrap() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    let mut expected = 0..2000_u32;
    for number in 0..1000 {
        left.send(&frame(SOMEBODY, 60 + number as usize % 1450, 2 * number));
        left.send(&frame(SOMEBODY, 64, 2 * number + 1));
        for got in right.receive() {
            let number = expected.next().unwrap();
            let length = if number % 2 == 0 { 60 + (number as usize / 2) % 1450 } else { 64 };
            assert_eq!(got, frame(SOMEBODY, length, number));
        }
    }
    assert_eq!(expected.start, 2000);
    let (sent, received) = (left.queue.card().statistics(), right.queue.card().statistics());
    assert_eq!((sent.tx_packets, received.rx_packets), (2000, 2000));
    assert_eq!(sent.tx_bytes, received.rx_bytes);
    assert_eq!(received.rx_dropped + received.rx_errors, 0);
    assert!(left.wire.found(0).is_empty() && left.wire.found(1).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any pattern of bursts in both directions, with receivers that look now and then.
    #[test]
    fn bursts_in_both_directions(
        steps in proptest::collection::vec((0..40_usize, 17..1514_usize, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let settings = Settings { flow_control: true, ..promiscuous() };
        let (left, right) = cable(&settings, 64);
        let mut ports = [left, right];
        let (mut sent, mut got) = ([0_u32; 2], [0_u32; 2]);
        for (count, length, from_left, look) in steps {
            let from = usize::from(!from_left);
            for _ in 0..count {
                let number = sent[from];
                ports[from].sending.transmit(Packet::from_slice(&frame(SOMEBODY, length.max(18), number)).unwrap());
                sent[from] += 1;
            }
            let Port { queue, sending, .. } = &mut ports[from];
            queue.send(sending);
            if look {
                for frame in ports[1 - from].receive() {
                    prop_assert_eq!(&frame[14..18], &got[from].to_be_bytes());
                    got[from] += 1;
                }
            }
        }
        // With pauses nothing is lost: all comes in the end.
        for _ in 0..100 {
            for from in 0..2 {
                let Port { queue, sending, .. } = &mut ports[from];
                queue.send(sending);
                got[from] += ports[1 - from].receive().len() as u32;
            }
        }
        prop_assert_eq!(sent, got);
        prop_assert!(ports[0].wire.found(0).is_empty() && ports[0].wire.found(1).is_empty());
    }
}

#[test]
fn short_packets_are_filled_up_and_impossible_ones_dropped() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    let short = frame(SOMEBODY, 14, 7);
    left.send(&short);
    left.send(&short[..13]);
    left.send(&frame(SOMEBODY, 60, 8));
    let got = right.receive();
    assert_eq!(got.len(), 2);
    assert_eq!((&got[0][..14], got[0].len()), (&short[..], 60));
    assert!(got[0][14..].iter().all(|byte| *byte == 0));
    assert_eq!(left.queue.too_short, 1);
}

#[test]
fn without_pauses_a_card_without_buffers_drops_and_counts() {
    let (mut left, right) = cable(&promiscuous(), 64);
    for number in 0..100 {
        left.send(&frame(SOMEBODY, 64, number));
    }
    let received = right.queue.card().statistics();
    // One place of a ring stays free.
    assert_eq!((received.rx_packets, received.rx_dropped), (63, 37));
    assert_eq!(left.queue.card().statistics().tx_packets, 100);
}

#[test]
fn with_pauses_the_sender_waits_and_its_link_fills() {
    let settings = Settings { flow_control: true, ..promiscuous() };
    let (mut left, mut right) = cable(&settings, 64);
    for number in 0..200 {
        left.send(&frame(SOMEBODY, 64, number));
    }
    // 63 in the receiver's ring, 63 in the sender's, the rest in its link.
    assert_eq!((left.queue.pending(), left.sending.length()), (63, 200 - 126));
    let mut numbers = Vec::new();
    for _ in 0..10 {
        numbers.extend(
            right
                .receive()
                .iter()
                .map(|frame| u32::from_be_bytes([frame[14], frame[15], frame[16], frame[17]])),
        );
        left.queue.send(&left.sending);
    }
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    assert_eq!(right.queue.card().statistics().rx_dropped, 0);
}

#[test]
fn no_register_is_read_while_packets_move() {
    let (mut left, mut right) = cable(&promiscuous(), 64);
    let before = left.wire.stats(left.end);
    for number in 0..10 {
        left.sending.transmit(Packet::from_slice(&frame(SOMEBODY, 64, number)).unwrap());
    }
    left.queue.send(&left.sending);
    let sent = left.wire.stats(left.end);
    assert_eq!(
        (sent.reads - before.reads, sent.writes - before.writes),
        (0, 1),
        "one tail for a batch"
    );
    let receiver = left.wire.stats(right.end);
    for number in 0..50 {
        left.send(&frame(SOMEBODY, 64, number));
    }
    assert_eq!(right.receive().len(), 60);
    assert_eq!(left.wire.stats(left.end).reads, before.reads);
    assert_eq!(left.wire.stats(right.end).reads, receiver.reads);
}

#[test]
fn a_feed_gives_what_buffers_take() {
    let (a, _) = numbers();
    let mut port = Port::open(&format!("model:{a},packets=64"), promiscuous(), 64).unwrap();
    let first = port.receive();
    assert_eq!(first.len(), 63);
    assert!(first.iter().all(|frame| frame.len() == 64 && frame[12..14] == [8, 0]));
    // New buffers are filled at once.
    assert_eq!(port.receive().len(), 63);
    // What is sent goes to the end of the world, and is reported.
    port.send(&frame(SOMEBODY, 64, 1));
    port.queue.complete();
    assert_eq!(port.queue.pending(), 0);
}

#[test]
fn a_model_is_fed_from_a_capture_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("three.pcap");
    let mut writer = engine::pcap::Writer::create(&file, 65536).unwrap();
    for number in 0..3 {
        writer.write(0, &frame(SOMEBODY, 100, number)).unwrap();
    }
    writer.flush().unwrap();
    let (a, _) = numbers();
    let mut port =
        Port::open(&format!("model:{a},pcap={},once", file.display()), promiscuous(), 64).unwrap();
    let expected: Vec<_> = (0..3).map(|number| frame(SOMEBODY, 100, number)).collect();
    assert_eq!(port.receive(), expected);
    assert!(port.receive().is_empty());
}

#[test]
fn a_model_in_a_thread_of_its_own() {
    let (a, b) = numbers();
    let settings = Settings { flow_control: true, ..promiscuous() };
    let mut left =
        Port::open(&format!("model:{a},cable={b},thread"), settings.clone(), 128).unwrap();
    let mut right = Port::open(&format!("model:{b},cable={a},thread"), settings, 128).unwrap();
    let (mut sent, mut got) = (0_u32, 0_u32);
    while got < 20_000 {
        while sent < 20_000 && left.sending.length() < 100 {
            left.sending.transmit(
                Packet::from_slice(&frame(SOMEBODY, 60 + sent as usize % 100, sent)).unwrap(),
            );
            sent += 1;
        }
        left.queue.send(&left.sending);
        for received in right.receive() {
            assert_eq!(received, frame(SOMEBODY, 60 + got as usize % 100, got));
            got += 1;
        }
    }
    assert!(left.wire.found(0).is_empty() && left.wire.found(1).is_empty());
}

#[test]
fn reports_wait_for_their_threshold() {
    let (mut left, right) = cable(&promiscuous(), 64);
    let control = tx_queue(0) + DCTL;
    left.wire.poke(
        left.end,
        control,
        left.wire.peek(left.end, control) | 3 << TXDCTL_WTHRESH_SHIFT,
    );
    let mut pending = Vec::new();
    for number in 0..6 {
        left.send(&frame(SOMEBODY, 64, number));
        left.queue.complete();
        pending.push(left.queue.pending());
    }
    assert_eq!(pending, [1, 2, 0, 1, 2, 0]);
    drop(right);
}

#[test]
fn what_no_card_would_take_is_refused_and_named() {
    let (left, _right) = cable(&promiscuous(), 64);
    left.wire.poke(left.end, tx_queue(0) + TAIL, 64);
    assert_eq!(left.wire.found(left.end), [Fault::Tail { queue: 0, tail: 64 }]);
    assert_ne!(left.wire.peek(left.end, EICR), 0);
}
