//! Cuts what a sender left for its device to cut: TCP streams (TSO, or what GRO has put together)
//! and trains of UDP datagrams (USO), virtio 1.2 section 5.1.6.2.1.
//!
//! Each piece gets the headers of the whole with its own lengths, sequence number, flags and
//! checksums.

use checksum::packet::fill;

use super::headers::{IPV4, IPV6, be16, payload};
use super::vnet::Header;
use crate::arena::MAX_LENGTH;
use crate::packet::{CHECKSUM_VALID, Packet};

/// Most pieces that 64 KiB give where a piece fills an Ethernet frame; a link needs that much room.
pub(super) const MOST: usize = 64;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Flags of TCP, RFC 9293 section 3.1 and RFC 3168: FIN and PSH belong to the last piece, CWR to
/// the first one.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// What cannot be cut: a protocol or form that no sender should leave to a device, or pieces longer
/// than a packet.
#[derive(Debug, PartialEq)]
pub(super) struct Uncuttable;

#[derive(Clone, Copy, PartialEq)]
enum Transport {
    Tcp,
    Udp,
}

/// The headers that all pieces share, and where they are.
struct Headers {
    template: Packet,
    ethertype: u16,
    /// Where the network and the transport header start.
    network: usize,
    start: usize,
    transport: Transport,
}

/// Hands the pieces of a frame to `each`, the first one first, and returns how many more there
/// would be if there were memory for them. `tag` goes behind the Ethernet addresses.
pub(super) fn segment(
    frame: &[u8],
    tag: Option<[u8; 4]>,
    header: &Header,
    mut each: impl FnMut(Packet),
) -> Result<u64, Uncuttable> {
    let (headers, data) = Headers::split(frame, tag, header)?;
    let size = header.segment_size();
    let pieces = data.len().div_ceil(size);
    if headers.template.length() + size > MAX_LENGTH {
        return Err(Uncuttable);
    }
    for (number, part) in data.chunks(size).enumerate() {
        let Some(piece) = headers.piece(part, number, size, number + 1 == pieces) else {
            return Ok((pieces - number) as u64);
        };
        each(piece);
    }
    Ok(0)
}

impl Headers {
    fn split<'a>(
        frame: &'a [u8],
        tag: Option<[u8; 4]>,
        header: &Header,
    ) -> Result<(Headers, &'a [u8]), Uncuttable> {
        const ADDRESSES: usize = 12;
        let transport = match header.segmentation() {
            Header::TCP4 | Header::TCP6 => Transport::Tcp,
            Header::UDP => Transport::Udp,
            _ => return Err(Uncuttable),
        };
        let start = header.transport().filter(|start| *start > ADDRESSES).ok_or(Uncuttable)?;
        let length = match transport {
            Transport::Tcp => usize::from(frame.get(start + 12).ok_or(Uncuttable)? >> 4) * 4,
            Transport::Udp => 8,
        };
        let least = if transport == Transport::Tcp { 20 } else { 8 };
        let (head, data) = frame.split_at_checked(start + length).ok_or(Uncuttable)?;
        if length < least || data.is_empty() || header.segment_size() == 0 {
            return Err(Uncuttable);
        }
        let mut template = Packet::from_slice(&head[..ADDRESSES]).ok_or(Uncuttable)?;
        let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
        if !(template.append(tag) && template.append(&head[ADDRESSES..])) {
            return Err(Uncuttable);
        }
        let (ethertype, network) = payload(&template).ok_or(Uncuttable)?;
        let headers = Headers { template, ethertype, network, start: start + tag.len(), transport };
        if headers.agree() { Ok((headers, data)) } else { Err(Uncuttable) }
    }

    /// Whether the transport header is that of the outer network header: inside of a tunnel it is
    /// not.
    fn agree(&self) -> bool {
        let protocol = if self.transport == Transport::Tcp { TCP } else { UDP };
        let Some(network) = self.template.get(self.network..self.start) else { return false };
        match self.ethertype {
            IPV4 => {
                network.len() >= 20
                    && network.len() == usize::from(network[0] & 15) * 4
                    && network[9] == protocol
            }
            // Behind extension headers the last one names the protocol.
            IPV6 => network.len() > 40 || (network.len() == 40 && network[6] == protocol),
            _ => false,
        }
    }

    /// None without memory.
    fn piece(&self, data: &[u8], number: usize, size: usize, last: bool) -> Option<Packet> {
        let mut piece = self.template.duplicate()?;
        if !piece.append(data) {
            return None;
        }
        let (network, start, length) = (self.network, self.start, piece.length());
        let put16 = |piece: &mut Packet, at: usize, value: usize| {
            piece[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        };
        if self.ethertype == IPV4 {
            put16(&mut piece, network + 2, length - network);
            // RFC 6864: what may be fragmented needs an identification of its own.
            let identification = usize::from(be16(&self.template, network + 4)?);
            put16(&mut piece, network + 4, identification + number);
        } else {
            put16(&mut piece, network + 4, length - network - 40);
        }
        match self.transport {
            Transport::Udp => put16(&mut piece, start + 4, length - start),
            Transport::Tcp => {
                let sequence = u32::from_be_bytes(piece[start + 4..start + 8].try_into().ok()?);
                let sequence = sequence.wrapping_add((number * size) as u32);
                piece[start + 4..start + 8].copy_from_slice(&sequence.to_be_bytes());
                piece[start + 13] &=
                    !(if last { 0 } else { FIN_PSH } | if number == 0 { 0 } else { CWR });
            }
        }
        if fill(&mut piece[network..]).is_ok() {
            piece.flags |= CHECKSUM_VALID;
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use checksum::packet::{Outcome, verify};
    use proptest::prelude::*;

    use super::*;

    /// A frame of the given headers over `data`, as a sender leaves it: one length for all, no
    /// checksum.
    fn frame(ipv6: bool, udp: bool, tagged: bool, data: &[u8]) -> (Vec<u8>, usize) {
        let mut frame = vec![2; 12];
        if tagged {
            frame.extend([0x81, 0, 0, 7]);
        }
        let protocol = if udp { UDP } else { TCP };
        if ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, 64]);
            frame.extend((0..32).map(|byte| byte as u8));
        } else {
            frame.extend([
                8, 0, 0x45, 0, 0, 0, 0xff, 0xfe, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]);
        }
        let start = frame.len();
        match udp {
            true => frame.extend([0, 1, 0, 2, 0, 0, 0, 0]),
            // With a timestamp option; flags CWR, ACK, PSH, FIN.
            false => frame.extend([
                0, 1, 0, 2, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x80, 0x99, 1, 0, 0, 0, 0, 0, 1, 1, 8,
                10, 0, 0, 0, 1, 0, 0, 0, 2,
            ]),
        }
        frame.extend(data);
        (frame, start)
    }

    fn header(ipv6: bool, udp: bool, size: u16, start: usize) -> Header {
        let kind = if udp {
            Header::UDP
        } else if ipv6 {
            Header::TCP6
        } else {
            Header::TCP4
        };
        let mut bytes = [0; super::super::vnet::LENGTH];
        (bytes[0], bytes[1]) = (1, kind);
        bytes[4..6].copy_from_slice(&size.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
        bytes[8..10].copy_from_slice(&(if udp { 6u16 } else { 16 }).to_ne_bytes());
        Header::parse(&bytes)
    }

    proptest! {
        #[test]
        fn pieces_are_whole_packets_and_hold_all_data(
            ipv6: bool, udp: bool, tagged: bool, restored: bool,
            size in 1u16..1500, data in proptest::collection::vec(any::<u8>(), 1..20_000),
        ) {
            let (frame, start) = frame(ipv6, udp, tagged, &data);
            let tag = restored.then_some([0x88, 0xa8, 0, 5]);
            let mut pieces = Vec::new();
            prop_assume!(data.len() / usize::from(size) < 2000);
            prop_assert_eq!(segment(&frame, tag, &header(ipv6, udp, size, start), |piece| pieces.push(piece)), Ok(0));
            let (shift, network) = (if restored { 4 } else { 0 }, payload(&frame).unwrap().1);
            let (network, start) = (network + shift, start + shift);
            let mut all = Vec::new();
            let count = pieces.len();
            for (number, piece) in pieces.iter().enumerate() {
                prop_assert_eq!(verify(&piece[network..]), Ok(Outcome::Complete));
                if let Some(tag) = tag {
                    prop_assert_eq!(&piece[12..16], &tag[..]);
                }
                let rest = if udp {
                    prop_assert_eq!(be16(piece, start + 4), Some((piece.len() - start) as u16));
                    &piece[start + 8..]
                } else {
                    let sequence = u32::from_be_bytes(piece[start + 4..start + 8].try_into().unwrap());
                    prop_assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(all.len() as u32));
                    let (first, last) = (number == 0, number + 1 == count);
                    let flags = 0x10 | if first { 0x80 } else { 0 } | if last { 9 } else { 0 };
                    prop_assert_eq!(piece[start + 13], flags);
                    &piece[start + 32..]
                };
                prop_assert!(rest.len() == usize::from(size) || number + 1 == count);
                if !ipv6 {
                    prop_assert_eq!(be16(piece, network + 4), Some(0xfffeu16.wrapping_add(number as u16)));
                }
                all.extend_from_slice(rest);
            }
            prop_assert_eq!(all, data);
        }

        /// The kernel is believed about the packet's form as little as anybody.
        #[test]
        fn no_frame_and_no_header_make_it_panic(
            frame in proptest::collection::vec(any::<u8>(), 0..300), bytes: [u8; 10], tagged: bool, like: bool,
        ) {
            let mut frame = frame;
            if like && frame.len() > 15 {
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            }
            let _ = segment(&frame, tagged.then_some([0x81, 0, 0, 1]), &Header::parse(&bytes), drop);
        }
    }

    #[test]
    fn a_tunnel_is_refused() {
        let (inner, start) = frame(false, false, false, &[0; 5000]);
        let mut outer = inner[..14].to_vec();
        outer.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 4, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        outer.extend(&inner[14..]);
        assert_eq!(
            segment(&outer, None, &header(false, false, 1000, start + 20), drop),
            Err(Uncuttable)
        );
        assert_eq!(
            segment(&inner, None, &header(false, false, 4000, start), drop),
            Err(Uncuttable)
        );
        assert_eq!(segment(&inner, None, &header(false, false, 0, start), drop), Err(Uncuttable));
    }
}
