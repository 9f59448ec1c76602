//! Reassembly against a simple model, and against those who mean harm.

use std::collections::BTreeMap;

use engine::apps::fragment::{FragmenterArgs, ReassemblerArgs};
use proptest::prelude::*;

mod rig;

use rig::Rig;

const KIND: &str = "Reassembler";

fn reassembler(args: ReassemblerArgs) -> Rig {
    Rig::new(KIND, args, &["input"], &["output"])
}

/// A fragment of an IPv4 packet with this identification.
fn v4(id: u16, offset: usize, more: bool, data: &[u8]) -> Vec<u8> {
    let word = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&((20 + data.len()) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[6..8].copy_from_slice(&word.to_be_bytes());
    let sum = checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_ne_bytes());
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip, data].concat()
}

/// A fragment of an IPv6 packet with hop-by-hop options before the fragment header.
fn v6(id: u32, offset: usize, more: bool, data: &[u8]) -> Vec<u8> {
    let [high, low] = (offset as u16 | u16::from(more)).to_be_bytes();
    let [a, b, c, d] = id.to_be_bytes();
    let length = ((16 + data.len()) as u16).to_be_bytes();
    let header = [&[0x60, 0, 0, 0, length[0], length[1], 0, 64][..], &[0xfd; 16], &[0xfe; 16]];
    let extensions = [44, 0, 1, 4, 0, 0, 0, 0, 17, 0, high, low, a, b, c, d];
    let frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    [&frame[..], &header.concat(), &extensions, data].concat()
}

/// The packet that such fragments are of.
fn whole(v6: bool, id: u16, data: &[u8]) -> Vec<u8> {
    if !v6 {
        return v4(id, 0, false, data);
    }
    let mut frame = self::v6(id.into(), 0, false, data);
    frame.drain(62..70);
    frame[54] = 17;
    frame[18..20].copy_from_slice(&((8 + data.len()) as u16).to_be_bytes());
    frame
}

fn cut(is_v6: bool, id: u16, offset: usize, more: bool, data: &[u8]) -> Vec<u8> {
    if is_v6 { v6(id.into(), offset, more, data) } else { v4(id, offset, more, data) }
}

/// What RFC 8200 and RFC 5722 ask for, byte by byte.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<usize, u8>,
    end: Option<usize>,
    dead: bool,
}

impl Model {
    /// The data, if it is complete.
    fn add(&mut self, offset: usize, more: bool, data: &[u8]) -> Option<Vec<u8>> {
        if data.is_empty() || (more && !data.len().is_multiple_of(8)) || self.dead {
            return None;
        }
        let end = offset + data.len();
        let all = |known: usize| {
            data.iter()
                .enumerate()
                .filter(|(at, byte)| self.bytes.get(&(offset + at)) == Some(byte))
                .count()
                == known
        };
        let fits = match self.end {
            Some(known) if more => end < known,
            known => more || known == Some(end),
        };
        if all(data.len()) && fits {
            return None;
        }
        // Units of eight bytes are what offsets count.
        let units = offset / 8 * 8..end.next_multiple_of(8);
        let overlap = units.clone().any(|at| self.bytes.contains_key(&at));
        let beyond = match self.end {
            Some(known) => end > known || !more,
            None => !more && self.bytes.keys().any(|at| *at >= units.end),
        };
        if overlap || beyond {
            self.dead = true;
            return None;
        }
        self.bytes.extend(data.iter().enumerate().map(|(at, byte)| (offset + at, *byte)));
        if !more {
            self.end = Some(end);
        }
        (self.end == Some(self.bytes.len()))
            .then(|| std::mem::take(self).bytes.into_values().collect())
    }
}

proptest! {
    #[test]
    fn agrees_with_the_model(
        is_v6 in any::<bool>(),
        // Offset and length in units of eight bytes, a rest, more, what the data is, which packet.
        pieces in prop::collection::vec((0usize..12, 0usize..8, 0usize..3, any::<bool>(), 0u8..2, 0u16..2), 1..40),
    ) {
        let mut rig = reassembler(ReassemblerArgs::default());
        let mut models = [Model::default(), Model::default()];
        for (offset, units, rest, more, other, id) in pieces {
            let offset = offset * 8;
            // Most last fragments end where the packet does.
            let more = more || offset + units * 8 < 40;
            let length = units * 8 + if more { rest / 2 } else { rest };
            let data: Vec<u8> = (offset..offset + length).map(|at| at as u8 ^ (other * (at == offset + 5) as u8)).collect();
            if offset == 0 && !more {
                continue;
            }
            let expected = models[usize::from(id)].add(offset, more, &data);
            rig.send("input", &cut(is_v6, id, offset, more, &data));
            let expected: Vec<_> = expected.map(|data| whole(is_v6, id, &data)).into_iter().collect();
            prop_assert_eq!(rig.take("output"), expected);
        }
    }

    #[test]
    fn any_order_will_do(
        is_v6 in any::<bool>(),
        length in 1usize..1880,
        mtu in 120u16..1500,
        seed in any::<u64>(),
        twice in any::<bool>(),
    ) {
        let data: Vec<u8> = (0..length).map(|at| (at * 13) as u8).collect();
        let packet = whole(is_v6, 7, &data);
        let mut fragmenter = Rig::new("Fragmenter", FragmenterArgs { mtu }, &["input"], &["output"]);
        let mut pieces = fragmenter.send("input", &packet).take("output");
        prop_assert!(pieces.iter().all(|piece| piece.len() <= usize::from(mtu) + 14));
        prop_assert_eq!(pieces.len() == 1, packet.len() - 14 <= usize::from(mtu));
        let mut state = seed | 1;
        for at in (1..pieces.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            pieces.swap(at, (state >> 33) as usize % (at + 1));
        }
        let mut rig = reassembler(ReassemblerArgs::default());
        let mut out = Vec::new();
        let last = pieces.len() - 1;
        for (number, piece) in pieces.iter().enumerate() {
            rig.send("input", piece);
            if twice && number != last {
                rig.send("input", piece);
            }
            out.extend(rig.take("output"));
        }
        prop_assert_eq!(out, vec![packet]);
    }
}

#[test]
fn what_is_whole_passes() {
    let mut rig = reassembler(ReassemblerArgs::default());
    for frame in [vec![0; 3], v4(1, 0, false, b"whole"), whole(true, 1, b"whole"), vec![0xff; 60]] {
        assert_eq!(rig.send("input", &frame).one("output"), frame);
    }
    // An atomic fragment is a packet, and takes no part in others with its number.
    let mut half = v6(5, 0, true, &[1; 8]);
    rig.send("input", &half);
    assert_eq!(rig.send("input", &v6(5, 0, false, b"atom")).one("output"), whole(true, 5, b"atom"));
    assert_eq!(
        rig.send("input", &v6(5, 8, false, b"rest")).one("output"),
        whole(true, 5, b"\x01\x01\x01\x01\x01\x01\x01\x01rest")
    );
    // VLANs do not mix.
    half.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(
        rig.send("input", &half).send("input", &v6(5, 8, false, b"rest")).count(&["output"]),
        [0]
    );
}

/// Sets the congestion bits of a fragment.
fn set_ecn(frame: &mut [u8], ecn: u8) {
    if frame[14] >> 4 == 6 {
        frame[15] |= ecn << 4;
        return;
    }
    frame[15] |= ecn;
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]).to_ne_bytes();
    frame[24..26].copy_from_slice(&sum);
}

#[test]
fn what_a_router_has_marked_stays_marked() {
    for is_v6 in [false, true] {
        // Of a sender that does not understand it the packet is dropped, as the router had to.
        for (bits, expected) in [
            ([2, 2, 2], Some(2)),
            ([2, 3, 2], Some(3)),
            ([1, 2, 3], Some(3)),
            ([3, 3, 3], Some(3)),
            ([0, 0, 0], Some(0)),
            ([0, 3, 0], None),
            ([3, 3, 0], None),
        ] {
            let mut rig = reassembler(ReassemblerArgs::default());
            for (number, ecn) in bits.into_iter().enumerate() {
                let mut fragment = cut(is_v6, 5, number * 8, number < 2, &[number as u8; 8]);
                set_ecn(&mut fragment, ecn);
                rig.send("input", &fragment);
            }
            let data = [[0; 8], [1; 8], [2; 8]].concat();
            let expected = expected.map(|ecn| {
                let mut frame = whole(is_v6, 5, &data);
                set_ecn(&mut frame, ecn);
                frame
            });
            assert_eq!(rig.take("output").pop(), expected, "{bits:?}");
        }
    }
}

#[test]
fn overlaps_end_a_packet() {
    for is_v6 in [false, true] {
        let mut rig = reassembler(ReassemblerArgs::default());
        rig.send("input", &cut(is_v6, 9, 0, true, &[1; 16]));
        rig.send("input", &cut(is_v6, 9, 8, true, &[2; 16]));
        // All of it is here again, and none of it is taken.
        rig.send("input", &cut(is_v6, 9, 16, true, &[1; 8]));
        rig.send("input", &cut(is_v6, 9, 24, false, &[1; 8]));
        rig.send("input", &cut(is_v6, 9, 0, true, &[1; 16]));
        assert_eq!(rig.count(&["output"]), [0]);
        assert_eq!(rig.counter(KIND, "overlaps"), 4);
        // The same bytes again, but the packet ends with them now.
        let mut rig = reassembler(ReassemblerArgs::default());
        rig.send("input", &cut(is_v6, 9, 16, false, &[1; 57]));
        rig.send("input", &cut(is_v6, 9, 16, false, &[1; 24]));
        rig.send("input", &cut(is_v6, 9, 0, true, &[1; 16]));
        assert_eq!(rig.count(&["output"]), [0]);
        assert_eq!(rig.counter(KIND, "overlaps"), 2);
    }
}

#[test]
fn damaged_fragments_are_counted() {
    let mut rig = reassembler(ReassemblerArgs::default());
    let mut wrong = v4(1, 0, true, &[1; 8]);
    wrong[24] ^= 1;
    let mut short = v4(1, 0, true, &[1; 8]);
    short.truncate(38);
    let mut chain = v6(1, 0, true, &[1; 8]);
    // Destination options that go on in another fragment.
    chain[62] = 60;
    chain[71] = 9;
    let bad = [
        wrong,
        short,
        v4(1, 0, true, &[1; 9]),
        v4(1, 8, true, &[]),
        chain,
        v6(1, 0, true, &[1; 7]),
        v6(1, 0, true, &[1; 8])[..66].to_vec(),
    ];
    for (number, frame) in bad.iter().enumerate() {
        assert_eq!(rig.send("input", frame).count(&["output"]), [0]);
        assert_eq!(rig.counter(KIND, "malformed"), number as u64 + 1, "number {number}");
    }
    // Beyond 65535 bytes, as a deadly ping was, and beyond what a packet holds here.
    rig.send("input", &v4(1, 65528, false, &[1; 100])).send("input", &v4(1, 1880, true, &[1; 16]));
    assert_eq!(rig.counter(KIND, "too_long"), 2);
}

#[test]
fn memory_and_time_are_limited() {
    let live = || engine::pool::stats().live;
    let args = ReassemblerArgs { datagrams: 4, ..ReassemblerArgs::default() };
    let mut rig = reassembler(args.clone());
    let before = live();
    for id in 0..100 {
        rig.send("input", &v4(id, 0, true, &[1; 8]));
        assert!(live() - before <= 4, "{} packets in use", live() - before);
    }
    assert_eq!(rig.counter(KIND, "evicted"), 96);
    // The youngest four are there still.
    assert_eq!(rig.send("input", &v4(99, 8, false, b"x")).take("output").len(), 1);
    drop(rig);
    let mut rig = reassembler(ReassemblerArgs { timeout: 0.05, ..args });
    for id in 0..3 {
        rig.send("input", &v4(id, 0, true, &[1; 8]));
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while rig.counter(KIND, "timeouts") < 3 {
        assert!(std::time::Instant::now() < end, "they stay for ever");
        rig.0.breathe();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(live(), before);
    assert_eq!(rig.send("input", &v4(2, 8, false, b"x")).count(&["output"]), [0]);
}
