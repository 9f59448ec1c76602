//! Registers of the 82599, by the names of its data sheet (Intel 331520, section 8): offsets, and
//! bits as `REGISTER_BIT`.

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
/// Device status.
pub const STATUS: u32 = 0x00008;
/// Requests to memory are allowed, or not yet complete.
pub const STATUS_MASTER_ENABLED: u32 = 1 << 19;
/// Extended device control.
pub const CTRL_EXT: u32 = 0x00018;
/// No snoop disable: the device's requests are snooped by the processors' caches.
pub const CTRL_EXT_NS_DIS: u32 = 1 << 16;
/// EEPROM and flash control.
pub const EEC: u32 = 0x10010;
/// The device has read its EEPROM.
pub const EEC_AUTO_READ_DONE: u32 = 1 << 9;

/// Interrupt causes; reading clears.
pub const EICR: u32 = 0x00800;
/// Interrupt mask, set: enables causes.
pub const EIMS: u32 = 0x00880;
/// Interrupt mask, clear: disables causes.
pub const EIMC: u32 = 0x00888;
/// All causes.
pub const EIMC_ALL: u32 = 0x7fff_ffff;

/// Link mode.
pub const AUTOC: u32 = 0x042a0;
/// Restarts negotiation, so that the link comes up as AUTOC says; clears by itself.
pub const AUTOC_RESTART: u32 = 1 << 12;
/// Link mode select.
pub const AUTOC_LMS: u32 = 7 << 13;
/// 10 Gbit/s over a serial link (SFI), without negotiation.
pub const AUTOC_LMS_10G_SERIAL: u32 = 3 << 13;
/// Link status.
pub const LINKS: u32 = 0x042a4;
/// The link is up.
pub const LINKS_UP: u32 = 1 << 30;
/// 3: 10 Gbit/s, 2: 1 Gbit/s, 1: 100 Mbit/s.
pub const LINKS_SPEED_SHIFT: u32 = 28;

/// MAC core control 0 ("Highlander").
pub const HLREG0: u32 = 0x04240;
/// Frames that are sent get their checksum (TXCRCEN).
pub const HLREG0_TX_CRC: u32 = 1 << 0;
/// Frames that are received lose their checksum (RXCRCSTRP); as [`RDRXCTL_CRC_STRIP`].
pub const HLREG0_RX_CRC_STRIP: u32 = 1 << 1;
/// Frames may be as long as [`MAXFRS`] says.
pub const HLREG0_JUMBO: u32 = 1 << 2;
/// Frames that are sent are filled up to 64 bytes (TXPADEN).
pub const HLREG0_TX_PAD: u32 = 1 << 10;
/// Longest frame with its checksum, in the upper half.
pub const MAXFRS: u32 = 0x04268;

/// MAC flow control.
pub const MFLCN: u32 = 0x04294;
/// Pause frames do not go to software.
pub const MFLCN_DISCARD_PAUSE: u32 = 1 << 1;
/// Obeys pause frames (RFCE).
pub const MFLCN_RX_PAUSE: u32 = 1 << 3;
/// Flow control configuration.
pub const FCCFG: u32 = 0x03d00;
/// Sends pause frames (TFCE: link flow control).
pub const FCCFG_TX_PAUSE: u32 = 1 << 3;
/// Time that a pause frame asks for, in the times of 64 bytes; two classes in each register.
pub const FCTTV: u32 = 0x03200;
/// Fill level of the packet buffer below which a pause ends, in bytes.
pub const FCRTL: u32 = 0x03220;
/// Ends it by a frame of its own (XONE).
pub const FCRTL_XON: u32 = 1 << 31;
/// Fill level of the packet buffer above which a pause begins, in bytes.
pub const FCRTH: u32 = 0x03260;
/// Compares with it at all (FCEN).
pub const FCRTH_ENABLE: u32 = 1 << 31;
/// Time after which a pause that goes on is asked for again, as in [`FCTTV`].
pub const FCRTV: u32 = 0x032a0;

/// Receive control.
pub const RXCTRL: u32 = 0x03000;
/// Receives (RXEN).
pub const RXCTRL_ENABLE: u32 = 1;
/// Receive DMA control.
pub const RDRXCTL: u32 = 0x02f00;
/// Checksums of frames are not written to memory; as [`HLREG0_RX_CRC_STRIP`].
pub const RDRXCTL_CRC_STRIP: u32 = 1 << 1;
/// The DMA engines are ready, after a reset (DMAIDONE).
pub const RDRXCTL_DMA_INIT_DONE: u32 = 1 << 3;
/// Size of the first receive buffer of coalesced packets (RSC); 0 is asked for.
pub const RDRXCTL_RSCFRSTSIZE: u32 = 0x1f << 17;
/// Reserved bits that the data sheet wants set.
pub const RDRXCTL_RESERVED: u32 = 3 << 25;
/// Halts the receive path for changes.
pub const SECRXCTRL: u32 = 0x08d00;
/// Halts it (RX_DIS).
pub const SECRXCTRL_RX_DIS: u32 = 1 << 1;
/// Status of what [`SECRXCTRL`] halts.
pub const SECRXSTAT: u32 = 0x08d04;
/// It is empty: changes can be made.
pub const SECRXSTAT_READY: u32 = 1;

/// Filter control.
pub const FCTRL: u32 = 0x05080;
/// Receives all multicast frames (MPE).
pub const FCTRL_MULTICAST_PROMISCUOUS: u32 = 1 << 8;
/// Receives all unicast frames (UPE).
pub const FCTRL_UNICAST_PROMISCUOUS: u32 = 1 << 9;
/// Receives broadcast frames (BAM).
pub const FCTRL_BROADCAST: u32 = 1 << 10;
/// VLAN control; the tag's type in the lower half.
pub const VLNCTRL: u32 = 0x05088;
/// Receives tagged frames by [`vfta`] only (VFE).
pub const VLNCTRL_FILTER: u32 = 1 << 30;
/// The tag's type, 802.1Q.
pub const VLAN_TYPE: u32 = 0x8100;
/// Receive checksum control.
pub const RXCSUM: u32 = 0x05000;
/// The descriptor carries the RSS hash, not a packet checksum.
pub const RXCSUM_HASH: u32 = 1 << 13;
/// How received packets are spread over queues.
pub const MRQC: u32 = 0x05818;
/// Spreads by the RSS hash and [`reta`], over 16 queues.
pub const MRQC_RSS: u32 = 1;
/// Hash addresses, and ports of TCP and UDP, over IPv4 and IPv6.
pub const MRQC_FIELDS: u32 = 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23;

/// Transmit DMA control.
pub const DMATXCTL: u32 = 0x04a80;
/// Sends (TE).
pub const DMATXCTL_ENABLE: u32 = 1;
/// Type of the tags that are put in, in the upper half.
pub const DMATXCTL_VLAN_TYPE: u32 = VLAN_TYPE << 16;
/// Most bytes of requests for data under way, in units of 256.
pub const DTXMXSZRQ: u32 = 0x08100;
/// Control of the descriptor plane's arbiter, by which classes of traffic share the transmit path.
pub const RTTDCS: u32 = 0x04900;
/// Off (ARBDIS), so that [`MTQC`] can be written.
pub const RTTDCS_ARBITER_DISABLE: u32 = 1 << 6;
/// Can be written while the arbiter is off.
pub const MTQC: u32 = 0x08120;

/// Size of receive packet buffer `n` (0 to 7), in bytes; a multiple of 1 KiB.
pub const fn rxpbsize(n: u32) -> u32 {
    0x03c00 + 4 * n
}
/// Size of transmit packet buffer `n` (0 to 7), in bytes; a multiple of 1 KiB.
pub const fn txpbsize(n: u32) -> u32 {
    0x0cc00 + 4 * n
}
/// Fill level of transmit packet buffer `n` up to which more data is fetched, in KiB.
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
/// The receive address counts.
pub const RAH_VALID: u32 = 1 << 31;
/// Receive addresses.
pub const ADDRESSES: u32 = 128;
/// Word `n` (0 to 127) of the multicast table: a bit for each hash of an address.
pub const fn mta(n: u32) -> u32 {
    0x05200 + 4 * n
}
/// Word `n` (0 to 127) of the VLAN filter table: VLANs 32 `n` and up, a bit each.
pub const fn vfta(n: u32) -> u32 {
    0x0a000 + 4 * n
}
/// Word `n` (0 to 9) of the RSS key.
pub const fn rssrk(n: u32) -> u32 {
    0x05c80 + 4 * n
}
/// Word `n` (0 to 31) of the redirection table: the queues of hashes 4 `n` and up, a byte each.
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
/// Base address of the descriptors, upper 32 bits.
pub const BAH: u32 = 0x04;
/// Length of the ring in bytes, a multiple of 128.
pub const LEN: u32 = 0x08;
/// The next descriptor that the device takes.
pub const HEAD: u32 = 0x10;
/// Behind the last descriptor that the device may take.
pub const TAIL: u32 = 0x18;
/// Descriptor control: RXDCTL, TXDCTL.
pub const DCTL: u32 = 0x28;
/// The queue is on; reads as set when it is so indeed.
pub const DCTL_ENABLE: u32 = 1 << 25;
/// Tags are taken out of frames (RXDCTL.VME).
pub const RXDCTL_STRIP_VLAN: u32 = 1 << 30;
/// Write descriptors back that wait for their threshold; clears by itself.
pub const TXDCTL_FLUSH: u32 = 1 << 26;
/// How many reports are written back at once.
pub const TXDCTL_WTHRESH_SHIFT: u32 = 16;
/// How many descriptors must be there for them to be fetched ahead.
pub const TXDCTL_HTHRESH_SHIFT: u32 = 8;
/// Distance from [`rx_queue`].
pub const SRRCTL: u32 = 0x14;
/// Buffer size in units of 1 KiB.
pub const SRRCTL_2K: u32 = 2;
/// Advanced descriptors with one buffer (DESCTYPE 1).
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
/// As [`rqsmr`], for transmit queues.
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
/// Frames with a wrong checksum.
pub const CRCERRS: u32 = 0x04000;
/// Frames with illegal symbols.
pub const ILLERRC: u32 = 0x04004;
/// Bytes that were errors.
pub const ERRBC: u32 = 0x04008;
/// Frames whose length field is wrong.
pub const RLEC: u32 = 0x04040;
/// Packets missed for want of room in the packet buffer.
pub const MPC: u32 = 0x03fa0;
/// Good packets received.
pub const GPRC: u32 = 0x04074;
/// Broadcast packets received.
pub const BPRC: u32 = 0x04078;
/// Multicast packets received.
pub const MPRC: u32 = 0x0407c;
/// Good packets sent.
pub const GPTC: u32 = 0x04080;
/// Received bytes, lower and upper half; reading the upper clears both.
pub const GORCL: u32 = 0x04088;
/// See [`GORCL`].
pub const GORCH: u32 = 0x0408c;
/// Sent bytes, lower and upper half; reading the upper clears both.
pub const GOTCL: u32 = 0x04090;
/// See [`GOTCL`].
pub const GOTCH: u32 = 0x04094;
/// Received frames that were too short.
pub const RUC: u32 = 0x040a4;
/// Received frames that were too short, with a wrong checksum.
pub const RFC: u32 = 0x040a8;
/// Received frames that were too long.
pub const ROC: u32 = 0x040ac;
/// Received frames that were too long, with a wrong checksum.
pub const RJC: u32 = 0x040b0;
/// Multicast packets sent.
pub const MPTC: u32 = 0x040f0;
/// Broadcast packets sent.
pub const BPTC: u32 = 0x040f4;
