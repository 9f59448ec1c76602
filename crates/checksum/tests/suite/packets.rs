//! Whole packets: smoltcp writes and checks them too, byte for byte; then what only hand-made
//! packets show.

use crate::oracle::Random;
use shortwire_checksum::packet::{Outcome, PacketError, fill, verify};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;

const V4: ([u8; 4], [u8; 4]) = ([192, 0, 2, 1], [198, 51, 100, 7]);

fn v6(last: u8) -> Ipv6Address {
    Ipv6Address::new(0x2001, 0xdb8, 0, 0x8000, 0, 0xffff, 0, last.into())
}

/// An IPv4 packet as smoltcp writes it.
fn ipv4(protocol: IpProtocol, length: usize, emit: impl Fn(&mut [u8])) -> Vec<u8> {
    let repr = Ipv4Repr {
        src_addr: V4.0.into(),
        dst_addr: V4.1.into(),
        next_header: protocol,
        payload_len: length,
        hop_limit: 64,
    };
    let mut packet = vec![0; 20 + length];
    repr.emit(&mut Ipv4Packet::new_unchecked(&mut packet), &ChecksumCapabilities::default());
    emit(&mut packet[20..]);
    packet
}

fn ipv6(protocol: IpProtocol, length: usize, emit: impl Fn(&mut [u8])) -> Vec<u8> {
    let repr = Ipv6Repr {
        src_addr: v6(1),
        dst_addr: v6(2),
        next_header: protocol,
        payload_len: length,
        hop_limit: 64,
    };
    let mut packet = vec![0; 40 + length];
    repr.emit(&mut Ipv6Packet::new_unchecked(&mut packet));
    emit(&mut packet[40..]);
    packet
}

fn udp(source: IpAddress, destination: IpAddress, payload: &[u8]) -> impl Fn(&mut [u8]) {
    move |to| {
        UdpRepr { src_port: 53, dst_port: 40000 }.emit(
            &mut UdpPacket::new_unchecked(to),
            &source,
            &destination,
            payload.len(),
            |place| place.copy_from_slice(payload),
            &ChecksumCapabilities::default(),
        )
    }
}

fn tcp(source: IpAddress, destination: IpAddress, payload: &[u8]) -> impl Fn(&mut [u8]) {
    move |to| {
        let mut packet = TcpPacket::new_unchecked(to);
        packet.set_src_port(443);
        packet.set_dst_port(50000);
        packet.set_seq_number(TcpSeqNumber(0x1234_5678));
        packet.set_header_len(20);
        packet.set_window_len(512);
        packet.payload_mut().copy_from_slice(payload);
        packet.fill_checksum(&source, &destination);
    }
}

/// smoltcp's packet: every combination for one payload.
fn made_by_smoltcp(payload: &[u8]) -> Vec<Vec<u8>> {
    let (a4, b4): (IpAddress, IpAddress) =
        (IpAddress::Ipv4(V4.0.into()), IpAddress::Ipv4(V4.1.into()));
    let (a6, b6) = (IpAddress::Ipv6(v6(1)), IpAddress::Ipv6(v6(2)));
    let echo4 = |to: &mut [u8]| {
        Icmpv4Repr::EchoRequest { ident: 1, seq_no: 2, data: payload }
            .emit(&mut Icmpv4Packet::new_unchecked(to), &ChecksumCapabilities::default())
    };
    let echo6 = |to: &mut [u8]| {
        let repr = Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: payload };
        repr.emit(
            &v6(1),
            &v6(2),
            &mut Icmpv6Packet::new_unchecked(to),
            &ChecksumCapabilities::default(),
        )
    };
    vec![
        ipv4(IpProtocol::Udp, 8 + payload.len(), udp(a4, b4, payload)),
        ipv4(IpProtocol::Tcp, 20 + payload.len(), tcp(a4, b4, payload)),
        ipv4(IpProtocol::Icmp, 8 + payload.len(), echo4),
        ipv6(IpProtocol::Udp, 8 + payload.len(), udp(a6, b6, payload)),
        ipv6(IpProtocol::Tcp, 20 + payload.len(), tcp(a6, b6, payload)),
        ipv6(IpProtocol::Icmpv6, 8 + payload.len(), echo6),
    ]
}

#[test]
fn smoltcp_and_we_agree_on_every_byte() {
    let mut random = Random(21);
    for length in (0..80).chain([255, 1000, 1460, 8000]) {
        let mut payload = vec![0; length];
        random.fill(&mut payload);
        for packet in made_by_smoltcp(&payload) {
            assert_eq!(verify(&packet), Ok(Outcome::Complete), "{packet:02x?}");
            for before in [[0xde, 0xad], [0, 0], [0xff, 0xff]] {
                let mut ours = packet.clone();
                let checks = if packet[0] >> 4 == 4 { vec![10, 20] } else { vec![40] };
                for start in checks {
                    let at = match (start, packet[if packet[0] >> 4 == 4 { 9 } else { 6 }]) {
                        (10, _) => 10,
                        (start, 6) => start + 16,
                        (start, 17) => start + 6,
                        (start, _) => start + 2,
                    };
                    ours[at..at + 2].copy_from_slice(&before);
                }
                assert_eq!(fill(&mut ours), Ok(Outcome::Complete));
                assert_eq!(ours, packet);
            }
        }
    }
}

/// Two bytes of data take every value, so that one of them makes the sum zero.
#[test]
fn a_checksum_of_zero_is_written_as_ones_by_udp_alone() {
    for (protocol, field, zero) in [(17, 6, 0xffff), (6, 16, 0)] {
        let mut packet =
            [0x45, 0, 0, 42, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]
                .to_vec();
        packet.resize(42, 0);
        packet[25] = 22;
        let mut zeros = 0;
        for word in 0..=u16::MAX {
            packet[40..42].copy_from_slice(&word.to_be_bytes());
            assert_eq!(fill(&mut packet), Ok(Outcome::Complete));
            assert_eq!(verify(&packet), Ok(Outcome::Complete));
            let check = u16::from_be_bytes([packet[20 + field], packet[21 + field]]);
            assert_ne!(check, zero ^ 0xffff, "{protocol} {word:04x}");
            zeros += u32::from(check == zero);
        }
        assert!(zeros > 0, "{protocol}");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    for packet in made_by_smoltcp(b"some odd payload.") {
        for bit in 0..packet.len() * 8 {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The IPv6 header has no checksum, so what the pseudo header does not hold is not
            // protected.
            let unprotected = packet[0] >> 4 == 6 && matches!(bit / 8, 0..4 | 7);
            let result = verify(&damaged);
            assert!(
                unprotected || result != Ok(Outcome::Complete),
                "bit {bit}: {result:?} {packet:02x?}"
            );
        }
    }
}

#[test]
fn cut_off_anywhere_is_truncated_and_nothing_is_written() {
    for packet in made_by_smoltcp(b"payload") {
        for length in 0..packet.len() {
            let mut cut = packet[..length].to_vec();
            let truncated = |result| matches!(result, Err(PacketError::Truncated { actual, needed }) if actual == length && needed > length);
            assert!(truncated(verify(&cut)), "{length}");
            assert!(truncated(fill(&mut cut)), "{length}");
            assert_eq!(cut, packet[..length]);
        }
        let mut padded = packet.clone();
        padded.extend([0xee; 30]);
        assert_eq!(verify(&padded), Ok(Outcome::Complete));
        assert_eq!(fill(&mut padded), Ok(Outcome::Complete));
        assert_eq!(padded[..packet.len()], packet);
        assert_eq!(padded[packet.len()..], [0xee; 30]);
    }
}

#[test]
fn udp_zero_means_none_over_ipv4_and_is_wrong_over_ipv6() {
    let packets = made_by_smoltcp(b"x");
    let (mut four, mut six) = (packets[0].clone(), packets[3].clone());
    four[26..28].fill(0);
    six[46..48].fill(0);
    assert_eq!(verify(&four), Ok(Outcome::NoChecksum));
    assert_eq!(verify(&six), Err(PacketError::MissingChecksum));
    // A sum that comes out as zero is sent as 0xffff: choose the payload so.
    let mut packet = ipv4(
        IpProtocol::Udp,
        10,
        udp(IpAddress::Ipv4(V4.0.into()), IpAddress::Ipv4(V4.1.into()), &[0, 0]),
    );
    let check = [packet[26], packet[27]];
    packet[28..30].copy_from_slice(&check);
    fill(&mut packet).unwrap();
    assert_eq!(packet[26..28], [0xff, 0xff]);
    assert_eq!(verify(&packet), Ok(Outcome::Complete));
}

#[test]
fn fragments_and_other_protocols_have_their_header_checked() {
    let mut packet = made_by_smoltcp(b"payload")[0].clone();
    for (flags, protocol, outcome) in [
        (0x2000u16, 17, Outcome::Fragment),
        (0x0001, 17, Outcome::Fragment),
        (0x4000, 132, Outcome::OtherProtocol(132)),
        (0x4000, 58, Outcome::OtherProtocol(58)),
    ] {
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        packet[9] = protocol;
        assert_eq!(verify(&packet), Err(PacketError::HeaderChecksum));
        let before = packet[20..].to_vec();
        assert_eq!(fill(&mut packet), Ok(outcome));
        assert_eq!(verify(&packet), Ok(outcome));
        assert_eq!(packet[20..], before);
    }
}

#[test]
fn impossible_lengths_are_told() {
    let packets = made_by_smoltcp(b"payload");
    let with = |packet: &Vec<u8>, at: usize, bytes: &[u8]| {
        let mut packet = packet.clone();
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    let (udp4, tcp4, udp6) = (&packets[0], &packets[1], &packets[3]);
    assert_eq!(verify(&with(udp4, 0, &[0x44])), Err(PacketError::Length));
    assert_eq!(verify(&with(udp4, 2, &[0, 19])), Err(PacketError::Length));
    assert_eq!(verify(&with(udp4, 2, &[0, 0])), Err(PacketError::Length));
    assert_eq!(verify(&with(tcp4, 2, &[0, 39])), Err(PacketError::Length));
    assert_eq!(verify(&with(udp4, 0, &[0x75])), Err(PacketError::Version(7)));
    assert_eq!(verify(&[]), Err(PacketError::Truncated { needed: 1, actual: 0 }));
    for length in [0u16, 7, 16] {
        assert_eq!(
            fill(&mut with(udp6, 44, &length.to_be_bytes())),
            Err(PacketError::Length),
            "{length}"
        );
    }
}

/// An IPv6 UDP packet with extension headers between, summed to `destination` in place of the
/// header's own.
fn extended(first: u8, headers: &[u8], destination: Ipv6Address) -> Vec<u8> {
    let plain = ipv6(
        IpProtocol::Udp,
        12,
        udp(IpAddress::Ipv6(v6(1)), IpAddress::Ipv6(destination), b"abcd"),
    );
    let mut packet = plain[..40].to_vec();
    packet[6] = first;
    packet[4..6].copy_from_slice(&((headers.len() + 12) as u16).to_be_bytes());
    packet.extend(headers);
    packet.extend(&plain[40..]);
    packet
}

#[test]
fn extension_headers_are_walked() {
    let hop_by_hop_and_options =
        [60, 0, 1, 4, 0, 0, 0, 0, 44, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let whole_fragment = [17, 0, 0, 0, 1, 2, 3, 4];
    let headers = [&hop_by_hop_and_options[..], &whole_fragment].concat();
    assert_eq!(verify(&extended(0, &headers, v6(2))), Ok(Outcome::Complete));
    let fragment = [17, 0, 0, 1, 1, 2, 3, 4];
    assert_eq!(verify(&extended(44, &fragment, v6(2))), Ok(Outcome::Fragment));
    let authentication = [17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];
    assert_eq!(verify(&extended(51, &authentication, v6(2))), Ok(Outcome::Complete));
    // It says that it is longer than the packet.
    assert_eq!(
        verify(&extended(60, &[17, 200, 0, 0, 0, 0, 0, 0], v6(2))),
        Err(PacketError::Length)
    );
    // No next header.
    assert_eq!(verify(&extended(59, &[], v6(2))), Ok(Outcome::OtherProtocol(59)));
}

#[test]
fn routing_headers_move_the_destination_while_segments_are_left() {
    let list = |kind: u8, left: u8, addresses: [Ipv6Address; 2]| {
        let addresses = addresses.map(|address| address.octets()).concat();
        [&[17, 4, kind, left, 0, 0, 0, 0][..], &addresses].concat()
    };
    let (first, last) = (v6(8), v6(9));
    assert_eq!(verify(&extended(43, &list(0, 1, [first, last]), last)), Ok(Outcome::Complete));
    assert_eq!(verify(&extended(43, &list(4, 1, [last, first]), last)), Ok(Outcome::Complete));
    assert_eq!(verify(&extended(43, &list(0, 0, [first, last]), v6(2))), Ok(Outcome::Complete));
    assert_eq!(
        verify(&extended(43, &list(0, 1, [first, last]), first)),
        Err(PacketError::TransportChecksum)
    );
    assert_eq!(
        verify(&extended(43, &list(9, 1, [first, last]), last)),
        Err(PacketError::RoutingHeader(9))
    );
    assert_eq!(verify(&extended(43, &[17, 0, 0, 1, 0, 0, 0, 0], last)), Err(PacketError::Length));
}

#[test]
fn an_ipv4_source_route_moves_the_destination_too() {
    let last = [203, 0, 113, 9];
    let segment = |destination: [u8; 4]| {
        let mut segment = vec![0; 12];
        udp(IpAddress::Ipv4(V4.0.into()), IpAddress::Ipv4(destination.into()), b"abcd")(
            &mut segment,
        );
        segment
    };
    let packet = |option: &[u8], segment: &[u8]| {
        let mut packet = ipv4(IpProtocol::Udp, 12, |_| {})[..20].to_vec();
        packet[0] = 0x45 + (option.len() / 4) as u8;
        packet[2..4].copy_from_slice(&((20 + option.len() + 12) as u16).to_be_bytes());
        packet.extend(option);
        packet.extend(segment);
        packet
    };
    let route = |pointer: u8| [&[1, 131, 11, pointer][..], &[10, 0, 0, 1], &last].concat();
    for (pointer, destination) in [(4, last), (8, last), (12, V4.1)] {
        let mut routed = packet(&route(pointer), &segment(destination));
        let expected = routed[32..].to_vec();
        assert_eq!(fill(&mut routed), Ok(Outcome::Complete));
        assert_eq!(routed[32..], expected, "{pointer}");
        assert_eq!(verify(&routed), Ok(Outcome::Complete));
    }
}

#[test]
fn jumbograms_have_their_length_in_an_option() {
    let payload = vec![0xabu8; 70_000];
    let mut packet = extended(0, &[17, 0, 0xc2, 4, 0, 0, 0, 0], v6(2))[..48].to_vec();
    packet[4..6].fill(0);
    packet[44..48].copy_from_slice(&(8 + 8 + payload.len() as u32).to_be_bytes());
    packet.extend([0, 53, 0, 54, 0, 0, 0, 0]);
    packet.extend(&payload);
    assert_eq!(fill(&mut packet), Ok(Outcome::Complete));
    assert_eq!(verify(&packet), Ok(Outcome::Complete));
    // The sum by hand: pseudo header with 32 bits of length, then UDP.
    let mut pseudo = packet[8..40].to_vec();
    pseudo.extend((8 + payload.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, 17]);
    pseudo.extend(&packet[48..]);
    assert_eq!(crate::oracle::naive(&pseudo, 0), 0);
    assert!(matches!(verify(&packet[..packet.len() - 1]), Err(PacketError::Truncated { .. })));
}

/// Its sum is that of its checksum alone, so the old one must not be in it.
#[test]
fn an_icmp_message_of_zeros_is_filled_from_scratch() {
    for old in [0u16, 1, 0x1234, 0xfffe, 0xffff] {
        let mut packet = [0; 28];
        packet[..10].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1]);
        packet[10..12].copy_from_slice(&old.to_be_bytes());
        packet[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        packet[22..24].copy_from_slice(&old.to_be_bytes());
        assert_eq!(fill(&mut packet), Ok(Outcome::Complete));
        assert_eq!(packet[22..24], [0xff, 0xff], "{old:#x}");
        assert_eq!(verify(&packet), Ok(Outcome::Complete));
        // The header's by hand.
        assert_eq!(packet[10..12], 0xf6ddu16.to_be_bytes(), "{old:#x}");
    }
}
