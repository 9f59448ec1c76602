//! A PCI device in the hands of this process: by VFIO, behind an IOMMU, or by its sysfs files and
//! huge pages.
//!
//! Nothing about the system is changed for it: a device that a kernel driver holds is refused with
//! the commands that would free it, and huge pages are taken only from those that exist. The
//! command register (memory decoding and bus mastering) is put back when the `Device` is dropped,
//! and by a guard process or by VFIO if this process is killed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::bar::MappedBar;
use super::dma::{DmaError, DmaSpace};

mod error;
mod guard;
mod resource;
mod sysfs;
mod vfio;

pub(crate) use error::PciError;
use sysfs::{Sysfs, Way};

/// Offset of the command register in the configuration space, and its bits.
const COMMAND: u64 = 4;
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;

/// Where a device sits: domain, bus, slot and function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    domain: u32,
    bus: u8,
    slot: u8,
    function: u8,
}

impl FromStr for Address {
    type Err = PciError;

    /// `DDDD:BB:SS.F`, or `BB:SS.F` in domain 0, in hexadecimal.
    fn from_str(text: &str) -> Result<Self, PciError> {
        let parse = || {
            let (place, function) = text.split_once('.')?;
            let mut parts = place.rsplitn(3, ':');
            let slot = hex(parts.next()?, 0x1f)?;
            let bus = hex(parts.next()?, 0xff)?;
            let domain = parts.next().map_or(Some(0), |domain| hex(domain, 0xffff_ffff))?;
            let function = hex(function, 7)?;
            Some(Self { domain, bus: bus as u8, slot: slot as u8, function: function as u8 })
        };
        parse().ok_or_else(|| PciError::BadAddress(text.to_string()))
    }
}

fn hex(digits: &str, most: u32) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|value| plain && *value <= most)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.slot, self.function)
    }
}

/// An open device. Dropped, it is as it was before; its driver has made it quiet by then.
pub(crate) struct Device {
    address: Address,
    /// The command register as it was.
    command: u16,
    access: Access,
}

enum Access {
    Vfio(vfio::Device),
    Resource(Box<resource::Device>),
}

impl Device {
    /// Opens the device at `address`, if it is one of `ids` (vendor and device). `what` is what a
    /// user calls them.
    pub fn open(
        address: Address,
        ids: &[(u16, u16)],
        what: &'static str,
    ) -> Result<Self, PciError> {
        Self::open_in(&Sysfs::system(), address, ids, what)
    }

    fn open_in(
        sysfs: &Sysfs,
        address: Address,
        ids: &[(u16, u16)],
        what: &'static str,
    ) -> Result<Self, PciError> {
        let access = match sysfs.way(address, ids, what)? {
            Way::Vfio { group } => Access::Vfio(vfio::Device::open(address, group)?),
            Way::Resource { folder } => {
                Access::Resource(Box::new(resource::Device::open(address, folder)?))
            }
        };
        let mut device = Self { address, command: 0, access };
        device.command = device.config_read32(COMMAND)? as u16;
        device.config_write16(COMMAND, device.command | MEMORY_SPACE)?;
        Ok(device)
    }

    /// Lets the device read and write memory by itself. To be called when its registers are known
    /// to be in order.
    pub fn set_bus_master(&mut self) -> Result<(), PciError> {
        let command = self.config_read32(COMMAND)? as u16;
        if let Access::Resource(device) = &mut self.access {
            device.watch(self.command)?;
        }
        self.config_write16(COMMAND, command | MEMORY_SPACE | BUS_MASTER)
    }

    /// The region of a base address register, whole.
    pub fn bar(&self, index: u32) -> Result<MappedBar, PciError> {
        match &self.access {
            Access::Vfio(device) => device.bar(index),
            Access::Resource(device) => device.bar(index),
        }
    }

    /// Memory that the device can reach.
    pub fn dma(&mut self) -> &mut dyn DmaSpace {
        match &mut self.access {
            Access::Vfio(device) => device,
            Access::Resource(device) => &mut **device,
        }
    }

    /// How the device is reached, for reports.
    pub fn way(&self) -> &'static str {
        match &self.access {
            Access::Vfio(_) => "VFIO, behind an IOMMU",
            Access::Resource(_) => "resource file and huge pages, without an IOMMU",
        }
    }

    /// A word of the configuration space.
    pub fn config_read32(&self, offset: u64) -> Result<u32, PciError> {
        let (file, start) = self.config();
        let mut bytes = [0; 4];
        let read = rustix::io::pread(file, &mut bytes, start + offset)
            .map_err(|errno| self.config_error(errno))?;
        // Without rights the kernel shows 64 bytes and ends the file there.
        if read < bytes.len() {
            Err(self.config_error(rustix::io::Errno::ACCESS))
        } else {
            Ok(u32::from_le_bytes(bytes))
        }
    }

    /// Writes half a word of the configuration space.
    pub fn config_write16(&self, offset: u64, value: u16) -> Result<(), PciError> {
        let (file, start) = self.config();
        rustix::io::pwrite(file, &value.to_le_bytes(), start + offset)
            .map_err(|errno| self.config_error(errno))?;
        Ok(())
    }

    fn config(&self) -> (rustix::fd::BorrowedFd<'_>, u64) {
        match &self.access {
            Access::Vfio(device) => device.config(),
            Access::Resource(device) => device.config(),
        }
    }

    fn config_error(&self, errno: rustix::io::Errno) -> PciError {
        PciError::os(self.address, "use its configuration space", errno)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A device that is gone needs nothing; there is nobody left to tell of anything else.
        let _ = self.config_write16(COMMAND, self.command);
    }
}

/// Reads a small file of sysfs.
fn read_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// The last part of what a symbolic link points to.
fn link_name(path: PathBuf) -> Option<String> {
    std::fs::read_link(path).ok()?.file_name()?.to_str().map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let full: Address = "0000:82:00.1".parse().unwrap();
        assert_eq!(full.to_string(), "0000:82:00.1");
        assert_eq!("82:00.1".parse::<Address>().unwrap(), full);
        for wrong in
            ["", "82", "82:00", "82:00.8", "82:20.0", "100:00.0", "x:00.0", "0:0:0:0.0", "+1:00.0"]
        {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
