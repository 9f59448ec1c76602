//! What all queues of a card share, set up once after its reset.

use super::Card;
use crate::nic::bar::Bar;
use crate::nic::i82599::registers::*;
use crate::nic::ring::RECEIVE_ROOM;

/// Longest frame with its checksum. A tag, or two, may come on top of it, and all must fit in a
/// slot.
pub const LONGEST: usize = RECEIVE_ROOM - 8;

impl<B: Bar> Card<B> {
    /// 4.6.4: 10 Gbit/s over SFP+. The link comes up by itself after this.
    pub(super) fn start_link(&self) {
        self.bar.change32(AUTOC, AUTOC_LMS, AUTOC_LMS_10G_SERIAL);
        self.bar.change32(AUTOC, 0, AUTOC_RESTART);
    }

    /// 7.1.1: which packets come in.
    pub(super) fn set_filters(&self) {
        let (bar, settings) = (&self.bar, &self.settings);
        if let Some(mac) = settings.mac {
            bar.write32(ral(0), u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]));
            bar.write32(rah(0), u32::from(u16::from_le_bytes([mac[4], mac[5]])) | RAH_VALID);
        }
        (1..ADDRESSES).for_each(|n| bar.write32(rah(n), 0));
        (0..128).for_each(|n| bar.write32(mta(n), 0));
        let all = if settings.promiscuous {
            FCTRL_UNICAST_PROMISCUOUS | FCTRL_MULTICAST_PROMISCUOUS
        } else {
            0
        };
        bar.write32(FCTRL, FCTRL_BROADCAST | all);
        (0..128).for_each(|n| bar.write32(vfta(n), 0));
        let mut vlan = VLAN_TYPE;
        if let Some(id) = settings.vlan {
            bar.write32(vfta(u32::from(id) / 32), 1 << (id % 32));
            vlan |= VLNCTRL_FILTER;
        }
        bar.write32(VLNCTRL, vlan);
    }

    /// 4.6.7: packet buffer, lengths, checksums off the frame, how packets are spread.
    pub(super) fn set_up_receive(&self) {
        let bar = &self.bar;
        bar.change32(RXCTRL, RXCTRL_ENABLE, 0);
        bar.write32(rxpbsize(0), 512 << 10);
        (1..8).for_each(|n| bar.write32(rxpbsize(n), 0));
        let jumbo = HLREG0_RX_CRC_STRIP | HLREG0_JUMBO;
        bar.change32(HLREG0, 0, jumbo);
        bar.write32(MAXFRS, (LONGEST as u32) << 16);
        // Both must agree on the stripping.
        bar.change32(RDRXCTL, RDRXCTL_RSCFRSTSIZE, RDRXCTL_CRC_STRIP | RDRXCTL_RESERVED);
        bar.change32(CTRL_EXT, 0, CTRL_EXT_NS_DIS);
        bar.write32(RXCSUM, RXCSUM_HASH);
        for (n, key) in RSS_KEY.chunks_exact(4).enumerate() {
            bar.write32(rssrk(n as u32), u32::from_le_bytes([key[0], key[1], key[2], key[3]]));
        }
        bar.write32(MRQC, MRQC_RSS | MRQC_FIELDS);
        (0..32).for_each(|n| bar.write32(rqsmr(n), spread_map(n)));
        self.set_flow_control();
    }

    /// 3.7.7: pause frames when the packet buffer is nearly full.
    fn set_flow_control(&self) {
        let bar = &self.bar;
        if !self.settings.flow_control {
            bar.write32(MFLCN, MFLCN_DISCARD_PAUSE);
            bar.write32(FCCFG, 0);
            return;
        }
        bar.write32(MFLCN, MFLCN_DISCARD_PAUSE | MFLCN_RX_PAUSE);
        bar.write32(FCCFG, FCCFG_TX_PAUSE);
        // Pauses of the longest time, ended by a frame of their own.
        bar.write32(FCTTV, 0xffff);
        bar.write32(FCRTV, 0x7fff);
        bar.write32(FCRTH, FCRTH_ENABLE | 448 << 10);
        bar.write32(FCRTL, FCRTL_XON | 384 << 10);
    }

    /// 4.6.8: one packet buffer, no classes, no rate limits.
    pub(super) fn set_up_transmit(&self) {
        let bar = &self.bar;
        bar.change32(HLREG0, 0, HLREG0_TX_CRC | HLREG0_TX_PAD);
        bar.change32(RTTDCS, 0, RTTDCS_ARBITER_DISABLE);
        bar.write32(MTQC, 0);
        bar.change32(RTTDCS, RTTDCS_ARBITER_DISABLE, 0);
        bar.write32(txpbsize(0), 160 << 10);
        bar.write32(txpbthresh(0), 0xa0);
        (1..8).for_each(|n| {
            bar.write32(txpbsize(n), 0);
            bar.write32(txpbthresh(n), 0);
        });
        bar.write32(DTXMXSZRQ, 0xfff);
        (0..32).for_each(|n| bar.write32(tqsm(n), spread_map(n)));
        bar.write32(DMATXCTL, DMATXCTL_ENABLE | DMATXCTL_VLAN_TYPE);
    }
}

/// Queue n counts in statistics registers n, for the four queues of register `n`.
fn spread_map(n: u32) -> u32 {
    let queue = |place: u32| (4 * n + place) % QUEUES;
    queue(0) | queue(1) << 8 | queue(2) << 16 | queue(3) << 24
}

/// The key of Microsoft's verification suite, which every implementation can be compared with.
pub const RSS_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
