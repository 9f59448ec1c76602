//! What the card counts. Its registers are cleared when they are read, so that sums are kept here.

use super::registers::*;
use crate::nic::bar::Bar;

/// Sums since the card was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Good packets received (GPRC).
    pub rx_packets: u64,
    /// With checksums of frames, as the other bytes here.
    pub rx_bytes: u64,
    /// Good multicast packets received (MPRC).
    pub rx_multicast: u64,
    /// Good broadcast packets received (BPRC).
    pub rx_broadcast: u64,
    /// Packets for which there was no buffer.
    pub rx_dropped: u64,
    /// Frames with errors: checksum, symbols, length.
    pub rx_errors: u64,
    /// Good packets sent (GPTC).
    pub tx_packets: u64,
    /// Their bytes (GOTC).
    pub tx_bytes: u64,
    /// Multicast packets sent (MPTC).
    pub tx_multicast: u64,
    /// Broadcast packets sent (BPTC).
    pub tx_broadcast: u64,
}

impl Statistics {
    /// Takes the registers over, and so clears them. Dozens of slow reads: a few times a second at
    /// most.
    pub fn take(&mut self, bar: &impl Bar) {
        let read = |register| u64::from(bar.read32(register));
        // The lower half first: reading the upper one clears both.
        let wide = |low, high| {
            let low = read(low);
            low | (read(high) & 0xf) << 32
        };
        self.rx_packets += read(GPRC);
        self.rx_bytes += wide(GORCL, GORCH);
        self.rx_multicast += read(MPRC);
        self.rx_broadcast += read(BPRC);
        self.rx_dropped += read(MPC) + (0..QUEUES).map(|n| read(qprdc(n))).sum::<u64>();
        self.rx_errors +=
            [CRCERRS, ILLERRC, ERRBC, RLEC, RUC, RFC, ROC, RJC].map(read).iter().sum::<u64>();
        self.tx_packets += read(GPTC);
        self.tx_bytes += wide(GOTCL, GOTCH);
        self.tx_multicast += read(MPTC);
        self.tx_broadcast += read(BPTC);
    }
}

impl std::ops::Add for Statistics {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            rx_packets: self.rx_packets + more.rx_packets,
            rx_bytes: self.rx_bytes + more.rx_bytes,
            rx_multicast: self.rx_multicast + more.rx_multicast,
            rx_broadcast: self.rx_broadcast + more.rx_broadcast,
            rx_dropped: self.rx_dropped + more.rx_dropped,
            rx_errors: self.rx_errors + more.rx_errors,
            tx_packets: self.tx_packets + more.tx_packets,
            tx_bytes: self.tx_bytes + more.tx_bytes,
            tx_multicast: self.tx_multicast + more.tx_multicast,
            tx_broadcast: self.tx_broadcast + more.tx_broadcast,
        }
    }
}
