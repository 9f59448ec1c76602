//! The header before a packet in which the kernel says what it has not done yet:
//! `struct virtio_net_hdr`, virtio 1.2 section 5.1.6.
//!
//! Programs on this machine send packets whose transport checksum nobody has computed, as a device
//! was to do it. Such a packet is finished here, where it enters the engine, so that no app and no
//! receiver sees a wrong one.

use crate::packet::{CHECKSUM_VALID, NEEDS_CHECKSUM, Packet};
use checksum::{csum_fold, csum_partial};

pub(super) const LENGTH: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;

/// The parts that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    flags: u8,
    segmentation: u8,
    segment_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Header {
    /// Values of [`Self::segmentation`].
    pub const TCP4: u8 = 1;
    pub const TCP6: u8 = 4;
    pub const UDP: u8 = 5;
    /// Added to the others; ECN needs nothing that is not done anyway.
    const ECN: u8 = 0x80;

    pub fn parse(bytes: &[u8; LENGTH]) -> Header {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            segmentation: bytes[1],
            segment_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    /// For a packet that leaves: the kernel need not verify what was verified, and finishes what
    /// was not finished.
    pub fn of(packet: &Packet) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        if packet.flags & NEEDS_CHECKSUM != 0 {
            bytes[0] = F_NEEDS_CSUM;
            bytes[6..8].copy_from_slice(&packet.checksum_start.to_ne_bytes());
            bytes[8..10].copy_from_slice(&packet.checksum_offset.to_ne_bytes());
        } else if packet.flags & CHECKSUM_VALID != 0 {
            bytes[0] = F_DATA_VALID;
        }
        bytes
    }

    /// Several segments in one that the sender's device was to cut.
    pub fn is_unsegmented(&self) -> bool {
        self.segmentation != 0
    }

    /// What kind of segments.
    pub fn segmentation(&self) -> u8 {
        self.segmentation & !Self::ECN
    }

    /// Bytes of payload in each but the last one.
    pub fn segment_size(&self) -> usize {
        self.segment_size.into()
    }

    /// Where the transport header starts, if the sender left its checksum open.
    pub fn transport(&self) -> Option<usize> {
        (self.flags & F_NEEDS_CSUM != 0).then_some(self.checksum_start.into())
    }

    /// Marks or finishes a packet as the header says. `shift`: bytes that were put in before the
    /// checksummed part.
    pub fn apply(&self, packet: &mut Packet, shift: u16) {
        if self.flags & F_NEEDS_CSUM != 0 {
            let start = usize::from(self.checksum_start) + usize::from(shift);
            finish_checksum(packet, start, usize::from(self.checksum_offset));
        } else if self.flags & F_DATA_VALID != 0 {
            packet.flags |= CHECKSUM_VALID;
        }
    }
}

/// As [`finish_checksum`], for a packet that carries its own mark. For outputs that have no header
/// to pass the mark on.
#[inline]
pub(crate) fn finish(packet: &mut Packet) {
    if packet.flags & NEEDS_CHECKSUM != 0 {
        packet.flags &= !NEEDS_CHECKSUM;
        let (start, offset) = (packet.checksum_start.into(), packet.checksum_offset.into());
        finish_checksum(packet, start, offset);
    }
}

/// Replaces the pseudo header's sum at `start + offset` by the Internet checksum (RFC 1071) of all
/// from `start` on. A place outside of the packet changes nothing.
fn finish_checksum(packet: &mut Packet, start: usize, offset: usize) {
    let Some(part) = packet.get_mut(start..).filter(|part| offset + 2 <= part.len()) else {
        return;
    };
    let sum = match csum_fold(csum_partial(part, 0)) {
        // RFC 768: zero means none.
        0 => 0xffff,
        sum => sum,
    };
    part[offset..offset + 2].copy_from_slice(&sum.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP from 10.0.0.1:1 to 10.0.0.2:2 with "abc"; its checksum by hand is 0x5f8a.
    fn packet(checksum: u16) -> Packet {
        let mut udp = vec![0, 1, 0, 2, 0, 11, 0, 0, b'a', b'b', b'c'];
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        Packet::from_slice(&[vec![0; 34], udp].concat()).unwrap()
    }

    /// The pseudo header's sum: addresses, protocol, length.
    const PSEUDO: u16 = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + 11;

    #[test]
    fn a_partial_checksum_is_finished() {
        let mut partial = packet(PSEUDO);
        let bytes = [F_NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, 6, 0];
        Header::parse(&bytes).apply(&mut partial, 0);
        let whole: u32 = [1u32, 2, 11, 0x6162, 0x6300, u32::from(PSEUDO)].iter().sum();
        let expected = !((whole & 0xffff) as u16 + (whole >> 16) as u16);
        assert_eq!(partial[40..42], expected.to_be_bytes());
        assert_eq!(partial.flags & NEEDS_CHECKSUM, 0);
    }

    #[test]
    fn places_outside_of_the_packet_change_nothing() {
        for (start, offset) in [(44u16, 0u16), (45, 0), (46, 0), (34, 10), (u16::MAX, u16::MAX)] {
            let mut partial = packet(PSEUDO);
            let header = Header {
                flags: F_NEEDS_CSUM,
                checksum_start: start,
                checksum_offset: offset,
                ..Header::default()
            };
            header.apply(&mut partial, 0);
            assert_eq!(partial[..], packet(PSEUDO)[..], "{start} {offset}");
        }
    }

    #[test]
    fn a_mark_goes_out_as_it_came() {
        let mut marked = packet(PSEUDO);
        (marked.flags, marked.checksum_start, marked.checksum_offset) = (NEEDS_CHECKSUM, 34, 6);
        let header = Header::parse(&Header::of(&marked));
        let expected = Header {
            flags: F_NEEDS_CSUM,
            checksum_start: 34,
            checksum_offset: 6,
            ..Header::default()
        };
        assert_eq!(header, expected);
        let mut other = packet(PSEUDO);
        header.apply(&mut other, 0);
        finish(&mut marked);
        assert_eq!(marked[..], other[..]);
    }
}
