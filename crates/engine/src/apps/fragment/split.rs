//! One packet becomes several: RFC 791 for IPv4, RFC 8200, 4.5, for IPv6.

use super::{MORE, OFFSET};
use crate::packet::{NEEDS_CHECKSUM, Packet};
use checksum::{csum_fold, csum_partial};

/// Sends the IPv4 packet that starts at `at` in the frame in pieces of at most `mtu` bytes each;
/// what stands before it is in front of each piece. The packet may be a fragment itself. False, and
/// less than all of it sent, if it is malformed, `mtu` has no room for eight bytes of data, or all
/// packets are in use.
pub(in crate::apps) fn split_v4(
    frame: &mut Packet,
    at: usize,
    mtu: usize,
    mut emit: impl FnMut(Packet),
) -> bool {
    if frame.flags & NEEDS_CHECKSUM != 0 {
        // The checksum is one over all pieces. Where it cannot be filled in, the packet goes as it
        // is, as it would in one piece.
        let _ = checksum::packet::fill(&mut frame[at..]);
        frame.flags = 0;
    }
    let (before, ip) = frame.split_at(at.min(frame.length()));
    let Some(start) = ip.first_chunk::<20>() else { return false };
    let header = usize::from(start[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([start[2], start[3]]));
    if header < 20 || total < header || total > ip.len() || mtu < header + 8 {
        return false;
    }
    let (mut later, mut later_length) = ([0; 60], 20);
    later[..20].copy_from_slice(start);
    // Options of which the first bit is set are in all pieces, the others in the first one.
    let mut options = &ip[20..header];
    while let [kind, rest @ ..] = options {
        let length = match (kind, rest.first()) {
            (0, _) => break,
            (1, _) => 1,
            (_, Some(length @ 2..)) if usize::from(*length) <= options.len() => {
                usize::from(*length)
            }
            _ => return false,
        };
        if kind & 0x80 != 0 {
            later[later_length..later_length + length].copy_from_slice(&options[..length]);
            later_length += length;
        }
        options = &options[length..];
    }
    later_length = later_length.next_multiple_of(4);
    later[0] = 0x40 | (later_length / 4) as u8;

    let word = u16::from_be_bytes([start[6], start[7]]);
    let (flags, first) = (word & !(OFFSET | MORE), usize::from(word & OFFSET));
    let payload = &ip[header..total];
    let mut done = 0;
    while done < payload.len() {
        let header = if done == 0 { &ip[..header] } else { &later[..later_length] };
        let room = (mtu - header.len()) & !7;
        let last = payload.len() - done <= mtu - header.len();
        let piece = if last { &payload[done..] } else { &payload[done..done + room] };
        let offset = first + done / 8;
        if offset > usize::from(OFFSET) {
            return false;
        }
        let Some(mut packet) = Packet::allocate() else { return false };
        packet.append(before);
        packet.append(header);
        packet.append(piece);
        let more = if last { word & MORE } else { MORE };
        let fields = &mut packet[at..at + header.len()];
        fields[2..4].copy_from_slice(&((header.len() + piece.len()) as u16).to_be_bytes());
        fields[6..8].copy_from_slice(&(flags | more | offset as u16).to_be_bytes());
        fields[10..12].fill(0);
        let sum = csum_fold(csum_partial(fields, 0));
        fields[10..12].copy_from_slice(&sum.to_ne_bytes());
        emit(packet);
        done += piece.len();
    }
    true
}

/// The part of an IPv6 packet that every fragment has.
pub(super) struct Part {
    /// Its length.
    pub(super) length: usize,
    /// Where in it the type of the header behind it stands, and that type.
    pub(super) field: usize,
    pub(super) next: u8,
}

/// The header and the extension headers that routers on the way look at: hop-by-hop options,
/// routing, and destination options in front of routing. None if a header is cut off or the chain
/// has more than eight.
pub(super) fn unfragmentable(ip: &[u8]) -> Option<Part> {
    let mut part = Part { length: 40, field: 6, next: *ip.get(6)? };
    let (mut at, mut field, mut next) = (40, 6, part.next);
    for _ in 0..8 {
        if !matches!(next, 0 | 43 | 60) {
            // Destination options are for the far end, but a fragment header behind them is one.
            if next == 44 {
                part = Part { length: at, field, next };
            }
            return Some(part);
        }
        let end = at + 8 + usize::from(*ip.get(at + 1)?) * 8;
        let following = *ip.get(at)?;
        (end <= ip.len()).then_some(())?;
        if next != 60 {
            part = Part { length: end, field: at, next: following };
        }
        (field, next, at) = (at, following, end);
    }
    None
}

/// As [`split_v4`], for an IPv6 packet, which only its source may cut. `id` is one that no other
/// packet between these hosts had lately. Fragments are refused.
pub(super) fn split_v6(
    frame: &mut Packet,
    at: usize,
    mtu: usize,
    id: u32,
    mut emit: impl FnMut(Packet),
) -> bool {
    if frame.flags & NEEDS_CHECKSUM != 0 {
        let _ = checksum::packet::fill(&mut frame[at..]);
        frame.flags = 0;
    }
    let (before, ip) = frame.split_at(at.min(frame.length()));
    let Some(start) = ip.first_chunk::<40>() else { return false };
    let total = 40 + usize::from(u16::from_be_bytes([start[4], start[5]]));
    let Some(Part { length, field, next }) = unfragmentable(ip) else { return false };
    if next == 44 || total > ip.len() || total < length || mtu < length + 16 {
        return false;
    }
    let payload = &ip[length..total];
    let room = (mtu - length - 8) & !7;
    let mut done = 0;
    while done < payload.len() {
        let end = (done + room).min(payload.len());
        let more = u16::from(end < payload.len());
        let Some(mut packet) = Packet::allocate() else { return false };
        packet.append(before);
        packet.append(&ip[..length]);
        let [high, low] = (done as u16 | more).to_be_bytes();
        let [a, b, c, d] = id.to_be_bytes();
        packet.append(&[next, 0, high, low, a, b, c, d]);
        packet.append(&payload[done..end]);
        let fields = &mut packet[at..];
        let length = (fields.len() - 40) as u16;
        fields[4..6].copy_from_slice(&length.to_be_bytes());
        fields[field] = 44;
        emit(packet);
        done = end;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The payload of all pieces, each put where its header says, and whether the last one is
    /// among them; checks what each must be.
    fn joined(pieces: &[Vec<u8>], mtu: usize) -> (Vec<u8>, usize, bool) {
        let (mut payload, mut count, mut last) = (vec![0; 65536], 0, false);
        for piece in pieces {
            let ip = &piece[14..];
            let header = usize::from(ip[0] & 15) * 4;
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
            assert!(ip.len() <= mtu, "{} bytes for {mtu}", ip.len());
            assert_eq!(checksum::checksum(&ip[..header]), 0);
            let word = u16::from_be_bytes([ip[6], ip[7]]);
            let at = usize::from(word & 0x1fff) * 8;
            payload[at..at + ip.len() - header].copy_from_slice(&ip[header..]);
            count += ip.len() - header;
            last |= word & 0x2000 == 0;
        }
        (payload, count, last)
    }

    proptest! {
        #[test]
        fn pieces_are_the_packet(
            length in 1usize..1800,
            options in prop::collection::vec(prop_oneof![Just(vec![1u8]), Just(vec![0x94, 4, 0, 0]), Just(vec![7, 7, 4, 0, 0, 0, 0])], 0..5),
            first in prop_oneof![Just(0u16), 0u16..0x1e00],
            more in any::<bool>(),
            mtu in 0usize..900,
        ) {
            let mut options = options.concat();
            options.resize(options.len().next_multiple_of(4), 0);
            let header = 20 + options.len();
            let data: Vec<u8> = (0..length).map(|byte| (byte * 7) as u8).collect();
            let word = first | if more { MORE } else { 0 };
            let mut ip = vec![0x40 | (header / 4) as u8, 3, 0, 0, 0xab, 0xcd, 0, 0, 9, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
            ip[2..4].copy_from_slice(&((header + length) as u16).to_be_bytes());
            ip[6..8].copy_from_slice(&word.to_be_bytes());
            ip.extend(&options);
            ip.extend(&data);
            let mut frame = Packet::from_slice(&[&[9; 14][..], &ip, &[0xee; 5]].concat()).unwrap();
            let mut pieces = Vec::new();
            let done = split_v4(&mut frame, 14, mtu, |piece| pieces.push(piece.to_vec()));
            prop_assert_eq!(done, mtu >= header + 8);
            if done {
                let (payload, count, last) = joined(&pieces, mtu);
                let at = usize::from(first) * 8;
                prop_assert_eq!(&payload[at..at + length], &data[..]);
                prop_assert_eq!(count, length);
                prop_assert_eq!(last, !more);
                for (number, piece) in pieces.iter().enumerate() {
                    prop_assert_eq!(&piece[..14], &[9; 14][..]);
                    prop_assert_eq!(&piece[18..20], &[0xab, 0xcd][..]);
                    // Of the options, router alert (0x94) is in each piece, record route (7) in the first.
                    let header = usize::from(piece[14] & 15) * 4;
                    let options = &piece[34..14 + header];
                    prop_assert!(number == 0 || !options.windows(2).any(|two| two == [7, 7]));
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let refused = |bytes: &[u8], at: usize| {
            let mut frame = Packet::from_slice(bytes).unwrap();
            !split_v4(&mut frame, at, 100, |_| {})
        };
        let mut ip = vec![0; 300];
        ip[..4].copy_from_slice(&[0x46, 0, 1, 44]);
        for (option, length) in [(0x94, 0), (0x94, 1), (0x94, 9), (2, 5)] {
            (ip[20], ip[21]) = (option, length);
            assert!(refused(&ip, 0), "option {option} {length}");
        }
        ip[0] = 0x44;
        assert!(refused(&ip, 0) && refused(&ip[..19], 0) && refused(&[], 14));
        ip[0] = 0x45;
        assert!(refused(&ip[..299], 0));
    }
}
