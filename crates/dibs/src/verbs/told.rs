//! What either end is told of the other's link and buffers, beside the messages of the handshake.

use crate::Told;

/// One end of a link, as the other one must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct End {
    /// Of its adapter's port (InfiniBand or RoCE), in network order.
    pub gid: [u8; 16],
    /// Number of its queue pair, 24 bits.
    pub qpn: u32,
    /// Packet sequence number of the first packet that it sends, 24 bits.
    pub psn: u32,
    /// Local identifier of its port (InfiniBand); 0 over Ethernet.
    pub lid: u16,
    /// As verbs count it.
    pub mtu: u16,
    /// Where the images of headers lie, which the peer may read.
    pub images_at: u64,
    /// Their key.
    pub images: u32,
    /// Key of the counts of signals.
    pub signals: u32,
}

impl End {
    /// Length on the wire.
    pub const BYTES: usize = 44;

    /// In the byte order of networks.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..16].copy_from_slice(&self.gid);
        for (at, word) in [(16, self.qpn), (20, self.psn), (28, self.images), (32, self.signals)] {
            out[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        out[24..26].copy_from_slice(&self.lid.to_be_bytes());
        out[26..28].copy_from_slice(&self.mtu.to_be_bytes());
        out[36..].copy_from_slice(&self.images_at.to_be_bytes());
        out
    }

    /// The reverse of [`Self::encode`]. Any bytes are an end; whether it can be connected to,
    /// connecting tells.
    pub fn decode(raw: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&raw[..16]);
        let half = |at: usize| u16::from_be_bytes([raw[at], raw[at + 1]]);
        let (qpn, psn, images, signals) = (word(16), word(20), word(28), word(32));
        let images_at = u64::from(word(36)) << 32 | u64::from(word(40));
        Self { gid, qpn, psn, lid: half(24), mtu: half(26), images_at, images, signals }
    }
}

/// Where a buffer lies in its owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Address of its first byte, as RDMA writes name it.
    pub addr: u64,
    /// Of its count of signals.
    pub signal: u64,
    /// Key of the region that `addr` lies in; that of `signal` is [`End::signals`].
    pub rkey: u32,
}

impl Place {
    /// Its words; at first contact also our end of the link.
    pub(super) fn tell(&self, end: Option<End>) -> Option<Told> {
        let mut told = Told::new(
            [self.addr, self.signal, self.rkey.into()].map(u64::to_be_bytes).as_flattened(),
        )?;
        end.is_none_or(|end| told.push(&end.encode())).then_some(told)
    }

    pub(super) fn told(told: &Told) -> Option<(Self, Option<End>)> {
        let ([addr, signal, rkey], rest) = told.words()?;
        let place = Self { addr, signal, rkey: rkey.try_into().ok()? };
        if rest.is_empty() {
            return Some((place, None));
        }
        Some((place, Some(End::decode(rest.try_into().ok()?))))
    }
}
