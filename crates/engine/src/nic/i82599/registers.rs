//! Registers of the 82599, by the names of its data sheet (Intel 331520, section 8): offsets, and bits as `REGISTER_BIT`.

/// Bytes of the register region.
pub const REGION: usize = 128 << 10;
/// Queues of each direction that the driver uses: what RSS can spread over.
pub const QUEUES: u32 = 16;

/// Device control.
pub const CTRL: u32 = 0x00000;
/// No new requests to memory.
pub const CTRL_MASTER_DISABLE: u32 = 1 << 2;
/// Resets the link; clears by itself.
pub const CTRL_LRST: u32 = 1 << 3;
/// Resets the device; clears by itself.
pub const CTRL_RST: u32 = 1 << 26;
pub const STATUS: u32 = 0x00008;
/// Requests to memory are allowed, or not yet complete.
pub const STATUS_MASTER_ENABLED: u32 = 1 << 19;
pub const CTRL_EXT: u32 = 0x00018;
pub const CTRL_EXT_NS_DIS: u32 = 1 << 16;
pub const EEC: u32 = 0x10010;
/// The device has read its EEPROM.
pub const EEC_AUTO_READ_DONE: u32 = 1 << 9;

/// Interrupt causes; reading clears.
pub const EICR: u32 = 0x00800;
pub const EIMS: u32 = 0x00880;
pub const EIMC: u32 = 0x00888;
/// All causes.
pub const EIMC_ALL: u32 = 0x7fff_ffff;

/// Link mode.
pub const AUTOC: u32 = 0x042a0;
pub const AUTOC_RESTART: u32 = 1 << 12;
pub const AUTOC_LMS: u32 = 7 << 13;
pub const AUTOC_LMS_10G_SERIAL: u32 = 3 << 13;
pub const LINKS: u32 = 0x042a4;
pub const LINKS_UP: u32 = 1 << 30;
/// 3: 10 Gbit/s, 2: 1 Gbit/s, 1: 100 Mbit/s.
pub const LINKS_SPEED_SHIFT: u32 = 28;

pub const HLREG0: u32 = 0x04240;
pub const HLREG0_TX_CRC: u32 = 1 << 0;
pub const HLREG0_RX_CRC_STRIP: u32 = 1 << 1;
pub const HLREG0_JUMBO: u32 = 1 << 2;
pub const HLREG0_TX_PAD: u32 = 1 << 10;
/// Longest frame with its checksum, in the upper half.
pub const MAXFRS: u32 = 0x04268;

pub const MFLCN: u32 = 0x04294;
/// Pause frames do not go to software.
pub const MFLCN_DISCARD_PAUSE: u32 = 1 << 1;
pub const MFLCN_RX_PAUSE: u32 = 1 << 3;
pub const FCCFG: u32 = 0x03d00;
pub const FCCFG_TX_PAUSE: u32 = 1 << 3;
pub const FCTTV: u32 = 0x03200;
pub const FCRTL: u32 = 0x03220;
pub const FCRTL_XON: u32 = 1 << 31;
pub const FCRTH: u32 = 0x03260;
pub const FCRTH_ENABLE: u32 = 1 << 31;
pub const FCRTV: u32 = 0x032a0;

pub const RXCTRL: u32 = 0x03000;
pub const RXCTRL_ENABLE: u32 = 1;
pub const RDRXCTL: u32 = 0x02f00;
pub const RDRXCTL_CRC_STRIP: u32 = 1 << 1;
pub const RDRXCTL_DMA_INIT_DONE: u32 = 1 << 3;
pub const RDRXCTL_RSCFRSTSIZE: u32 = 0x1f << 17;
/// Reserved bits that the data sheet wants set.
pub const RDRXCTL_RESERVED: u32 = 3 << 25;
/// Halts the receive path for changes.
pub const SECRXCTRL: u32 = 0x08d00;
pub const SECRXCTRL_RX_DIS: u32 = 1 << 1;
pub const SECRXSTAT: u32 = 0x08d04;
pub const SECRXSTAT_READY: u32 = 1;

pub const FCTRL: u32 = 0x05080;
pub const FCTRL_MULTICAST_PROMISCUOUS: u32 = 1 << 8;
pub const FCTRL_UNICAST_PROMISCUOUS: u32 = 1 << 9;
pub const FCTRL_BROADCAST: u32 = 1 << 10;
pub const VLNCTRL: u32 = 0x05088;
pub const VLNCTRL_FILTER: u32 = 1 << 30;
/// The tag's type, 802.1Q.
pub const VLAN_TYPE: u32 = 0x8100;
pub const RXCSUM: u32 = 0x05000;
/// The descriptor carries the RSS hash, not a packet checksum.
pub const RXCSUM_HASH: u32 = 1 << 13;
/// How received packets are spread over queues.
pub const MRQC: u32 = 0x05818;
pub const MRQC_RSS: u32 = 1;
/// Hash addresses, and ports of TCP and UDP, over IPv4 and IPv6.
pub const MRQC_FIELDS: u32 = 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23;

pub const DMATXCTL: u32 = 0x04a80;
pub const DMATXCTL_ENABLE: u32 = 1;
pub const DMATXCTL_VLAN_TYPE: u32 = VLAN_TYPE << 16;
pub const DTXMXSZRQ: u32 = 0x08100;
pub const RTTDCS: u32 = 0x04900;
pub const RTTDCS_ARBITER_DISABLE: u32 = 1 << 6;
/// Can be written while the arbiter is off.
pub const MTQC: u32 = 0x08120;

pub const fn rxpbsize(n: u32) -> u32 {
    0x03c00 + 4 * n
}
pub const fn txpbsize(n: u32) -> u32 {
    0x0cc00 + 4 * n
}
pub const fn txpbthresh(n: u32) -> u32 {
    0x04950 + 4 * n
}
/// Lower 32 bits of a receive address.
pub const fn ral(n: u32) -> u32 {
    0x0a200 + 8 * n
}
/// Upper 16 bits of a receive address.
pub const fn rah(n: u32) -> u32 {
    0x0a204 + 8 * n
}
pub const RAH_VALID: u32 = 1 << 31;
/// Receive addresses.
pub const ADDRESSES: u32 = 128;
pub const fn mta(n: u32) -> u32 {
    0x05200 + 4 * n
}
pub const fn vfta(n: u32) -> u32 {
    0x0a000 + 4 * n
}
pub const fn rssrk(n: u32) -> u32 {
    0x05c80 + 4 * n
}
pub const fn reta(n: u32) -> u32 {
    0x05c00 + 4 * n
}

/// First register of a receive queue; the others follow at fixed distances.
pub const fn rx_queue(n: u32) -> u32 {
    0x01000 + 0x40 * n
}
/// First register of a transmit queue.
pub const fn tx_queue(n: u32) -> u32 {
    0x06000 + 0x40 * n
}
/// Distances from [`rx_queue`] or [`tx_queue`]: base, length in bytes, head, tail, control.
pub const BAL: u32 = 0x00;
pub const BAH: u32 = 0x04;
pub const LEN: u32 = 0x08;
pub const HEAD: u32 = 0x10;
pub const TAIL: u32 = 0x18;
pub const DCTL: u32 = 0x28;
pub const DCTL_ENABLE: u32 = 1 << 25;
pub const RXDCTL_STRIP_VLAN: u32 = 1 << 30;
/// Write descriptors back that wait for their threshold; clears by itself.
pub const TXDCTL_FLUSH: u32 = 1 << 26;
/// How many reports are written back at once.
pub const TXDCTL_WTHRESH_SHIFT: u32 = 16;
pub const TXDCTL_HTHRESH_SHIFT: u32 = 8;
/// Distance from [`rx_queue`].
pub const SRRCTL: u32 = 0x14;
/// Buffer size in units of 1 KiB.
pub const SRRCTL_2K: u32 = 2;
pub const SRRCTL_ADVANCED: u32 = 1 << 25;
/// A queue without buffers drops its packets, and does not hold up the others.
pub const SRRCTL_DROP: u32 = 1 << 28;
/// Distance from [`rx_queue`].
pub const DCA_RXCTRL: u32 = 0x0c;
/// Must be zero.
pub const DCA_RXCTRL_RESERVED: u32 = 1 << 12;

/// Maps queues to the statistics registers of their number.
pub const fn rqsmr(n: u32) -> u32 {
    0x02300 + 4 * n
}
pub const fn tqsm(n: u32) -> u32 {
    0x08600 + 4 * n
}
/// Packets that a queue received.
pub const fn qprc(n: u32) -> u32 {
    0x01030 + 0x40 * n
}
/// Packets that a queue dropped for want of buffers.
pub const fn qprdc(n: u32) -> u32 {
    0x01430 + 0x40 * n
}
/// Packets that a queue sent.
pub const fn qptc(n: u32) -> u32 {
    0x06030 + 0x40 * n
}
pub const CRCERRS: u32 = 0x04000;
pub const ILLERRC: u32 = 0x04004;
pub const ERRBC: u32 = 0x04008;
pub const RLEC: u32 = 0x04040;
/// Packets missed for want of room in the packet buffer.
pub const MPC: u32 = 0x03fa0;
pub const GPRC: u32 = 0x04074;
pub const BPRC: u32 = 0x04078;
pub const MPRC: u32 = 0x0407c;
pub const GPTC: u32 = 0x04080;
/// Received bytes, lower and upper half; reading the upper clears both.
pub const GORCL: u32 = 0x04088;
pub const GORCH: u32 = 0x0408c;
pub const GOTCL: u32 = 0x04090;
pub const GOTCH: u32 = 0x04094;
pub const RUC: u32 = 0x040a4;
pub const RFC: u32 = 0x040a8;
pub const ROC: u32 = 0x040ac;
pub const RJC: u32 = 0x040b0;
pub const MPTC: u32 = 0x040f0;
pub const BPTC: u32 = 0x040f4;
