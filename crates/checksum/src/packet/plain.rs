//! The packets that nearly all are: TCP or UDP in IPv4 without options, in one piece; and those of
//! which only such a header is summed. They are told apart with a few comparisons, and what is found
//! stays in registers: a whole [`Layout`](super::layout::Layout) takes longer to hand on than a short
//! packet takes to sum.

use super::Outcome;
use crate::pseudo::{ICMP, TCP, UDP, csum_tcpudp_nofold};
use crate::{csum_fold, csum_header20, csum_partial, csum_replace2};

const HEADER: usize = 20;

pub(super) struct Plain {
    udp: bool,
    /// Of the UDP or TCP header and its data.
    length: usize,
    pseudo: u32,
}

impl Plain {
    /// None says nothing but that the packet is for the other way: it may be as good, or as bad, as
    /// any.
    #[inline(always)]
    pub fn of(packet: &[u8]) -> Option<Plain> {
        let header = packet.first_chunk::<HEADER>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        // Version and length of the header; more fragments, or not the first.
        if header[0] != 0x45 || word(6) & 0x3fff != 0 {
            return None;
        }
        let rest = packet.get(HEADER..usize::from(word(2)))?;
        let length = match header[9] {
            UDP => {
                let start = rest.first_chunk::<8>()?;
                let length = usize::from(u16::from_be_bytes([start[4], start[5]]));
                (8..=rest.len()).contains(&length).then_some(length)?
            }
            TCP if rest.len() >= 20 => rest.len(),
            _ => return None,
        };
        let [.., a, b, c, d, e, f, g, h] = *header;
        let pseudo = csum_tcpudp_nofold([a, b, c, d], [e, f, g, h], length as u16, header[9], 0);
        Some(Plain { udp: header[9] == UDP, length, pseudo })
    }

    /// Where in the transport header its checksum lies.
    #[inline(always)]
    fn field(&self) -> usize {
        if self.udp { 6 } else { 16 }
    }

    /// The same of the transport.
    #[inline(always)]
    fn transport(&self, packet: &[u8]) -> Option<(u16, [u8; 2])> {
        let data = packet.get(HEADER..HEADER + self.length)?;
        let old = *data.get(self.field()..)?.first_chunk()?;
        Some((csum_fold(csum_partial(data, self.pseudo)), old))
    }

    /// Whether both checksums are there and right.
    #[inline(always)]
    pub fn is_right(&self, packet: &[u8]) -> bool {
        header(packet).is_some_and(|(check, _)| check == 0)
            && self
                .transport(packet)
                .is_some_and(|(check, old)| check == 0 && (!self.udp || old != [0, 0]))
    }

    /// Old checksums are summed with the rest and taken off again. Zeros that were written just
    /// before a wide load of what is around them would cost as much as everything else: the load
    /// waits until they have left the store buffer.
    #[inline(always)]
    pub fn fill(&self, packet: &mut [u8]) -> Option<()> {
        let (header, old_header) = header(packet)?;
        let (transport, old) = self.transport(packet)?;
        let transport = match csum_replace2(transport, old, [0, 0]) {
            // It would say that there is none; 0xffff is the same to the receiver's sum (RFC 768).
            0 if self.udp => 0xffff,
            check => check,
        };
        packet
            .get_mut(10..12)?
            .copy_from_slice(&csum_replace2(header, old_header, [0, 0]).to_ne_bytes());
        let field = HEADER + self.field();
        packet.get_mut(field..field + 2)?.copy_from_slice(&transport.to_ne_bytes());
        Some(())
    }
}

/// What there is to sum in a packet whose IPv4 header, without options, is all that has a checksum
/// here: a fragment, or another protocol. None as from [`Plain::of`].
#[inline(always)]
pub(super) fn of_header_alone(packet: &[u8]) -> Option<Outcome> {
    let header = packet.first_chunk::<HEADER>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[0] != 0x45 || !(HEADER..=packet.len()).contains(&usize::from(word(2))) {
        return None;
    }
    match header[9] {
        _ if word(6) & 0x3fff != 0 => Some(Outcome::Fragment),
        TCP | UDP | ICMP => None,
        protocol => Some(Outcome::OtherProtocol(protocol)),
    }
}

/// The header's checksum, over what is there and so with the old one: 0 if that is right. Beside it
/// the old one.
#[inline(always)]
pub(super) fn header(packet: &[u8]) -> Option<(u16, [u8; 2])> {
    let header = packet.first_chunk::<HEADER>()?;
    Some((csum_header20(header), [header[10], header[11]]))
}

/// As [`Plain::fill`].
#[inline(always)]
pub(super) fn fill_header(packet: &mut [u8]) -> Option<()> {
    let (check, old) = header(packet)?;
    packet.get_mut(10..12)?.copy_from_slice(&csum_replace2(check, old, [0, 0]).to_ne_bytes());
    Some(())
}
