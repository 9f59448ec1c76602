//! Who a system and its devices are: GID, CHID and EID.

use super::wire::{self, Emit, Malformed};
use super::{Full, List};

/// Entries of a GID/CHID list on the wire.
pub const MAX_ENTRIES: usize = 8;

mod field {
    use core::ops::Range;

    pub const GID: Range<usize> = 0..8;
    pub const CHID: Range<usize> = 8..10;
    /// Length of one GID/CHID entry.
    pub const ENTRY: usize = 10;
}

pub use dibs::Gid;

/// Whether a CHID belongs to an emulated device, whose GID has 128 bits.
pub const fn is_emulated(chid: u16) -> bool {
    chid >= 0xff00
}

/// An SMC-D device as the peer sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its address.
    pub gid: Gid,
    /// The fabric it is attached to.
    pub chid: u16,
}

impl Device {
    /// CHID of the loopback device.
    pub const LOOPBACK_CHID: u16 = 0xffff;

    /// Entries the device takes in a GID/CHID list.
    pub const fn entries(&self) -> usize {
        if is_emulated(self.chid) { 2 } else { 1 }
    }
}

/// Why a device was left out of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skipped {
    /// Not enough of the eight entries are left.
    NoRoom,
    /// A device with this CHID is in the list already.
    SameChid,
}

/// The devices of a proposal, in the sender's order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Devices(List<Device, MAX_ENTRIES>);

impl Devices {
    /// An empty list.
    pub fn new() -> Devices {
        Devices::default()
    }

    /// Appends a device, unless the list says why not. A refused device does not end the list: one
    /// that takes fewer entries may still fit.
    pub fn push(&mut self, device: Device) -> Result<(), Skipped> {
        if self.0.iter().any(|other| other.chid == device.chid) {
            return Err(Skipped::SameChid);
        }
        if self.entries() + device.entries() > MAX_ENTRIES {
            return Err(Skipped::NoRoom);
        }
        self.0.push(device).map_err(|Full| Skipped::NoRoom)
    }

    /// The devices.
    pub fn as_slice(&self) -> &[Device] {
        &self.0
    }

    /// Entries the devices take on the wire.
    pub fn entries(&self) -> usize {
        self.0.iter().map(Device::entries).sum()
    }

    /// Bytes the devices take on the wire.
    pub(super) fn wire_len(&self) -> usize {
        Devices::entries_len(self.entries())
    }

    /// Bytes that `entries` entries take on the wire.
    pub(super) fn entries_len(entries: usize) -> usize {
        entries * field::ENTRY
    }

    /// Reads `entries` entries; a lone entry of an emulated device is skipped.
    pub(super) fn decode(bytes: &[u8], entries: usize) -> Result<Devices, Malformed> {
        let mut devices = List::new();
        let mut list = wire::items::<{ field::ENTRY }>(bytes, 0, entries)?;
        while let [entry, rest @ ..] = list {
            list = rest;
            let hi = wire::be64(entry, field::GID)?;
            let chid = wire::be16(entry, field::CHID)?;
            let mut lo = 0;
            if is_emulated(chid) {
                match rest {
                    [twin, rest @ ..] if wire::be16(twin, field::CHID)? == chid => {
                        lo = wire::be64(twin, field::GID)?;
                        list = rest;
                    }
                    _ => continue,
                }
            }
            let device = Device { gid: Gid { hi, lo }, chid };
            devices.push(device).map_err(|Full| Malformed::Count)?;
        }
        Ok(Devices(devices))
    }

    /// Writes the entries of every device.
    pub(super) fn encode(&self, out: &mut Emit<'_>) -> Result<(), Full> {
        let mut at = 0;
        for device in &self.0 {
            let halves = [device.gid.hi, device.gid.lo];
            for half in halves.iter().take(device.entries()) {
                let mut entry = out.part(at)?;
                entry.put(field::GID, &half.to_be_bytes())?;
                entry.put(field::CHID, &device.chid.to_be_bytes())?;
                at += field::ENTRY;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(chid: u16) -> Device {
        Device { gid: Gid { hi: u64::from(chid), lo: u64::from(is_emulated(chid)) }, chid }
    }

    #[test]
    fn gid_halves_are_in_network_order() {
        let gid = Gid { hi: 0x0123_4567_89ab_cdef, lo: 0xfedc_ba98_7654_3210 };
        assert_eq!(gid.to_bytes()[..3], [0x01, 0x23, 0x45]);
        assert_eq!(gid.to_bytes()[8..11], [0xfe, 0xdc, 0xba]);
        assert_eq!(Gid::from_bytes(gid.to_bytes()), gid);
        assert_eq!(gid.to_string(), "0123456789abcdef_fedcba9876543210");
        assert_eq!(Gid { hi: 0x11, lo: 0 }.to_string(), "0000000000000011");
    }

    #[test]
    fn emulated_device_is_skipped_when_one_entry_is_left() {
        let mut devices = Devices::new();
        for chid in 1..=7 {
            assert_eq!(devices.push(device(chid)), Ok(()));
        }
        assert_eq!(devices.push(device(0xff00)), Err(Skipped::NoRoom));
        assert_eq!(devices.push(device(7)), Err(Skipped::SameChid));
        assert_eq!(devices.push(device(8)), Ok(()));
        assert_eq!(devices.push(device(9)), Err(Skipped::NoRoom));
        assert_eq!(devices.entries(), 8);
    }

    #[test]
    fn four_emulated_devices_fill_the_list() {
        let mut devices = Devices::new();
        for chid in 0xff00..0xff04 {
            assert_eq!(devices.push(device(chid)), Ok(()));
        }
        assert_eq!(devices.push(device(0xff04)), Err(Skipped::NoRoom));
        assert_eq!(devices.wire_len(), 80);
    }

    fn entries(list: &[(u64, u16)]) -> Vec<u8> {
        list.iter()
            .flat_map(|(gid, chid)| [&gid.to_be_bytes()[..], &chid.to_be_bytes()].concat())
            .collect()
    }

    #[test]
    fn lone_emulated_entries_are_skipped() {
        let bytes = entries(&[(1, 0xff00), (2, 0xffff), (3, 0xffff), (4, 0x07c1), (5, 0xfffe)]);
        let devices = Devices::decode(&bytes, 5).unwrap();
        let loopback = Device { gid: Gid { hi: 2, lo: 3 }, chid: 0xffff };
        let ism = Device { gid: Gid { hi: 4, lo: 0 }, chid: 0x07c1 };
        assert_eq!(devices.as_slice(), [loopback, ism]);
    }

    #[test]
    fn three_entries_of_one_chid_are_one_device() {
        let bytes = entries(&[(1, 0xffff), (2, 0xffff), (3, 0xffff)]);
        let devices = Devices::decode(&bytes, 3).unwrap();
        assert_eq!(devices.as_slice(), [Device { gid: Gid { hi: 1, lo: 2 }, chid: 0xffff }]);
        assert_eq!(Devices::decode(&bytes, 4), Err(Malformed::Length));
    }
}
