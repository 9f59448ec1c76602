//! What sysfs tells about a PCI device: whether it is the right one, who holds it, and how it can
//! be reached.

use std::path::PathBuf;

use super::{Address, PciError, link_name, read_text};

/// The kernel's view of the bus, below `/sys/bus/pci`.
pub struct Sysfs {
    root: PathBuf,
}

/// How a device can be reached.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// It is bound to vfio-pci.
    Vfio { group: u32 },
    /// No driver holds it, and no IOMMU stands between it and memory.
    Resource { folder: PathBuf },
}

impl Sysfs {
    pub fn system() -> Self {
        Self::at("/sys/bus/pci")
    }

    /// Another folder of that shape, for tests.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn device(&self, address: Address) -> PathBuf {
        self.root.join("devices").join(address.to_string())
    }

    /// Looks at the device and finds the way, or why there is none.
    pub fn way(
        &self,
        address: Address,
        ids: &[(u16, u16)],
        what: &'static str,
    ) -> Result<Way, PciError> {
        if !self.root.join("devices").is_dir() {
            return Err(PciError::NoBus);
        }
        let folder = self.device(address);
        let Some(id) = self.id(address) else {
            return Err(PciError::Absent { address, what, present: self.present(ids) });
        };
        if !ids.contains(&id) {
            let id = format!("{:04x}:{:04x}", id.0, id.1);
            return Err(PciError::Other { address, id, what, present: self.present(ids) });
        }
        let group = link_name(folder.join("iommu_group")).and_then(|name| name.parse().ok());
        // With an identity domain the bus addresses are the physical ones.
        let iommu = group.is_some()
            && read_text(&folder.join("iommu_group/type")).as_deref() != Some("identity");
        match (link_name(folder.join("driver")).as_deref(), group) {
            (Some("vfio-pci"), Some(group)) => Ok(Way::Vfio { group }),
            (None | Some("uio_pci_generic" | "vfio-pci"), _) if !iommu => {
                Ok(Way::Resource { folder })
            }
            (None, _) => Err(PciError::NeedsVfio { address }),
            (Some(driver), _) => {
                let interface = std::fs::read_dir(folder.join("net"))
                    .ok()
                    .and_then(|mut names| names.next()?.ok());
                let interface =
                    interface.map(|name| name.file_name().to_string_lossy().into_owned());
                Err(PciError::Bound { address, driver: driver.into(), interface, iommu })
            }
        }
    }

    fn id(&self, address: Address) -> Option<(u16, u16)> {
        let number = |name: &str| {
            let text = read_text(&self.device(address).join(name))?;
            u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        Some((number("vendor")?, number("device")?))
    }

    /// The addresses of devices that would do.
    fn present(&self, ids: &[(u16, u16)]) -> Vec<String> {
        let names = std::fs::read_dir(self.root.join("devices")).into_iter().flatten().flatten();
        let addresses = names.filter_map(|name| name.file_name().to_str()?.parse::<Address>().ok());
        let mut addresses: Vec<_> = addresses
            .filter(|address| self.id(*address).is_some_and(|id| ids.contains(&id)))
            .collect();
        addresses.sort();
        addresses.iter().map(Address::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    const IDS: &[(u16, u16)] = &[(0x8086, 0x10fb)];

    /// A device in a made-up tree.
    fn device(root: &std::path::Path, address: &str, id: u16) -> PathBuf {
        let folder = root.join("devices").join(address);
        create_dir_all(&folder).unwrap();
        write(folder.join("vendor"), "0x8086\n").unwrap();
        write(folder.join("device"), format!("{id:#06x}\n")).unwrap();
        folder
    }

    fn way(root: &std::path::Path, address: &str) -> Result<Way, String> {
        let address = address.parse().unwrap();
        Sysfs::at(root).way(address, IDS, "an Intel 82599").map_err(|error| error.to_string())
    }

    #[test]
    fn every_reason_says_what_to_type() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(way(root, "01:00.0").unwrap_err().contains("no PCI bus"));
        create_dir_all(root.join("devices")).unwrap();
        assert!(
            way(root, "01:00.0")
                .unwrap_err()
                .contains("no PCI device at 0000:01:00.0; this machine has none")
        );

        let folder = device(root, "0000:01:00.0", 0x10fb);
        let absent = way(root, "02:00.0").unwrap_err();
        assert!(absent.contains("an Intel 82599 is at 0000:01:00.0"), "{absent}");
        device(root, "0000:03:00.0", 0x10d3);
        assert!(way(root, "03:00.0").unwrap_err().contains("(8086:10d3) is not an Intel 82599"));

        assert_eq!(way(root, "01:00.0"), Ok(Way::Resource { folder: folder.clone() }));
        symlink("../../drivers/ixgbe", folder.join("driver")).unwrap();
        create_dir_all(folder.join("net/eth2")).unwrap();
        let bound = way(root, "01:00.0").unwrap_err();
        assert!(bound.contains("driver ixgbe (interface eth2)"), "{bound}");
        assert!(bound.contains("echo 0000:01:00.0 > /sys/bus/pci/drivers/ixgbe/unbind"), "{bound}");
        assert!(!bound.contains("vfio-pci"), "{bound}");
    }

    #[test]
    fn behind_an_iommu_only_vfio_leads_to_memory() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let folder = device(root, "0000:01:00.0", 0x10fb);
        let group = root.join("iommu_groups/17");
        create_dir_all(&group).unwrap();
        symlink(&group, folder.join("iommu_group")).unwrap();
        write(group.join("type"), "DMA-FQ\n").unwrap();
        let unbound = way(root, "01:00.0").unwrap_err();
        assert!(
            unbound.contains("echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override"),
            "{unbound}"
        );
        write(group.join("type"), "identity\n").unwrap();
        assert_eq!(way(root, "01:00.0"), Ok(Way::Resource { folder: folder.clone() }));
        write(group.join("type"), "DMA\n").unwrap();
        symlink("../../drivers/ixgbe", folder.join("driver")).unwrap();
        let bound = way(root, "01:00.0").unwrap_err();
        assert!(bound.contains("drivers/ixgbe/unbind; modprobe vfio-pci"), "{bound}");
        std::fs::remove_file(folder.join("driver")).unwrap();
        symlink("../../drivers/vfio-pci", folder.join("driver")).unwrap();
        assert_eq!(way(root, "01:00.0"), Ok(Way::Vfio { group: 17 }));
    }
}
