//! What holds for every message and for every sequence of bytes.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::strategies::{message, proposal};
use super::*;

fn encode(message: &Message) -> Vec<u8> {
    // Bytes that were in the buffer before must not show.
    let mut bytes = [0xaa; MAX_LEN];
    let len = message.encode(&mut bytes).expect("the longest message fits");
    bytes[..len].to_vec()
}

/// Decoding must not panic, and what decodes must survive a round trip.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = Message::decode(bytes) {
        let canonical = encode(&message);
        prop_assert_eq!(Message::decode(&canonical), Ok(message));
        prop_assert_eq!(encode(&message), canonical);
    }
    Ok(())
}

fn reference_exact_len(header: &Header, bytes: &[u8]) -> usize {
    let (v1, v2) = (header.typev1(), header.typev2());
    let ip = if v1 == PathType::Neither { 0 } else { 8 + 17 * usize::from(bytes[87]) };
    let ext = 80 + ip;
    let v2_len = if v2 == PathType::Neither { 0 } else { 40 + 32 * usize::from(bytes[ext]) };
    let smcd = if v2.smcd() { 48 + 10 * usize::from(bytes[ext + 1]) } else { 0 };
    ext + v2_len + smcd + 4
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_round_trips(message in message()) {
        let bytes = encode(&message);
        prop_assert!((MIN_LEN..=MAX_LEN).contains(&bytes.len()));
        prop_assert_eq!(usize::from(Header::parse(&bytes).unwrap().length), bytes.len());
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn proposals_have_the_length_of_the_formula(message in proposal()) {
        let bytes = encode(&message);
        let header = Header::parse(&bytes).unwrap();
        if header.version == Version::V2 {
            prop_assert_eq!(bytes.len(), reference_exact_len(&header, &bytes));
        }
    }

    #[test]
    fn a_buffer_too_small_is_refused(message in message(), short in 1..MAX_LEN) {
        let len = encode(&message).len();
        let mut small = vec![0; len.saturating_sub(short)];
        prop_assert_eq!(message.encode(&mut small), Err(Full));
    }

    #[test]
    fn what_follows_a_message_is_ignored(message in message(), more in vec(any::<u8>(), 0..64)) {
        let bytes = [encode(&message), more].concat();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn a_message_cut_short_is_refused(message in message(), cut in 1..MAX_LEN) {
        let bytes = encode(&message);
        let kept = &bytes[..bytes.len().saturating_sub(cut)];
        prop_assert_eq!(Message::decode(kept), Err(Malformed::Short));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..700)) {
        check(&bytes)?;
    }

    #[test]
    fn no_bytes_behind_a_good_header_make_it_panic(
        (kind, length, bits) in (1..=4u8, 28..700u16, prop_oneof![0x10..0x30u8]),
        tail in vec(prop_oneof![Just(0u8), 0..12u8, any::<u8>()], 0..700),
    ) {
        let mut bytes = vec![0xe2, 0xd4, 0xc3, 0xd9, kind];
        bytes.extend(length.to_be_bytes());
        bytes.push(bits);
        bytes.extend(tail);
        check(&bytes)?;
    }

    #[test]
    fn no_mutation_makes_it_panic(
        message in message(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = encode(&message);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check(&bytes)?;
        if let Some(cut) = cut {
            check(&bytes[..cut.index(bytes.len())])?;
        }
    }
}

#[test]
fn every_single_byte_of_every_example() {
    for original in fixtures::all() {
        let mut bytes = original.clone();
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                bytes[at] = value;
                check(&bytes).unwrap();
            }
            bytes[at] = original[at];
            assert_eq!(Message::decode(&bytes[..at]), Err(Malformed::Short));
        }
    }
}
